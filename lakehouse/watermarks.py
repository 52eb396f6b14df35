"""The watermark of an ingest table: pure functions of how far each partition of its topics has come."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Head:
    """How far one partition of a topic has come: its latest event time, and when it last had a record."""

    event_time: datetime
    active: datetime


def watermark(
    before: datetime,
    heads: Mapping[str, Head],
    delay: timedelta,
    idle_timeout: Mapping[str, timedelta],
) -> datetime:
    """The watermark that follows from the batches before: the least head of the partitions not idle, less `delay`.

    The least over all topics of an ingest table, and not the greatest, so that a partition or a topic read
    more slowly than the others does not make its rows late. Idle is a partition that had no record
    for its `idle_timeout` while another had: measured against each other and not against a clock,
    so that a stopped job, or a topic with few records, silences nobody. It never moves back.
    """
    if not heads:
        return before
    last = max(h.active for h in heads.values())
    awake = (h.event_time for key, h in heads.items() if last - h.active <= idle_timeout[key])
    return max(before, min(awake) - delay)


class Silence:
    """How long a source has been watched without a record; when that is to be noted, in seconds of a clock.

    First after `timeout`, if that is not 0, and then ever more rarely: a window that is still open closes late
    by a tenth of the silence at most, and a source that is quiet for a day costs a hundred commits.
    """

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._began = self._noted = now

    def broken(self, now: float) -> None:
        """A record has come, or the source could not be watched: what passed until now does not count."""
        self._began = self._noted = now

    def is_due(self, now: float) -> bool:
        longest = max(self._timeout, (now - self._began) / 10)
        return self._timeout > 0 and now - self._noted >= longest

    def passed(self, now: float) -> float:
        """How much of the silence is to be noted now: 0 if nothing is, and else all that was not yet."""
        if not self.is_due(now):
            return 0
        passed, self._noted = now - self._noted, now
        return passed


def advanced(
    heads: Mapping[str, Head], latest: Mapping[str, datetime], now: datetime
) -> dict[str, Head]:
    """`heads` after a batch at `now` in which partition p had rows up to `latest[p]`."""
    moved = {
        p: Head(max(event_time, heads[p].event_time) if p in heads else event_time, now)
        for p, event_time in latest.items()
    }
    return dict(heads) | moved
