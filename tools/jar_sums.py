"""Writes the sums of the jars that `ivy.xml` and `ivy-s3.xml` name, after a change of one: `python -m tools.jar_sums`.

Nothing is compared: read what changed in the sums before you commit it.
"""

import sys
import tempfile
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.runtime import jars


def main() -> int:
    """Fetches the jars, writes their sums, and resolves them in the settings' folder."""
    for each in (jars.COMMON, jars.S3):
        print(f"fetching the jars of {each.ivy.name} ({each.size} MB)", flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="jars-") as folder:
                home = Path(folder, "home")
                jars.retrieve(Path(folder, "ivy"), home, each)
                each.sums.write_text(jars.sums_of(home))
        except LakehouseError as err:
            print(err, file=sys.stderr)
            return 1
        print(f"written: {each.sums}; read what changed in it before you commit it", flush=True)
    return jars.main()


if __name__ == "__main__":
    sys.exit(main())
