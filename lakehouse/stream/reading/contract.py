"""The contract of an ingest table's steps with its sources: like `SourceReader` for a source of one's own, for whole ranges.

A position is the next offset of each partition of each address. Each kind of source has a module with its reader
(`registry`); a history and its topic are two readers and a cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.ranges import BEGINNING
from lakehouse.settings import Settings
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.session import Session
from lakehouse.stream.reading import offset_ranges
from lakehouse.stream.reading.offsets import Gap, Offsets

if TYPE_CHECKING:
    from lakehouse.storage.position.checkpoints import Written
    from lakehouse.stream.reading.checked import Checked

TURN = 0.1  # seconds between two checks for something to do
Frames = Mapping[str, DataFrame | pa.Table]
"""Raw records by address."""
Say = Callable[[str], None]
"""Reports a trouble: once, until there is another."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records that one step reads of its sources."""

    begin: Offsets
    end: Offsets
    rows: int
    quiet: timedelta | None = None  # how long no record came, if the table is to know
    # by address, if they are in memory already
    here: Mapping[str, pa.Table] | None = None
    is_cut: bool = False  # the step after a history, which is taken without rows


class Receded(Exception):
    """The sign that a source ends before what was read of it: its text is reported for a while, then the error is raised."""

    def __init__(self, error: LakehouseError, said: str) -> None:
        super().__init__(said)
        self.error = error


class Reader(ABC):
    """The reader of one ingest table's sources, called from the thread of its query."""

    AWAY: ClassVar[tuple[type[LakehouseError], ...]]
    """The errors of a source that does not answer: the query waits for it, unless it is to end at the present."""
    watermark: datetime = BEGINNING
    """The least watermark of the rows that are read now."""
    remark: str | None = None
    """A remark on the source, while its rows are read; None if the source never makes one."""
    available_now: bool = False

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        self.settings, self.table = settings, table
        self.sources = {source.address: source for source in sources}
        self.stopping = Event()

    def attend(self, stopping: Event, *, available_now: bool) -> None:
        """Sets the end of the query that it reads for: when `stopping` is set, or, `available_now`, at the present."""
        self.stopping, self.available_now = stopping, available_now

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
    def verify(self, last: Commit) -> "Iterable[Checked]":
        """Compares the table with its sources up to this commit, partition by partition."""

    @abstractmethod
    def lost(self, last: Commit | None) -> list[Gap]:
        """Returns the offsets that were not read and that the sources no longer have."""

    @abstractmethod
    def wait_out(self, err: LakehouseError, say: Say) -> None:
        """Reports that the source is away, and waits a little. Raises the error if the query does not wait."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Releases what the thread held."""

    def rest(self, seconds: float) -> None:
        """Lets time pass until the next step is due."""
        self.stopping.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Returns when a record may have come, or it is time to ask `has_news` again."""
        self.stopping.wait(TURN)

    def has_news(self, at: Offsets, ends: Offsets) -> bool:
        """Returns True if there is more to be read, as far as is known."""
        return offset_ranges.between(at, ends) > 0

    @property
    def is_to_look(self) -> bool:
        """Returns True if it is time to ask the source what it has."""
        return False

    def next_range(self, at: Offsets, ends: Offsets, until: object) -> tuple[Offsets, Offsets]:
        """Returns the range of the next step; `until`: what was present when a query up to the present began."""
        if until is not None:
            ends = offset_ranges.up_to(ends, until)  # type: ignore[arg-type]  # `present` gave it
        return at, offset_ranges.limited(at, ends, self.settings.max_offsets_per_trigger)

    @abstractmethod
    def present(self) -> object:
        """Returns all that is there now, for `has_read`. Another thread may call this."""

    def has_read(self, present: object, at: Offsets) -> bool:
        """Returns True if all that was present then is read."""
        return not offset_ranges.between(at, present)  # type: ignore[arg-type]  # `present` gave it

    def ended(self) -> None:  # noqa: B027 - most leave nothing
        """Raises SourceError for what a query up to the present had to leave, once it has read the rest."""

    def trouble(self) -> str:
        """Returns what is there and cannot be read as it is, while the rest is read."""
        return ""

    def explained(self, err: BaseException, at: Offsets) -> BaseException:
        """Returns a clearer error for a failure, if the source has one; else the error that was raised."""
        return err

    def unreadable(self, session: Session) -> list[str]:
        """Returns why the newest records could not be read as the declared columns. Raises RegistryAway, SourceAway."""
        return []
