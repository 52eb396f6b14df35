"""Windows of event time, intervals of joins and the horizon of duplicates, as a table declares them.

Windows of a time zone follow its clock. A window begins when the clock first reaches its start, and ends when the clock
first reaches its end, so each window ends where the next begins. A time that the clock skips is reached when it skips it;
one that it shows twice is reached when it shows it first. Spark's expressions (`runtime/java/Clock.java`) read the same
table of changes.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Literal
from zoneinfo import ZoneInfo

from lakehouse.durations import duration
from lakehouse.errors import DeclarationError
from lakehouse.ranges import EPOCH, Range, floor

_LONG = timedelta(minutes=10)  # the rows of a longer window may be too many to read at once
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_WEEKDAYS = timedelta(days=4)  # 1970-01-01 was a Thursday, the fifth was a Monday
# names of a host's own setting, or of no place
_NO_ZONES = {"Factory", "localtime", "posixrules"}
# No zone changes twice within a day. Before 1840 each has the mean time of its place; from 2200 on it keeps its offset.
_FIRST, _LAST = datetime(1840, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_EVER = -(2**62)  # earlier than any instant, in microseconds


@dataclass(frozen=True, slots=True)
class Window:
    """`[start, start + size)` by the clock of `zone`, one every `slide`, start inclusive and end exclusive.

    A session lasts from a key's first row until the key has been silent for longer than `size`, its
    gap; it ends at the last row's event time plus the gap. A count window holds `rows` rows of a
    key, ends after `every` rows, and has no size.
    """

    kind: Literal["tumbling", "sliding", "session", "count"]
    size: timedelta
    slide: timedelta
    offset: timedelta = timedelta(0)
    zone: str = "UTC"
    rows: int = 0
    every: int = 0

    def __str__(self) -> str:
        shown = {
            "tumbling": f"{self.size}",
            "sliding": f"{self.size} every {self.slide}",
            "session": f"gap {self.size}",
        }
        every = f" every {self.every}" if self.every < self.rows else ""
        shown["count"] = f"{self.rows} rows{every}"
        offset = f", offset {self.offset}" if self.offset else ""
        return f"{self.kind}, {shown[self.kind]}{offset}{'' if self.zone == 'UTC' else f', {self.zone}'}"

    @property
    def regular(self) -> bool:
        """True if the clock alone determines the windows, whatever the rows."""
        return self.kind in ("tumbling", "sliding")

    @property
    def starts_apart(self) -> bool:
        """True if no two windows start together, so that the start or the end identifies one.

        Several sliding windows start together where the clock skips their starts.
        """
        return self.kind == "tumbling" or (self.kind == "sliding" and self.zone == "UTC")

    @property
    def short(self) -> bool:
        """True if reading its rows once more when it closes costs less than keeping state. It is also final earlier."""
        return self.regular and self.size < _LONG

    @property
    def clock(self) -> "Clock":
        return clock(self.zone)

    @property
    def reach(self) -> timedelta:
        """The longest time from a window's start to its last instant; for a session, which has no bound, a first guess."""
        if self.kind == "session":
            return max(4 * self.size, timedelta(hours=1))
        return self.size + self.clock.most_set_back

    def first_with(self, instant: datetime) -> Range:
        """Returns the first of the regular windows that hold an instant, which is also the first that ends after it."""
        start = self._last_ended(instant) + self.slide
        return Range(self.clock.reached(start), self.clock.reached(start + self.size))

    def last_end(self, instant: datetime) -> datetime:
        """Returns the end of the last regular window that has ended by an instant."""
        return self.clock.reached(self._last_ended(instant) + self.size)

    def _last_ended(self, instant: datetime) -> datetime:
        """Returns the start of the last window that has ended, as the clock shows it."""
        ended = self.clock.shown(instant) - self.size - self.offset
        return floor(ended, self.slide) + self.offset

    def within(self, length: timedelta) -> bool:
        """Returns True if every window lies within one partition of this length."""
        if self.kind == "count":
            return True
        return (
            self.kind == "tumbling"
            and self.zone == "UTC"
            and not length % self.size
            and not self.offset % self.size
        )


def tumbling(
    size: str | timedelta, *, offset: str | timedelta = "0 seconds", zone: str = "UTC"
) -> Window:
    """Returns windows of one size that do not overlap: `tumbling("10 seconds")`.

    :param size: the length of a window.
    :param offset: windows are counted from 1970-01-01T00:00 plus this; "-6 hours" is 6 hours before.
    :param zone: an IANA name whose clock the windows follow. They are then counted from midnight there, and whole days
        from Monday, 1970-01-05. A window that holds a change of the clock is longer or shorter by that change.
    :raises DeclarationError: for a size of zero, or one that does not divide the days of a zone.
    """
    span, shift = _positive(size, "tumbling size"), _signed(offset)
    _check_zone(zone, span, f"tumbling size={size!r}")
    return Window("tumbling", span, span, _offset(shift, span, zone), zone)


def _check_zone(zone: str, step: timedelta, where: str) -> None:
    """Raises DeclarationError for an unknown zone, and for windows that would not begin at the same times each day."""
    if zone == "UTC":
        return
    try:
        ZoneInfo(zone)
        is_known = zone not in _NO_ZONES and not zone.startswith(("posix/", "right/"))
    except (KeyError, ValueError, OSError):
        is_known = False
    if not is_known:
        raise DeclarationError(
            f"zone={zone!r}: no zone of IANA has that name; write for example 'Europe/Berlin'"
        )
    if _DAY % step and step % _DAY:
        raise DeclarationError(
            f"{where}, zone={zone!r}: by a zone it divides a day or is whole days; use for example '8 hours', or no zone"
        )


def sliding(
    size: str | timedelta,
    slide: str | timedelta,
    *,
    offset: str | timedelta = "0 seconds",
    zone: str = "UTC",
) -> Window:
    """Returns windows of one size that begin at regular times: `sliding("1 minute", "10 seconds")`.

    :param size: the length of a window.
    :param slide: the time from one start to the next; a row is in `size / slide` windows. If that is no whole number,
        some rows are in one more than others.
    :param offset: windows are counted from 1970-01-01T00:00 plus this; "-6 hours" is 6 hours before.
    :param zone: as for `tumbling`; the slide divides a day or is whole days.
    :raises DeclarationError: for a slide that is longer than the size.
    """
    span, step = _positive(size, "sliding size"), _positive(slide, "slide")
    if step > span:
        raise DeclarationError(
            f"sliding size={size!r}, slide={slide!r}: the slide is at most the size; else some rows would be in no window"
        )
    _check_zone(zone, step, f"sliding slide={slide!r}")
    return Window("sliding", span, step, _offset(_signed(offset), step, zone), zone)


def session(gap: str | timedelta) -> Window:
    """Returns sessions, as Spark has them: rows of a key that are at most a gap apart belong together.

    :param gap: the longest time between two rows of a session.
    :raises DeclarationError: for a gap of zero.
    """
    span = _positive(gap, "session gap")
    return Window("session", span, span)


def count(rows: int, every: int | None = None) -> Window:
    """Returns windows of a number of rows of a key, in the order of event time (then of arrival).

    Counting starts again in each partition. The table's keys are columns of its input. A window starts
    with its first row and ends with its last; the last one of a partition may hold fewer and ends with
    the partition. If several windows end at one instant, each starts a microsecond earlier for each one
    after it: windows whose rows are all of that instant would otherwise have the same bounds.

    :param rows: the rows of a window; the first windows of a partition hold fewer if they slide.
    :param every: a window ends after this many rows of its key (default: `rows`, so that none overlap).
    :raises DeclarationError: for fewer than one row, or for more from one end to the next than in a window.
    """
    if rows < 1:
        raise DeclarationError(f"count rows={rows}: at least 1; raise it")
    step = rows if every is None else every
    if not 1 <= step <= rows:
        raise DeclarationError(
            f"count rows={rows}, every={every}: from 1 to {rows}; else some rows would be in no window"
        )
    return Window("count", timedelta(0), timedelta(0), rows=rows, every=step)


def _positive(given: str | timedelta, field: str) -> timedelta:
    span = duration(given, field)
    if span <= timedelta(0):
        raise DeclarationError(
            f"{field}={given!r}: it must be longer than zero; write for example '10 seconds'"
        )
    return span


def _signed(offset: str | timedelta) -> timedelta:
    """Returns the offset of a duration, which may have a minus before it."""
    if isinstance(offset, str) and offset.strip().startswith("-"):
        return -duration(offset.strip().removeprefix("-"), "offset")
    return duration(offset, "offset")


def _offset(offset: timedelta, step: timedelta, zone: str) -> timedelta:
    if abs(offset) >= step:
        raise DeclarationError(
            f"offset={offset}: it lies below {step}, after which windows repeat; subtract that"
        )
    first = timedelta(0) if zone == "UTC" else _WEEKDAYS
    return (first + offset) % step  # an hour earlier is the rest of a step later


@dataclass(frozen=True, slots=True)
class Interval:
    """The time from `before` a row's event time to `after` it, both ends included."""

    before: timedelta
    after: timedelta

    def __str__(self) -> str:
        return f"{self.before} before to {self.after} after"


def around(
    *, before: str | timedelta = "0 seconds", after: str | timedelta = "0 seconds"
) -> Interval:
    """Returns the time around a row from which it may be computed with other rows of its input.

    The result is final once the watermark is `after` past it.

    :param before: the reach into the past.
    :param after: the reach into the future.
    :raises DeclarationError: if both are zero.
    """
    interval = Interval(duration(before, "interval before"), duration(after, "interval after"))
    if not interval.before + interval.after:
        raise DeclarationError(
            "around(): it needs before= or after=; write for example around(after='10 minutes')"
        )
    return interval


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows of equal `keys` whose event times are at most `within` apart; the first to arrive is kept."""

    keys: tuple[str, ...]
    within: timedelta

    def __str__(self) -> str:
        return f"{', '.join(self.keys)} within {self.within}"


def duplicates(*keys: str, within: str | timedelta) -> Duplicates:
    """Declares which rows count as the same row sent again.

    The first in source order (time of arrival, partition, offset) is kept; rows with a null key are no
    duplicates. Each micro-batch reads the input's rows of its own event time plus and minus `within`.

    :param keys: the columns in which duplicates are equal.
    :param within: the longest time between the event times of duplicates.
    :raises DeclarationError: without a key, or for a time of zero.
    """
    if not keys:
        raise DeclarationError(
            "duplicates(): name at least one column; write for example duplicates('event_id', within='1 hour')"
        )
    return Duplicates(keys, _positive(within, "duplicates within"))


class Clock:
    """The clock of a zone. A time that it shows is an instant of UTC that shows the same."""

    def __init__(self, zone: str) -> None:
        of_zone = ZoneInfo(zone)
        changes = [] if zone == "UTC" else list(_changes(of_zone))
        self._starts = [_EVER, *(_micros(at - EPOCH) for at, _ in changes)]
        self._offsets = [
            _micros(_utc_offset(of_zone, _FIRST)),
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
    before = _utc_offset(zone, _FIRST)
    for day in range(1, (_LAST - _FIRST).days):
        earlier, later = _FIRST + (day - 1) * _DAY, _FIRST + day * _DAY
        if (after := _utc_offset(zone, later)) == before:
            continue
        while later - earlier > _SECOND:
            middle = earlier + (later - earlier) // _SECOND // 2 * _SECOND
            if _utc_offset(zone, middle) == before:
                earlier = middle
            else:
                later = middle
        yield later, after
        before = after


def _utc_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _micros(span: timedelta) -> int:
    return span // _MICROSECOND


def _instant(moment: int) -> datetime:
    return EPOCH + timedelta(microseconds=moment)
