"""A backfill beside the live stream: how much later the stream's rows can be read while 24 hours are computed again.

The real job at 5,000 events a second, after a day of history. The rows of that day are deleted by hand, so that the backfill
computes, compares and replaces each of its partitions; in the end every window is the oracle's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from deltalake import DeltaTable

from benchmarks import check, commands, latency, topic
from benchmarks.commands import awaited
from lakehouse.declare import catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.examples.ads import producer as ads
from lakehouse.examples.ads.producer import WINDOW_MS
from lakehouse.producers.sender import send
from lakehouse.ranges import BEGINNING, Range, floor, text
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import frontier

_DAY = timedelta(hours=24)
_CLOSED = 120.0  # seconds for the stream to have filled the day


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of delay, one per window: before the backfill, and while it ran; how long that took, Spark's start included."""

    alone: tuple[float, ...]
    during: tuple[float, ...]
    seconds: float

    @property
    def times(self) -> float:
        return median(self.during) / median(self.alone)


def run(
    settings: Settings,
    seconds: int,
    recompute: Callable[[Settings, Range], object] | None = None,
    past_rate: int = 20,
) -> Beside:
    """The stream alone for `seconds`, of which the warm-up does not count, then beside the backfill. Raises BenchmarkError.

    `recompute`: what has the day of `campaign_views` computed again, by default the command.
    """
    settings = replace(settings, early_results=False, tables=("lakehouse.examples.ads.tables",))
    known = catalog.load(settings)
    past = replace(ads.PRODUCER.workload, rate=past_rate, late_share=0.0)
    live = replace(past, rate=latency.RATE)
    end = floor(datetime.now(UTC), timedelta(hours=1))
    day = Range(end - _DAY, end)
    start_ms, end_ms = (int(each.timestamp() * 1000) for each in (day.start, day.end))
    bronze, gold = (
        table_path(settings, known.table(name)) for name in ("ad_events", "campaign_views")
    )
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(settings, {ads.PRODUCER.topic: live.partitions}, topic.TOPIC)
        rows = send(
            ads.PRODUCER.records(past, start_ms, end_ms),
            ads.PRODUCER.topic,
            client_config(settings),
        ).sent
        with latency.our_job(settings):
            latency.await_rows(bronze, rows)
            live_ms = int(time.time() * 1000)
            with topic.sending(
                settings, ads.PRODUCER.records(live, live_ms, None), ads.PRODUCER.topic
            ) as sending:
                time.sleep(seconds)
                await_closed(settings, known.table("campaign_views"), day.end)
                delete(gold, day)
                began = time.time()
                (recompute or by_command)(settings, day)
                ended = time.time()
            rows += sending.result().sent
            latency.await_rows(bronze, rows)
    until_ms = live_ms + sending.result().sent * 1000 // live.rate
    expected = ads.expected_views(past, start_ms, end_ms) | ads.expected_views(
        live, live_ms, until_ms
    )
    check.check("beside", check.ours(settings), rows, expected, until_ms - 2 * WINDOW_MS)
    delay = known.table("ad_events").delay.total_seconds()
    closed = {
        (start + WINDOW_MS) / 1000 + delay: at for start, at in latency.readable(gold).items()
    }
    warm = live_ms / 1000 + min(latency.WARM_UP_MS / 1000, seconds / 2)
    alone = tuple(at - due for due, at in closed.items() if warm <= due < began)
    during = tuple(at - due for due, at in closed.items() if began <= due < ended)
    return Beside(alone, during, ended - began)


def await_closed(settings: Settings, table: Table, end: datetime) -> None:
    """Until the table is complete up to that instant. Raises BenchmarkError."""
    awaited(
        lambda: (frontier(settings, table) or BEGINNING) >= end,
        f"{table.name}: a frontier past {end}",
        _CLOSED,
    )


def delete(gold: Path, span: Range) -> None:
    """Removes the rows of these hours by hand, whatever the stream adds meanwhile.

    By a range: of a list of more than 20 values delta-rs does not see that an added file has none of them, and refuses.
    """
    hours = list(span.partitions("hour"))
    DeltaTable(str(gold)).delete(f"{PARTITION} >= '{hours[0]}' AND {PARTITION} <= '{hours[-1]}'")


def by_command(settings: Settings, span: Range) -> float:
    """Has the hours of the table computed again, on one core, as Dagster has it; how many seconds that took."""
    ends = ("--start", text(span.start), "--end", text(span.end))
    one_core = replace(settings, spark_master="local[1]")
    return commands.run(one_core, "backfill", "campaign_views", *ends).seconds
