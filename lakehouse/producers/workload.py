"""The settings of a producer, its records, and the moments on which all pipelines are built."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

from lakehouse.errors import SettingsError

T = TypeVar("T")

ORDINARY, LATE, DUPLICATE, MALFORMED = "ordinary", "late", "duplicate", "malformed"


@dataclass(frozen=True, slots=True)
class Workload:
    """The speed, disorder and faults of a producer. With a start, they decide every byte that is sent."""

    seed: int = 1
    rate: int = 1_000  # events per second of event time; duplicates come on top
    disorder_ms: int = 100  # an ordinary event is sent up to this much after it happened
    late_share: float = 0.0
    # a late event is sent more than `disorder_ms` and up to this much after it happened
    late_by_ms: int = 60_000
    duplicate_share: float = 0.0  # sent twice, byte for byte
    malformed_share: float = 0.0
    partitions: int = 1
    # once an hour one device is cut off for this long, and then sends at once what it measured
    offline_ms: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_share") and not 0 <= value <= 1:
                raise SettingsError(
                    f"{field.name}={value}: a share lies between 0 and 1; write 0.01 for one in a hundred"
                )
        for name, least in (("rate", 1), ("partitions", 1), ("disorder_ms", 0), ("offline_ms", 0)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)}: at least {least}; raise it")
        shares = self.late_share + self.duplicate_share + self.malformed_share
        if shares > 1:
            raise SettingsError(
                f"late, duplicate and malformed shares={shares:g}: their sum is at most 1; lower one"
            )
        if self.late_share and self.late_by_ms <= self.disorder_ms:
            raise SettingsError(
                f"late_by_ms={self.late_by_ms}: late means later than disorder_ms={self.disorder_ms}; raise the first"
            )


class Record(NamedTuple):
    """One Kafka record to send, with its kind. `event_ms` is None if it is malformed."""

    key: bytes | None
    value: bytes | None
    partition: int
    time_ms: int  # the time of sending, and the record's timestamp in Kafka (CreateTime)
    event_ms: int | None
    kind: str  # ORDINARY, LATE, DUPLICATE (the second of two) or MALFORMED
    topic: str = ""  # if the pipeline has several


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of one pipeline's topic, with its default workload."""

    topic: str
    workload: Workload
    # pure; start and end in ms, end open or None
    records: Callable[[Workload, int, int | None], Iterator[Record]]
    malformed: Callable[[str, int], Record]  # one bad record, by kind and time in ms
    # makes records of existing lines, over n partitions
    lines: Callable[[Iterable[bytes], int], Iterator[Record]] | None = None
    # topics of one partition beside it, of which Kafka keeps the last record of each key
    compacted: tuple[str, ...] = ()
    # topics beside it that have as many partitions
    beside: tuple[str, ...] = ()


class Moment(NamedTuple):
    """The times at which an event is sent and happened, and its kind."""

    number: int
    time_ms: int
    event_ms: int
    kind: str


def moments(workload: Workload, start_ms: int, end_ms: int | None) -> Iterator[Moment]:
    """Yields the moments of the events sent in `[start_ms, end_ms)`, or without end from `start_ms`, evenly `rate` a second.

    No event happens after it is sent: only malformed records are ahead of their own timestamp.
    """
    # a generator of its own, so that the contents stay the same under other disorder
    rng = Random(f"moments {workload.seed}")
    shares = (workload.late_share, workload.duplicate_share, workload.malformed_share)
    kinds = draws(rng, (LATE, DUPLICATE, MALFORMED, ORDINARY), (*shares, 1 - sum(shares)))
    skews = draws(rng, range(workload.disorder_ms + 1))
    for index, kind, skew in zip(count(), kinds, skews, strict=False):
        # from the index, so that it never drifts
        time_ms = start_ms + index * 1000 // workload.rate
        if end_ms is not None and time_ms >= end_ms:
            return
        if kind == LATE:
            skew = rng.randint(workload.disorder_ms + 1, workload.late_by_ms)
        yield Moment(index, time_ms, time_ms - skew, kind)


def draws(rng: Random, pool: Sequence[T], weights: Sequence[float] | None = None) -> Iterator[T]:
    """Yields independent draws from `pool` without end."""
    while True:
        # many at once is three times as fast as one by one
        yield from rng.choices(pool, weights, k=1000)


def iso(ms: int) -> str:
    """Returns an instant as JSON events have it: 2026-11-21T10:00:00.123Z."""
    return f"{iso_second(ms // 1000)}.{ms % 1000:03d}Z"


def iso_second(s: int) -> str:
    """Returns a second as in `iso`: 2026-11-21T10:00:00."""
    return datetime.fromtimestamp(s, UTC).isoformat()[:19]
