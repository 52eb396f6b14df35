"""Questions to services for rows without a recorded answer. Answers are recorded before anything is computed with them."""

import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.declare.columns import PARTITION, ROW
from lakehouse.declare.lookups import Ask, Lookup
from lakehouse.declare.table import Table
from lakehouse.errors import LookupFailed
from lakehouse.ranges import Range
from lakehouse.runtime.service import Answer, Service
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.keyed import lookup_answers
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.session import Session
from lakehouse.transform import lateness, observing
from lakehouse.transform.decoding.values import of_ddl
from lakehouse.transform.lookups import Answers
from lakehouse.transform.plan import Plan, plan_of

_log = logging.getLogger(__name__)

_AT_ONCE = 50_000  # rows that a batch run asks for before it checks again which are left
_JOINED = 100_000  # the most answers that are broadcast
_INSTANT = timedelta(microseconds=1)


def lookup_of(table: Table) -> Lookup:
    assert table.lookup is not None, table.name
    return table.lookup


def service_of(table: Table) -> Service | None:
    """Returns the service that the table's lookup asks; None without a lookup."""
    if table.lookup is None:
        return None
    return Service(table.lookup, lookup_answers.checker(of_ddl(table.lookup.schema)))


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """The answers of a step, in memory (`Answers`)."""

    rows: pa.Table
    complete: bool

    @property
    def columns(self) -> StructType:
        return from_arrow_schema(self.rows.schema, prefer_timestamp_ntz=True)

    def frame(self, spark: SparkSession) -> DataFrame:
        rows = in_spark(spark, self.rows)
        return F.broadcast(rows) if self.rows.num_rows <= _JOINED else rows


class StepLookups:
    """The answers for the steps of one life of a table's stream.

    Answers recorded before it are used and not asked again, after a crashed step, or where a table is filled again.
    """

    def __init__(self, session: Session, step: Plan, service: Service) -> None:
        self._lake, self._step, self._service = session, step, service
        self._path = session.path(step.table, "answers")
        # its own answers are not read again: each row comes once
        self._before = delta_log.files(self._path)

    def of(self, asked: pa.Table, app: str) -> StepAnswers:
        """Returns the answers to the questions of a step (`Plan.questions`), asked by `app`. Raises LookupFailed."""
        table = self._step.table
        schema = _schema(self._lake, table)
        recorded = schema.empty_table()
        if files := self._files(set(asked[PARTITION].to_pylist())):
            recorded = lookup_answers.recorded(self._path, files, schema, asked[ROW])
        answered = set(recorded[ROW].to_pylist())
        missing = [each for each in asked.to_pylist() if each[ROW] not in answered]
        try:
            new = _asked(self._lake, table, self._service, missing, app) if missing else []
        except LookupFailed:  # the same step runs again, for the missing answers
            self._before = delta_log.files(self._path)
            raise
        all_answers = pa.concat_tables(
            each.select([ROW, "answer", "failure"]) for each in (recorded, *new)
        )
        failed = all_answers["failure"].null_count < all_answers.num_rows
        return StepAnswers(all_answers, not failed or self._service.lookup.on_failure == "null")

    def _files(self, partitions: Collection[str]) -> list[dict]:
        """Returns the files of the partitions that were recorded before this life of the stream."""
        mine = [file for file in self._before if file[f"partition.{PARTITION}"] in partitions]
        if lost := delta_log.lost(self._path, mine):
            _say_lost(self._step.table, [file["path"] for file in lost])
            self._before = [file for file in self._before if file not in lost]
        return [file for file in mine if file not in lost]


def _say_lost(table: Table, files: Sequence[str]) -> None:
    _log.warning(
        f"table={table.name}, answers={', '.join(files)}: the log names these files and they are not there, so their rows are "
        "asked for again; restore them if the service may answer otherwise now"
    )


def of_range(
    session: Session,
    step: Plan,
    ask: Ask | None,
    touched: DataFrame | None,
    rows: DataFrame,
    context: Range,
) -> Answers:
    """Returns the recorded answers for rows of a range; rows without one are asked for first, unless `ask` is None.

    "failed" asks again for rows whose lookup had failed, "all" for all rows. Raises LookupFailed.
    """
    table = step.table
    recorded = partial(_recorded, session, table, context)
    partitions = set(context.partitions(table.partition_by))
    if lost := session.lost(table, partitions, side="answers"):
        _say_lost(table, [file["path"] for files in lost.values() for file in files])
    if ask is not None:
        if ask != "missing":
            lookup_answers.note_again(session.settings, table, partitions)
        questions = step.questions(rows, "batch", touched)
        begun = None if ask == "missing" else _after(recorded())
        enough = F.lit(True) if ask == "missing" else F.col("asked") >= F.lit(begun)
        if ask == "failed":
            enough |= F.col("failure").isNull()
        service = service_of(table)
        assert service is not None, table.name
        while True:
            answered = recorded().where(enough).select(ROW)
            left = questions.join(answered, ROW, "left_anti").limit(_AT_ONCE).toArrow()
            if not left.num_rows:
                break
            _asked(session, table, service, left.to_pylist(), f"{table.name}:batch", begun)
    latest = F.max_by(F.struct("answer", "failure"), "asked").alias("last")
    return Answers(recorded().groupBy(ROW).agg(latest).select(ROW, "last.*"))


def questions(session: Session, table: Table, span: Range) -> DataFrame:
    """Returns the rows of a range for which a batch run asks the table's lookup (`Plan.questions`)."""
    step = plan_of(session, table)
    driving = session.catalog.driving(table)
    moment = lateness.instant_of_stored(session.catalog, driving)
    rows = session.spanning(driving, span).where(lateness.between(moment, span))
    return step.questions(rows, "batch")


def missing(session: Session, table: Table, questions: DataFrame, span: Range) -> dict[str, int]:
    """Returns the number of rows without a recorded answer, for each partition that has some."""
    left = questions.join(_recorded(session, table, span).select(ROW), ROW, "left_anti")
    return {row[PARTITION]: row["count"] for row in left.groupBy(PARTITION).count().collect()}


def forget(session: Session, table: Table, questions: DataFrame, span: Range) -> None:
    """Removes the answers for rows of closed partitions that no longer exist."""
    path, partitions = session.path(table, "answers"), list(span.partitions(table.partition_by))
    recorded = _recorded(session, table, span)
    needed = recorded.join(questions.select(ROW), ROW, "left_semi").select(recorded.columns)
    if needed.count() < recorded.count():
        delta_writer.replace(needed, path, partitions, {"run": uuid.uuid4().hex})


def _after(recorded: DataFrame) -> datetime:
    """Returns the present, or an instant after all recorded answers if a clock was ahead."""
    last = observing.only(recorded.agg(F.max("asked")))[0]
    now = datetime.now(UTC)
    return max(now, last.astimezone(UTC) + _INSTANT) if last else now


def _recorded(session: Session, table: Table, context: Range) -> DataFrame:
    partitions = set(context.partitions(table.partition_by))
    return session.readable(table, partitions, side="answers")[0]


def _schema(lakehouse: Lakehouse, table: Table) -> pa.Schema:
    answers = delta_log.open_table(lakehouse.path(table, "answers"))
    return to_arrow_schema(delta_log.schema_of(answers), timezone="UTC")


def _asked(
    lakehouse: Lakehouse,
    table: Table,
    service: Service,
    missing: Sequence[dict[str, Any]],
    app: str,
    begun: datetime | None = None,
) -> list[pa.Table]:
    """Asks for these rows, records each answer soon after it came, and returns the recorded ones.

    `begun`: the instant since which rows are asked for again. Raises LookupFailed under `on_failure="wait"`.
    """
    path, schema, lookup = (
        lakehouse.path(table, "answers"),
        _schema(lakehouse, table),
        lookup_of(table),
    )
    rows_of: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for question in missing:
        rows_of.setdefault(tuple(question["key"].values()), []).append(question)
    recorded: list[pa.Table] = []
    failures: list[str] = []
    for lot in service.ask(list(rows_of), fresh=begun is not None):
        if lookup.on_failure == "wait":
            failures += [answer.failure for answer in lot.values() if answer.failure]
            lot = {key: answer for key, answer in lot.items() if not answer.failure}
        rows = [row | _row(lot[key], begun) for key in lot for row in rows_of[key]]
        if rows:
            recorded.append(pa.Table.from_pylist(rows, schema))
            lookup_answers.record(path, app, recorded[-1])
    if failures:
        raise LookupFailed(
            f"table={table.name}, lookup={lookup.name}: {len(failures)} of {len(rows_of)} keys have no answer after "
            f"{lookup.retries + 1} attempts ({failures[0]}); the others are recorded, and these are asked again"
        )
    return recorded


def _row(answer: Answer, begun: datetime | None) -> dict[str, Any]:
    return {
        "answer": answer.value,
        "failure": answer.failure or None,
        "asked": max(answer.asked, begun) if begun else answer.asked,
        "seconds": answer.seconds,
        "attempts": answer.attempts,
    }
