"""The plan of a table: the gate, the user's function, the checks. One plan for live and bounded runs.

    record    decoded records -> parsed -> function -> judged
    derived   rows of the driving input -> flagged -> accepted -> function -> judged

A judged row carries `_reason` (null for a good row), `_origin` and `_partition`; the sink parts good from bad by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import event_time, quality, sources
from lakehouse.catalog import Kind
from lakehouse.errors import DeclarationError
from lakehouse.event_time import ARRIVAL, ARRIVAL_TYPE, ORIGIN, PARTITION
from lakehouse.lake import Lake
from lakehouse.quality import RowRule
from lakehouse.sources import RECORD
from lakehouse.table import FileSource, KafkaSource, Table

REASON = "_reason"
QUARANTINE = f"reason STRING, value BINARY, key BINARY, {ARRIVAL} {ARRIVAL_TYPE}, {ORIGIN} STRING, {PARTITION} STRING"
Origin = Literal["live", "bounded"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one table's rows are computed; its expectations compiled once."""

    table: Table
    kind: Kind
    event_time: str
    driving: str  # the input that carries event time (a record: its topic)
    source: KafkaSource | None
    rules: Sequence[RowRule]

    def parse(self, records: DataFrame, watermark: datetime, arrived: datetime) -> DataFrame:
        """Decoded records as rows of the source, each with its arrival."""
        return sources.parsed(records, self.source, watermark, arrived)

    def record(self, rows: DataFrame) -> DataFrame:
        """Parsed rows through the function, judged: parsing first, then event time, then expectations."""
        rows = self._called({self.driving: rows}, {ARRIVAL, RECORD})
        moment, source = F.col(self.event_time), self.source
        ahead = F.col(f"{RECORD}.timestamp") + F.expr(
            f"interval {source.max_ahead // timedelta(microseconds=1)} microseconds"
        )
        reason = F.coalesce(
            F.col(f"{RECORD}.problem"),
            F.when(moment.isNull(), F.lit(f"event time missing: {self.event_time}")),
            F.when(moment < F.lit(source.not_before), F.lit(f"event time before {event_time.text(source.not_before)}")),
            F.when(moment > ahead, F.lit(f"event time more than {source.max_ahead} ahead of the record's timestamp")),
            quality.first_broken(self.rules),
        )
        return self._judged(rows, reason, F.col(f"{ARRIVAL}.time"), "live")

    def derived(
        self, rows: DataFrame, snapshots: Mapping[str, DataFrame], origin: Origin, observed: Observation | str
    ) -> DataFrame:
        """Rows of the driving input (with `_arrival`) through gate and function, judged.

        `observed` receives `arrived` and `late`; it also keeps the optimiser from moving filters below the watermark.
        """
        flagged = event_time.flagged(rows.drop(PARTITION, ORIGIN), self.table.window, self.event_time, self.table.grain)
        counted = flagged.observe(observed, *event_time.counts())
        inputs = {self.driving: event_time.accepted(counted)} | {
            n: s.drop(PARTITION, ORIGIN) for n, s in snapshots.items()
        }
        moment = event_time.instant_of(self.table.window, self.event_time)
        reason = F.coalesce(
            F.when(moment.isNull(), F.lit(f"event time missing: {self.event_time}")), quality.first_broken(self.rules)
        )
        return self._judged(self._called(inputs, {ARRIVAL} if self.kind == "row" else set()), reason, moment, origin)

    def snapshot(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """A table without event time, computed whole; rows that break an expectation are judged bad."""
        rows = self._called(inputs, set())
        return rows.withColumn(REASON, quality.first_broken(self.rules))

    def _judged(self, rows: DataFrame, reason: Column, moment: Column, origin: Origin) -> DataFrame:
        partition = event_time.partition_of(moment, self.table.grain)
        return rows.withColumns({REASON: reason, ORIGIN: F.lit(origin), PARTITION: partition})

    def _called(self, inputs: Mapping[str, DataFrame], kept: set[str]) -> DataFrame:
        rows = self.table(**inputs)
        if not isinstance(rows, DataFrame):
            raise DeclarationError(f"table={self.table.name}: its function returned {rows!r}; return a DataFrame")
        where = f"table={self.table.name}, columns={rows.columns}"
        if lost := kept - set(rows.columns):
            raise DeclarationError(
                f"{where}: a row-preserving table keeps {', '.join(sorted(lost))}, by which its rows are called late or "
                "put aside; use withColumn and drop, or add the column to select"
            )
        wanted = {self.event_time} if self.kind in ("record", "row") else set()
        wanted |= {event_time.WINDOW, *self.table.keys} if self.kind == "window" else set(self.table.keys)
        if missing := wanted - set(rows.columns):
            raise DeclarationError(
                f"{where}: the declaration names {', '.join(sorted(missing))}; the function must return it"
            )
        if unknown := [c for c in rows.columns if c.startswith("_") and c not in kept]:
            raise DeclarationError(f"{where}: a leading '_' marks technical columns; rename {', '.join(unknown)}")
        return rows


def good(judged: DataFrame) -> DataFrame:
    return judged.where(F.col(REASON).isNull()).drop(REASON, RECORD)


def bad(judged: DataFrame) -> DataFrame:
    """Rows put aside, in the columns of every quarantine: why, the raw value (or the row as JSON), the arrival."""
    rows = judged.where(F.col(REASON).isNotNull())
    if RECORD in judged.columns:
        value, key = F.col(f"{RECORD}.value"), F.col(f"{RECORD}.key")
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
        catalog.sources[table.inputs[0]] if kind == "record" else None,
        (),
    )
    if not judged or not table.expectations:
        return bare
    rules = quality.row_rules(lake.spark, _columns(lake, bare), table.expectations)
    return Plan(bare.table, bare.kind, bare.event_time, bare.driving, bare.source, rules)


def stored_schema(lake: Lake, table: Table) -> StructType:
    """The columns of the table on disk. Raises DeclarationError if its function does not keep what it must."""
    return _columns(lake, plan_of(lake, table, judged=False))


def _columns(lake: Lake, plan: Plan) -> StructType:
    empty = {name: _empty(lake, name) for name in plan.table.inputs}
    if plan.kind == "record":
        return good(plan.record(empty[plan.driving])).schema
    if plan.kind == "snapshot":
        return good(plan.snapshot(empty)).schema
    rows = empty.pop(plan.driving)
    return good(plan.derived(rows, empty, "live", "schema")).schema


def _empty(lake: Lake, name: str) -> DataFrame:
    source = lake.catalog.sources.get(name)
    if isinstance(source, KafkaSource):
        records = lake.spark.createDataFrame([], sources.KAFKA_SCHEMA)
        return sources.parsed(sources.decoded(records, source), source, event_time.EPOCH, event_time.EPOCH)
    if isinstance(source, FileSource):
        return lake.spark.createDataFrame([], source.schema)
    return lake.spark.createDataFrame([], stored_schema(lake, lake.catalog.table(name)))
