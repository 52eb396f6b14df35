"""One life of a table's streaming query, and how one micro-batch or step of it is written: exactly once, one commit log line.

Commit points of a micro-batch, in order; a crash between any two is resumed by running the batch
again: `begin` - rows - `rows` - quarantine - `quarantine` - commit log - `commit_log` - of a query
of Spark's its own commit file.
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
from lakehouse.storage.delta import delta_log, delta_stream, delta_writer, small_commits
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING, Commit, recorded
from lakehouse.storage.position import checkpoint_files, checkpoints
from lakehouse.storage.position.checkpoints import Beginning
from lakehouse.storage.position.handovers import Handover, handover_of
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.session import Session
from lakehouse.stream import news
from lakehouse.stream.prepared_steps import Few, PreparedSteps, computed_here
from lakehouse.transform import observing, plan
from lakehouse.transform.checks import judged_rows
from lakehouse.transform.plan import Plan


@dataclass(frozen=True, slots=True)
class BatchLog:
    """What Spark wrote down before it ran a micro-batch: the same when the batch is replayed."""

    watermark: datetime
    at: datetime
    inputs: dict[str, Any]
    rows: int | None = None  # of the input, if known
    # no row has come, and event time goes on: of an ingest table by so much
    quiet: timedelta | None = None


@dataclass(frozen=True, slots=True)
class StreamRun:
    """One life of a table's streaming query."""

    session: Session
    table: Table
    plan: Plan
    generation: int
    checkpoint: Path
    pinned: dict[str, int]  # pinned inputs: the versions read
    handover: Handover | None  # where it begins, if not with all that its input has
    begun: Beginning | None  # how the generation began, if it is not the first
    # the last batch already in the table when this run began: at most that one is replayed
    committed: int
    reached: Callable[[str], None]  # called at each commit point
    service: Service | None  # what the table's lookup asks
    prepared: PreparedSteps

    @property
    def commit_log(self) -> CommitLog:
        return self.session.commit_log(self.table)

    def references(self) -> dict[str, DataFrame]:
        """The pinned inputs, kept in memory: else each micro-batch would look for their files again."""
        return {name: rows.persist() for name, rows in self.session.references(self.pinned).items()}

    def stream(self) -> DataFrame:
        """The rows of the driving input: from the handover on, if the table has one, from the beginning if not.

        Those that a batch run wrote are left out: they replace what already went downstream. A
        keyed or versioned table reads all of its ingest table, first as it is.
        """
        session = self.session
        path = str(session.path(session.catalog.table(self.plan.driving)))
        if self.table.kind.is_upserted:
            return delta_stream.whole_table_stream(session.spark, path)
        return delta_stream.table_stream(session.spark, session.settings, path, self.since).where(
            f"{ORIGIN} = 'stream'"
        )

    @property
    def since(self) -> int | None:
        """The version of the driving input with which a query of Spark's begins; None: the first that has rows."""
        if self.begun and self.begun.version is not None:
            return self.begun.version
        return self.handover.version if self.handover else None

    def spark_query(self) -> StreamingQuery | None:
        """The table's query, if it is Spark's and runs."""
        active = self.session.spark.streams.active
        return next((query for query in active if query.name == self.table.name), None)

    def late_filter_counts(self) -> dict[str, Any]:
        """What the late filter counted of the batch just run, from the metrics of the query's own execution."""
        query = self.spark_query()
        assert query is not None  # it calls this
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
        """The rows of an aggregate, few, in memory: the state behind them must not be computed twice.

        The observation takes their order away, with which Spark could not keep them: it has one
        where text or structs are aggregated, and names a column that is gone.
        """
        return batch.observe(f"batch_{self.table.name}", F.count(F.lit(1)).alias("rows")).persist()

    def complete(self, offsets: Mapping[str, Any]) -> datetime | None:
        """How far all inputs that are followed are complete by the commits before their offsets, that are read whole.

        None if that is not known of one. A micro-batch further than by the watermark of its rows, which
        was in force when they arrived.
        """
        instants = [self._complete(name, offsets[name]) for name in self.plan.followed]
        known = [each for each in instants if each is not None]
        return min(known) if len(known) == len(instants) else None

    def _complete(self, name: str, offset: Mapping[str, Any]) -> datetime | None:
        # of that version itself it may have read a part
        last, table = offset["reservoirVersion"] - 1, self.session.catalog.table(name)
        return checkpoints.frontier_at(self.session.settings, table, last)

    def noted_frontier(self, batch: int, start: datetime) -> datetime | None:
        """The frontier of a micro-batch that an earlier life of the query got past.

        `start` if it wrote nothing then.
        """
        if batch > self.committed:
            return None
        noted = delta_writer.noted(self.session.path(self.table), self.app(batch), batch)
        return datetime.fromisoformat(noted["frontier"]) if noted else start

    @property
    def start(self) -> datetime:
        """The frontier before the first micro-batch."""
        ahead = self.handover.frontier if self.handover else BEGINNING
        return max(ahead, datetime.fromisoformat(self.again.frontier)) if self.again else ahead

    @property
    def again(self) -> Beginning | None:
        """The generation's beginning, if it reads again what the one before had read, for the state that was lost."""
        return self.begun if self.begun and self.begun.frontier else None

    def app(self, batch: int) -> str:
        """Who writes that batch, to Delta.

        One that the generation before has written is still its own.
        """
        of = self.begun.after if self.begun and self.begun.continues else None
        return checkpoints.app(self.table, of[0] if of and batch <= of[1] else self.generation)

    def due(self, judged: DataFrame) -> DataFrame:
        """What of the judged rows is for this query to write: not what a batch run, or the generation before, has written."""
        if self.handover:  # what lies behind it is the batch run's
            first = self.handover.frontier.strftime(partition_format(self.table.partition_by))
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
        # a line each source: of several topics, a topic each
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
        """Good rows to the table, in one commit with its record, and bad ones to its quarantine.

        `rows`: of the input, if known; few are computed into this process's memory, and committed
        from there. `counts` makes the rest of the record from what was `observed` of the judged
        rows: in one place with the counts of good and bad, and before they are `completed`, since
        each such place may cost a copy of every row; and of the `files` that have them. `noted`: with
        the rows, besides. `counted_later`: rows can be read before they are counted. The record is not whole
        then, nor before bad rows are quarantined: a line of the commit log follows.
        """
        started = time.monotonic()
        app = self.app(batch)
        metadata = (
            {
                "code_version": self.table.code_version,
                "inputs": known["inputs"],
                "watermark": known["watermark"],
            }
            | ({"frontier": known["frontier"]} if "frontier" in known else {})
            | dict(noted or {})
        )
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
            files = small_commits.files_of(good, path)
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
        version = (
            delta_writer.version_of(path, app, batch)
            if replayed
            else delta_writer.commit(
                files, path, app, batch, recorded([made], metadata, whole=whole)
            )
        )
        self.reached("rows")
        if seen["bad"] and not (replayed and batch <= delta_log.committed(aside, app)):
            bad = few.rows if few is not None else completed(judged)  # type: ignore[arg-type]
            self._quarantine_rows(bad, aside, app, batch, metadata)
        self.reached("quarantine")
        if counted_later:
            made = commit(**counts(seen))
        elif not whole:
            made = replace(made, at=datetime.now(UTC))
        self._add(replace(made, version=version), recorded=whole)

    def _quarantine_rows(
        self, judged: "DataFrame | pa.Table", aside: Path, app: str, batch: int, metadata: Mapping
    ) -> None:
        """The bad rows to the quarantine.

        Of a large batch by a second pass over it, paid for only if there are any.
        """
        if isinstance(judged, DataFrame):
            delta_writer.append(judged_rows.bad(judged), aside, app, batch, metadata)
            return
        bad = judged_rows.bad_messages(judged)
        if bad is None:
            rows = in_spark(self.session.spark, judged.filter(pc.field(REASON).is_valid()))
            bad = judged_rows.bad(rows).toArrow()
        delta_writer.append_few(bad, aside, app, batch, metadata)

    def skip(self, batch: int, before: Commit | None, **known: Any) -> None:
        """The commit log's line of a micro-batch that has nothing for the table: no commit, most of the time of a short one."""
        for point in ("begin", "rows", "quarantine"):
            self.reached(point)
        version = before.version if before else delta_writer.version(self.session.path(self.table))
        if before and SEEN in before.inputs:  # rows yet to be read may still see these versions
            known["inputs"] = {**known["inputs"], SEEN: before.inputs[SEEN]}
        self._add(replace(self._commit(batch, **known), version=version))

    def keep(
        self,
        write: Callable[[Path, str, delta_writer.Metadata], int] | None,
        batch: int,
        **known: Any,
    ) -> None:
        """What a batch changes of a keyed or versioned table, in one commit with its record.

        `written`: how many rows it brings.

        `write` is given the table's path, who writes, and what is to be noted, and returns the
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
        """The commit of a micro-batch, whose version is yet to be known."""
        return Commit(
            table=self.table.name,
            role="stream",
            generation=self.generation,
            batch=batch,
            version=NOTHING,
            at=datetime.now(UTC),
            code_version=self.table.code_version,
            **known,
        )

    def _add(self, commit: Commit, *, recorded: bool = False) -> None:
        self.session.commit_log(self.table).append(commit, recorded=recorded)
        news.announce(self.table.name)
        self.reached("commit_log")


def stream_run(
    session: Session, table: Table, reached: Callable[[str], None] = lambda point: None
) -> StreamRun:
    """The next run of a table's streaming query: its last generation, the reference tables pinned to their present versions."""
    generation = checkpoints.generation(session.settings, table)
    begun = checkpoints.beginning(session.settings, table, generation)
    pinned = {
        t.name: delta_writer.version(session.path(t)) for t in session.catalog.pinned_inputs(table)
    }
    committed = delta_log.committed(session.path(table), checkpoints.app(table, generation))
    if begun and begun.continues and begun.after:
        committed = max(committed, begun.after[1])
    return StreamRun(
        session,
        table,
        plan.plan_of(session, table),
        generation,
        checkpoint_files.folder_of(session.settings, table, generation),
        pinned,
        handover_of(session.settings, table),
        begun,
        committed,
        reached,
        lookups.service_of(table),
        PreparedSteps(session, table),
    )


def _instant(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)
