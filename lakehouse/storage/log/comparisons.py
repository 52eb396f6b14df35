"""Comparisons of a table with the version beside it, partition by partition.

The last line of a partition counts, with a checksum over the names of the files that both had in it.
So a partition is compared again once its files have changed in either version, and only then.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.ranges import Range, partition_range
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import remove
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.lakehouse import Lakehouse


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows of both versions in one partition of the declared one; how many are in one alone, or with other values.

    :param examples: a few of the rows that differ.
    :param files: a checksum over the names of the files that both had in the partition.
    """

    partition: str
    rows_before: int = 0
    rows_after: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    examples: tuple[str, ...] = ()
    files: str = ""

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.extra or self.changed)

    @property
    def counts(self) -> dict[str, str | int]:
        """Returns the values that are shown to people, by name."""
        return {n: v for n, v in asdict(self).items() if n not in ("examples", "files")}


def noted(settings: Settings, table: Table) -> dict[str, Compared]:
    """Returns the last comparison of each partition, by the partition."""
    found: dict[str, Compared] = {}
    for compared in _notes(settings, table).newest_first():
        found.setdefault(compared.partition, compared)
    return found


def note(settings: Settings, table: Table, compared: Iterable[Compared]) -> None:
    _notes(settings, table).append(*compared)


def forget(settings: Settings, table: Table) -> None:
    """Removes all comparisons, because none is of the two present versions."""
    remove(_notes(settings, table).path)


def _notes(settings: Settings, table: Table) -> Notes[Compared]:
    return Notes(layout.upgrade(settings, table.name, "compared.jsonl"), partial(typed, Compared))


def files_of(versions: Sequence[Lakehouse], table: Table, ahead: datetime) -> dict[str, str]:
    """Returns a checksum over the versions' file names, for each declared partition that begins before that instant.

    An older declaration may have had partitions of days where this one has hours.
    """
    names: dict[str, list[str]] = {}
    for number, of in enumerate(versions):
        for file in delta_log.files(of.path(table)):
            if key := file[f"partition.{PARTITION}"]:
                for partition in span_of(key).partitions(table.partition_by):
                    names.setdefault(partition, []).append(f"{number} {file['path']}")
    return {
        partition: hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()
        for partition, files in names.items()
        if partition_range(partition, table.partition_by).start < ahead
    }


def span_of(key: str) -> Range:
    """Returns the range of a partition by its key, which names an hour or a day."""
    return partition_range(key, "day" if len(key) == len("2026-01-01") else "hour")
