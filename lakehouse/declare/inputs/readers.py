"""The contract of a class that reads a source of your own: `latest_offset` and `read` (`SourceReader`).

The steps of the ingest table (`lakehouse.stream.reading.own`) make an instance and call it, from one thread at a time. An
instance that has raised is closed and replaced by another.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

Value = str | bytes | Mapping[str, object]
"""The value of a record: text or bytes as they are, or the fields of a JSON object."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record of a source of your own that has more than a value.

    :param value: text or bytes as they are, or a mapping, which becomes a JSON object. None is quarantined as empty.
    :param key: stored with a quarantined record.
    :param timestamp: when the record was made, with its time zone; event times may not be far ahead of it. By default the
        time of the step that reads it.
    :param offset: its number, which only a `sparse` source must give.
    """

    value: Value | None
    key: str | bytes | None = None
    timestamp: datetime | None = None
    offset: int | None = None


class SourceReader(ABC):
    """Reads a source of your own: records with a partition and an offset, which is their number there.

    The same range always gives the same records, in the same order; `lakehouse.testing.assert_resettable` checks that.
    An error of a method means that the source is away: it is asked again until it answers.

    `sparse`: True if numbers may be missing. Then each record has its offset, and a range may have fewer than `end - start`.
    """

    sparse: ClassVar[bool] = False

    @abstractmethod
    def latest_offset(self) -> int | Mapping[int, int]:
        """Returns the offset after the last record; for a source with partitions, by partition number.

        All records before it can be read. It never goes back, and a partition that was named once is always named.
        """

    @abstractmethod
    def read(self, partition: int, start: int, end: int) -> Iterable[SourceRecord | Value]:
        """Returns the records from offset `start` to before `end`, in their order: `end - start` of them.

        A range may be read again, and an iterator may be left before its last record.
        """

    def earliest_offset(self) -> int | Mapping[int, int]:
        """Returns the first offset that can be read, in the form of `latest_offset`; 0 for a source that keeps all."""
        return 0

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Releases what the instance holds, such as a connection."""
