"""Jars that only benchmarks and tests need: Ivy brings them from Maven Central when they are asked for."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import BenchmarkError
from lakehouse.runtime.jars import _ivy_jar
from lakehouse.settings import java
from lakehouse.storage.disk import locks

_IVY = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="lakehouse" module="benchmarks"/>
  <configurations>{confs}</configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_TIME_LIMIT = 600  # seconds


def fetched(
    home: Path,
    name: str,
    confs: tuple[str, ...],
    dependencies: str,
    then: Callable[[Path], None] = lambda fresh: None,
) -> Path:
    """The folder `home/name` with the jars of each configuration in a folder of its own, fetched if it is not there.

    `then` completes the folder before it takes its place. Raises BenchmarkError if they do not come.
    """
    there = home / name
    home.mkdir(parents=True, exist_ok=True)
    with locks.alone(home / ".lock", _TIME_LIMIT):
        if not there.exists():
            _fetch(there, confs, dependencies, then)
    return there


def _fetch(
    there: Path, confs: tuple[str, ...], dependencies: str, then: Callable[[Path], None]
) -> None:
    with tempfile.TemporaryDirectory(dir=there.parent, prefix=".fetching-") as folder:
        fresh, ivy = Path(folder, "jars"), Path(folder, "ivy.xml")
        declared = "".join(f'<conf name="{conf}"/>' for conf in confs)
        ivy.write_text(_IVY.format(confs=declared, dependencies=dependencies))
        pattern = f"{fresh}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
        command = [java(), f"-Divy.default.ivy.user.dir={folder}/ivy", "-jar", str(_ivy_jar())]
        command += ["-ivy", str(ivy), "-confs", *confs, "-retrieve", pattern]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT)
        if done.returncode:
            raise BenchmarkError(
                f"jars={there}: they must come from Maven Central and do not; {(done.stdout + done.stderr)[-500:]}"
            )
        then(fresh)
        os.rename(fresh, there)
