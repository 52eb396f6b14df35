"""Cron expressions of five fields, in UTC: refused at the start if they are wrong, and asked when the next run is due.

Dagster is what ticks; `tests/unit/test_freshness.py` holds that it ticks at these minutes. Of a step of
days beside a day of the week (`*/2 * 3`) the two think differently: then what learns of the next
run is off, and Dagster runs it when it ticks.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from cronsim import CronSim, CronSimError

from lakehouse.errors import SettingsError

_LOOKED_AT = timedelta(days=35)  # all that is weekly; and of what is rarer, a year of months


@dataclass(frozen=True, slots=True)
class Cron:
    """The minutes of an expression."""

    text: str

    def after(self, moment: datetime) -> datetime:
        """The first of its minutes later than `moment`."""
        return next(CronSim(self.text, moment.astimezone(UTC)))

    @property
    def longest(self) -> timedelta:
        """The longest time between two of its minutes, of those of five weeks or at least twelve."""
        start, longest = datetime(2026, 1, 1, tzinfo=UTC), timedelta(0)
        for number, (earlier, later) in enumerate(pairwise(CronSim(self.text, start)), 1):
            longest = max(longest, later - earlier)
            if number >= 12 and later > start + _LOOKED_AT:
                break
        return longest


def cron(text: str) -> Cron:
    """The expression that `text` is; raises SettingsError."""
    given = " ".join(text.split())
    try:
        if len(given.split()) != 5:  # a sixth would be seconds, at which Dagster does not tick
            raise CronSimError("not five fields")
        found = Cron(given)
        found.after(datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, StopIteration) as err:
        why = str(err).removeprefix("Bad ") or "no such day comes"
        raise SettingsError(
            f"cron={text!r}: minute, hour, day of the month, month and day of the week ({why}); nothing would ever run, so "
            "write for example '*/10 * * * *'"
        ) from err
    return found
