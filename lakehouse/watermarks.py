"""The watermark of an ingest table: pure functions of the progress of each partition of its topics.

With `watermark_by`, each value of that column in each topic counts, too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b

MOST_VALUES = (
    1_000  # values that hold a watermark back; each costs a hundred bytes of each commit's line
)


@dataclass(frozen=True, slots=True)
class Head:
    """The progress of one partition of a topic, or one value in it: its latest event time, and the time of its last record."""

    event_time: datetime
    active: datetime


def watermark(
    before: datetime,
    heads: Mapping[str, Head],
    delay: timedelta,
    idle_timeout: Mapping[str, timedelta],
) -> datetime:
    """Returns the watermark after the batches before: the least head of the partitions that are not idle, less `delay`.

    It is the least over all topics of an ingest table, so that a partition or a topic read more slowly
    than the others does not make its rows late. A partition is idle if it had no record for its
    `idle_timeout` while another had one. They are measured against each other and not against a clock, so
    that a stopped job, or a topic with few records, makes none idle. The watermark never moves back.
    """
    if not heads:
        return before
    least = min(head.event_time for head in _awake(heads, idle_timeout).values())
    return max(before, least - delay)


def _awake(heads: Mapping[str, Head], idle_timeout: Mapping[str, timedelta]) -> dict[str, Head]:
    last = max(head.active for head in heads.values())
    return {key: head for key, head in heads.items() if last - head.active <= idle_timeout[key]}


class Silence:
    """The time that a source was watched without a record, and when to record it, in seconds of a clock.

    It is recorded first after `timeout`, if that is not 0, and then ever more rarely: a window that is still open
    closes late by a tenth of the silence at most, and a source that is quiet for a day costs a hundred commits.
    """

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._began = self._noted = now

    def broken(self, now: float) -> None:
        """Ends the silence: a record has come, or the source could not be watched."""
        self._began = self._noted = now

    def is_due(self, now: float) -> bool:
        longest = max(self._timeout, (now - self._began) / 10)
        return self._timeout > 0 and now - self._noted >= longest

    def passed(self, now: float) -> float:
        """Returns the silence to record now: 0 if none is due, else all that was not recorded yet."""
        if not self.is_due(now):
            return 0
        passed, self._noted = now - self._noted, now
        return passed


def advanced(
    heads: Mapping[str, Head], latest: Mapping[str, datetime], now: datetime
) -> dict[str, Head]:
    """Returns `heads` after a batch at `now` in which partition p had rows up to `latest[p]`."""
    moved = {
        p: Head(max(event_time, heads[p].event_time) if p in heads else event_time, now)
        for p, event_time in latest.items()
    }
    return dict(heads) | moved


@dataclass(frozen=True, slots=True)
class Holders:
    """The partitions and values that hold an ingest table's watermark back, each with its `idle_timeout`."""

    partitions: Mapping[str, timedelta]  # by the names of their heads
    topics: Mapping[str, timedelta]
    column: str = ""  # each value of it, in each of the topics, holds it back as a partition does

    def named(self, latest: Mapping[tuple[str, str], datetime]) -> dict[str, datetime]:
        """Returns the latest event times of values (topic, value) by the names of their heads.

        A name has a hash of the value: it is always short, and no log names a person who is to be erased.
        """
        return {
            self._prefix(topic) + blake2b(value.encode(), digest_size=8).hexdigest(): moment
            for (topic, value), moment in latest.items()
            if topic in self.topics
        }

    def heads(self, committed: Mapping[str, tuple[datetime, datetime]]) -> dict[str, Head]:
        """Returns the heads of a commit, without those of another column or of partitions that are gone."""
        idle = self._idle_timeouts(committed)
        return {name: Head(*head) for name, head in committed.items() if name in idle}

    def advanced(
        self, heads: Mapping[str, Head], latest: Mapping[str, datetime], now: datetime
    ) -> dict[str, Head]:
        """Returns `heads` as the function of that name. An idle value is forgotten, and is new when it comes back.

        Beyond `MOST_VALUES`, the values without a row for the longest time are forgotten, of these the ones
        furthest ahead first: a column of too many values must not end the stream.
        """
        moved = advanced(heads, latest, now)
        if not self.column or not moved:
            return moved
        awake = _awake(moved, self._idle_timeouts(moved))
        values = [name for name in awake if name not in self.partitions]
        values.sort(key=lambda name: (now - moved[name].active, moved[name].event_time, name))
        names = {*self.partitions, *values[:MOST_VALUES]}
        return {name: head for name, head in moved.items() if name in names}

    def is_full(self, heads: Mapping[str, Head]) -> bool:
        """Returns True if as many values hold the watermark back as may."""
        return len(heads.keys() - self.partitions.keys()) >= MOST_VALUES

    def watermark(self, before: datetime, heads: Mapping[str, Head], delay: timedelta) -> datetime:
        """Returns the watermark as the function of that name."""
        return watermark(before, heads, delay, self._idle_timeouts(heads))

    def _idle_timeouts(self, names: Collection[str]) -> dict[str, timedelta]:
        values = {
            name: idle
            for topic, idle in self.topics.items()
            for name in (names if self.column else ())
            if name.startswith(self._prefix(topic))
        }
        return {**self.partitions, **values}

    def _prefix(self, topic: str) -> str:
        # no topic's name has a colon, so it is no partition's
        return f"{topic}:{self.column}="
