"""The plan of a table: the gate, the user's function, the checks. One plan for live and bounded runs.

    record    raw records -> decoded -> function -> judged -> arrived
    derived   rows of the driving input -> flagged -> accepted -> function -> judged

A judged row carries `_reason` (null for a good row), `_origin` and `_partition`; the sink parts good from bad by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import event_time, histories, observing, provable, quality, ranges, returned, sources
from lakehouse.catalog import Kind
from lakehouse.errors import DeclarationError
from lakehouse.event_time import ARRIVAL, ARRIVAL_TYPE, ORIGIN, PARTITION
from lakehouse.inputs import FileSource, KafkaSource
from lakehouse.lake import Lake
from lakehouse.quality import RowRule
from lakehouse.sources import RECORD
from lakehouse.storage import row_keys
from lakehouse.table import Table

REASON = "_reason"
QUARANTINE = f"reason STRING, value BINARY, key BINARY, {ARRIVAL} {ARRIVAL_TYPE}, {ORIGIN} STRING, {PARTITION} STRING"
Origin = Literal["live", "bounded", "early"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one table's rows are computed; its expectations compiled once."""

    table: Table
    kind: Kind
    event_time: str
    driving: str  # the input that carries event time; a record's are its topics
    topics: Mapping[str, KafkaSource]  # of a record: its inputs
    rules: Sequence[RowRule]

    @property
    def unit(self) -> str:
        """The column, of input and output alike, by which rows belong together: a window, or a row's own arrival."""
        return event_time.WINDOW if self.kind == "window" else ARRIVAL

    def record(self, records: Mapping[str, DataFrame], *, timed: bool = False) -> DataFrame:
        """Raw records of each topic through parser and function, judged: parsing first, then event time, then expectations.

        Nothing in it changes from one micro-batch to the next, so it belongs into the streaming query, where Spark
        compiles it once; `arrived` adds what does. Key and value are kept of bad rows only; the timestamp if `timed`.
        """
        rows = self._called({name: sources.decoded(records[name], source) for name, source in self.topics.items()}, {RECORD})
        # a column each: of a struct that is passed on whole, Spark would make an object for every row
        own = {name: F.col(f"{RECORD}_{name}") for name in (*sources.RAW, "problem", "topic")}
        rows = rows.select(
            *(c for c in rows.columns if c != RECORD), *(F.col(f"{RECORD}.{n}").alias(f"{RECORD}_{n}") for n in own)
        )
        out_of_time = () if self.by_ingestion else self._out_of_time(own["topic"], own["timestamp"])
        reason = F.coalesce(own["problem"], *out_of_time, quality.first_broken(self.rules))
        held = {f"{RECORD}_{name}": F.when(F.col(REASON).isNotNull(), own[name]) for name in ("key", "value")}
        known = (f"{RECORD}_topic",) if len(self.topics) == 1 else ()  # what all rows have in common need not go with each
        sent = () if timed else (f"{RECORD}_timestamp",)
        return rows.withColumn(REASON, reason).withColumns(held).drop(*sent, f"{RECORD}_problem", *known)

    def of_partition(self, topic: str, partition: int) -> Column:
        """Whether a judged record came from that partition."""
        here = F.col(f"{RECORD}_partition") == partition
        return here if len(self.topics) == 1 else here & (F.col(f"{RECORD}_topic") == topic)

    @property
    def by_ingestion(self) -> bool:
        """Whether the event time of this record is its time of arrival, which `arrived` adds."""
        return self.kind == "record" and self.event_time == event_time.INGESTION

    def _out_of_time(self, topic: Column, sent: Column) -> list[Column]:
        moment = F.col(self.event_time)
        ahead = F.unix_micros(moment) - F.unix_micros(sent)
        found = [F.when(moment.isNull(), F.lit(f"event time missing: {self.event_time}"))]
        for source in self.topics.values():
            here = topic == source.topic  # of one topic Spark knows this before it runs
            early, most = moment < F.lit(source.not_before), source.max_ahead // timedelta(microseconds=1)
            found += [
                F.when(here & early, F.lit(f"event time before {ranges.text(source.not_before)}")),
                F.when(
                    here & (ahead > most), F.lit(f"event time more than {source.max_ahead} ahead of the record's timestamp")
                ),
            ]
        return found

    def arrived(self, judged: DataFrame, watermark: datetime, at: datetime) -> DataFrame:
        """Judged records with their arrival: the watermark in force, the record's position, the time of arrival."""
        only, *others = self.topics.values()
        position = {name: F.col(f"{RECORD}_{name}") for name in ("partition", "offset")}
        in_force, time = event_time.passing(position["partition"], watermark, at)
        topic = F.col(f"{RECORD}_topic") if others else F.lit(only.topic)
        columns = {"watermark": in_force, "topic": topic} | position | {"time": time}
        arrival = F.struct(*(column.alias(name) for name, column in columns.items()))
        if self.by_ingestion:
            judged = judged.withColumn(event_time.INGESTION, time)
        return self._placed(judged.withColumn(ARRIVAL, arrival), F.lit(at), "live")

    def derived(
        self,
        rows: DataFrame,
        snapshots: Mapping[str, DataFrame],
        origin: Origin,
        observed: Observation | str | None = None,
        touched: DataFrame | None = None,
        others: DataFrame | None = None,
        end: datetime | None = None,
    ) -> DataFrame:
        """Rows of the driving input (with `_arrival`) through gate and function, judged.

        `observed` receives the `counts`, in the same pass; live it also keeps the optimiser from moving filters below the
        watermark. It costs a copy of every row, and a bounded run, whose input the live run has counted, does without.
        A bounded run lets late rows in if the table is to be updated with them. `touched` (column: the `unit`) narrows the
        computation to some windows, or to some rows of a row table. `others`: among which duplicates are looked for.
        `end`: up to where `rows` are complete; count windows are then.
        """
        returned.check_input(self.table, self.driving, rows)
        flagged = self._flagged(rows)
        if observed is not None:
            flagged = flagged.observe(observed, *event_time.counts(self.table, self.event_time))
        taken = event_time.accepted(flagged, late_too=origin == "bounded" and self.table.late == "update")
        if touched is not None:
            taken = taken.join(F.broadcast(touched.select(self.unit)), self.unit, "left_semi")
        if self.table.window and self.table.window.kind == "count":
            if missing := set(self.table.keys) - set(taken.columns):
                raise DeclarationError(
                    f"table={self.table.name}, keys={', '.join(sorted(missing))}: rows are counted per key before the function "
                    f"sees them, so keys are columns of {self.driving}; add them there"
                )
            taken = event_time.counted(
                taken, self.table.window, self.table.keys, self.event_time, self.table.grain, end or ranges.EPOCH
            )
        if self.table.deduplicate:
            among = event_time.accepted(self._flagged(rows if others is None else others))
            taken = event_time.firsts(taken, among, self.table.deduplicate, self.event_time)
        inputs = {self.driving: taken} | {name: _plain(each) for name, each in snapshots.items()}
        moment = event_time.instant_of(self.table.window, self.event_time)
        reason = F.coalesce(
            F.when(moment.isNull(), F.lit(f"event time missing: {self.event_time}")), quality.first_broken(self.rules)
        )
        rows = self._called(inputs, {ARRIVAL} if self.kind == "row" else set())
        return self._placed(rows.withColumn(REASON, reason), moment, origin)

    def kept(
        self, rows: DataFrame, snapshots: Mapping[str, DataFrame], observed: Observation | str | None = None
    ) -> DataFrame:
        """Rows of the record through the function: the state of each key among them, or the changes of a history.

        No row is left out: late ones count, too. What breaks an expectation is not put aside, for a state without one of its
        keys would be wrong: the check on the table tells it.
        """
        flagged = self._flagged(rows)
        if observed is not None:
            flagged = flagged.observe(observed, *event_time.counts(self.table, self.event_time))
        inputs = {self.driving: event_time.accepted(flagged, late_too=True)}
        inputs |= {name: _plain(each) for name, each in snapshots.items()}
        if self.kind == "state":
            return self._called(inputs, set())
        return histories.changes(self._called(inputs, {ARRIVAL}), self.event_time)

    def gate_counts(self, gate: Observation, rows: DataFrame) -> Mapping[str, object]:
        """What the gate observed of `rows`; counted by itself if they did not all pass it.

        A join with nothing gives nothing without reading its other side, where it is not removed at all.
        """
        seen = observing.observed(gate)
        return seen if seen and seen["arrived"] else self.counts(rows).head().asDict()

    def counts(self, rows: DataFrame) -> DataFrame:
        """One row: how many rows of the driving input arrived, how many of them late (`event_time.counts`)."""
        return self._flagged(rows).agg(*event_time.counts(self.table, self.event_time))

    def _flagged(self, rows: DataFrame) -> DataFrame:
        return event_time.flagged(rows.drop(PARTITION, ORIGIN), self.table, self.event_time)

    def snapshot(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """A table without event time, computed whole; rows that break an expectation are judged bad."""
        rows = self._called(inputs, set())
        return rows.withColumn(REASON, quality.first_broken(self.rules))

    def _placed(self, judged: DataFrame, moment: Column, origin: Origin) -> DataFrame:
        return judged.withColumns({ORIGIN: F.lit(origin), PARTITION: event_time.partition_of(moment, self.table.grain)})

    def _called(self, inputs: Mapping[str, DataFrame], kept: set[str]) -> DataFrame:
        rows = self.table(**inputs)
        returned.check(self.table, self.kind, rows, inputs, kept, self.event_time)
        return rows


def _plain(rows: DataFrame) -> DataFrame:
    """An input as functions see it: without technical columns."""
    return rows.drop(*(name for name in rows.columns if name.startswith("_")))


def as_read(table: Table, rows: DataFrame) -> DataFrame:
    """Rows of a table as a reference table reads them: of a keyed one without the column by which its rows are found."""
    return rows.drop(row_keys.KEY) if table.keeps else rows


def utc(moment: datetime) -> datetime:
    """PySpark hands out timestamps as naive local time."""
    return moment.astimezone(UTC)


def good(judged: DataFrame) -> DataFrame:
    rows = judged.where(F.col(REASON).isNull()).drop(REASON)
    return rows.select(*(c for c in rows.columns if not c.startswith(RECORD)))


def bad(judged: DataFrame) -> DataFrame:
    """Rows put aside, in the columns of every quarantine: why, the raw value (or the row as JSON), the arrival."""
    rows = judged.where(F.col(REASON).isNotNull())
    if f"{RECORD}_value" in judged.columns:
        value, key = F.col(f"{RECORD}_value"), F.col(f"{RECORD}_key")
    else:
        value = F.to_json(F.struct(*[c for c in judged.columns if not c.startswith("_")])).cast("binary")
        key = F.lit(None).cast("binary")
    arrival = F.col(ARRIVAL) if ARRIVAL in judged.columns else F.lit(None).cast(ARRIVAL_TYPE)
    columns = {"reason": F.col(REASON), "value": value, "key": key, ARRIVAL: arrival}
    return rows.select(*(c.alias(n) for n, c in columns.items()), ORIGIN, PARTITION)


def plan_of(lake: Lake, table: Table, *, judged: bool = True) -> Plan:
    """The plan of a table; `judged=False` leaves the expectations out, where only the columns are asked for."""
    catalog = lake.catalog
    kind = catalog.kind(table)
    driving = catalog.driving_input(table)
    bare = Plan(
        table,
        kind,
        table.event_time
        if kind == "record"
        else catalog.event_time(driving if driving and kind == "window" else table),
        driving.name if driving else table.inputs[0],
        catalog.topics_of(table),
        (),
    )
    if not judged or not table.expectations:
        return bare
    return replace(bare, rules=quality.row_rules(lake.spark, stored_schema(lake, table), table.expectations))


def stored_schema(lake: Lake, table: Table) -> StructType:
    """The columns of the table on disk. Raises DeclarationError if its function does not keep what it must.

    Found once for each table of a catalog: it takes half a second, and all that reads the table asks for it.
    """
    known = lake.catalog.schemas if lake.catalog.tables.get(table.name) is table else {}
    if table.name not in known:
        known[table.name] = _columns(lake, plan_of(lake, table, judged=False))
    return known[table.name]


def check(lake: Lake, table: Table) -> None:
    """Raises DeclarationError if the function holds what live and bounded runs may differ by (`provable`)."""
    step = plan_of(lake, table, judged=False)
    if step.kind in ("row", "window"):
        provable.check(table, _on_no_rows(lake, step), row_preserving=step.kind == "row")
    if step.table.keeps:
        provable.check_keyed(table, _on_no_rows(lake, step))


def closes_ranges(lake: Lake, step: Plan) -> bool:
    """Whether live each range is computed as it closes, without Spark's operators and their state."""
    return bool(step.table.window and step.table.window.short) or in_batch_only(lake, step)


def in_batch_only(lake: Lake, step: Plan) -> bool:
    """Whether Spark has what the table does in batch only, or not exactly."""
    table, window = step.table, step.table.window
    if window is None:
        return bool(table.join or table.as_of)
    if window.kind == "count":
        return True
    rows = _on_no_rows(lake, step)
    return provable.needs_whole_windows(rows) or (window.kind == "session" and provable.groups_by_window_alone(rows))


def _on_no_rows(lake: Lake, step: Plan) -> DataFrame:
    """What the function of a table with a driving input makes of empty inputs."""
    inputs = {name: _empty(lake, name) for name in step.table.inputs}
    rows = event_time.accepted(step._flagged(inputs[step.driving]))
    if step.kind == "window" and event_time.WINDOW not in rows.columns:  # of a count window: assigned later
        rows = rows.withColumn(event_time.WINDOW, F.lit(None).cast("struct<start:timestamp,end:timestamp>"))
    inputs = {name: _plain(each) for name, each in inputs.items()} | {step.driving: rows}
    return step.table(**inputs)


def _columns(lake: Lake, plan: Plan) -> StructType:
    empty = {name: _empty(lake, name) for name in plan.table.inputs}
    if plan.kind == "record":
        return good(plan.arrived(plan.record(empty), ranges.EPOCH, ranges.EPOCH)).schema
    if plan.kind == "snapshot":
        return good(plan.snapshot(empty)).schema
    rows = empty.pop(plan.driving)
    if plan.table.keeps:
        kept = plan.kept(rows, empty)
        rows = histories.versions(kept, plan.table.keys) if plan.kind == "history" else kept
        return row_keys.keyed(rows, plan.table.keys).schema
    return good(plan.derived(rows, empty, "live", "schema")).schema


def _empty(lake: Lake, name: str) -> DataFrame:
    source = lake.catalog.sources.get(name)
    if isinstance(source, KafkaSource):
        return lake.spark.createDataFrame([], sources.KAFKA_SCHEMA)
    if isinstance(source, FileSource):
        return lake.spark.createDataFrame([], source.schema)
    table = lake.catalog.table(name)
    return as_read(table, lake.spark.createDataFrame([], stored_schema(lake, table)))
