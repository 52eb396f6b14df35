"""Class data sharing: a JVM maps its classes from an archive instead of reading and checking thousands in their jars.

It takes more than a quarter off the time in which a Spark session starts and runs its first
queries, and half the work off the start of the embedded broker. There is an archive for each of the
two. They are made once by a small run of everything (`tools/record_classes.py`, part of `make
setup`), for this Python environment and this java. A JVM that an archive does not fit
ignores it. It holds only what is on the class path: `session` puts Delta and Kafka's client there.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from lakehouse.runtime import jars
from lakehouse.settings import java

_LIMIT = 600.0  # seconds in which an archive is looked through


PROGRAMS = ("spark", "kafka")
"""The programs with an archive: Spark's driver and the embedded broker."""


def options(program: str) -> tuple[str, ...]:
    """Returns the options of the JVM of a program, one of PROGRAMS; none if there is no archive."""
    path = archive(program)
    if not path.exists():
        return ()
    return (f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def recording(to: Path) -> str:
    """Returns the option of a JVM that writes an archive of its classes as it ends."""
    return f"-XX:ArchiveClassesAtExit={to}"


def archive(of: str) -> Path:
    """Returns the path of the archive of `of` for this java and our jars, even if it is not there."""
    program = Path(java()).resolve()
    ours = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    # a JVM does not take the archive if one of its jars has another time
    own = jars.OWN.stat()
    parts = (jars.SUMS.read_bytes(), f"{own.st_size} {own.st_mtime_ns}".encode())
    made_of = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
    return Path(sys.prefix) / f"{of}-{ours}-{made_of}.jsa"


def missing() -> list[str]:
    """Returns the programs without an archive. Raises SettingsError or OSError without Java."""
    return [program for program in PROGRAMS if not archive(program).exists()]


def fits(path: Path) -> None:
    """Raises CalledProcessError if a JVM cannot use the archive: one that the disk had no room for would end it."""
    with tempfile.TemporaryDirectory() as folder:  # where a JVM that crashes writes down why
        command = [java(), f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces", "-version"]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT, check=True)
