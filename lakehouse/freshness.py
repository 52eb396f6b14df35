"""The freshness of a pipeline's tables: when its queries run. It does not change what they write."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from cronsim import CronSim, CronSimError

from lakehouse.durations import duration
from lakehouse.errors import DeclarationError, SettingsError

# covers weekly runs; of rarer ones, twelve are read: a year of months
_LOOKED_AT = timedelta(days=35)


@dataclass(frozen=True, slots=True)
class Cron:
    """The minutes of an expression of five fields, in UTC.

    Dagster starts the runs; `tests/unit/test_freshness.py` holds that it ticks at these minutes. The two differ for a
    step of days beside a day of the week (`*/2 * 3`): the next run shown is then wrong, and Dagster's tick decides.
    """

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


@dataclass(frozen=True, slots=True)
class Freshness:
    """One pipeline's setting: `continuous`, `every <interval>` or `scheduled <cron>`.

    With an `interval` its topics are read that often. With a `cron` no process runs between two runs.
    """

    text: str = "continuous"
    interval: timedelta | None = None
    cron: Cron | None = None

    def __str__(self) -> str:
        return self.text


CONTINUOUS = Freshness()


def freshness(text: str, pipeline: str) -> Freshness:
    """Returns the freshness that `text` describes; raises SettingsError."""
    text = " ".join(text.split())
    kind, _, rest = text.partition(" ")
    try:
        if text == CONTINUOUS.text:
            return CONTINUOUS
        if kind == "every" and (interval := duration(rest, "every")):
            return Freshness(text, interval=interval)
        if kind == "scheduled":
            return Freshness(text, cron=cron(rest))
    except (DeclarationError, SettingsError) as err:
        raise SettingsError(f"freshness of {pipeline}={text!r}: {err}") from err
    raise SettingsError(
        f"freshness of {pipeline}={text!r}: 'continuous', 'every <interval>', longer than zero, or 'scheduled <cron>'; "
        f"write for example LAKEHOUSE_FRESHNESS__{pipeline.upper()}='every 30 seconds' or 'scheduled */10 * * * *'"
    )


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
