"""An upgrade of a table of a running job: what a reader sees of it, how long the table stands still, what filling it costs.

The pipeline `ads` over hours of history at 5,000 events a second. Its windows are filled beside the
present ones, which takes its seconds, and the same hours are backfilled, in turn. Then come as many
events a second by the clock. The version beside is promoted under them, which ends the job and has it go
on with the changed code; then all of that back. A reader queries the table by its name throughout. In
the end each event is in the table of events, and each window is the oracle's.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copy
from statistics import median
from threading import Event

from benchmarks import beside, check, commands, latency, topic
from benchmarks.commands import awaited
from benchmarks.measure import BenchmarkError
from lakehouse.cli import query
from lakehouse.declare.table import Table
from lakehouse.errors import QueryError
from lakehouse.examples.ads import producer as ads
from lakehouse.examples.ads import tables as present
from lakehouse.examples.ads.producer import WINDOW_MS
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Workload
from lakehouse.ranges import Range, floor, parse_instant
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse, load
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.versions import upgrades
from lakehouse.storage.versions.upgrades import Command
from streaming_jobs.supervision import supervisor

PIPELINE, TABLE = "ads_of_two", "campaign_views"
FORMER, CHANGED = 1, 2
_COUNTED = 'F.count("*").alias("views")'
_TAIL = timedelta(seconds=30)  # of events behind the last whole hour, by which it closes
_READ = 3_600.0  # seconds for the job to have read the history
_LIMIT = 240.0  # seconds for a job to run, and for a row to come
# each window once, and how many rows of which version
_LOOK = f"""
    SELECT revision, CAST(sum(n) AS BIGINT) AS held, max(n) AS most FROM (
        SELECT revision, campaign_id, {TABLE}.window['start'] AS began, count(*) AS n FROM {TABLE} GROUP BY 1, 2, 3
    ) GROUP BY revision
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A query of the table: when, in seconds since the epoch, and what it found; or what was wrong with that."""

    began: float
    ended: float
    revision: int = 0
    rows: int = 0
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Seconds of one promotion or roll-back.

    :param exchange: from the first file that is taken of the table to the end.
    :param still: from when the job is asked to end to the table's first new row.
    """

    command: Command
    exchange: float
    still: float


@dataclass(frozen=True, slots=True)
class Upgraded:
    """Seconds of each round, to fill the version beside and to backfill; the exchanges; what the reader saw.

    :param events: of the hours that were filled and backfilled.
    :param looks: queries of the reader, one after the other.
    :param longest: seconds of the longest of them.
    :param wrong: seconds of those that failed, or saw rows of two versions, rows twice or fewer than before.
    """

    hours: int
    events: int
    fills: tuple[float, ...]
    backfills: tuple[float, ...]
    exchanges: tuple[Exchange, ...]
    looks: int
    longest: float
    wrong: float
    errors: tuple[str, ...]

    @property
    def times(self) -> float:
        """How many times the seconds of a backfill: each round by itself."""
        return median(f / b for f, b in zip(self.fills, self.backfills, strict=True))


@dataclass(slots=True)
class Reader:
    """Queries the table again and again; what was seen, oldest first, and the last with which nothing was wrong."""

    lakehouse: Lakehouse
    looks: list[Look] = field(default_factory=list)
    last: Look = Look(0, 0)

    def read(self, ended: Event) -> None:
        while not ended.is_set():
            now = self._look()
            self.looks.append(now)
            self.last = self.last if now.wrong else now

    def _look(self) -> Look:
        began = time.time()
        try:
            found = query.run(self.lakehouse, _LOOK).records()
        except QueryError as err:
            return Look(began, time.time(), wrong=str(err))
        return seen(began, time.time(), found, self.last)


def seen(began: float, ended: float, found: Sequence[dict], last: Look) -> Look:
    """What a query that found so many rows by version saw, after the last one with which nothing was wrong."""
    revisions, rows = [each["revision"] for each in found], sum(each["held"] for each in found)
    if len(found) != 1:
        return Look(began, ended, wrong=f"rows of the versions {revisions}")
    if found[0]["most"] > 1:
        return Look(began, ended, wrong=f"a window is there {found[0]['most']} times")
    if rows < last.rows:
        return Look(began, ended, wrong=f"{rows:,} rows, and {last.rows:,} before")
    return Look(began, ended, revisions[0], rows)


def run(settings: Settings, hours: int, past_rate: int, rounds: int) -> Upgraded:
    """Upgrades the windows over so many hours of events, `past_rate` a second. Raises BenchmarkError."""
    settings = replace(settings, early_results=False, tables=(PIPELINE,))
    former, changed = (_declared(settings, revision) for revision in (FORMER, CHANGED))
    lakehouse = load(former)
    past = replace(ads.PRODUCER.workload, rate=past_rate, late_share=0.0)
    live = replace(past, rate=latency.RATE)
    end = floor(datetime.now(UTC), timedelta(hours=1))
    span = Range(end - timedelta(hours=hours), end)
    start_ms, end_ms = _ms(span.start), _ms(end + _TAIL)
    table = lakehouse.catalog.table(TABLE)
    bronze = table_path(former, lakehouse.catalog.table("ad_events"))
    with topic.brokers(former) as servers:
        former, changed = (replace(each, bootstrap_servers=servers) for each in (former, changed))
        lakehouse = replace(lakehouse, settings=former)
        kafka_broker.ensure_topics(former, {ads.PRODUCER.topic: live.partitions}, topic.TOPIC)
        rows = _sent(former, past, start_ms, end_ms)
        try:
            _start(former)
            latency.await_rows(bronze, rows, _READ)
            beside.await_closed(former, table, end)
            commands.run(former, "stream", "stop", PIPELINE)
            expected = ads.expected_views(past, start_ms, end_ms)
            check.check("upgrade, history", check.ours(former), rows, expected, _ms(end))
            fills, backfills = _costs(former, changed, table, span, rounds)
            _start(former)
            live_ms = max(end_ms + WINDOW_MS, int(time.time() * 1000))  # no window is of both
            records = ads.PRODUCER.records(live, live_ms, None)
            with (
                topic.sending(former, records, ads.PRODUCER.topic) as sending,
                _reading(lakehouse) as reader,
            ):
                _await_row(reader, reader.last.rows)
                _fill(changed)
                promoted = _exchanged("promote", changed, table, reader)
                so_far = expected | ads.expected_views(live, live_ms, int(time.time() * 1000))
                _compare("upgrade, promoted", former, table, so_far)
                rolled_back = _exchanged("roll-back", former, table, reader)
            rows += sending.result().sent
            latency.await_rows(bronze, rows)
        finally:
            supervisor.stop(former, PIPELINE)
    until_ms = live_ms + sending.result().sent * 1000 // live.rate
    expected |= ads.expected_views(live, live_ms, until_ms)
    check.check("upgrade", check.ours(former), rows, expected, until_ms - 2 * WINDOW_MS)
    return Upgraded(
        hours,
        past_rate * 3_600 * hours,
        fills,
        backfills,
        (promoted, rolled_back),
        *summary(reader.looks),
    )


def summary(looks: Sequence[Look]) -> tuple[int, float, float, tuple[str, ...]]:
    """How many there were, the seconds of the longest, of all that were wrong, and what was.

    Raises BenchmarkError if they did not see each version.
    """
    versions = [look.revision for look in looks if not look.wrong]
    changes = [a for a, b in zip(versions, [*versions[1:], 0], strict=True) if a != b]
    if changes != [FORMER, CHANGED, FORMER]:
        raise BenchmarkError(f"upgrade: a reader saw the versions {changes}; the run is void")
    wrong = [look for look in looks if look.wrong]
    return (
        len(looks),
        max(look.ended - look.began for look in looks),
        sum(look.ended - look.began for look in wrong),
        tuple(dict.fromkeys(look.wrong for look in wrong)),
    )


def _declared(settings: Settings, revision: int) -> Settings:
    """The settings for a module of its own: the pipeline `ads`, and a column that says which version of it a row is of."""
    folder, source = settings.root.parent / f"{PIPELINE}_{revision}", Path(present.__file__)
    folder.mkdir(parents=True)
    text = source.read_text()
    assert text.count(_COUNTED) == 1, f"{source}: {_COUNTED} is to be there once"
    column = f'F.lit({revision}).alias("revision")'
    (folder / f"{PIPELINE}.py").write_text(text.replace(_COUNTED, f"{_COUNTED}, {column}"))
    copy(source.with_name("ad_campaigns.csv"), folder)
    return replace(settings, module_path=(folder,))


def _sent(settings: Settings, workload: Workload, start_ms: int, end_ms: int) -> int:
    return send(
        ads.PRODUCER.records(workload, start_ms, end_ms),
        ads.PRODUCER.topic,
        client_config(settings),
    ).sent


def _costs(
    former: Settings, changed: Settings, table: Table, span: Range, rounds: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds to fill the version beside, and to backfill what it is filled with, in turn; the last version stays."""
    fills, backfills, gold = [], [], table_path(former, table)
    for number in range(rounds):
        beside.delete(gold, span)
        backfills.append(beside.by_command(former, span))
        if number:
            commands.run(changed, "upgrade", "drop", TABLE, "--yes")
        fills.append(_fill(changed))
    return tuple(fills), tuple(backfills)


def _fill(changed: Settings) -> float:
    """On one core, as the backfill."""
    return commands.run(replace(changed, spark_master="local[1]"), "upgrade", "fill", TABLE).seconds


@contextmanager
def _reading(lakehouse: Lakehouse) -> Iterator[Reader]:
    reader, ended = Reader(lakehouse), Event()
    with ThreadPoolExecutor(1) as beside_it:
        reading = beside_it.submit(reader.read, ended)
        try:
            awaited(lambda: reader.looks or reading.done(), "upgrade: a first query", _LIMIT)
            yield reader
        finally:
            ended.set()
    reading.result()


def _exchanged(command: Command, then: Settings, table: Table, reader: Reader) -> Exchange:
    """Exchanges the versions with the other code, while the job runs; the command starts that again."""
    taken = layout.upgrade(then, TABLE, "taken")
    with ThreadPoolExecutor(1) as beside_it:
        running_command = beside_it.submit(commands.run, then, "upgrade", command, TABLE)
        exchanging: float | None = None
        while not running_command.done():
            if exchanging is None and taken.exists():
                exchanging = time.time()
            time.sleep(0.002)
        running_command.result()
    done = upgrades.upgrade(then, table)
    if exchanging is None or done is None:
        raise BenchmarkError(f"upgrade, {command}: nobody saw the exchange; the run is void")
    ended = parse_instant(done.at).timestamp()
    before = next(look.rows for look in reader.looks if look.began > ended and not look.wrong)
    still = _await_row(reader, before) - commands.asked_to_end(then, PIPELINE)
    return Exchange(command, ended - exchanging, still)


def _start(settings: Settings) -> None:
    commands.run(settings, "stream", "start", PIPELINE, "--wait", f"{_LIMIT:.0f}")


def _await_row(reader: Reader, before: int) -> float:
    """When the reader first saw more rows than that, in seconds since the epoch."""
    awaited(lambda: reader.last.rows > before, f"upgrade: a row after {before:,}", _LIMIT)
    return next(look.ended for look in reader.looks if look.rows > before)


def _compare(name: str, settings: Settings, table: Table, expected: topic.Views) -> None:
    """While the job writes on: what is behind the frontier of before is exact."""
    reached = _ms(frontier(settings, table))
    found = check.read_views(table_path(settings, table))
    check.compare(name, check.upto(found, reached), check.upto(expected, reached))


def _ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)
