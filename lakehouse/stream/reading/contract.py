"""What the steps of an ingest table ask of its sources: what `SourceReader` asks of a source of one's own, for whole ranges.

A position is the next offset of each partition of each address. A module for each kind of source has its reader
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

TURN = 0.1  # seconds between two looks whether there is something to do
Frames = Mapping[str, DataFrame | pa.Table]
"""Raw records by address."""
Say = Callable[[str], None]
"""Says what is amiss, once until something else is."""


@dataclass(frozen=True, slots=True)
class Records:
    """What one step reads of its sources."""

    begin: Offsets
    end: Offsets
    rows: int
    quiet: timedelta | None = None  # so long no record came, which the table is to know
    # by address, if they are in memory already
    here: Mapping[str, pa.Table] | None = None
    is_cut: bool = False  # a step that is taken though it has no rows: the history is read


class Receded(Exception):
    """A source ends before what was read of it: the text is said for a while, and then the error is raised."""

    def __init__(self, error: LakehouseError, said: str) -> None:
        super().__init__(said)
        self.error = error


class Reader(ABC):
    """Reads the sources of one ingest table, called from the thread of its query."""

    AWAY: ClassVar[tuple[type[LakehouseError], ...]]
    """The errors of a source that does not answer: it is waited for, unless the query is to end at the present."""
    watermark: datetime = BEGINNING
    """The least watermark of the rows that are read now."""
    remark: str | None = None
    """What else is to be known of the source, while its rows are read; None where it never says so."""
    available_now: bool = False

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        self.settings, self.table = settings, table
        self.sources = {source.address: source for source in sources}
        self.stopping = Event()

    def attend(self, stopping: Event, *, available_now: bool) -> None:
        """Reads for a query that ends when `stopping` is set, or, `available_now`, at the present."""
        self.stopping, self.available_now = stopping, available_now

    @abstractmethod
    def begins(self, last: "Written | Commit | None") -> Offsets:
        """Returns where a table goes on to read after its last commit. Raises what `AWAY` has, SourceError, CommitError."""

    @abstractmethod
    def latest_offset(self, at: Offsets) -> Offsets:
        """Returns the offsets after the last records. Raises what `AWAY` has, Receded, SourceError, CommitError."""

    @abstractmethod
    def earliest_offset(self, ends: Offsets) -> Offsets:
        """Returns the first offsets that can be read, where partitions are new."""

    @abstractmethod
    def read(self, begin: Offsets, end: Offsets) -> Records:
        """Reads a range, or its first part. No rows: nothing is between its offsets, or it is to be waited for."""

    @abstractmethod
    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        """Reads a whole range once more, by address; `at`: the time of the step that had read it."""

    @abstractmethod
    def verify(self, last: Commit) -> "Iterable[Checked]":
        """Compares the table with its sources up to this commit, partition by partition."""

    @abstractmethod
    def lost(self, last: Commit | None) -> list[Gap]:
        """Returns the offsets that were not read and that the sources do not have any more."""

    @abstractmethod
    def wait_out(self, err: LakehouseError, say: Say) -> None:
        """Says that the source is away, and waits a little. Raises the error where it is not waited for."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Lets go of what the thread held."""

    def rest(self, seconds: float) -> None:
        """Lets time pass until the next step is due."""
        self.stopping.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Returns when a record may have come, or it is time to ask `has_news` again."""
        self.stopping.wait(TURN)

    def has_news(self, at: Offsets, ends: Offsets) -> bool:
        """Whether there is more to be read, as far as is known."""
        return offset_ranges.between(at, ends) > 0

    @property
    def is_to_look(self) -> bool:
        """Whether it is time to ask the source what it has."""
        return False

    def next_range(self, at: Offsets, ends: Offsets, until: object) -> tuple[Offsets, Offsets]:
        """Returns what the next step may read; `until`: what was present when a query up to the present began."""
        if until is not None:
            ends = offset_ranges.up_to(ends, until)  # type: ignore[arg-type]  # `present` gave it
        return at, offset_ranges.limited(at, ends, self.settings.max_offsets_per_trigger)

    @abstractmethod
    def present(self) -> object:
        """Returns all that is there now, for `has_read`. Another thread may ask."""

    def has_read(self, present: object, at: Offsets) -> bool:
        """Whether all that was present then is read."""
        return not offset_ranges.between(at, present)  # type: ignore[arg-type]  # `present` gave it

    def ended(self) -> None:  # noqa: B027 - most leave nothing
        """Called when a query up to the present has read all. Raises SourceError for what it had to leave."""

    def trouble(self) -> str:
        """What is there and cannot be read as it is, while the rest is read."""
        return ""

    def explained(self, err: BaseException, at: Offsets) -> BaseException:
        """Returns what a failure means, where the source can say that better than by what was raised."""
        return err

    def unreadable(self, session: Session) -> list[str]:
        """Why its newest records could not be read as the declared columns. Raises RegistryAway, SourceAway."""
        return []
