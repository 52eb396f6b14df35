"""Compiles `lakehouse/runtime/java` into the jar of the library's own classes: `python -m tools.java_classes`.

The jar is kept with its sources, and is made again if they have changed. Only that needs a JDK.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lakehouse.errors import JarsError
from lakehouse.runtime import jars
from lakehouse.runtime.jars import OWN
from lakehouse.settings import from_environment, java

SOURCES = OWN.with_name("java")
_SUM = "META-INF/sources.sha256"
_RELEASE = "17"  # of Java, the oldest that Spark runs on
_AT = (2026, 1, 1, 0, 0, 0)  # of each file, so that the same sources give the same jar


def sum_of_sources() -> str:
    """The sum of all sources with their names."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.java")):
        digest.update(f"{source.name} {hashlib.sha256(source.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def sum_of_jar() -> str:
    """The sum of the sources that the jar was made of; empty if there is no jar."""
    try:
        with zipfile.ZipFile(OWN) as jar:
            return jar.read(_SUM).decode()
    except FileNotFoundError:
        return ""


def compiler() -> str:
    """The `javac` beside the `java` that is used, or on the PATH; empty if there is none."""
    beside = Path(java()).resolve().with_name("javac")
    return str(beside) if beside.exists() else shutil.which("javac") or ""


def make(to: Path = OWN) -> None:
    """Compiles the sources into a jar. Raises JarsError."""
    import pyspark

    if not (javac := compiler()):
        raise JarsError(
            f"jar={to}: it is made of {SOURCES} by javac, and there is none; install a JDK (Debian and Ubuntu: apt install "
            "default-jdk-headless)"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [javac, "--release", _RELEASE, "-nowarn", "-proc:none", "-d", folder]
        ours = map(str, jars.resolve(from_environment(required=False).jars).spark)
        command += ["-cp", ":".join([str(Path(pyspark.__file__).parent / "jars" / "*"), *ours])]
        command += map(str, sorted(SOURCES.glob("*.java")))
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise JarsError(f"jar={to}: javac must compile {SOURCES} and does not: {run.stderr}")
        files = {str(f.relative_to(folder)): f.read_bytes() for f in Path(folder).rglob("*.class")}
    beside = to.with_suffix(".tmp")
    with zipfile.ZipFile(beside, "w") as jar:
        for name, content in sorted((files | {_SUM: sum_of_sources().encode()}).items()):
            jar.writestr(zipfile.ZipInfo(name, _AT), content, zipfile.ZIP_DEFLATED)
    beside.rename(to)


def main() -> int:
    """Makes the jar, unless it is of these sources."""
    if sum_of_jar() == sum_of_sources():
        return 0
    try:
        make()
    except JarsError as err:
        print(err, file=sys.stderr)
        return 1
    print(f"written: {OWN}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
