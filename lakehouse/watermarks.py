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


def advanced(
    heads: Mapping[str, Head], latest: Mapping[str, datetime], now: datetime
) -> dict[str, Head]:
    """`heads` after a batch at `now` in which partition p had rows up to `latest[p]`."""
    moved = {
        p: Head(max(event_time, heads[p].event_time) if p in heads else event_time, now)
        for p, event_time in latest.items()
    }
    return dict(heads) | moved
