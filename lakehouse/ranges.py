"""Ranges of event time, and partitions as ranges: plain values, without Spark."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from lakehouse.errors import RangeError

PartitionBy = Literal["hour", "day"]
PARTITION_LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # from which instants and windows are counted
# the watermark and the frontier before there is any: no event time is as early (`check_event_time`), so nothing is late
# against it. Nanoseconds of 64 bits begin in 1677, the calendar of java.sql.Timestamp differs before 1582.
BEGINNING = datetime(1678, 1, 1, tzinfo=UTC)
OPEN_END = datetime(9999, 1, 1, tzinfo=UTC)  # the end of a range that is open at its end
FORMATS = {"hour": ("%Y-%m-%d-%H", "yyyy-MM-dd-HH"), "day": ("%Y-%m-%d", "yyyy-MM-dd")}


@dataclass(frozen=True, slots=True)
class Range:
    """`[start, end)` of event time, UTC, half-open."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise RangeError(
                f"range={self}: both ends need a time zone; write for example 2026-01-01T00:00:00Z"
            )
        if self.end <= self.start:
            raise RangeError(
                f"range={self}: the end lies after the start (half-open); nothing would be computed"
            )

    def __str__(self) -> str:
        return f"[{text(self.start)}, {text(self.end)})"

    def overlaps(self, other: "Range") -> bool:
        return self.start < other.end and other.start < self.end

    def covers(self, partition: str, length: PartitionBy) -> bool:
        """Returns True if the whole partition lies in the range."""
        whole = partition_range(partition, length)
        return self.start <= whole.start and whole.end <= self.end

    def aligned(self, length: PartitionBy) -> bool:
        return (
            floor(self.start, PARTITION_LENGTHS[length]) == self.start
            and floor(self.end, PARTITION_LENGTHS[length]) == self.end
        )

    def partitions(self, length: PartitionBy) -> Iterator[str]:
        """Yields the keys of the partitions that the range touches, in order."""
        instant = floor(self.start, PARTITION_LENGTHS[length])
        while instant < self.end:
            yield instant.strftime(partition_format(length))
            instant += PARTITION_LENGTHS[length]


def optional_range(start: datetime | None, end: datetime | None) -> Range | None:
    """Returns the range; None without both ends. Raises RangeError for one end alone."""
    if (start is None) != (end is None):
        raise RangeError(
            f"start={start}, end={end}: a range has two ends; give both, or neither for all that there is"
        )
    return Range(start, end) if start and end else None


def parse_range(start: str, end: str) -> Range:
    """Returns a range from two ISO 8601 instants; without a zone they are UTC. Raises RangeError."""
    return Range(parse_instant(start, "start"), parse_instant(end, "end"))


def parse_instant(value: str, field: str = "instant") -> datetime:
    """Returns an ISO 8601 instant as aware UTC; without a zone it is UTC. Raises RangeError."""
    try:
        instant = datetime.fromisoformat(value)
    except ValueError as err:
        raise RangeError(
            f"{field}={value!r}: an ISO 8601 instant; write for example 2026-01-01T00:00:00Z"
        ) from err
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def utc(moment: datetime) -> datetime:
    """Returns a timestamp of Spark's, which PySpark returns as naive local time, in UTC."""
    return moment.astimezone(UTC)


def text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def brief(partitions: Sequence[str]) -> str:
    """Returns partitions in order as a line names them: all of a few, else the first and the last."""
    if len(partitions) <= 4:
        return ", ".join(partitions)
    return f"{partitions[0]} .. {partitions[-1]} ({len(partitions)})"


def past_beginning(instant: datetime | None) -> datetime | None:
    """Returns a watermark or a frontier as it is shown to people; None if there is none yet."""
    return instant if instant and instant > BEGINNING else None


def micros(value: int | None) -> datetime | None:
    """Returns an instant from microseconds since the epoch."""
    return None if value is None else EPOCH + timedelta(microseconds=value)


def floor(instant: datetime, span: timedelta) -> datetime:
    return instant - (instant - EPOCH) % span


def partition_format(length: PartitionBy) -> str:
    """Returns the strftime format of a partition's key; Dagster's partitions use the same."""
    return FORMATS[length][0]


def partition_range(partition: str, length: PartitionBy) -> Range:
    start = datetime.strptime(partition, partition_format(length)).replace(tzinfo=UTC)
    return Range(start, start + PARTITION_LENGTHS[length])


def widened(span: Range, by: timedelta) -> Range:
    return Range(span.start - by, span.end + by)


def joined(spans: Iterable[Range]) -> list[Range]:
    """Returns the ranges, given in the order of their starts, with those that touch joined."""
    merged: list[Range] = []
    for span in spans:
        if merged and span.start <= merged[-1].end:
            span = Range(merged[-1].start, max(merged.pop().end, span.end))
        merged.append(span)
    return merged
