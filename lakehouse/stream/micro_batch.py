"""One life of a table's streaming query, and how one micro-batch or step of it is written: exactly once, one commit log line.

Commit points of a micro-batch, in order; a crash between any two is resumed by running the batch
again: `begin` - rows - `rows` - quarantine - `quarantine` - commit log - `commit_log` - and, for a
query of Spark's, its own commit file.
"""

import json
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from lakehouse.batch import lookups
from lakehouse.declare.columns import ORIGIN, PARTITION, REASON, WINDOW
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, EPOCH, micros, partition_format
from lakehouse.runtime.service import Service
from lakehouse.storage.delta import committer, delta_log, delta_stream, delta_writer
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit, recorded, unwritten
from lakehouse.storage.position import checkpoint_files, checkpoints
from lakehouse.storage.position.checkpoints import Beginning
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.position.table_state import TableState
from lakehouse.storage.session import Session
from lakehouse.stream import news
from lakehouse.stream.prepared_steps import Few, PreparedSteps, computed_here
from lakehouse.transform import observing, plan
from lakehouse.transform.checks import judged_rows
from lakehouse.transform.plan import Plan


@dataclass(frozen=True, slots=True)
class BatchLog:
    """What is recorded of a micro-batch before it runs, and is the same when it is replayed: its inputs, and when it began."""

    watermark: datetime
    at: datetime
    inputs: dict[str, Any]
    rows: int | None = None  # of the input, if known
    # set if no row has come and event time goes on; for an ingest table, by how much
    quiet: timedelta | None = None


@dataclass(frozen=True, slots=True)
class StreamRun:
    """One life of a table's streaming query."""

    session: Session
    plan: Plan
    state: TableState  # when this run began: nobody else moves the position of the stream
    pinned: dict[str, int]  # pinned inputs: the versions read
    # the last batch already in the table when this run began: at most that one is replayed
    committed: int
    reached: Callable[[str], None]  # called at each commit point
    service: Service | None  # the service that the table's lookup asks
    prepared: PreparedSteps

    @property
    def table(self) -> Table:
        return self.state.table

    @property
    def generation(self) -> int:
        return self.state.standing.generation

    @property
    def checkpoint(self) -> Path:
        return checkpoint_files.folder_of(self.session.settings, self.table, self.generation)

    @property
    def commit_log(self) -> CommitLog:
        return self.session.commit_log(self.table)

    def references(self) -> dict[str, DataFrame]:
        """Returns the pinned inputs, kept in memory: else each micro-batch would look for their files again."""
        return {name: rows.persist() for name, rows in self.session.references(self.pinned).items()}

    def stream(self) -> DataFrame:
        """Returns the rows of the driving input: from the handover on, if the table has one, from the beginning if not.

        Rows that a batch run wrote are left out: they replace what already went downstream. A
        keyed or versioned table reads its whole ingest table, first as it is.
        """
        session = self.session
        path = session.path(session.catalog.table(self.plan.driving))
        if self.table.kind.is_upserted:
            return delta_stream.whole_table_stream(session.spark, path)
        return delta_stream.table_stream(session.spark, session.settings, path, self.since).where(
            f"{ORIGIN} = 'stream'"
        )

    @property
    def since(self) -> int | None:
        """Returns the version of the driving input with which a query of Spark's begins; None: the first that has rows."""
        beginning, handover = self.state.standing.beginning, self.state.handover
        if beginning and beginning.version is not None:
            return beginning.version
        return handover.version if handover else None

    def spark_query(self) -> StreamingQuery | None:
        """Returns the table's query, if it is Spark's and runs."""
        active = self.session.spark.streams.active
        return next((query for query in active if query.name == self.table.name), None)

    def late_filter_counts(self) -> dict[str, Any]:
        """Returns the late filter's counts of the batch just run, from the metrics of the query's own execution."""
        query = self.spark_query()
        assert query is not None  # the query itself calls this
        metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()
        row = metrics.get(f"late_filter_{self.table.name}").get()
        seen = {
            name: row.getAs(name)
            for name in ("arrived", "late", "late_from", "late_to", "watermark")
        }
        seen |= {name: micros(seen[name]) for name in ("late_from", "late_to")}
        if instant := seen["watermark"]:  # a java.sql.Timestamp
            whole, rest = (
                timedelta(seconds=instant.getTime() // 1000),
                timedelta(microseconds=instant.getNanos() // 1000),
            )
            seen["watermark"] = EPOCH + whole + rest
        return seen

    def held(self, batch: DataFrame) -> DataFrame:
        """Returns the rows of an aggregate, few, in memory, so that their state is not computed twice.

        The observation takes their order away, because Spark could not keep them with it: where text
        or structs are aggregated, the rows have an order, by a column that is gone.
        """
        return batch.observe(f"batch_{self.table.name}", F.count(F.lit(1)).alias("rows")).persist()

    def complete(self, offsets: Mapping[str, Any]) -> datetime | None:
        """Returns how far all followed inputs are complete, by the commits before their offsets, which are read whole.

        None if that is not known of one. It is a micro-batch further than the watermark of the rows,
        which was in force when they arrived.
        """
        instants = [self._complete(name, offsets[name]) for name in self.plan.followed]
        known = [each for each in instants if each is not None]
        return min(known) if len(known) == len(instants) else None

    def _complete(self, name: str, offset: Mapping[str, Any]) -> datetime | None:
        # the version itself may have been read in part
        last, table = offset["reservoirVersion"] - 1, self.session.catalog.table(name)
        return checkpoints.frontier_at(self.session.settings, table, last)

    def noted_frontier(self, batch: int, start: datetime) -> datetime | None:
        """Returns the frontier of a micro-batch that an earlier life of the query has passed; None for a new one.

        `start` if that life wrote nothing for it.
        """
        if batch > self.committed:
            return None
        noted = delta_writer.noted(self.session.path(self.table), self.app(batch), batch)
        return datetime.fromisoformat(noted["frontier"]) if noted else start

    @property
    def start(self) -> datetime:
        """Returns the frontier before the first micro-batch."""
        ahead = self.state.handover.frontier if self.state.handover else BEGINNING
        return max(ahead, datetime.fromisoformat(self.again.frontier)) if self.again else ahead

    def frontier_after(self, commit: Commit | None) -> datetime:
        """Returns the frontier that a commit of the stream left; `start` without a commit, or if it has none."""
        return (commit and commit.frontier) or self.start

    @property
    def again(self) -> Beginning | None:
        """Returns the generation's beginning, if it reads again what the one before had read, to rebuild lost state."""
        beginning = self.state.standing.beginning
        return beginning if beginning and beginning.frontier else None

    def app(self, batch: int) -> str:
        """Returns the writer of that batch, as Delta knows it (`txnAppId`).

        A batch that the generation before has written keeps that generation's.
        """
        beginning = self.state.standing.beginning
        of = beginning.after if beginning and beginning.continues else None
        return checkpoints.app(self.table, of[0] if of and batch <= of[1] else self.generation)

    def due(self, judged: DataFrame) -> DataFrame:
        """Returns the judged rows that this query writes: not those that a batch run or the generation before has written."""
        if handover := self.state.handover:  # rows behind it are the batch run's
            first = handover.frontier.strftime(partition_format(self.table.partition_by))
            judged = judged.where(F.coalesce(F.col(PARTITION) >= first, F.lit(True)))
        if self.again:
            ends = F.col(f"{WINDOW}.end")
            good, bad = (
                ends > F.lit(datetime.fromisoformat(e))
                for e in (self.again.frontier, self.again.aside)
            )
            judged = judged.where(
                F.coalesce(F.when(F.col(REASON).isNull(), good).otherwise(bad), F.lit(True))
            )
        return judged

    def log(self, batch: int) -> BatchLog:
        """Reads the batch's line in the query's offset log."""
        noted = checkpoint_files.noted(self.checkpoint, batch)
        # one line for each source: with several topics, one for each topic
        offsets = [json.loads(line) for line in checkpoint_files.sources(self.checkpoint, batch)]
        return BatchLog(
            _instant(noted["batchWatermarkMs"]) if noted["batchWatermarkMs"] else BEGINNING,
            _instant(noted["batchTimestampMs"]),
            {self.plan.driving: dict(ChainMap(*offsets))},
        )

    def write(
        self,
        judged: DataFrame | Few,
        batch: int,
        counts: Callable[[Mapping[str, Any]], dict[str, Any]],
        observed: Sequence[Column] = (),
        completed: Callable[[DataFrame], DataFrame] = lambda judged: judged,
        rows: int | None = None,
        noted: Mapping[str, Any] | None = None,
        counted_later: bool = False,
        **known: Any,
    ) -> None:
        """Writes good rows to the table, in one commit with their record, and bad ones to its quarantine.

        `rows`: their number in the input, if known; few are computed into this process's memory, and committed from there.
        `counts` makes the rest of the record from what was `observed` of the judged rows, and from the `files` that have them.
        These and the good and bad rows are counted at one place, before the rows are `completed`: each such place may cost a
        copy of every row. `noted`: what else is noted with the rows. `counted_later`: the rows can be read before they are
        counted. The record is not whole then, nor before bad rows are quarantined: a line of the commit log follows.
        """
        started = time.monotonic()
        app = self.app(batch)
        metadata: dict[str, Any] = {
            name: known[name] for name in ("inputs", "watermark", "frontier") if name in known
        }
        metadata |= {"code_version": self.table.code_version, **(noted or {})}
        path, aside = self.session.path(self.table), self.session.path(self.table, "quarantine")
        self.reached("begin")
        replayed, few = batch <= self.committed, judged if isinstance(judged, Few) else None
        if isinstance(judged, DataFrame):
            judged = self.due(judged)
            if not replayed and rows is not None and rows <= self.session.settings.step_rows:
                few = computed_here(judged, observed, completed)
        if few is not None:
            good = few.rows.filter(pc.field(REASON).is_null())
            seen = {**few.observed, "good": len(good), "bad": len(few.rows) - len(good)}
            files = delta_writer.files_of(good, path)
        else:
            assert isinstance(judged, DataFrame)
            counts_of_rows = (
                F.count(F.when(F.col(REASON).isNull(), 1)).alias("good"),
                F.count(REASON).alias("bad"),
                *observed,
            )
            outcome = Observation()
            many = judged_rows.good(completed(judged.observe(outcome, *counts_of_rows)))
            files = [] if replayed else delta_writer.files_of(many, path)
            if replayed:
                delta_writer.compute(many)
            seen = (
                observing.observed(outcome) or observing.only(judged.agg(*counts_of_rows)).asDict()
            )

        def commit(**more: Any) -> Commit:
            counted = {**known, **more, "quarantined": seen["bad"], "written": seen["good"]}
            if self.again and batch == 0:  # its rows have been counted
                counted |= {"arrived": 0, "late": 0, "late_from": None, "late_to": None}
            return self._commit(batch, seconds=time.monotonic() - started, **counted)

        made = commit(**({} if counted_later else counts({**seen, "files": files})))
        whole = not (replayed or seen["bad"] or counted_later)
        if replayed:
            version = delta_writer.version_of(path, app, batch)
        else:
            record = recorded([made], metadata, whole=whole)
            version = delta_writer.commit(files, path, app, batch, record)
        self.reached("rows")
        if seen["bad"] and not (replayed and batch <= delta_log.committed(aside, app)):
            bad = few.rows if few is not None else completed(judged)  # type: ignore[arg-type]
            self._quarantine_rows(bad, aside, app, batch, metadata)
        self.reached("quarantine")
        if counted_later:
            made = commit(**counts(seen))
        elif not whole:
            made = replace(made, at=datetime.now(UTC), seconds=time.monotonic() - started)
        self._add(replace(made, version=version), recorded=whole)

    def _quarantine_rows(
        self, judged: "DataFrame | pa.Table", aside: Path, app: str, batch: int, metadata: Mapping
    ) -> None:
        """Writes the bad rows to the quarantine.

        A large batch takes a second pass for it, which is paid for only if there are any.
        """
        bad: DataFrame | pa.Table | None
        if isinstance(judged, DataFrame):
            bad = judged_rows.bad(judged)
        elif (bad := judged_rows.bad_messages(judged)) is None:
            rows = in_spark(self.session.spark, judged.filter(pc.field(REASON).is_valid()))
            bad = judged_rows.bad(rows).toArrow()
        delta_writer.append(bad, aside, app, batch, metadata)

    def skip(self, batch: int, before: Commit | None, **known: Any) -> None:
        """Adds the commit log's line of a batch with nothing for the table. It saves the commit, most of a short one's time."""
        for point in ("begin", "rows", "quarantine"):
            self.reached(point)
        version = before.version if before else delta_writer.version(self.session.path(self.table))
        committer.check(self.session.path(self.table))  # no commit follows that would be refused
        if before and SEEN in before.inputs:  # rows yet to be read may still see these versions
            known["inputs"] = {**known["inputs"], SEEN: before.inputs[SEEN]}
        self._add(replace(self._commit(batch, **known), version=version))

    def keep(
        self,
        write: Callable[[Path, str, delta_writer.Metadata], int] | None,
        batch: int,
        **known: Any,
    ) -> None:
        """Writes what a batch changes of a keyed or versioned table, in one commit with its record.

        `written`: how many rows it brings.

        `write` is given the table's path, the writer, and what is to be noted, and returns the
        version; None if there is nothing to write.
        """
        started, made = time.monotonic(), list[Commit]()
        app, path = self.app(batch), self.session.path(self.table)
        mark = {name: known[name] for name in ("inputs", "written", "frontier")}
        mark["code_version"] = self.table.code_version

        def noted() -> dict[str, Any]:
            made.append(self._commit(batch, seconds=time.monotonic() - started, **known))
            return recorded(made, mark)

        self.reached("begin")
        if write is None:
            version = delta_writer.version(path)
        elif batch <= self.committed:
            version = delta_writer.version_of(path, app, batch)
        else:
            version = write(path, app, noted)
        self.reached("rows")
        self.reached("quarantine")
        whole = bool(made)
        if not whole:
            noted()
        self._add(replace(made[0], version=version), recorded=whole)

    def _commit(self, batch: int, **known: Any) -> Commit:
        """Returns the commit of a micro-batch, without its version."""
        return unwritten(self.table, "stream", self.generation, batch, **known)

    def _add(self, commit: Commit, *, recorded: bool = False) -> None:
        self.session.commit_log(self.table).append(commit, recorded=recorded)
        news.announce(self.table.name)
        self.reached("commit_log")


def stream_run(
    session: Session, state: TableState, reached: Callable[[str], None] = lambda point: None
) -> StreamRun:
    """Returns the next run of a table's query: in its last generation, with reference tables pinned to their present versions."""
    table, beginning = state.table, state.standing.beginning
    pinned = {
        t.name: delta_writer.version(session.path(t)) for t in session.catalog.pinned_inputs(table)
    }
    app = checkpoints.app(table, state.standing.generation)
    committed = delta_log.committed(session.path(table), app)
    if beginning and beginning.continues and beginning.after:
        committed = max(committed, beginning.after[1])
    step, service = plan.plan_of(session, table), lookups.service_of(table)
    return StreamRun(
        session, step, state, pinned, committed, reached, service, PreparedSteps(session, table)
    )


def _instant(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)
