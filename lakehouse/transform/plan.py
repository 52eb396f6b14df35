"""The plan of a table: late filter, the user's function, checks. Streams and batch runs have the same one.

    ingest    raw records -> decoded -> function -> judged -> arrived
    derived   rows of the driving input -> flagged -> accepted -> function -> judged

A judged row carries `_reason` (null for a good row), `_origin` and `_partition`. The writer divides good rows from
bad ones by the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import ranges
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import (
    ARRIVAL,
    INGESTION,
    ORIGIN,
    PARTITION,
    PLACE,
    REASON,
    RECORD,
    WINDOW,
)
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.runtime.prepared_plans import Moment
from lakehouse.storage.delta import row_keys
from lakehouse.storage.session import Session
from lakehouse.transform import arrival_fields, lateness, lookups, observing, versions
from lakehouse.transform.analysis import result_checks, shapes
from lakehouse.transform.checks import quality, years
from lakehouse.transform.checks.judged_rows import good
from lakehouse.transform.checks.quality import RowRule
from lakehouse.transform.decoding import decode, record_columns
from lakehouse.transform.decoding.schemas import NO_SCHEMAS, Schemas
from lakehouse.transform.function_inputs import (
    Inputs,
    TimedInput,
    are_of_one_topic,
    called,
    carried,
    plain,
)

Origin = Literal["stream", "batch", "early"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The computation of one table's rows from those of its inputs, in a stream and in batch runs."""

    spark: SparkSession = field(repr=False)
    catalog: Catalog = field(repr=False)
    table: Table
    inputs: Mapping[str, "Plan"] = field(repr=False)  # of the tables that it reads
    event_time: str
    driving: str  # the first input with event time; an ingest table's is its first source
    sources: Mapping[str, RecordSource]  # of an ingest table: its inputs
    timed: Mapping[str, TimedInput]
    followed: Sequence[str]  # the inputs whose commits the stream follows
    by_position: bool  # True if rows are changes of a database, in the order of its log
    unit: str  # the column by which rows belong together: a window, or a row's own arrival
    by_ingestion: bool  # True if a record's event time is its time of arrival (`arrived` adds it)
    further: tuple[str, ...]  # columns of an ingest table's records beyond `decode.RAW`
    _made: dict[str, Any] = field(init=False, default_factory=dict, repr=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Returns what is the same in each step, made at the first: calls of Spark cost more than the rows of a short one."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def schema(self) -> StructType:
        """The columns of the table on disk, found once: it takes half a second.

        Raises DeclarationError if the function does not keep what it must.
        """
        return self.once("schema", lambda: _schema(self))

    @property
    def rules(self) -> Sequence[RowRule]:
        """The expectations that hold row by row, compiled once. Raises DeclarationError for an impossible one."""
        expectations = self.table.expectations
        if not expectations:
            return ()
        return self.once("rules", lambda: quality.row_rules(self.spark, self.schema, expectations))

    def ingest(
        self,
        records: Mapping[str, DataFrame],
        schemas: Schemas = NO_SCHEMAS,
        *,
        timed: bool = False,
    ) -> DataFrame:
        """Returns raw records through parser and function, judged: first by parsing, then by event time and expectations.

        The records are given by input; `schemas` are those of their values. The function sees records of a history
        together with those of its topic. Nothing here changes from one micro-batch to the next: `arrived` adds what
        does. Only bad rows keep their key and value. The timestamp is kept if `timed`.
        """
        rows = _called(self, record_columns.decoded(self, records, schemas), {RECORD})
        judged, kept = self.once(
            f"record {timed}", lambda: record_columns.judging(self, rows.schema, timed)
        )
        return rows.select(*judged).select(*kept)

    def arrived(
        self, judged: DataFrame, watermark: datetime | Moment, at: datetime | Moment
    ) -> DataFrame:
        """Returns judged records with their arrival: the watermark in force, the record's position, the time."""
        only, *others = self.sources.values()
        in_force, time = lateness.passing(F.col(f"{RECORD}_partition"), watermark, at)
        topic = F.col(f"{RECORD}_topic") if others else F.lit(only.address)
        arrival = arrival_fields.of_records(in_force, topic, time, PLACE in self.further)
        own = {INGESTION: time} if self.by_ingestion else {}
        placed = time if isinstance(at, Moment) else F.lit(at)
        return judged.withColumns(own | {ARRIVAL: arrival} | _placing(self, placed, "stream"))

    def derived(
        self,
        inputs: Inputs,
        origin: Origin,
        observed: Observation | str | None = None,
        touched: DataFrame | None = None,
    ) -> DataFrame:
        """Returns the rows of a table with event time, through late filter and function, judged.

        A batch run merges late rows if the table is to be updated with them. `observed` receives the `counts` of the
        driving input in the same pass. In a stream it also keeps the optimiser from moving filters below the watermark.
        It costs a copy of every row, and a batch run does without, because the stream has counted its input. `touched`
        (column: the `unit`) narrows the computation to some windows, or to some rows of a row table.
        """
        table = self.table
        rows = inputs.driving
        accepted = _accepted(self, self.driving, rows, origin, touched, observed)
        unanswered = None
        if table.lookup and inputs.answers:
            accepted, unanswered = lookups.answered(
                table.lookup, accepted, inputs.answers, self.event_time
            )
        elif table.lookup:  # where no row comes
            accepted = lookups.without_answers(table.lookup, accepted)
        if table.window and table.window.kind == "count":
            if missing := set(table.keys) - set(accepted.columns):
                raise DeclarationError(
                    f"table={table.name}, keys={', '.join(sorted(missing))}: rows are counted per key before the function "
                    f"sees them, so keys are columns of {self.driving}; add them there"
                )
            accepted = lateness.counted(accepted, table, self.event_time, inputs.complete_until)
        if table.deduplicate:
            near = self.timed[self.driving].flagged(rows if inputs.near is None else inputs.near)
            accepted = lateness.firsts(
                accepted, lateness.accepted(near), table.deduplicate, self.event_time
            )
        given = _plain(inputs.references)
        given |= {n: _accepted(self, n, each, origin, touched) for n, each in inputs.others.items()}
        function = partial(_called, self, kept={ARRIVAL} if table.kind.is_row_by_row else set())
        made = called(
            function, given | {self.driving: accepted}, self.driving, inputs.versions_seen
        )
        judged = made.withColumns(
            self.once(f"derived {origin}", lambda: _judged(self, made, origin))
        )
        placing = _placing(self, F.col(self.event_time), origin) if unanswered else {}
        return lookups.with_unanswered(judged, unanswered, placing)

    def questions(
        self, rows: DataFrame, origin: Origin, touched: DataFrame | None = None
    ) -> DataFrame:
        """Returns the rows of the driving input for which its lookup is asked (`lookups.questions`)."""
        assert self.table.lookup is not None, self.table.name
        accepted = _accepted(self, self.driving, rows, origin, touched)
        return lookups.questions(self.table, self.table.lookup, accepted, self.event_time)

    def kept(
        self,
        rows: Mapping[str, DataFrame],
        references: Mapping[str, DataFrame],
        observed: Observation | str | None = None,
    ) -> DataFrame:
        """Returns what the function makes of the inputs that are followed: a row for each key, or changes of it.

        Late rows count, too. No row is quarantined for an expectation, because a table without one of its keys would
        be wrong: the check reports it. `observed` receives the `counts` of the driving input.
        """
        untimed = {n: f for n, f in {**rows, **references}.items() if n not in self.timed}
        inputs = _plain(untimed)
        for name, timed in self.timed.items():
            flagged = timed.flagged(rows[name])
            if observed is not None and name == self.driving:
                flagged = flagged.observe(observed, *lateness.counts(self.table, self.event_time))
            inputs[name] = lateness.accepted(flagged, late_too=not self.table.ttl)
        if self.table.kind.keeps_latest:
            return _called(self, inputs, set())
        changes = _called(self, inputs, {ARRIVAL})
        if self.by_position and "position" not in changes.columns:
            raise DeclarationError(
                f"table={self.table.name}, column=position: changes of a database are in the order of its log, "
                "not of their time; have the function keep the column position"
            )
        return versions.changes(changes, self.event_time, by_position=self.by_position)

    def late_filter_counts(self, late_filter: Observation, rows: DataFrame) -> Mapping[str, Any]:
        """Returns what the late filter observed of `rows` of the driving input, or counts them if it saw none.

        Spark does not read one side of a join if the other is empty, and may remove it from the plan.
        """
        seen = observing.observed(late_filter)
        if seen and seen["arrived"]:
            return seen
        return observing.only(self.timed[self.driving].counts(rows)).asDict()

    def reference(
        self, inputs: Mapping[str, DataFrame], span: ranges.Range | None = None
    ) -> DataFrame:
        """Returns the rows of a table without event time, computed whole and judged.

        With a `span` they are a partition of a report, and the inputs have the rows of that partition.
        """
        rows = _called(self, inputs if span is None else _plain(inputs), set())
        reason = F.coalesce(years.reason(rows.schema), quality.first_broken(self.rules))
        judged = rows.withColumn(REASON, reason)
        if span is None:
            return judged
        window = lateness.window_of(span)
        return judged.withColumns(window | _placing(self, F.lit(span.start), "batch"))

    def no_rows(self, name: str) -> DataFrame:
        """Returns an input without rows, with the columns that it has on disk, or as a raw record."""
        if name in self.inputs:
            columns = self.inputs[name].schema
            return self.spark.createDataFrame([], columns).drop(row_keys.KEY)
        return self.spark.createDataFrame([], self.catalog.sources[name].raw_columns)

    def on_no_rows(self) -> DataFrame:
        """Returns the function's result for inputs without rows."""
        inputs = {name: self.no_rows(name) for name in self.table.inputs}
        if self.table.kind.reads_sources:
            decoded = record_columns.decoded(self, inputs, NO_SCHEMAS)
            return self.table(
                **{n: self.spark.createDataFrame([], rows.schema) for n, rows in decoded.items()}
            )
        timed = {n: lateness.accepted(each.flagged(inputs[n])) for n, each in self.timed.items()}
        # those of a count window are assigned later
        if self.table.kind.is_windowed and WINDOW not in timed[self.driving].columns:
            none = F.lit(None).cast("struct<start:timestamp,end:timestamp>")
            timed[self.driving] = timed[self.driving].withColumn(WINDOW, none)
        if self.table.lookup:
            timed[self.driving] = lookups.without_answers(self.table.lookup, timed[self.driving])
        for name, rows in timed.items():
            of_one = are_of_one_topic(self.catalog, name)
            timed[name] = shapes.marked(rows, name, {WINDOW}, of_one_topic=of_one)
        return self.table(**_plain(inputs) | timed)


def without_expectations(step: Plan) -> Plan:
    """Returns the same plan, in which no row breaks an expectation."""
    return replace(step, table=replace(step.table, expectations=()))


def _plain(inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return {name: plain(rows) for name, rows in inputs.items()}


def _accepted(
    step: Plan,
    name: str,
    rows: DataFrame,
    origin: Origin,
    touched: DataFrame | None = None,
    observed: Observation | str | None = None,
) -> DataFrame:
    """Returns the rows of an input that pass the late filter, only those of a `touched` window or row."""
    placed = step.timed[name].placed(rows)
    step.once(f"input {name}", lambda: result_checks.check_input(step.table, name, placed))
    flagged = step.timed[name].flagged(placed)
    if observed is not None:
        flagged = flagged.observe(observed, *lateness.counts(step.table, step.event_time))
    late_too = origin == "batch" and step.table.late == "update"
    accepted = lateness.accepted(flagged, late_too=late_too)
    if touched is None:
        return accepted
    return accepted.join(F.broadcast(touched.select(step.unit)), step.unit, "left_semi")


def _judged(step: Plan, rows: DataFrame, origin: Origin) -> dict[str, Column]:
    moment = lateness.instant_of(step.table.window, step.event_time)
    missing = F.when(moment.isNull(), F.lit(f"event time missing: {step.event_time}"))
    beyond = years.reason(rows.schema)
    reason = F.coalesce(beyond, missing, quality.first_broken(step.rules))
    return {REASON: reason} | _placing(step, F.when(beyond.isNull(), moment), origin)


def _placing(step: Plan, moment: Column, origin: Origin) -> dict[str, Column]:
    return {
        ORIGIN: F.lit(origin),
        PARTITION: lateness.partition_of(moment, step.table.partition_by),
    }


def _called(step: Plan, inputs: Mapping[str, DataFrame], kept: set[str]) -> DataFrame:
    """Returns the function's result. The first is checked: a function is pure, and its inputs keep their columns."""
    rows = step.table(**inputs)
    if step.table.kind.is_row_by_row:
        rows = carried(rows, inputs[step.driving], (ARRIVAL, step.event_time))
    step.once(
        "called",
        lambda: result_checks.check(step.table, rows, inputs, kept, step.event_time),
    )
    return rows


def _schema(plan: Plan) -> StructType:
    step = without_expectations(plan)
    kind = step.table.kind
    empty = {name: step.no_rows(name) for name in step.table.inputs}
    if kind.is_upserted:
        kept = step.kept({name: empty.pop(name) for name in step.followed}, empty)
        rows = versions.versions(kept, step.table.keys) if kind.keeps_versions else kept
        return row_keys.keyed(rows, step.table.keys).schema
    if kind.reads_sources:
        judged = step.arrived(step.ingest(empty), ranges.BEGINNING, ranges.BEGINNING)
    elif kind.is_reference:
        judged = step.reference(empty)
    elif kind.is_report:
        judged = step.reference(empty, ranges.partition_range("1970-01-01", "day"))
    else:
        rows = empty.pop(step.driving)
        others = {name: empty.pop(name) for name in step.timed if name != step.driving}
        judged = step.derived(Inputs(rows, empty, others), "stream")
    return good(judged).schema


@lru_cache(maxsize=16)
def plans_of(spark: SparkSession, catalog: Catalog) -> Mapping[str, Plan]:
    """Returns the plans of a catalog's tables, made once, each after those of its inputs. No function is called yet."""
    plans: dict[str, Plan] = {}
    for table in catalog:
        plans[table.name] = _plan(spark, catalog, table, plans)
    return plans


def plan_of(session: Session, table: Table) -> Plan:
    """Returns the plan of a table. A declaration other than the catalog's own is planned at each call."""
    plans = plans_of(session.spark, session.catalog)
    if session.catalog.tables.get(table.name) is table:
        return plans[table.name]
    return _plan(session.spark, session.catalog, table, plans)


def _plan(spark: SparkSession, catalog: Catalog, table: Table, plans: Mapping[str, Plan]) -> Plan:
    driving = catalog.driving_input(table)
    if driving and table.kind.is_windowed:
        event_time = catalog.time_column(driving)
    else:
        event_time = catalog.event_time(table)
    timed = {}
    for source in [] if table.kind.is_report else catalog.timed_inputs(table):
        column = event_time if source is driving else catalog.time_column(source)
        timed[source.name] = TimedInput(table, column, of_windows=bool(source.window))
    sources = catalog.sources_of(table)
    return Plan(
        spark=spark,
        catalog=catalog,
        table=table,
        inputs={name: plans[name] for name in table.inputs if name in plans},
        event_time=event_time,
        driving=driving.name if driving else table.inputs[0],
        sources=sources,
        timed=timed,
        followed=[t.name for t in catalog.followed_inputs(table)],
        by_position=any(source.keys for source in catalog.origins_of(table)),
        unit=WINDOW if table.kind.is_windowed else ARRIVAL,
        by_ingestion=table.kind.reads_sources and event_time == INGESTION,
        further=decode.beyond_raw(sources.values()),
    )
