"""The contract of what reads a source of one's own: a class with `latest_offset` and `read` (`SourceReader`).

The steps of the ingest table (`lakehouse.stream.reading.own`) make an instance and call it, from one thread at a time. An
instance that has raised is closed and replaced by another.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

Value = str | bytes | Mapping[str, object]
"""What a record says: text or bytes as they are, or the fields of a JSON object."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record of a source of one's own, where its value alone does not say all.

    :param value: text or bytes as they are, or a mapping, which becomes a JSON object. None is quarantined as empty.
    :param key: kept with a quarantined record.
    :param timestamp: when the record was made, with its time zone: event times may not be far ahead of it. By default the
        time of the step that reads it.
    :param offset: its number. It may be left out, unless the source is `sparse`.
    """

    value: Value | None
    key: str | bytes | None = None
    timestamp: datetime | None = None
    offset: int | None = None


class SourceReader(ABC):
    """Reads a source of one's own: records with a partition and an offset, which is their number there.

    The same range always gives the same records, in the same order, whoever asks: `lakehouse.testing.assert_resettable`
    looks whether it does. What a method raises means that the source is away: it is asked again until it answers.

    `sparse`: whether numbers may be missing. Then each record says its offset, and a range may have fewer than `end - start`.
    """

    sparse: ClassVar[bool] = False

    @abstractmethod
    def latest_offset(self) -> int | Mapping[int, int]:
        """The offset behind the last record; of a source with partitions, by the number of each.

        All before it is there and can be read. It never goes back, and a partition that was named once is always named.
        """

    @abstractmethod
    def read(self, partition: int, start: int, end: int) -> Iterable[SourceRecord | Value]:
        """The records from offset `start` on, before `end`, in their order: `end - start` of them.

        A range may be asked for again, and an iterator may be left before its last record.
        """

    def earliest_offset(self) -> int | Mapping[int, int]:
        """The first offset that can be read, given as `latest_offset` gives the last; 0 for a source that keeps all."""
        return 0

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Lets go of what the instance holds, such as a connection."""
