"""`lakehouse doctor`: checks that this machine has what a lakehouse needs, each with its remedy.

It starts nothing.
"""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from lakehouse.cli import console
from lakehouse.cli.console import AsJson
from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.settings import Settings, from_environment, java, settings_file
from lakehouse.storage.disk import files, root

_WANTED_JAVA = 17
_LITTLE = 2 << 30  # bytes
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "great-expectations")
_WITHIN = 5.0  # seconds for an answer of the broker


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `state`: ok, note (everything works, but), or fail."""

    check: str
    state: str
    found: str
    remedy: str = ""


def doctor(as_json: AsJson = False) -> None:
    """Check the settings, Java, jars, class archives, packages, root, broker, port, tables, and the folders that they read.

    Exit code 1 if something that is needed is missing.
    """
    results = list(findings(from_environment(required=False)))
    console.print_records(results, as_json)
    if any(finding.state == "fail" for finding in results):
        raise typer.Exit(1)


def findings(settings: Settings) -> Iterator[Finding]:
    checks = (
        _python, _settings, _java, _jars, _archives, _packages, _root, _broker, _port, _tables,
    )  # fmt: skip
    for check in checks:
        name = check.__name__.strip("_")
        try:
            yield check(settings, name)
        except LakehouseError as err:
            yield Finding(name, "fail", str(err))
        except Exception as err:
            # a user's module may raise anything; the other checks are still of use
            yield Finding(name, "fail", f"{type(err).__name__}: {err}", "correct what raises it")


def _python(settings: Settings, name: str) -> Finding:
    return Finding(name, "ok", f"{sys.version.split()[0]} at {sys.executable}")


def _settings(settings: Settings, name: str) -> Finding:
    try:
        from_environment()
    except SettingsError:
        return Finding(
            name,
            "note",
            f"no lakehouse.toml in {Path.cwd()} or above, so what follows is of the examples",
            "cd to a project, `lakehouse init DIRECTORY`, or `lakehouse --examples COMMAND`",
        )
    return Finding(name, "ok", str(settings_file() or "variables of the environment"))


def _java(settings: Settings, name: str) -> Finding:
    program = java()
    asked = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
    output = asked.stderr
    match = re.search(r'version "(\d+)', output)
    if not match or int(match[1]) < _WANTED_JAVA:
        answer = output.splitlines()[0] if output else "it says nothing"
        remedy = f"install Java {_WANTED_JAVA} or newer, or set JAVA_HOME to one"
        return Finding(name, "fail", f"{program}: {answer}", remedy)
    return Finding(name, "ok", f"{match[1]} at {program}")


def _jars(settings: Settings, name: str) -> Finding:
    from lakehouse.runtime import jars

    if not jars.are_there(settings.jars):
        remedy = "the first start fetches them (66 MB)"
        return Finding(name, "note", f"none in {settings.jars}", remedy)
    return Finding(name, "ok", f"in {settings.jars}")


def _archives(settings: Settings, name: str) -> Finding:
    """Reports a missing archive, which a JVM does without in silence."""
    from lakehouse.runtime import cds_archive

    try:
        missing = cds_archive.missing()
    except (OSError, SettingsError) as err:  # there is none for a java that is not there
        return Finding(name, "note", str(err), "install Java first")
    if missing:
        loss = f"none of classes of {', '.join(missing)}: each start takes ten seconds of CPU more"
        return Finding(name, "note", loss, "`make setup` in the checkout records them")
    return Finding(name, "ok", f"of classes, for {', '.join(cds_archive.PROGRAMS)}")


def _packages(settings: Settings, name: str) -> Finding:
    installed, missing = [], []
    for package in _PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        remedy = f"pip install {' '.join(missing)}"
        return Finding(name, "fail", f"missing: {', '.join(missing)}", remedy)
    return Finding(name, "ok", ", ".join(installed))


def _store(settings: Settings, name: str) -> Finding:
    """Returns whether the store keeps two writers apart, and how long its requests take."""
    try:
        write, read = root.seconds_of_store(settings)
    except SettingsError as err:
        what, _, remedy = str(err).partition("; ")
        return Finding(name, "fail", what, remedy)
    times = f"a write takes {write * 1000:.0f} ms, a read {read * 1000:.0f} ms (medians of ten)"
    return Finding(name, "ok", f"{settings.root} keeps two writers apart; {times}")


def _root(settings: Settings, name: str) -> Finding:
    if root.is_in_a_store(settings):
        return _store(settings, name)
    folder = root.nearest(settings)
    if not root.can_write(settings):
        remedy = "commands that only read do so; to write, give this user the right, or set LAKEHOUSE_ROOT to another folder"
        return Finding(name, "fail", f"{folder} cannot be written to", remedy)
    if root.others_read(settings):
        remedy = f"chmod 700 {settings.root}, unless they are meant to"
        remark = f"{settings.root}: other users of this machine can read it"
        return Finding(name, "note", remark, remedy)
    free = root.free(settings)
    if free < _LITTLE:
        remedy = "make room; streams wait while a disk is full"
        return Finding(name, "note", f"{settings.root}: {free >> 20:,} MiB free", remedy)
    made = "" if folder == settings.root else " (not made yet)"
    return Finding(name, "ok", f"{settings.root}{made}, {free >> 30:,} GiB free")


def _broker(settings: Settings, name: str) -> Finding:
    from lakehouse.runtime import kafka_address

    if not settings.bootstrap_servers and kafka_address.running(settings) is None:
        return Finding(name, "note", "the embedded broker does not run", "`lakehouse broker start`")
    from lakehouse.runtime import kafka_client

    topics = kafka_client.topics(settings, _WITHIN)
    address = kafka_address.bootstrap_servers(settings)
    return Finding(name, "ok", f"{address}, {len(topics)} topics")


def _port(settings: Settings, name: str) -> Finding:
    host, port = settings.metrics_host, settings.metrics_port
    with socket.socket() as probe:
        if port and probe.connect_ex((host, port)) == 0:
            remedy = "`lakehouse metrics` listens there, or something else does; LAKEHOUSE_METRICS_PORT names another"
            return Finding(name, "note", f"{host}:{port} is taken", remedy)
    return Finding(name, "ok", f"{host}:{port} is free for metrics")


def _tables(settings: Settings, name: str) -> Finding:
    from lakehouse.declare import catalog

    loaded = catalog.load(settings)
    summary = f"{len(list(loaded))} in {', '.join(loaded.pipelines())}"
    sources = [source for table in loaded for source in loaded.sources_of(table).values()]
    paths = sorted({source.local_path for source in sources if source.local_path})
    if away := [path for path in paths if not files.readable(Path(path))]:
        remedy = "make it, or mount its disk: a stream waits for it"
        return Finding(name, "note", f"{summary}; {', '.join(away)} cannot be read", remedy)
    return Finding(name, "ok", summary)
