"""The freshness of a pipeline's tables: when its queries run. It does not change what they write."""

from dataclasses import dataclass
from datetime import timedelta

from lakehouse.cron import Cron, cron
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError, SettingsError


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
