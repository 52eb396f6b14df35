"""One streaming query inside a job's process: started, restarted alone when it fails, paused, observed."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from lakehouse.backoff import Backoff
from lakehouse.declare.table import Table
from lakehouse.errors import (
    AccessError,
    BrokerError,
    JobError,
    LakehouseError,
    ServiceAway,
    SourceError,
)
from lakehouse.ranges import past_beginning, text
from lakehouse.storage.log.commit_log import note_dropped
from lakehouse.storage.position import checkpoint_files, checkpoints
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepLoop
from streaming_jobs import progress
from streaming_jobs.progress import QueryState, QueryStatus
from streaming_jobs.supervision import healing
from streaming_jobs.supervision.healing import Failure

_log = logging.getLogger(__name__)

_EXCEPTION = re.compile(
    r"(?:Caused by: |: )?((?:[\w.$]+(?:Error|Exception)|SystemExit)\b(?:.*: .*)?)$"
)  # Py4J sets a colon
_PLACE = re.compile(r'File "(.*)", line (\d+), in (.*)')
OF_THE_PROCESS = (ConnectionError, Py4JNetworkError)  # errors of no table: the JVM does not answer
_RESTARTS = Backoff(1, 16)


class SupervisedQuery:
    """The query that fills one table. `guard` is called at each commit point, and may refuse to go on."""

    def __init__(
        self,
        session: Session,
        table: Table,
        guard: Callable[[str], None] = lambda point: None,
        before: QueryStatus | None = None,
    ) -> None:
        self.session, self.table, self.guard = session, table, guard
        self.query: StreamingQuery | StepLoop | None = None
        self.status = before or QueryStatus(table.name, False, since=progress.now())
        self.failures: list[Failure] = []
        self.due: datetime | None = None  # of the next restart
        self.noted = -1
        # versions, as the last micro-batch read them
        self.references: Mapping[str, Mapping] | None = None
        self.began = datetime.now(UTC)
        self.unanswered_since: datetime | None = None  # of the call that was said last
        self.ends = False  # its query may end by itself: it was asked to

    @property
    def paused(self) -> bool:
        return self.status.state == "paused"

    @property
    def active(self) -> bool:
        return self.query is not None and self.query.isActive

    def start(self, available_now: bool = False) -> None:
        self.ends = available_now
        try:
            self.query = queries.start(
                self.session, self.table, available_now=available_now, reached=self.guard
            )
        except OF_THE_PROCESS:
            raise  # of the process, not of this table
        except Exception as err:
            if available_now:
                raise
            self._refused(err)  # the others go on
            return
        generation = checkpoints.beginning(self.session.settings, self.table)
        # its micro-batches may be numbered from 0 on
        if generation and (at := datetime.fromisoformat(generation.at)) > self.began:
            self.began, self.noted = at, -1
            self.status = replace(
                self.status, batch=-1, begun=f"generation {generation.generation}: {generation.why}"
            )
        self._enter("running")

    def failure(self) -> str:
        """Returns the reason why the query ended, in a line; empty if it runs, waits for its restart, or ended by itself.

        A file has the whole text.
        """
        if self.due or self.paused or self.query is None or self.query.isActive:
            return ""
        error = self.query.exception()
        if error is None and self.ends:
            return ""
        message = str(error or "its query ended without an error message, though nobody stopped it")
        progress.note_failure(self.session.settings, self.table.pipeline, self.table.name, message)
        return cause(message)

    def tend(self) -> None:
        """Restarts the query when it has failed, or pauses it. Raises JobError if the process had better start again."""
        if self.due and datetime.now(UTC) >= self.due:
            self.due = None
            self.start()
            return
        error = self.failure()
        if not error or self.query is None:
            return
        raised = getattr(self.query.exception(), "__cause__", None)
        if isinstance(raised, SourceError):
            self.pause(error)  # another start would find the same
            return
        stuck = (
            self.query.in_flight
            if isinstance(self.query, StepLoop)
            else _in_flight(self.session, self.table)
        )
        self._failed(error, stuck, access=isinstance(raised, AccessError))

    def _refused(self, err: Exception) -> None:
        """Pauses a query that this library refused to start; any other error may pass by itself, and it is tried again."""
        if isinstance(err, LakehouseError) and not isinstance(err, BrokerError | ServiceAway):
            self.pause(str(err))
            return
        progress.note_failure(self.session.settings, self.table.pipeline, self.table.name, str(err))
        self.query = None
        self._failed(in_a_line(err), None)

    def _failed(self, error: str, stuck: tuple[int, str] | None, access: bool = False) -> None:
        """Restarts the query, or pauses it. Raises JobError if the process had better start again."""
        now = datetime.now(UTC)
        self.failures = [*self.failures[-100:], Failure(now, stuck and stuck[0], error, access)]
        limit = self.session.settings.query_restarts
        match healing.after_failure(self.failures, limit):
            case "end":
                raise JobError(f"table={self.table.name}: its query failed; {error}")
            case "restart":
                self.due = now + timedelta(seconds=_RESTARTS.after(len(self.failures)))
                self._enter("restarting", restarts=self.status.restarts + 1, error=error)
                _warn(self.table, f"its query failed and is restarted; {error}")
            case "pause":
                if not stuck:
                    error += f"; {_remedy(self.session, self.table)}"
                self._enter("paused", error=error, offsets=stuck[1] if stuck else "")
                at = f" at {stuck[1]}" if stuck else ""
                _warn(self.table, f"paused: its query failed {limit + 1} times{at}; {error}")

    def pause(self, why: str) -> None:
        """Stops the query until the job is started again, with the reason in its status."""
        self.stop()
        self._enter("paused", error=why)
        _warn(self.table, f"paused: {why}")

    def stop(self) -> None:
        self.ends = True
        if self.query is not None:
            self.query.stop()

    def observe(self) -> QueryStatus:
        """Renews the status. Counts come from the commit log, because Spark counts rows twice where it reads a batch twice."""
        reports = _reports(self.query, self.noted) if self.query else []
        status = replace(self.status, active=self.active)
        if isinstance(self.query, StepLoop):
            service, call = self.query.run.service, self.query.unanswered
            early = (sender.trouble for sender in self.query.real_time)
            troubles = (self.query.trouble, str(call or ""), self.query.remark, *early)
            status = replace(
                status,
                trouble="; ".join(filter(None, troubles)),
                unanswered_since=text(call.since) if call else None,
                lookups=service.counts.shown() if service else {},
                plans=self.query.run.prepared.ways,
            )
            if call and call.since != self.unanswered_since:
                _warn(self.table, str(call))
            self.unanswered_since = call.since if call else None
        for report in reports:
            # a report without a batch has the number of the next one
            if report.batchId <= self.noted or "addBatch" not in report.durationMs:
                continue
            if 0 <= self.noted < report.batchId - 1:  # Spark keeps the last hundred reports
                _warn(
                    self.table,
                    f"the reports of micro-batches {self.noted + 1} to {report.batchId - 1} were missed, and with them "
                    "whether Spark dropped rows there; `lakehouse reconcile run` compares their hours",
                )
            self.noted = report.batchId
            progress.note(self.session.settings, self.table.pipeline, json.loads(report.json))
            dropped = sum(o.numRowsDroppedByWatermark for o in report.stateOperators)
            if dropped:
                note_dropped(self.session.settings, self.table, dropped)
            status = replace(
                status,
                busy_since=None,
                dropped_by_spark=status.dropped_by_spark + dropped,
                **_reported(report),
            )
        if reports and "addBatch" not in reports[-1].durationMs:  # nothing to do
            status = replace(status, rows_per_second=0.0)
        commit_log = self.session.commit_log(self.table)
        for commit in takewhile(
            lambda c: c.at > self.began and c.batch > self.status.batch, commit_log.by_stream()
        ):
            status = replace(
                status,
                rows=status.rows + commit.arrived,
                late=status.late + commit.late,
                quarantined=status.quarantined + commit.quarantined,
            )
        last = next(commit_log.by_stream(), None)
        if last:
            ahead = past_beginning(last.frontier)
            status = replace(status, batch=last.batch, frontier=text(ahead) if ahead else None)
            read = {name: last.inputs.get(name, {}) for name in ("references", SEEN)}
            if last.at > self.began and read != self.references:
                self.references = read
                status = replace(status, reads=queries.read_as_of(self.session, self.table, read))
        # the trigger of an idle query may be active, too, but not at each look
        busy = self.query is not None and self.active and self.query.status["isTriggerActive"]
        self.status = replace(
            status, busy_since=(status.busy_since or progress.now()) if busy else None
        )
        return self.status

    def _enter(self, state: QueryState, **changes: Any) -> None:
        self.status = replace(
            self.status, state=state, since=progress.now(), active=self.active, **changes
        )


def _warn(table: Table, what: str) -> None:
    _log.warning(f"table={table.name}: {what}")


def _remedy(session: Session, table: Table) -> str:
    """Returns the remedy for a query that fails before it has begun a micro-batch."""
    folder = checkpoint_files.newest(session.settings, table)
    again = f"then `lakehouse stream restart {table.pipeline}`"
    if folder is None:
        return f"remove the cause, {again}"
    return f"remove the cause, or the checkpoint {folder} (nothing is lost: the table's commits say where it is), {again}"


def in_a_line(err: Exception) -> str:
    """Returns the text of an error in a line: of this library's errors as it is, of any other its cause."""
    return str(err) if isinstance(err, LakehouseError) else cause(f"{type(err).__name__}: {err}")


def cause(text: str) -> str:
    """Returns the line of a nested failure with its cause: the innermost exception, or Spark's own first line."""
    failure = text.partition("=== Streaming Query")[0]  # what follows describes the query
    lines = [
        line.strip() for line in failure.splitlines() if line.strip() and not line.startswith("\t")
    ]
    matches = ((n, match) for n, line in enumerate(lines) if (match := _EXCEPTION.match(line)))
    last, exception = max(matches, key=lambda numbered: numbered[0], default=(-1, None))
    if exception is None:
        return (lines[:1] or ["no text"])[0][:500]
    message = exception[1]
    places = [place for line in lines[:last] if (place := _PLACE.match(line))]
    if ":" not in message and places:  # an assertion without a word
        message += " in {}, line {}, in {}".format(*places[-1].groups())
    return message[:500]


def _reports(query: StreamingQuery | StepLoop, after_batch: int) -> list:
    """Returns the reports after micro-batch `after_batch`, maybe earlier ones too: each takes a while to come from Spark."""
    if isinstance(query, StepLoop):
        return query.recentProgress
    recent = query._jsq.recentProgress()
    reports: list[StreamingQueryProgress] = []
    for place in range(len(recent) - 1, -1, -1):
        reports.insert(0, StreamingQueryProgress.fromJson(json.loads(recent[place].json())))
        if reports[0].batchId <= after_batch:
            break
    return reports


def _reported(report) -> dict[str, Any]:
    """Returns the fields of the status that one micro-batch's report changes."""
    lags = _lags(report)
    return {
        "rows_per_second": round(report.inputRowsPerSecond or 0.0, 1),
        "lags": lags,
        "lag": sum(lags.values()) if lags else sum(_files(source) for source in report.sources),
        "batch_seconds": report.batchDuration / 1000,
        "phases": dict(report.durationMs),
        "state_rows": sum(o.numRowsTotal for o in report.stateOperators),
        "state_bytes": sum(o.memoryUsedBytes for o in report.stateOperators),
    }


def _lags(report) -> dict[str, int]:
    """Returns the records that the sources had not handed over at the end of the batch, by partition of a topic."""
    lags: dict[str, int] = {}
    for source in report.sources:
        latest = source.latestOffset
        if isinstance(latest, str) and latest.startswith("{") and "reservoirVersion" not in latest:
            ends = json.loads(source.endOffset)
            for topic, offsets in json.loads(latest).items():
                lags |= {
                    f"{topic}-{p}": offset - ends.get(topic, {}).get(p, 0)
                    for p, offset in offsets.items()
                }
    return lags


def _files(source) -> int:
    return int(float((source.metrics or {}).get("numFilesOutstanding", 0)))


def _in_flight(session: Session, table: Table) -> tuple[int, str] | None:
    """Returns the micro-batch that has begun and is not committed, with its range of offsets; None if there is none."""
    checkpoint = checkpoint_files.newest(session.settings, table)
    if checkpoint is None:
        return None
    batches, done = checkpoint_files.begun(checkpoint), checkpoint_files.done(checkpoint)
    if not batches or batches[-1] in done:
        return None
    ends = (" ".join(checkpoint_files.sources(checkpoint, batch)) for batch in batches[-2:])
    first, last = ["the start", *ends][-2:]
    return batches[-1], f"batch {batches[-1]}, offsets from {first} to {last}"
