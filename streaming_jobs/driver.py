"""A streaming job: `python -m streaming_jobs.driver PIPELINE [--available-now]`.

All tables of the pipeline as queries of one session. SIGTERM and SIGINT drain it: the topic is read no further, what
was read goes through every table, then it ends with code 0. Killed in any other way it resumes where it was.
Exit codes: 0 stopped or, with --available-now, done; 1 a query failed; 2 refused (settings, declaration, a second process).
"""

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from types import FrameType

import portalocker
import psutil
from pyspark.sql.streaming import StreamingQuery

from lakehouse import bounded, catalog, early, frontier, live, quality, session
from lakehouse.errors import BrokerError, JobError, LakehouseError
from lakehouse.event_time import text
from lakehouse.lake import Lake
from lakehouse.settings import Settings, from_environment
from lakehouse.table import Table
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus, QueryStatus

_EXCEPTION = re.compile(r"(Caused by: )?[\w.$]+(Error|Exception)\b.*: ")
_HEARTBEAT = 1.0
_FLUSH = 30.0  # between two copies of the journals into the ledger table
_DRAIN = 60.0


class Job:
    """The process of one pipeline: starts its queries, tells how they do, ends them."""

    def __init__(self, settings: Settings, pipeline: str) -> None:
        self.settings, self.pipeline = settings, pipeline
        self.stopping = threading.Event()
        me = psutil.Process()
        self.status = JobStatus(pipeline, me.pid, me.create_time(), 0, 0.0, "starting", progress.now(), progress.now())
        self.queries: dict[str, StreamingQuery] = {}
        self.previews: dict[str, StreamingQuery] = {}  # of early results: nothing depends on them
        self.noted: dict[str, int] = {}
        self.flushed = time.monotonic()
        self.began = datetime.now(UTC)

    def say(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)
        progress.write(self.settings, self.status)

    def run(self, available_now: bool) -> None:
        """Fills the pipeline's tables until told to stop, or up to the present."""
        loaded = catalog.load(self.settings)
        tables = loaded.of_pipeline(self.pipeline)
        _check_topics(self.settings, loaded.topics(tables))
        if any(t.expectations for t in tables):  # an import of seconds, while the JVM starts
            threading.Thread(target=quality.preload, daemon=True).start()
        lake = Lake(session.create(self.settings, f"streaming job {self.pipeline}"), self.settings, loaded)
        jvm = psutil.Process(lake.spark._jvm.java.lang.ProcessHandle.current().pid())
        self.say(jvm=jvm.pid, jvm_started=jvm.create_time())
        tables = self._prepared(lake)
        if available_now:
            for table in tables:  # one after the other: each finds its input complete and reads it in few, large micro-batches
                if not self.stopping.is_set():
                    query = self.queries[table.name] = live.start(lake, table, available_now=True)
                    self._await(lake, tables, lambda query=query: self.stopping.is_set() or not query.isActive)
        else:
            for table in tables:
                self.queries[table.name] = live.start(lake, table)
            self.previews = {f"{t.name}__early": early.start(lake, t) for t in tables if t.early and self.settings.early}
            self._await(lake, tables, self.stopping.is_set)
        self.say(state="stopping")
        self._drain(lake, tables, available_now)
        self.say(queries=self._observed(lake, tables))
        frontier.flush(self.settings, tables)
        lake.spark.stop()

    def _prepared(self, lake: Lake) -> list[Table]:
        tables = lake.catalog.of_pipeline(self.pipeline)
        for table in tables:
            if lake.catalog.kind(table) == "snapshot":
                bounded.rebuild(lake, table)
        streamed = [t for t in tables if lake.catalog.kind(t) != "snapshot"]
        live.prepare(lake, streamed)
        return streamed

    def _await(self, lake: Lake, tables: list[Table], done: Callable[[], bool]) -> None:
        while True:
            ended = done()
            self._check_previews()
            for name, query in self.queries.items():
                if not query.isActive and (error := query.exception()) is not None:
                    raise JobError(f"table={name}: its query failed; {_cause(str(error))}") from error
            self.say(state="running", queries=self._observed(lake, tables))
            if ended:
                return
            if time.monotonic() - self.flushed > _FLUSH:
                frontier.flush(self.settings, tables)
                self.flushed = time.monotonic()
            self.stopping.wait(_HEARTBEAT)

    def _check_previews(self) -> None:
        """Early results that fail stand still and are told of; final rows go on."""
        for name, query in list(self.previews.items()):
            if not query.isActive and (error := query.exception()) is not None:
                del self.previews[name]
                self._tell_stale(name, error)

    def _tell_stale(self, name: str, error: Exception) -> None:
        told = f"table={name}: early results stand still until the job is started again; {_cause(str(error))}"
        print(told, file=sys.stderr, flush=True)
        self.say(error=told)

    def _drain(self, lake: Lake, tables: list[Table], available_now: bool) -> None:
        """Ends the queries in order: between two micro-batches; what another query of this job fed, when all is read."""
        for query in self.previews.values():
            query.stop()
        deadline = time.monotonic() + _DRAIN
        for table in (t for t in tables if t.name in self.queries):
            query, driving = self.queries[table.name], lake.catalog.driving_input(table)
            if driving and driving.name in self.queries and not available_now:
                if query.isActive and time.monotonic() < deadline:
                    query.processAllAvailable()
            else:
                while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                    time.sleep(0.02)
            query.stop()
        for table in (t for t in tables if t.early and self.settings.early):
            try:
                early.settle(lake, table)
            except Exception as err:  # all that counts has been written
                self._tell_stale(f"{table.name}__early", err)

    def _observed(self, lake: Lake, tables: list[Table]) -> tuple[QueryStatus, ...]:
        known = {q.table: q for q in self.status.queries}
        return tuple(self._query(lake, t, known.get(t.name)) for t in tables if t.name in self.queries)

    def _query(self, lake: Lake, table: Table, known: QueryStatus | None) -> QueryStatus:
        """Counts come from the journal (Spark's own count rows twice where a batch is read twice), the rest from Spark."""
        query = self.queries[table.name]
        status = replace(known or QueryStatus(table.name, False), active=query.isActive)
        for report in query.recentProgress:
            if report.batchId <= self.noted.get(table.name, -1):
                continue
            self.noted[table.name] = report.batchId
            progress.note(self.settings, self.pipeline, json.loads(report.json))
            dropped = sum(o.numRowsDroppedByWatermark for o in report.stateOperators)
            status = replace(
                status,
                rows_per_second=round(report.inputRowsPerSecond or 0.0, 1),
                lag=_lag(report),
                batch_seconds=report.batchDuration / 1000,
                dropped_by_spark=status.dropped_by_spark + dropped,
            )
        batch = status.batch
        for commit in takewhile(lambda c: c.at > self.began and c.batch > batch, lake.journal(table).live()):
            status = replace(
                status,
                rows=status.rows + commit.arrived,
                late=status.late + commit.late,
                quarantined=status.quarantined + commit.quarantined,
            )
        last = next(lake.journal(table).live(), None)
        return replace(status, batch=last.batch, frontier=last.frontier and text(last.frontier)) if last else status


def _lag(report) -> int:
    """What the source of the query had not handed over yet at the end of its batch."""
    metrics = report.sources[0].metrics or {}
    ours, latest = report.sources[0].endOffset, report.sources[0].latestOffset
    if isinstance(latest, str) and latest.startswith("{") and "reservoirVersion" not in latest:
        ends, lasts = json.loads(ours), json.loads(latest)
        return sum(o - ends.get(t, {}).get(p, 0) for t, ps in lasts.items() for p, o in ps.items())
    return int(float(metrics.get("numFilesOutstanding", 0)))


def _check_topics(settings: Settings, topics: list[str]) -> None:
    """Raises BrokerError, before a JVM is started, if the broker does not answer or has no such topic."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from lakehouse.kafka_options import client_config

    client = client_config(settings) | {"log_level": "0"}
    try:
        known = AdminClient(client).list_topics(timeout=30).topics
    except KafkaException as err:
        raise BrokerError(
            f"bootstrap.servers={client['bootstrap.servers']}: it must answer within 30 s and did not ({err.args[0].str()}); "
            "check the address, and that the broker runs"
        ) from err
    if missing := sorted(set(topics) - set(known)):
        raise BrokerError(
            f"topic={', '.join(missing)}: the broker does not have it, so there is nothing to read; create it, or send to "
            "it first (`lakehouse produce` does both for the pipelines that ship)"
        )


def _cause(text: str) -> str:
    """The line of a nested failure that says what happened: the innermost exception, or Spark's own first line."""
    told = text.partition("=== Streaming Query")[0]  # what follows describes the query
    lines = [line.strip() for line in told.splitlines() if line.strip() and not line.startswith("\t")]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    return (exceptions[-1:] or lines[:1] or ["no text"])[0][:500]


@contextmanager
def lease(settings: Settings, pipeline: str) -> Iterator[None]:
    """The right to run a pipeline: held by one process, gone with it. Raises JobError naming who holds it."""
    path = progress.job_folder(settings, pipeline) / "lease"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with portalocker.Lock(path, "a", timeout=0, fail_when_locked=True):
            _await_end_of_jvm(settings, pipeline)
            yield
    except portalocker.exceptions.LockException as err:
        winner = progress.read(settings, pipeline)
        who = f"pid={winner.pid} since {winner.started_at}" if winner else "another process"
        raise JobError(f"pipeline={pipeline!r}: {who} runs it; one process fills a table, so this one ends") from err


def _await_end_of_jvm(settings: Settings, pipeline: str) -> None:
    """A killed driver's JVM notices within moments; until then it may still be in the middle of a commit."""
    before = progress.read(settings, pipeline)
    if before is None or not before.jvm or not progress.is_alive(before.jvm, before.jvm_started):
        return
    try:
        psutil.Process(before.jvm).wait(timeout=20)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as err:
        raise JobError(
            f"pipeline={pipeline!r}, jvm={before.jvm}: the JVM of the process before still runs and may write; end it first"
        ) from err


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="streaming_jobs.driver", description="Runs the streaming job of a pipeline.")
    parser.add_argument("pipeline")
    parser.add_argument("--available-now", action="store_true", help="up to the present, then end")
    given = parser.parse_args(arguments)
    job = None
    try:
        settings = from_environment()
        catalog.load(settings).of_pipeline(given.pipeline)
        with lease(settings, given.pipeline):
            job = Job(settings, given.pipeline)

            def stop(number: int, frame: FrameType | None) -> None:
                job.stopping.set()

            signal.signal(signal.SIGTERM, stop)
            signal.signal(signal.SIGINT, stop)
            job.say()
            job.run(given.available_now)
            job.say(state="stopped")
        return 0
    except Exception as err:
        expected = isinstance(err, LakehouseError)
        print(f"error: {err}" if expected else traceback.format_exc(), file=sys.stderr, flush=True)
        if job is not None:
            job.say(state="failed", error=str(err)[:2000])
        return 2 if expected and job is None else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a py4j thread that waits for a dead JVM must not keep the process
