"""Cron expressions of five fields, in UTC: enough to refuse a wrong one at the start, and to say when the next run is due.

Dagster is what ticks; `tests/test_freshness.py` holds that it ticks at these minutes.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from lakehouse.errors import SettingsError

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))
_PART = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/(\d+))?")
_LONGEST = 8 * 366  # days: from one 29th of February to the next, over a year without


@dataclass(frozen=True, slots=True)
class Cron:
    """The minutes of an expression. Of the days of month and week either is enough where both are restricted, as ever in cron."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either: bool  # both days are given

    def after(self, moment: datetime) -> datetime:
        """The first of its minutes later than `moment`."""
        moment = moment.astimezone(UTC)
        for days in range(_LONGEST):
            day = moment.date() + timedelta(days)
            if not self._holds(day.day, day.month, day.isoweekday() % 7):
                continue
            for found in (datetime.combine(day, time(h, m), UTC) for h in self.hours for m in self.minutes):
                if found > moment:
                    return found
        raise SettingsError(f"cron={self.text!r}: a day that comes; no calendar has that one, so nothing would ever run")

    def _holds(self, day: int, month: int, weekday: int) -> bool:
        of_month, of_week = day in self.days, weekday in self.weekdays
        return month in self.months and (of_month or of_week if self.either else of_month and of_week)


def cron(text: str) -> Cron:
    """The expression that `text` is; raises SettingsError naming the field that cannot be used."""
    given = text.split()
    if len(given) != len(_FIELDS):
        raise SettingsError(
            f"cron={text!r}: five fields, minute, hour, day of the month, month and day of the week, and not {len(given)}; "
            "write for example '*/10 * * * *'"
        )
    minutes, hours, days, months, weekdays = (_values(text, part, *field) for part, field in zip(given, _FIELDS, strict=True))
    found = Cron(
        " ".join(given), tuple(sorted(minutes)), tuple(sorted(hours)), days, months, frozenset(d % 7 for d in weekdays),
        either="*" not in (given[2], given[4]),
    )  # fmt: skip
    found.after(datetime(2026, 1, 1, tzinfo=UTC))
    return found


def _values(text: str, given: str, name: str, least: int, most: int) -> frozenset[int]:
    found: set[int] = set()
    for part in given.split(","):
        match = _PART.fullmatch(part)
        first, last, step = (int(n) if n else None for n in match.groups()) if match else (None, None, 0)
        low = least if first is None else first
        high = most if first is None else low if last is None else last
        # a step of a single value means one thing to one cron and another to the next
        if step == 0 or (step and first is not None and last is None) or not least <= low <= high <= most:
            raise SettingsError(
                f"cron={text!r}, {name}={part!r}: a number from {least} to {most}, a range (1-5), * or a step of those (*/10); "
                "separate several by commas"
            )
        found.update(range(low, high + 1, step or 1))
    return frozenset(found)
