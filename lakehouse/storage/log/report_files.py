"""The files that were drawn of a report's partitions, each with the checksum of its rows.

    <table>__report/<partition>/<version>.html    the file drawn at that version of the table
    <table>__report/<partition>/current.json      the one that is of the rows that the table has now

The files of older versions stay as long as the settings keep such versions (`tidy`).
"""

import hashlib
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.paths import below
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import checksum, read_value, remove, replace_bytes, replace_file

_CURRENT = "current.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """The latest computation of a partition."""

    version: int  # the table's version
    rows: str  # the checksum of its rows then
    code_version: str
    file: str = ""  # its name; empty for a report without files
    checksum: str = ""  # the SHA-256 of the file


def keep(
    settings: Settings, table: Table, partition: str, version: int, rows: str, drawn: bytes | None
) -> None:
    """Keeps the file drawn of a partition at that version of the table: writes the file, and then the note that names it.

    If the rows have not changed since the last time, the version of that time stays.
    """
    folder, name, sha = layout.report_path(settings, table, partition), "", ""
    before = kept(settings, table, partition)
    if before and before.rows == rows:
        version = before.version
    if drawn is not None:
        assert table.report
        name, sha = f"{version}.{table.report.suffix}", hashlib.sha256(drawn).hexdigest()
        replace_bytes(folder / name, drawn)
    replace_file(folder / _CURRENT, asdict(Kept(version, rows, table.code_version, name, sha)))


def kept(settings: Settings, table: Table, partition: str) -> Kept | None:
    """Returns the latest computation of a partition; None if there was none."""
    path = layout.report_path(settings, table, partition) / _CURRENT
    meaning = (
        f"the report {table.name} of {partition} counts as not computed, and is computed again"
    )
    return read_value(path, Kept, meaning)


def file(settings: Settings, table: Table, partition: str) -> Path | None:
    """Returns the current file of a partition; None for a report without files, or before it is computed."""
    current = kept(settings, table, partition)
    if current is None or not current.file:
        return None
    return below(layout.report_path(settings, table, partition), current.file)


def fault(settings: Settings, table: Table, partition: str, rows: str) -> str:
    """Returns why a partition's file does not show these rows (a checksum); empty if it does, or if no file is drawn."""
    assert table.report
    if not table.report.draw:
        return ""
    folder, current = (
        layout.report_path(settings, table, partition),
        kept(settings, table, partition),
    )
    if current is None:
        return f"no file in {folder} is known to be of the table's rows"
    if not current.file or current.rows != rows:
        return f"{below(folder, current.file or _CURRENT)} is of version {current.version}, whose rows were others"
    now = checksum(below(folder, current.file))
    if now is None:
        return f"{below(folder, current.file)} is not there"
    return (
        ""
        if now == current.checksum
        else f"{below(folder, current.file)} was changed by another hand"
    )


def computed(settings: Settings, table: Table) -> set[str]:
    """Returns the partitions that were computed."""
    return {path.parent.name for path in layout.reports(settings, table).glob(f"*/{_CURRENT}")}


def tidy(settings: Settings, table: Table) -> None:
    """Removes files of older versions, once they are older than the settings keep such versions."""
    before = time.time() - duration(settings.history).total_seconds()
    for partition in computed(settings, table):
        for path in _older(settings, table, partition):
            if path.stat().st_mtime < before:
                remove(path)


def forget(settings: Settings, table: Table, partitions: Iterable[str]) -> None:
    """Removes the files of older versions of these partitions."""
    for partition in partitions:
        for path in _older(settings, table, partition):
            remove(path)


def _older(settings: Settings, table: Table, partition: str) -> list[Path]:
    current = kept(settings, table, partition)
    names = {_CURRENT, current.file if current else ""}
    folder = layout.report_path(settings, table, partition)
    return [path for path in folder.glob("*") if path.name not in names]
