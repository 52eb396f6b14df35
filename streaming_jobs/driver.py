"""A streaming job: `python -m streaming_jobs.driver PIPELINE [--available-now]`, which a scheduled pipeline implies.

All tables of the pipeline are queries of one session. SIGTERM and SIGINT drain it: it reads no further, passes its rows
through every table, and ends with code 0. Killed in any other way it resumes where it was. Exit codes: 0 stopped or
done; 1 a query failed; 2 refused (settings, declaration, a second process).
"""

import logging
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from lakehouse import processes
from lakehouse.declare.table import Table
from lakehouse.errors import BrokerError, JobError
from lakehouse.maintenance.retention import LogCuts
from lakehouse.runtime import kafka_broker, kafka_client, kafka_topics
from lakehouse.settings import Settings
from lakehouse.storage.delta import committer, delta_log
from lakehouse.storage.lakehouse import Lakehouse, load
from lakehouse.storage.log import log_tables
from lakehouse.storage.position import declared_state
from lakehouse.storage.session import Session
from lakehouse.storage.versions import interruptions
from lakehouse.stream import queries
from streaming_jobs import process, progress
from streaming_jobs.previews import Previews
from streaming_jobs.process import Process
from streaming_jobs.progress import QueryStatus
from streaming_jobs.progress_log import ProgressLog
from streaming_jobs.queries import OF_THE_PROCESS, SupervisedQuery, cause, in_a_line
from streaming_jobs.references import References
from streaming_jobs.supervision import desired, healing, job_logs, standby
from streaming_jobs.supervision.lease import Lease

_log = logging.getLogger("streaming_jobs.driver")  # it runs as __main__

_HEARTBEAT = 1.0
_FLUSH = 30.0  # between two copies of the commit logs into the log table, and two looks at the length of logs
_DRAIN = 60.0
_END_OF_JVM = 5.0


class Job:
    """The process of one pipeline: starts its queries, reports how they do, ends them."""

    def __init__(
        self, lakehouse: Lakehouse, pipeline: str, available_now: bool, lease: Lease
    ) -> None:
        self.lakehouse, self.settings = lakehouse, lakehouse.settings
        self.pipeline, self.available_now = pipeline, available_now
        settings = self.settings
        self.paused = _paused(settings, pipeline)
        self.process = Process(
            settings,
            pipeline,
            lease,
            queries=tuple(self.paused.values()),
            freshness=str(settings.freshness_of(pipeline)),
        )
        self.say, self.stopping = self.process.say, self.process.stopping
        self.well_since: datetime | None = None  # since when it is at work
        self.queries: dict[str, SupervisedQuery] = {}
        self.references: References  # once there is a session
        self.previews: Previews
        self.flushed, self.log_cuts = time.monotonic(), LogCuts(lakehouse)
        self.progress_log = ProgressLog()

    def run(self) -> None:
        """Fills the pipeline's tables until asked to stop, or up to the present."""
        try:
            self.say()
            self._run()
        except SystemExit:
            if self.stopping.is_set():  # the lease stays, for its JVM lives on for moments
                self.say(state="stopped")
            raise
        except Exception as err:
            status = self.process.status
            # a JVM that answers no more is given the moments that its end takes
            within = _END_OF_JVM if isinstance(err, OF_THE_PROCESS) else 0.0
            if status.jvm and not self.process.lease.refusal() and status.await_end_of_jvm(within):
                raise JobError(
                    f"jvm={status.jvm}: Spark's JVM ended, killed or out of memory; {cause(str(err))}"
                ) from err
            raise
        self.say(state="stopped")

    def ask_to_stop(self) -> None:
        self.stopping.set()
        if self.process.status.state == "starting" and not self.queries:
            sys.exit(0)  # nothing is there to be drained, and a start may take minutes

    def fail(self, error: str, expected: bool) -> None:
        self.say(state="failed", error=(error if expected else cause(error))[:2000])

    def _run(self) -> None:
        tables = self.lakehouse.catalog.of_pipeline(self.pipeline)
        if topics := self.lakehouse.catalog.topics(tables):
            _check_topics(self.settings, topics)
        self._stage("Spark comes up")
        spark = standby.session(self.settings, self.pipeline)
        session = Session.on(self.lakehouse, spark)
        gateway: Any = spark._jvm
        jvm = gateway.java.lang.ProcessHandle.current().pid()
        ui = spark.sparkContext.uiWebUrl or ""
        self.say(jvm=jvm, jvm_started=processes.started(jvm), ui=ui)
        self._stage("reference tables")
        self.references = References(session, tables, self.process.lease.check)
        self.references.fill()
        tables = [t for t in tables if t.kind.is_streamed]
        self.previews = Previews(session, tables, lambda message: self.say(error=message))
        queries = [
            SupervisedQuery(
                session,
                t,
                partial(self._guard, self.available_now or session.catalog.at_head(t)),
                self.paused.get(t.name),
            )
            for t in tables
        ]
        started = f"started, pid {self.process.status.pid}, {len(tables)} tables"
        _log.info(f"{job_logs.PROGRESS}pipeline={self.pipeline}: {started}")
        if self.available_now:
            self._to_the_present(session, queries)
        else:
            # one after the other: the first is at work while the last is made ready
            for query in queries:
                self.queries[query.table.name] = query
                if error := self._not_ready(session, query.table):
                    query.pause(error)
                elif not query.paused:
                    query.start()
            self.references.start()
            self.previews.start()
            self._await(self.stopping.is_set)
            self.references.stop()
        self.say(state="stopping")
        self._drain(session)
        self.say(queries=tuple(query.observe() for query in self.queries.values()))
        self.progress_log.note(self.queries.values(), last=True)
        log_tables.flush(self.settings, tables)
        session.spark.stop()

    def _stage(self, name: str) -> None:
        """Names the stage of the start in the status: its supervisor gives each stage its time."""
        self.say(stage=name, stage_since=progress.now())

    def _to_the_present(self, session: Session, queries: list[SupervisedQuery]) -> None:
        """Runs one query after the other: each finds its input complete and reads it in few, large micro-batches.

        Raises JobError at the end if any failed; the others are not held up by it.
        """
        ready = {query.table.name: self._not_ready(session, query.table) for query in queries}
        failed = {name: error for name, error in ready.items() if error}
        for query in queries:
            name = query.table.name
            if not self.stopping.is_set() and name not in failed:
                self.queries[name] = query
                if error := self._ran_to_the_present(query):
                    failed[name] = error
                    _log.error(f"table={name}: its query failed; {error}")
        if failed and not self.stopping.is_set():
            errors = (f"table={name}: its query failed; {why}" for name, why in failed.items())
            raise JobError("; ".join(errors))

    def _ran_to_the_present(self, query: SupervisedQuery) -> str:
        """Runs the query up to the present, and returns why it failed; empty if it did not."""
        try:
            query.start(available_now=True)
        except OF_THE_PROCESS:
            raise
        except Exception as err:
            return in_a_line(err)
        self._await(lambda: self.stopping.is_set() or not query.active, alone=False)
        return query.failure() if not self.stopping.is_set() else ""  # else it ended by its guard

    def _not_ready(self, session: Session, table: Table) -> str:
        """Makes the table ready for its query, and this process its writer; returns why it could not, empty if it could."""
        self._stage(f"table {table.name}")
        try:
            queries.prepare(session, [table])
            for path in (session.path(table), session.path(table, "quarantine")):
                if delta_log.exists(path):
                    committer.take_over(path, self.pipeline)
        except Exception as err:
            if isinstance(err, OF_THE_PROCESS) or healing.is_transient(str(err)):
                raise
            return in_a_line(err)
        return ""

    def _guard(self, ends: bool, point: str) -> None:
        """Stops a process at a commit point, before it writes, if another took over while it slept.

        It also stops a query that `ends` once the job is asked to stop, because new input would never end.
        """
        if point == "begin":
            self.process.lease.check()
        if point == "begin" and ends and self.stopping.is_set():
            raise JobError(
                "asked to stop: this micro-batch has written nothing, and is the first of the next process"
            )

    def _await(self, done: Callable[[], bool], alone: bool = True) -> None:
        """Renews the status until `done`, and with `alone` tends each query."""
        while True:
            ended = done()
            self.previews.check()
            for query in self.queries.values():
                if alone and not self.stopping.is_set():
                    query.tend()
            state = "degraded" if any(q.paused for q in self.queries.values()) else "running"
            now = datetime.now(UTC)
            self.well_since = self.well_since or now
            self.say(
                state=state,
                queries=tuple(query.observe() for query in self.queries.values()),
                references=self.references.status,
                well=_well(self.queries.values(), self.well_since, now),
                python_bytes=progress.memory(self.process.status.pid),
                jvm_bytes=progress.memory(self.process.status.jvm),
            )
            if ended:
                return
            self.process.obey()
            if time.monotonic() - self.flushed > _FLUSH:
                tables = [query.table for query in self.queries.values()]
                log_tables.flush(self.settings, tables)
                self.log_cuts.cut(tables)  # after the flush: what records commits is cut
                job_logs.shorten_log(self.settings, self.pipeline)
                kafka_broker.shorten_log(self.settings)
                self.flushed = time.monotonic()
            self.progress_log.note(self.queries.values())
            self.stopping.wait(_HEARTBEAT)

    def _drain(self, session: Session) -> None:
        """Ends the queries in order, between two micro-batches; one that another query of this job fed, when it has read all.

        A head of the pipeline ends when it has nothing to do, or by its guard when it begins the next micro-batch.
        """
        self.previews.stop()
        deadline, cut = time.monotonic() + _DRAIN, []
        for supervised in self.queries.values():
            query = supervised.query
            if query is None:
                continue
            if not self.available_now and not session.catalog.at_head(supervised.table):
                if query.isActive and time.monotonic() < deadline:
                    query.processAllAvailable()
            else:
                while (
                    query.isActive
                    and query.status["isTriggerActive"]
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.02)
            if query.isActive and time.monotonic() >= deadline:
                cut.append(supervised.table.name)
            query.stop()
        if cut:
            message = f"tables={', '.join(cut)}: not drained within {_DRAIN:g} s, so cut off; they go on there at the next start"
            _log.warning(message)
            self.say(error=message)
        self.previews.settle()


def _well(queries: Collection[SupervisedQuery], since: datetime, now: datetime) -> float:
    """Returns the seconds since a query failed last, or the job is at work, up to the oldest micro-batch under way."""
    failed = [query.failures[-1].at for query in queries if query.failures]
    starts = (query.status.busy_since for query in queries)
    busy = [datetime.fromisoformat(start) for start in starts if start]
    return max((min(busy, default=now) - max([since, *failed])).total_seconds(), 0.0)


def _paused(settings: Settings, pipeline: str) -> dict[str, QueryStatus]:
    """Returns the queries that the former process paused, by table, unless the job was asked for again since."""
    before, wanted = progress.read(settings, pipeline), desired.read(settings, pipeline)
    if before is None or wanted is None:
        return {}
    return {
        q.table: QueryStatus(
            q.table, False, q.batch, state="paused", since=q.since, error=q.error, offsets=q.offsets
        )
        for q in before.queries
        if q.state == "paused" and q.since >= wanted.since
    }


def _check_topics(settings: Settings, topics: list[str]) -> None:
    """Raises AccessError or BrokerError, before a JVM is started, if a topic is not to be had."""
    missing = sorted(set(topics) - kafka_client.topics(settings))
    if missing:
        with suppress(BrokerError):  # AccessError if it only hides them
            kafka_topics.ids(kafka_client.admin(settings), missing)
        raise BrokerError(
            f"topic={', '.join(missing)}: the broker does not have it, so there is nothing to read; "
            f"`lakehouse topic create {missing[0]} --partitions 4` creates it"
        )


def main(arguments: list[str] | None = None) -> int:
    parser = process.arguments_of(
        "streaming_jobs.driver", "Runs the streaming job of a pipeline.", "pipeline"
    )
    parser.add_argument("--available-now", action="store_true", help="up to the present, then end")
    help = "two ends of pipes: it comes up, and waits for its turn"
    parser.add_argument("--standby", nargs=2, type=int, metavar="FD", help=help)
    args = parser.parse_args(arguments)
    pipeline = args.pipeline

    def prepared(settings: Settings) -> tuple[Settings, str, Callable[[Lease], Job]]:
        if args.standby:
            standby.come_up(settings.for_pipeline(pipeline), pipeline, *args.standby)
        interruptions.check(settings)
        settings = settings.for_pipeline(pipeline)
        lakehouse = load(settings)
        tables = lakehouse.catalog.of_pipeline(pipeline)
        declared_state.check(lakehouse, tables)
        for message in declared_state.remarks(lakehouse, tables):
            _log.warning(message)
        available_now = args.available_now or settings.freshness_of(pipeline).cron is not None
        return settings, pipeline, partial(Job, lakehouse, pipeline, available_now)

    return process.run(_log, args.foreground, prepared)


if __name__ == "__main__":
    process.leave(main)
