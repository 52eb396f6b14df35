"""Class data sharing: the JVM maps Spark's classes from an archive instead of reading and checking thousands in their jars.

It takes more than a quarter off the time in which a session starts and runs its first queries. The
archive is made once by a small run of everything (`python -m lakehouse.cli.record_classes`, part of
`make setup`), for this Python environment and this java. A JVM that it does not fit ignores it. It
holds only what is on the class path: `session` puts Delta and Kafka's client there.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lakehouse.runtime import jars
from lakehouse.settings import java

# run by its name: it stands on all that is above this room
_RECORDING = "lakehouse.cli.record_classes"
_LIMIT = 600.0  # seconds; a machine with other work takes minutes


def options() -> str:
    """The options of our JVMs; empty if there is no archive."""
    found = archive()
    return (
        f"-XX:SharedArchiveFile={found} -Xlog:cds=off -Xlog:cds+dynamic=off"
        if found.exists()
        else ""
    )


def archive() -> Path:
    """The archive for the java that Spark runs on, of our jars and of what is recorded now, whether it is there or not."""
    program = Path(java()).resolve()
    ours = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    made_of = hashlib.sha256(jars.SUMS.read_bytes() + _recording().read_bytes()).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-{ours}-{made_of}.jsa"


def _recording() -> Path:
    found = importlib.util.find_spec(_RECORDING)
    assert found is not None and found.origin is not None  # a module of ours
    return Path(found.origin)


def make() -> bool:
    """Makes the archive if it is not there.

    False if that did not succeed, and everything is just slower.
    """
    wanted = archive()
    if wanted.exists():
        return True
    beside = wanted.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [sys.executable, "-m", _RECORDING, str(beside)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT,
            check=True,
        )
        fits(beside)
        # 200 MB each, and of use to nobody
        for before in wanted.parent.glob(f"{wanted.stem.rpartition('-')[0]}*.jsa"):
            before.unlink()
        beside.rename(wanted)
    except (subprocess.SubprocessError, OSError):
        beside.unlink(missing_ok=True)
        return False
    return True


def fits(found: Path) -> None:
    """Raises CalledProcessError if a JVM does not stand the archive: one that the disk had no room for would end it."""
    with tempfile.TemporaryDirectory() as folder:  # where a JVM that crashes writes down why
        command = [java(), f"-XX:SharedArchiveFile={found}", "-XX:+VerifySharedSpaces", "-version"]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT, check=True)
