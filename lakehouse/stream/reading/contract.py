"""The contract of an ingest table's steps with its sources: like `SourceReader` for a source of one's own, for whole ranges.

A position is the next offset of each partition of each address. Each kind of source has a module (`registry`) with its
reader, and with its check (`checked`), which commands ask. A history and its topic are two readers and a cut.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.session import Session
from lakehouse.stream.reading import offset_ranges
from lakehouse.stream.reading.offsets import Offsets

if TYPE_CHECKING:
    from lakehouse.storage.position.checkpoints import Written

TURN = 0.1  # seconds between two checks for something to do
Frames = Mapping[str, DataFrame | pa.Table]
"""Raw records by address."""


class Query(Protocol):
    """The query that a reader reads for. It ends when `stopping` is set, or, `available_now`, at the present."""

    stopping: Event
    available_now: bool


@dataclass(frozen=True, slots=True)
class Records:
    """The records that one step reads of its sources."""

    begin: Offsets
    end: Offsets
    rows: int
    quiet: timedelta | None = None  # how long no record came, if the table is to know
    # by address, if they are in memory already
    here: Mapping[str, pa.Table] | None = None
    cut: datetime | None = (
        None  # of the step after a history, taken without rows: the least watermark from then on
    )


@dataclass(frozen=True, slots=True)
class Present:
    """All that the sources had at one time."""

    ends: Offsets  # the next offsets by then, where what was there has offsets
    is_read: Callable[[Offsets], bool]
    """Returns True if all of it lies before a position."""

    @classmethod
    def before(cls, ends: Offsets) -> "Present":
        """Returns all that lies before these offsets."""
        return cls(ends, lambda at: not offset_ranges.between(at, ends))


class Looks:
    """The pauses between looks at a source: `least` seconds, or longer, so that looks take one part in `share` of the time."""

    def __init__(self, least: float, share: int = 0) -> None:
        self.least, self.share = least, share
        self.due = time.monotonic()

    @property
    def due_in(self) -> float:
        """Returns the seconds until the next look."""
        return max(self.due - time.monotonic(), 0)

    @property
    def is_due(self) -> bool:
        return not self.due_in

    @contextmanager
    def look(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - started
            self.due = started + max(self.least, self.share * took)


class Receded(Exception):
    """The sign that a source ends before what was read of it: its text is reported for a while, then the error is raised."""

    def __init__(self, error: LakehouseError, said: str) -> None:
        super().__init__(said)
        self.error = error


class Reader(ABC):
    """The reader of one ingest table's sources, called from the thread of its query."""

    AWAY: ClassVar[tuple[type[LakehouseError], ...]]
    """The errors of a source that does not answer: the query waits for it, unless it is to end at the present."""
    looks: Looks
    """The times at which the source is asked what it has, though nothing says that there is more."""
    refused = ""
    """The text of what a query up to the present cannot read. It fails with it once it has read the rest."""
    trouble = ""
    """The text of what cannot be read as it is, while the rest is read."""
    remark: str | None = None
    """A remark on the source, while its rows are read; None if the source never makes one."""
    query: Query

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        self.settings, self.table = settings, table
        self.sources = {source.address: source for source in sources}

    @abstractmethod
    def begins(self, last: "Written | Commit | None") -> Offsets:
        """Returns where a table resumes after its last commit. Raises the errors of `AWAY`, SourceError, CommitError."""

    @abstractmethod
    def latest_offset(self, at: Offsets) -> Offsets:
        """Returns the offsets after the last records. Raises the errors of `AWAY`, Receded, SourceError, CommitError."""

    @abstractmethod
    def earliest_offset(self, ends: Offsets) -> Offsets:
        """Returns the first offsets that can be read, for partitions that are new."""

    @abstractmethod
    def read(self, begin: Offsets, end: Offsets) -> Records:
        """Reads a range, or its first part. Without rows, nothing is between its offsets, or the query must wait."""

    @abstractmethod
    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        """Reads a whole range again, by address; `at`: the time of the step that had read it."""

    @abstractmethod
    def present(self) -> Present:
        """Returns all that is there now. Another thread may call this. Raises the errors of `AWAY`."""

    @abstractmethod
    def away(self, err: LakehouseError) -> tuple[str, float]:
        """Returns what to report of a source that is away, and the seconds until it is asked again.

        Raises the error if the query does not wait for it.
        """

    def wait(self, seconds: float, *, to_the_end: bool = False) -> bool:
        """Waits, and returns True if the source has more, as far as is known. It returns early unless `to_the_end`."""
        self.query.stopping.wait(seconds if to_the_end else min(seconds, TURN))
        return False

    def explained(self, err: BaseException, at: Offsets) -> BaseException:
        """Returns a clearer error for a failure, if the source has one; else the error that was raised."""
        return err

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Releases what the thread held."""
