"""The clock of a time zone, as windows follow it: the only code that decides its changes.

A window begins when the clock first reaches its start, and ends when the clock first reaches its end, so each window
ends where the next begins. A time that the clock skips is reached when it skips it; one that it shows twice is reached
when it shows it first. Spark's expressions (`runtime/java/Clock.java`) read the same table of changes.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from zoneinfo import ZoneInfo

from lakehouse.ranges import EPOCH

_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
# No zone changes twice within a day. Before 1840 each has the mean time of its place; from 2200 on it keeps its offset.
_FIRST, _LAST = datetime(1840, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_EVER = -(2**62)  # earlier than any instant, in microseconds


class Clock:
    """The clock of a zone. A time that it shows is an instant of UTC that shows the same."""

    def __init__(self, zone: str) -> None:
        of_zone = ZoneInfo(zone)
        changes = [] if zone == "UTC" else list(_changes(of_zone))
        self._starts = [_EVER, *(_micros(at - EPOCH) for at, _ in changes)]
        self._offsets = [
            _micros(_offset(of_zone, _FIRST)),
            *(_micros(offset) for _, offset in changes),
        ]
        self._latest = [_EVER]
        for offset, end in zip(self._offsets, self._starts[1:], strict=False):
            self._latest.append(max(self._latest[-1], end - 1 + offset))

    def shown(self, instant: datetime) -> datetime:
        """Returns the latest time that the clock has shown by an instant, which stands still for a while after a set-back."""
        moment = _micros(instant - EPOCH)
        period = bisect_right(self._starts, moment) - 1
        return _instant(max(moment + self._offsets[period], self._latest[period]))

    def reached(self, time: datetime) -> datetime:
        """Returns the first instant at which the clock has shown a time or a later one."""
        moment = _micros(time - EPOCH)
        period = bisect_left(self._latest, moment) - 1
        return _instant(max(self._starts[period], moment - self._offsets[period]))

    @property
    def most_set_back(self) -> timedelta:
        """The greatest distance by which the clock's offset was ever below an earlier one, whatever changes lay between."""
        highest = accumulate(self._offsets, max)
        back = max(high - offset for high, offset in zip(highest, self._offsets, strict=True))
        return timedelta(microseconds=back)

    @property
    def table(self) -> bytes:
        """The starts of the periods of one offset, their offsets, and the latest time shown before each, for Java."""
        values = (*self._starts, *self._offsets, *self._latest)
        return struct.pack(f">{len(values)}q", *values)


@lru_cache(maxsize=64)
def clock(zone: str) -> Clock:
    return Clock(zone)


def _changes(zone: ZoneInfo) -> Iterator[tuple[datetime, timedelta]]:
    """Yields the instants at which the zone's offset from UTC changes, each with the new offset."""
    before = _offset(zone, _FIRST)
    for day in range(1, (_LAST - _FIRST).days):
        earlier, later = _FIRST + (day - 1) * _DAY, _FIRST + day * _DAY
        if (after := _offset(zone, later)) == before:
            continue
        while later - earlier > _SECOND:
            middle = earlier + (later - earlier) // _SECOND // 2 * _SECOND
            if _offset(zone, middle) == before:
                earlier = middle
            else:
                later = middle
        yield later, after
        before = after


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _micros(span: timedelta) -> int:
    return span // _MICROSECOND


def _instant(moment: int) -> datetime:
    return EPOCH + timedelta(microseconds=moment)
