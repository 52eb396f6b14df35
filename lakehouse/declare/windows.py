"""Windows of event time, intervals of joins, the horizon of duplicates, as a table declares them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from lakehouse.durations import duration
from lakehouse.errors import DeclarationError

# of such a window the rows are worth keeping state for: they may be too many to read at once
_LONG = timedelta(minutes=10)
_DAY = timedelta(days=1)
# America/Coyhaique is of 2025, and a Java of before lacks it
_OF_PYTHON_ALONE = {"America/Coyhaique", "Factory", "ROC", "localtime", "posixrules"}


@dataclass(frozen=True, slots=True)
class Window:
    """`[start, start + size)`, one every `slide`, start inclusive and end exclusive.

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
        """Whether all windows are equally long, one every `slide`."""
        return self.kind in ("tumbling", "sliding") and self.zone == "UTC"

    @property
    def starts_apart(self) -> bool:
        """Whether no two windows start together: then the start says which one it is, and so does the end."""
        return self.kind in ("tumbling", "sliding")

    @property
    def short(self) -> bool:
        """Whether to read its rows once more, when it closes, costs less than to keep state.

        And it is final earlier.
        """
        return self.regular and self.size < _LONG

    @property
    def reach(self) -> timedelta:
        """How far before its last instant a window may begin.

        For a session, which has no bound, where to start looking.
        """
        if self.kind == "session":
            return max(4 * self.size, timedelta(hours=1))
        # the clock changes by that at most
        return self.size if self.zone == "UTC" else self.size + timedelta(hours=3)

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
    :param zone: an IANA name, with `size="1 day"`: the days of that zone, from midnight to midnight
        there, 23 or 25 hours long when its clocks change.
    :raises DeclarationError: for a size of nothing, or a zone with another size than a day.
    """
    span, shift = _positive(size, "tumbling size"), _shift(offset)
    if zone != "UTC" and (span != _DAY or shift):
        raise DeclarationError(
            f"tumbling size={size!r}, offset={offset!r}, zone={zone!r}: only windows of a day follow the clock of a zone; use "
            "size='1 day' without offset, or leave out the zone and give the offset that it has from UTC all year, such as "
            "offset='30 minutes' for the hours of Asia/Kolkata"
        )
    _check_zone(zone)
    return Window("tumbling", span, span, _offset(shift, span), zone)


def _check_zone(zone: str) -> None:
    """Raises DeclarationError for a name that Python or Java does not know: rows are placed by both."""
    try:
        ZoneInfo(zone)
        is_known = zone not in _OF_PYTHON_ALONE and not zone.startswith(("posix/", "right/"))
    except (KeyError, ValueError, OSError):
        is_known = False
    if not is_known:
        raise DeclarationError(
            f"zone={zone!r}: an IANA name such as 'Europe/Berlin', known to Python and Java; there is none of that name"
        )


def sliding(
    size: str | timedelta, slide: str | timedelta, *, offset: str | timedelta = "0 seconds"
) -> Window:
    """Windows of one size that begin at regular times: `sliding("1 minute", "10 seconds")`.

    :param size: how long each is.
    :param slide: the time from one begin to the next; a row is in `size / slide` windows. If that is no whole number,
        some rows are in one more than others.
    :param offset: windows are counted from 1970-01-01T00:00 plus this; "-6 hours" is 6 hours before.
    :raises DeclarationError: for a slide that is longer than the size.
    """
    span, step = _positive(size, "sliding size"), _positive(slide, "slide")
    if step > span:
        raise DeclarationError(
            f"sliding size={size!r}, slide={slide!r}: the slide is at most the size; else some rows would be in no window"
        )
    return Window("sliding", span, step, _offset(_shift(offset), step))


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


def _offset(offset: timedelta, step: timedelta) -> timedelta:
    if abs(offset) >= step:
        raise DeclarationError(
            f"offset={offset}: it lies below {step}, after which windows repeat; subtract that"
        )
    return offset % step  # an hour earlier is the rest of a step later


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
