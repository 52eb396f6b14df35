"""The queries of Nexmark, ours beside streams of Spark alone: events a second while each catches up, then seconds of a step.

    python -m benchmarks.nexmark [--events 100000] [--steps 3] [--step 1000] [--only q5_hot_items ...]

`make bench` runs it with what stands there. Exit code 1 if a table is not EQUAL to its batch run in the end, or a stream of
Spark's has other rows than ours: all of it is void then.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.measure import BenchmarkError
from benchmarks.nexmark.comparison import Size, run, show
from lakehouse.cli.console import out
from lakehouse.errors import LakehouseError
from lakehouse.settings import from_environment


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.nexmark", description=(__doc__ or "").splitlines()[0]
    )
    usual = Size()
    parser.add_argument(
        "--events", type=int, default=usual.events, help="of all topics, to catch up with"
    )
    parser.add_argument("--steps", type=int, default=usual.steps, help="of each query, then")
    parser.add_argument("--step", type=int, default=usual.step, help="events of a step")
    parser.add_argument("--only", nargs="+", default=[], metavar="TABLE", help="these queries")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--work", type=Path, help="folder for the tables; emptied at the end")
    given = parser.parse_args()
    console = out()
    with tempfile.TemporaryDirectory(prefix="lakehouse-nexmark-", dir=given.work) as work:
        base = replace(from_environment(), root=Path(work).resolve())
        try:
            found = run(base, Size(given.events, given.steps, given.step), given.only)
        except (BenchmarkError, LakehouseError) as err:
            console.print(f"void: {err}", style="red", markup=False)
            return 1
    show(console, found)
    if given.json:
        numbers = [asdict(each) | {"times": each.times} for each in found]
        given.json.write_text(json.dumps(numbers, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
