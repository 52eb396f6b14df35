"""Cron expressions of five fields, in UTC: refused at the start if they are wrong, and read for the next run.

Dagster starts the runs; `tests/unit/test_freshness.py` holds that it ticks at these minutes. The two differ for a
step of days beside a day of the week (`*/2 * 3`): the next run shown is then wrong, and Dagster's tick decides.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from cronsim import CronSim, CronSimError

from lakehouse.errors import SettingsError

_LOOKED_AT = timedelta(
    days=35
)  # covers weekly runs; of rarer ones, twelve are read: a year of months


@dataclass(frozen=True, slots=True)
class Cron:
    """The minutes of an expression."""

    text: str

    def after(self, moment: datetime) -> datetime:
        """Returns the first of its minutes later than `moment`."""
        return next(CronSim(self.text, moment.astimezone(UTC)))

    @property
    def longest(self) -> timedelta:
        """Returns the longest time between two of its minutes, within five weeks or at least twelve of them."""
        start, longest = datetime(2026, 1, 1, tzinfo=UTC), timedelta(0)
        for number, (earlier, later) in enumerate(pairwise(CronSim(self.text, start)), 1):
            longest = max(longest, later - earlier)
            if number >= 12 and later > start + _LOOKED_AT:
                break
        return longest


def cron(text: str) -> Cron:
    """Returns the expression that `text` is; raises SettingsError."""
    fields = " ".join(text.split())
    try:
        if len(fields.split()) != 5:  # a sixth would be seconds, at which Dagster does not tick
            raise CronSimError("not five fields")
        parsed = Cron(fields)
        parsed.after(datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, StopIteration) as err:
        why = str(err).removeprefix("Bad ") or "no such day comes"
        raise SettingsError(
            f"cron={text!r}: minute, hour, day of the month, month and day of the week ({why}); write for example "
            "'*/10 * * * *'"
        ) from err
    return parsed
