"""The jars that pip does not bring: Delta and the Kafka connector for Spark, and a whole Kafka broker.

Resolved once by the Ivy that PySpark ships, from `ivy.xml`, and for a root in S3 from `ivy-s3.xml`; each must have
the sum that `jars.sha256`, or `jars-s3.sha256`, names. They lie in a folder named after those sums, so that checkouts
of different versions share `settings.jars` in peace. `python -m lakehouse.runtime.jars` resolves them ahead of
the first run. The library's own classes are a jar of the package.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lakehouse.errors import JarsError, LakehouseError
from lakehouse.settings import from_environment, java
from lakehouse.storage.disk import locks

IVY = Path(__file__).with_name("ivy.xml")
SUMS = Path(__file__).with_name("jars.sha256")
OWN = Path(__file__).with_name("lakehouse.jar")
_TIME_LIMIT = 900  # seconds for Ivy; 66 MB over a slow line


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that are resolved together: Ivy's file, the file of their sums, the folders they come to, and their megabytes."""

    ivy: Path
    sums: Path
    roles: tuple[str, ...]
    size: int


COMMON = JarSet(IVY, SUMS, ("spark", "kafka"), 66)
S3 = JarSet(IVY.with_name("ivy-s3.xml"), IVY.with_name("jars-s3.sha256"), ("s3",), 13)


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars by role: `spark` joins Spark's own (`spark.jars`), `kafka` is the broker's whole class path."""

    spark: tuple[Path, ...]
    kafka: tuple[Path, ...]


def resolve(jars_dir: Path, progress: Callable[[str], None] | None = None) -> Jars:
    """Returns the jars under `jars_dir`, downloaded first if they are not there. Raises JarsError if one is not as checked in."""
    return Jars(*_resolved(jars_dir, COMMON, progress))


def resolve_s3(jars_dir: Path) -> tuple[Path, ...]:
    """Returns the jars by which Spark reads and writes S3, otherwise as `resolve`."""
    return _resolved(jars_dir, S3, None)[0]


def _resolved(
    jars_dir: Path, of: JarSet, progress: Callable[[str], None] | None
) -> list[tuple[Path, ...]]:
    """Returns the jars of a set, by role.

    Several processes may call it at once. Calls after the first compare sizes and times only.
    """
    jars_dir = jars_dir.expanduser()  # settings that are made in code may begin with ~
    home = _home(jars_dir, of)
    if not _seen_before(home):
        message = f"jars={jars_dir}: another process has been resolving for {_TIME_LIMIT} s; end it"
        lock = jars_dir / ".lock"
        try:
            with locks.alone(lock, _TIME_LIMIT, refusal=lambda holder: JarsError(message)):
                if not home.exists():
                    _download(home, of, progress or (lambda line: None))
                elif not _seen_before(home):
                    verify(home, of)
        except OSError as err:
            raise JarsError(
                f"jars={jars_dir}: the jars are kept there, once for all checkouts; {err}"
            ) from err
    return [tuple(sorted((home / role).glob("*.jar"))) for role in of.roles]


def verify(home: Path, of: JarSet = COMMON) -> None:
    """Compares every jar under `home` with its sum, and notes its size and time. Raises JarsError with the names of the jars."""
    expected, present = (
        {name: digest for digest, name in map(str.split, text.splitlines())}
        for text in (of.sums.read_text(), sums_of(home))
    )
    wrong = [f"{name} is missing" for name in sorted(expected.keys() - present.keys())]
    wrong += [f"{name} is not among them" for name in sorted(present.keys() - expected.keys())]
    wrong += [
        f"{name} has another SHA-256 sum"
        for name in sorted(expected.keys() & present.keys())
        if present[name] != expected[name]
    ]
    if wrong:
        raise JarsError(
            f"jars={home}: exactly the jars of {of.sums.name}, bit for bit, may run; {'; '.join(wrong)}."
            " Delete the folder and run again to download them again"
        )
    (home / ".verified").write_text(_stats(home))


def sums_of(home: Path) -> str:
    """Returns the jars under `home` as a file of sums has them: a line for each, its SHA-256 sum and its role and name."""
    sums = ((hashlib.sha256(jar.read_bytes()).hexdigest(), jar) for jar in _jars(home))
    return "".join(f"{digest}  {jar.relative_to(home)}\n" for digest, jar in sums)


def are_there(jars_dir: Path) -> bool:
    """Returns True if the jars are under `jars_dir` already, so that a start need not fetch them."""
    return _seen_before(_home(jars_dir.expanduser(), COMMON))


def _home(jars_dir: Path, of: JarSet) -> Path:
    return jars_dir / hashlib.sha256(of.sums.read_bytes()).hexdigest()[:12]


def _jars(home: Path) -> list[Path]:
    return sorted(home.glob("*/*.jar"))


def _seen_before(home: Path) -> bool:
    """Returns True if every jar has the size and time it had when its sum was checked. It takes milliseconds."""
    try:
        return (home / ".verified").read_text() == _stats(home)
    except OSError:
        return False


def _stats(home: Path) -> str:
    stats = ((jar.relative_to(home), jar.stat()) for jar in _jars(home))
    return "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in stats)


def _download(home: Path, of: JarSet, progress: Callable[[str], None]) -> None:
    # kept when a download breaks, so that the next one goes on from there
    cache = home.parent / ".ivy"
    count = len(of.sums.read_text().splitlines())
    progress(f"downloading {count} jars to {home} ({of.size} MB, once)")
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".resolving-") as folder:
        fresh = Path(folder, home.name)
        retrieve(cache, fresh, of)
        try:
            verify(fresh, of)
        finally:
            # served its time; or holds a jar that we refuse
            shutil.rmtree(cache, ignore_errors=True)
        os.rename(fresh, home)
    progress("they are in place, each as checked in")


def retrieve(cache: Path, home: Path, of: JarSet = COMMON) -> None:
    """Downloads what Ivy's file of a set names to `home`, by Ivy and a folder of its own. Raises JarsError."""
    pattern = f"{home}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    command = [java(), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(_ivy_jar())]
    command += ["-ivy", str(of.ivy), "-cache", str(cache / "cache")]
    command += ["-confs", *of.roles, "-retrieve", pattern]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT)
    except subprocess.TimeoutExpired as err:
        raise JarsError(
            f"jars: Ivy had {_TIME_LIMIT} s and was not done; run again, it goes on where it was"
        ) from err
    if run.returncode != 0:
        output = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        last = "\n  ".join(line for line in output[-8:] if not line.startswith("at "))
        raise JarsError(
            f"jars: Ivy must reach Maven Central the first time and could not. It said:\n  {last}"
        )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that costs 0.3 s
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise JarsError(
        "jars: pip's pyspark brings the Ivy that resolves them, and none is installed; run `make setup`"
    )


def main() -> int:
    """Resolves the jars of the settings' folder, and returns 0, silently if they are there and as checked in."""
    folder = from_environment(required=False).jars
    try:
        resolve(folder, progress=lambda line: print(line, flush=True))
    except LakehouseError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
