"""The job of `benchmarks.many_keys` with as many keys in its state as is asked for, under a stream of messages to these keys.

Each message has a number, and counts for the key that is the number modulo the keys. All fall into
one hour. So the state has a window that is open for each key, and a total for each. In the end the
hour is closed, and both tables must have counted each message once.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pyarrow as pa

from benchmarks import check, latency, many_keys, topic
from benchmarks.commands import awaited, first_commit
from benchmarks.measure import BenchmarkError
from lakehouse.declare import catalog
from lakehouse.declare.table import Table
from lakehouse.producers.sender import send
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_tables
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog
from streaming_jobs.supervision import supervisor

PIPELINE, TOPIC = "many_keys", "many-keys"
EVENTS, HOURLY, TOTALS = "keyed_events", "hourly", "totals"
RATE = 1_000  # messages a second
_START = datetime(2026, 1, 1, tzinfo=UTC)
_CLOSES = "closes"  # the key of the messages that close the hour
_AT_ONCE = 10_000_000  # a second: as fast as the broker takes them
_LIMIT = 1_800.0  # seconds for all keys to be in the state


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A running job, and what is known of its tables."""

    settings: Settings
    tables: dict[str, Table]

    def first_commits(self, after: datetime) -> tuple[float, float]:
        """Seconds from that instant to the first commit of the ingest table after it, and until each table has one."""
        first = {
            name: awaited(
                lambda table=table: first_commit(self.settings, table, after),
                f"{name}: a commit after {after}",
                _LIMIT,
            )
            for name, table in self.tables.items()
        }
        seconds = {name: (at - after).total_seconds() for name, at in first.items()}
        return seconds[EVENTS], max(seconds.values())


@contextmanager
def running(settings: Settings, keys: int) -> Iterator[KeyedStream]:
    """The job with so many keys in its state, and messages that come. After the block all is counted.

    Raises BenchmarkError if a message is missing or was counted twice.
    """
    settings = replace(settings, tables=(many_keys.__name__,))
    tables = {table.name: table for table in catalog.load(settings)}
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(settings, {TOPIC: 1}, topic.TOPIC)
        _send(settings, records(range(keys), keys, _AT_ONCE))
        supervisor.start(settings, PIPELINE, wait=_LIMIT)
        try:
            for name in (HOURLY, TOTALS):
                awaited(
                    lambda table=tables[name]: _arrived(settings, table) >= keys,
                    f"{name}: {keys:,} keys in its state",
                    _LIMIT,
                )
            more = records(count(keys), keys, RATE)
            with topic.sending(settings, more, TOPIC) as sending:
                yield KeyedStream(settings, tables)
            _check(settings, tables, keys, keys + sending.result().sent)
        finally:
            supervisor.stop(settings, PIPELINE)


def records(numbers: Iterable[int], keys: int, rate: int) -> Iterator[Record]:
    """A message for each number, so many a second from now on."""
    now = int(time.time() * 1000)
    for index, number in enumerate(numbers):
        at = _START + timedelta(microseconds=number)
        yield _record(key_of(number % keys), at, now + index * 1000 // rate)


def key_of(number: int) -> str:
    # numbers in order would be compressed to next to nothing
    return hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()


def counted(keys: int, messages: int) -> dict[str, int]:
    """How many of the messages are of each key."""
    return {key_of(key): messages // keys + (key < messages % keys) for key in range(keys)}


def compare(name: str, found: list[tuple[str, int]], wanted: dict[str, int]) -> None:
    """Raises BenchmarkError unless each key is there once, with its count."""
    by_key = dict(found)
    if len(by_key) < len(found) or by_key != wanted:
        wrong = [key for key in by_key.keys() | wanted if by_key.get(key) != wanted.get(key)]
        raise BenchmarkError(
            f"{name}: {len(found):,} rows for {len(wanted):,} keys, {len(wrong):,} of them wrong "
            f"({', '.join(f'{key}: {by_key.get(key)} for {wanted.get(key)}' for key in wrong[:5])}); the run is void"
        )


def _record(key: str, at: datetime, time_ms: int) -> Record:
    value = f'{{"id": "{key}", "at": "{at.isoformat()}"}}'.encode()
    return Record(None, value, 0, time_ms, int(at.timestamp() * 1000), ORDINARY)


def _send(settings: Settings, messages: Iterable[Record]) -> None:
    send(messages, TOPIC, client_config(settings))


def _arrived(settings: Settings, table: Table) -> int:
    return sum(commit.arrived for commit in CommitLog(settings, table).by_stream())


def _check(settings: Settings, tables: dict[str, Table], keys: int, messages: int) -> None:
    bronze = table_path(settings, tables[EVENTS])
    for day in (1, 2):  # one raises the watermark, the next one is read under it
        latency.await_rows(bronze, messages + day - 1)
        _send(settings, [_record(_CLOSES, _START + timedelta(days=day), int(time.time() * 1000))])
    latency.await_rows(bronze, messages + 2)
    wanted = counted(keys, messages)
    hourly, totals = (table_path(settings, tables[name]) for name in (HOURLY, TOTALS))
    awaited(lambda: check.rows(hourly) >= keys, f"{HOURLY}: the windows of {keys:,} keys", _LIMIT)
    awaited(
        lambda: _select(totals, "SELECT CAST(sum(n) AS BIGINT) AS n FROM t")["n"] == [messages + 2],
        f"{TOTALS}: {messages + 2:,} messages",
        _LIMIT,
    )
    events = check.rows(bronze)
    if events != messages + 2:
        raise BenchmarkError(
            f"{EVENTS}: {events:,} rows of {messages + 2:,} messages; the run is void"
        )
    for name, path in ((HOURLY, hourly), (TOTALS, totals)):
        rows = _select(path, f"SELECT id, n FROM t WHERE id <> '{_CLOSES}'")
        compare(name, list(zip(rows["id"], rows["n"], strict=True)), wanted)


def _select(path, sql: str) -> dict[str, list]:
    return pa.table(delta_tables.select(sql, {"t": path}, {}).read_all()).to_pydict()
