"""Windows of event time, intervals of joins, the horizon of duplicates, as a table declares them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from lakehouse.declare.zones import Clock, clock
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range, floor

# of such a window the rows are worth keeping state for: they may be too many to read at once
_LONG = timedelta(minutes=10)
_DAY = timedelta(days=1)
_WEEKDAYS = timedelta(days=4)  # 1970-01-01 was a Thursday, the fifth was a Monday
# names of a host's own setting, or of no place
_NO_ZONES = {"Factory", "localtime", "posixrules"}


@dataclass(frozen=True, slots=True)
class Window:
    """`[start, start + size)` by the clock of `zone`, one every `slide`, start inclusive and end exclusive.

    A session instead lasts from a key's row until the key was silent for longer than `size`, its
    gap; the end is the last row's event time plus the gap. A count window holds `rows` rows of a
    key, one ends `every` so many, and it has no size.
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
        """Whether the clock alone says which windows there are, whatever the rows."""
        return self.kind in ("tumbling", "sliding")

    @property
    def starts_apart(self) -> bool:
        """Whether no two windows start together: then the start says which one it is, and so does the end.

        Several sliding windows start together where the clock skips their starts.
        """
        return self.kind == "tumbling" or (self.kind == "sliding" and self.zone == "UTC")

    @property
    def short(self) -> bool:
        """Whether to read its rows once more, when it closes, costs less than to keep state.

        And it is final earlier.
        """
        return self.regular and self.size < _LONG

    @property
    def clock(self) -> Clock:
        return clock(self.zone)

    @property
    def reach(self) -> timedelta:
        """How far before its last instant a window may begin.

        For a session, which has no bound, where to start looking.
        """
        if self.kind == "session":
            return max(4 * self.size, timedelta(hours=1))
        return self.size + self.clock.most_set_back

    def first_with(self, instant: datetime) -> Range:
        """The first of the regular windows that hold an instant, which is also the first that ends after it."""
        start = self._last_ended(instant) + self.slide
        return Range(self.clock.reached(start), self.clock.reached(start + self.size))

    def last_end(self, instant: datetime) -> datetime:
        """When the last regular window ended that has ended by an instant."""
        return self.clock.reached(self._last_ended(instant) + self.size)

    def _last_ended(self, instant: datetime) -> datetime:
        """The start of that window, as the clock shows it."""
        ended = self.clock.shown(instant) - self.size - self.offset
        return floor(ended, self.slide) + self.offset

    def within(self, length: timedelta) -> bool:
        """Whether every window lies in one partition of `partition_by`."""
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
    """Windows of one size that do not overlap: `tumbling("10 seconds")`.

    :param size: how long each is.
    :param offset: windows are counted from 1970-01-01T00:00 plus this; "-6 hours" is 6 hours before.
    :param zone: an IANA name whose clock the windows follow. They are then counted from midnight there, and whole days
        from Monday, 1970-01-05. A window that holds a change of the clock is as much longer or shorter.
    :raises DeclarationError: for a size of nothing, or one that no day of a zone holds a whole number of.
    """
    span, shift = _positive(size, "tumbling size"), _shift(offset)
    _check_zone(zone, span, f"tumbling size={size!r}")
    return Window("tumbling", span, span, _offset(shift, span, zone), zone)


def _check_zone(zone: str, step: timedelta, where: str) -> None:
    """Raises DeclarationError for a name of no zone, and for windows that would not begin at the same times each day."""
    if zone == "UTC":
        return
    try:
        ZoneInfo(zone)
        is_known = zone not in _NO_ZONES and not zone.startswith(("posix/", "right/"))
    except (KeyError, ValueError, OSError):
        is_known = False
    if not is_known:
        raise DeclarationError(
            f"zone={zone!r}: an IANA name such as 'Europe/Berlin'; there is none of that name"
        )
    if _DAY % step and step % _DAY:
        raise DeclarationError(
            f"{where}, zone={zone!r}: windows of a zone begin at the same times each day, so it divides a day or is whole "
            "days; use for example '8 hours', or leave out the zone"
        )


def sliding(
    size: str | timedelta,
    slide: str | timedelta,
    *,
    offset: str | timedelta = "0 seconds",
    zone: str = "UTC",
) -> Window:
    """Windows of one size that begin at regular times: `sliding("1 minute", "10 seconds")`.

    :param size: how long each is.
    :param slide: the time from one begin to the next; a row is in `size / slide` windows. If that is no whole number,
        some rows are in one more than others.
    :param offset: windows are counted from 1970-01-01T00:00 plus this; "-6 hours" is 6 hours before.
    :param zone: as of `tumbling`; the slide divides a day or is whole days.
    :raises DeclarationError: for a slide that is longer than the size.
    """
    span, step = _positive(size, "sliding size"), _positive(slide, "slide")
    if step > span:
        raise DeclarationError(
            f"sliding size={size!r}, slide={slide!r}: the slide is at most the size; else some rows would be in no window"
        )
    _check_zone(zone, step, f"sliding slide={slide!r}")
    return Window("sliding", span, step, _offset(_shift(offset), step, zone), zone)


def session(gap: str | timedelta) -> Window:
    """Sessions, as Spark has them: rows of a key belong together that are at most a gap apart.

    :param gap: the longest time between two rows of a session.
    :raises DeclarationError: for a gap of nothing.
    """
    span = _positive(gap, "session gap")
    return Window("session", span, span)


def count(rows: int, every: int | None = None) -> Window:
    """Windows of so many rows of a key, in the order of event time (then of arrival).

    They are counted again in each partition. The table's keys are columns of its input. A window starts
    with its first row and ends with its last; the last one of a partition may hold fewer and ends with
    the partition. Of windows that end at one instant each starts a microsecond earlier for each one
    behind it: those whose rows are all of that instant would else have the same bounds.

    :param rows: of a window; the first windows of a partition hold fewer if they slide.
    :param every: a window ends after so many rows of its key (default: `rows`: no two overlap).
    :raises DeclarationError: for fewer than one, or for more from one end to the next than in a window.
    """
    if rows < 1:
        raise DeclarationError(f"count rows={rows}: at least 1; nothing would ever be counted")
    step = rows if every is None else every
    if not 1 <= step <= rows:
        raise DeclarationError(
            f"count rows={rows}, every={every}: from 1 to {rows}; with more, some rows would be in no window"
        )
    return Window("count", timedelta(0), timedelta(0), rows=rows, every=step)


def _positive(given: str | timedelta, field: str) -> timedelta:
    span = duration(given, field)
    if span <= timedelta(0):
        raise DeclarationError(
            f"{field}={given!r}: it must be longer than nothing; write for example '10 seconds'"
        )
    return span


def _shift(offset: str | timedelta) -> timedelta:
    """An offset, which may be a minus and a duration."""
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
    """From `before` a row's event time to `after` it, both ends included."""

    before: timedelta
    after: timedelta

    def __str__(self) -> str:
        return f"{self.before} before to {self.after} after"


def around(
    *, before: str | timedelta = "0 seconds", after: str | timedelta = "0 seconds"
) -> Interval:
    """Which rows of its input a row of the result may be computed from: those near its event time.

    The result is final once the watermark is `after` past it.

    :param before: how far back they reach.
    :param after: how far ahead.
    :raises DeclarationError: if it reaches nowhere.
    """
    interval = Interval(duration(before, "interval before"), duration(after, "interval after"))
    if not interval.before + interval.after:
        raise DeclarationError(
            "around(): it reaches nowhere; write for example around(after='10 minutes')"
        )
    return interval


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows of equal `keys` whose event times are at most `within` apart.

    The one that arrived first is kept.
    """

    keys: tuple[str, ...]
    within: timedelta

    def __str__(self) -> str:
        return f"{', '.join(self.keys)} within {self.within}"


def duplicates(*keys: str, within: str | timedelta) -> Duplicates:
    """What counts as the same row sent again.

    The first in source order (time of arrival, partition, offset) is kept; rows with a null key are no
    duplicates. Each micro-batch reads the input's rows of its own event time plus and minus `within`.

    :param keys: columns that are equal.
    :param within: how far apart their event times are at most.
    :raises DeclarationError: without a key, or for a time of nothing.
    """
    if not keys:
        raise DeclarationError(
            "duplicates(): it names at least one column; write duplicates('event_id', within='1 hour')"
        )
    return Duplicates(keys, _positive(within, "duplicates within"))
