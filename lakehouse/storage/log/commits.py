"""What is known about a write of a table: its record in a Delta commit, and its line in the commit log and in `_commits`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal

from lakehouse.declare.table import Table
from lakehouse.ranges import Range
from lakehouse.storage.disk.notes import fields_of
from lakehouse.storage.disk.typed_values import typed

NOTHING = -1  # the version of a batch commit that found nothing to rewrite
# void: earlier lines of versions above its own hold no more
Role = Literal["stream", "batch", "reference", "void"]


@dataclass(frozen=True, slots=True)
class Commit:
    """One write of one table. Instants are aware UTC.

    `inputs`, `heads` and `readings` are maps as text keys to plain values.
    """

    table: str
    role: Role
    generation: int
    batch: int
    version: int
    at: datetime
    code_version: str
    arrived: int = 0  # streams: rows that entered (window tables: pairs of row and window)
    late: int = 0  # streams
    # least and greatest instant of what late rows missed (`lateness.counts`)
    late_from: datetime | None = None
    late_to: datetime | None = None
    quarantined: int = 0
    written: int = 0
    watermark: datetime | None = None  # in force for this batch
    frontier: datetime | None = None  # the table is complete behind it
    # offsets of a topic, versions of tables
    inputs: Mapping[str, Any] = field(default_factory=dict)
    # ingest tables: partition -> Head
    heads: Mapping[str, tuple[datetime, datetime]] = field(default_factory=dict)
    # of topics of change events: topic -> the first and the last reading of the database's table
    readings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    start: datetime | None = None  # batch runs: the range
    end: datetime | None = None
    run: int = 0  # batch runs of many units: the run's number
    left: int = 0  # and how many units of it were still to come
    seconds: float = 0.0

    @property
    def span(self) -> Range:
        """The range of a batch run."""
        assert self.start is not None and self.end is not None, self.role
        return Range(self.start, self.end)

    @property
    def filtered(self) -> int:
        """Rows that the transformation left out (streams of stateless tables)."""
        return self.arrived - self.late - self.quarantined - self.written

    def version_read(self, name: str) -> int:
        """The last version of an input that this commit of a stream read from: an offset names a version and a file in it."""
        offset = self.inputs["tables"][name]
        # a negative index: nothing of that version yet
        return offset["reservoirVersion"] - (offset["index"] < 0)


def unwritten(
    table: Table, role: Role, generation: int = 0, batch: int = 0, **known: Any
) -> Commit:
    """Returns the commit of a write that is not made yet, with what is known of it."""
    now, code_version = datetime.now(UTC), table.code_version
    return Commit(table.name, role, generation, batch, NOTHING, now, code_version, **known)


def decoded(line: str) -> Commit:
    values = json.loads(line)
    if values["role"] == "batch" and "run" not in values:  # an earlier version's line
        values |= {"run": values["generation"], "left": values["batch"]}
        values |= {"generation": 0, "batch": 0}
    return typed(Commit, values)


_DEFAULTS = {f.name: f.default for f in fields(Commit)} | {
    f.name: f.default_factory() for f in fields(Commit) if f.default_factory is not MISSING
}
_BY_PLACE = ("table", "version")  # a record need not say in which commit of which table it is


def recorded(commits: Iterable[Commit], mark: Mapping[str, Any], *, whole: bool = True) -> dict:
    """Returns the metadata of a Delta commit: `mark`, and the records of the `commits` that it makes.

    :param whole: whether nothing is to follow. Else a line of its own follows, which says more.
    """

    def differs(name: str, value: object) -> bool:
        return value != mark.get(name, _DEFAULTS[name])

    records = [
        {n: v for n, v in fields_of(commit).items() if n not in _BY_PLACE and differs(n, v)}
        for commit in commits
    ]
    return {**mark, "records": records, **({} if whole else {"unfinished": True})}


def records_of(table: str, version: int, metadata: str | None) -> tuple[list[Commit], bool]:
    """Returns the commits that the metadata of a Delta commit records, and whether these are whole.

    Metadata of other writers, and of earlier versions, record none.
    """
    try:
        mark = json.loads(metadata or "{}")
        shared = {name: mark[name] for name in _DEFAULTS if name in mark}
        placed = {"table": table, "version": version}
        commits = [typed(Commit, {**shared, **record, **placed}) for record in mark["records"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [], False
    return commits, "unfinished" not in mark
