"""The one concept: a table, declared once, run as a stream and in batch.

    ad_topic = kafka("ad-events", schema="ad_id STRING NOT NULL, event_type STRING, event_time STRING NOT NULL")

    @table(layer="bronze", event_time="event_time", delay="5 seconds")
    def ad_events(ad_topic: DataFrame) -> DataFrame:
        return ad_topic.withColumn("event_time", timestamp_millis(col("event_time").try_cast("long")))

    @table(layer="gold", window=tumbling("10 seconds"), keys=["campaign_id"], late="side_output")
    def campaign_views(ad_events: DataFrame, campaigns: DataFrame) -> DataFrame:
        views = ad_events.where("event_type = 'view'").join(broadcast(campaigns), "ad_id")
        return views.groupBy("window", "campaign_id").agg(count("*").alias("views"))

A table's inputs are its function's parameter names: sources or other tables, of any loaded module.
Declaring is cheap: nothing here needs a session, a broker or Great Expectations.
`lakehouse.declare.catalog` checks the graph.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, Unpack

from lakehouse.declare import code_version, columns, kinds, option_rules
from lakehouse.declare.calling import called
from lakehouse.declare.expectations import Expectation, expect
from lakehouse.declare.inputs import source_checks
from lakehouse.declare.inputs.changes import changes
from lakehouse.declare.inputs.delta import delta_table
from lakehouse.declare.inputs.sources import files, folder, kafka
from lakehouse.declare.kinds import Kind
from lakehouse.declare.lookups import Lookup, lookup
from lakehouse.declare.reports import Report, partition_as_window, report
from lakehouse.declare.targets import Target
from lakehouse.declare.windows import (
    Duplicates,
    Interval,
    Window,
    around,
    count,
    duplicates,
    session,
    sliding,
    tumbling,
)
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError
from lakehouse.ranges import PARTITION_LENGTHS, PartitionBy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "around", "changes", "count", "delta_table", "duplicates", "expect", "files", "folder",
    "kafka", "lookup", "report", "session", "sliding", "sql_table", "table", "tumbling",
]  # fmt: skip

Layer = Literal["bronze", "silver", "gold"]
LatePolicy = Literal["drop", "side_output", "update"]
Keeps = Literal["", "latest", "versions"]


@dataclass(frozen=True, slots=True)
class Table:
    """One declared Delta table; made by `@table`, completed (pipeline) by the catalog.

    Call it to run its function.
    """

    name: str
    layer: Layer
    transformation: Callable[..., "DataFrame"] = field(repr=False)
    inputs: tuple[str, ...]
    event_time: str = ""
    delay: timedelta = timedelta(0)
    window: Window | None = None
    keys: tuple[str, ...] = ()
    late: LatePolicy = "side_output"
    expectations: tuple[Expectation, ...] = ()
    partition_by: PartitionBy = "hour"
    owner: str = ""
    tolerance: float = 0.0
    pipeline: str = ""
    kind: Kind = kinds.ROW  # completed by the catalog: what it reads decides
    early_results: timedelta = timedelta(0)
    deduplicate: Duplicates | None = None
    deterministic: bool = True
    metrics: tuple[str, ...] = ()
    stale_after: timedelta = timedelta(0)  # zero: the settings' bound
    sql: str = ""  # the query, if the transformation was declared as one
    context: Interval | None = None
    keeps: Keeps = ""
    publish: tuple[Target, ...] = ()
    ttl: timedelta = timedelta(0)  # of a lasting state, or of a keyed table's rows; zero: none
    final_rows: bool = False
    lookup: Lookup | None = None
    refresh: timedelta = timedelta(0)  # zero: a reference table stands still while its job runs
    report: Report | None = None
    marker: str = ""
    watermark_by: str = ""
    as_of: bool = False  # completed by the catalog: whether it reads a versioned table
    # completed by the catalog: of a report, the inputs by which it closes
    closes_with: tuple["Table", ...] = field(default=(), repr=False, compare=False)

    def __call__(self, *inputs: "DataFrame", **named: "DataFrame") -> "DataFrame":
        with called(self):
            return self.transformation(*inputs, **named)

    @property
    def description(self) -> str:
        return inspect.getdoc(self.transformation) or ""

    @property
    def code(self) -> str:
        """What was written: the query, or the function with its decorator."""
        return self.sql or inspect.getsource(self.transformation)

    @property
    def has_late_rows(self) -> bool:
        """Whether rows may come too late for it: in keyed tables those with `ttl` or `final_rows` alone."""
        return self.kind.has_late_rows or (self.kind.is_upserted and self.counts_by_time)

    @property
    def state_ttl(self) -> timedelta:  # of its process function
        return timedelta(0) if self.keeps else self.ttl

    @property
    def counts_by_time(self) -> bool:
        """Whether its frontier decides which rows count for a keyed table."""
        return self.final_rows or bool(self.ttl)

    @property
    def by_neighbours(self) -> bool:
        """Whether other rows decide what a row is computed with: then it is late by its own event time."""
        windowed = self.window is not None and self.window.kind in ("session", "count")
        return windowed or self.as_of or self.context is not None or bool(self.ttl)

    @property
    def after(self) -> timedelta:
        """How far its frontier stays behind the watermark."""
        return self.context.after if self.context else timedelta(0)

    @property
    def code_version(self) -> str:
        """Names the declaration: the code it runs (comments and docstrings apart) and every setting that decides rows.

        The code is the query, or the function and what it uses of the same module: functions and constants.
        """
        code = self.transformation
        parts = (
            [" ".join(self.sql.split())]
            if self.sql
            else [*code_version.dumped(code), *code_version.constants(code)]
        )
        if self.report and (draw := self.report.draw):
            parts += [self.report.suffix, *code_version.dumped(draw), *code_version.constants(draw)]
        decided: tuple[object, ...] = (
            self.event_time,
            self.delay,
            self.window,
            self.keys,
            self.late,
            self.partition_by,
            self.expectations,
        )
        looked_up = self.lookup.meaning if self.lookup else ()
        by = f"watermark_by {self.watermark_by}" if self.watermark_by else ""
        final = "final_rows" if self.final_rows else ""
        more = (self.deduplicate, self.context, self.keeps, self.ttl, self.marker, looked_up, by)
        decided += tuple(each for each in (*more, final) if each)
        return hashlib.sha256(repr((parts, decided)).encode()).hexdigest()[:16]


class Declared(TypedDict, total=False):
    """What `table` takes, for what passes it on."""

    layer: Required[Layer]
    event_time: str
    delay: str | timedelta
    window: Window | None
    keys: Sequence[str]
    late: LatePolicy
    expectations: Sequence[Expectation]
    partition_by: PartitionBy
    owner: str
    tolerance: float
    early_results: str | timedelta
    deduplicate: Duplicates | None
    deterministic: bool
    metrics: Sequence[str]
    stale_after: str | timedelta
    context: Interval | None
    keeps: Keeps
    publish: Sequence[Target]
    ttl: str | timedelta
    final_rows: bool
    lookup: Lookup | None
    refresh: str | timedelta
    report: Report | None
    marker: str
    watermark_by: str


def table(
    *,
    layer: Layer,
    event_time: str = "",
    delay: str | timedelta = "0 seconds",
    window: Window | None = None,
    keys: Sequence[str] = (),
    late: LatePolicy = "side_output",
    expectations: Sequence[Expectation] = (),
    partition_by: PartitionBy = "hour",
    owner: str = "",
    tolerance: float = 0.0,
    early_results: str | timedelta = "0 seconds",
    deduplicate: Duplicates | None = None,
    deterministic: bool = True,
    metrics: Sequence[str] = (),
    stale_after: str | timedelta = "0 seconds",
    context: Interval | None = None,
    keeps: Keeps = "",
    publish: Sequence[Target] = (),
    ttl: str | timedelta = "0 seconds",
    final_rows: bool = False,
    lookup: Lookup | None = None,
    refresh: str | timedelta = "0 seconds",
    report: Report | None = None,
    marker: str = "",
    watermark_by: str = "",
) -> Callable[[Callable[..., "DataFrame"]], Table]:
    """Declares the table that a pure `DataFrame -> DataFrame` function computes; its parameters name its inputs.

        @table(layer="gold", window=tumbling("10 seconds"), keys=["sensor_id"])
        def averages(readings: DataFrame) -> DataFrame:
            return readings.groupBy("window", "sensor_id").agg(F.avg("celsius").alias("celsius"))

    :param layer: `bronze`, `silver` or `gold`: a group of the UI and a folder below the root.
    :param event_time: of an ingest table (one that reads a topic): its column of event time, or "ingestion_time", of arrival.
    :param delay: how far the watermark of an ingest table follows the latest event time.
    :param window: `tumbling`, `sliding`, `session` or `count`; the function groups by the column
        `window`, which the library adds to its input.
    :param keys: the other columns of a row's identity.
    :param late: what happens to rows that miss their window: `side_output` keeps them in view as
        `<table>__late`, `drop` counts them only, `update` has batch runs merge them once the partition
        has closed.
    :param expectations: what rows must hold, as `expect` makes them; a row that breaks one is quarantined.
    :param partition_by: "hour" or "day" of event time: what a batch run replaces in one commit.
    :param owner: shown in the UI.
    :param tolerance: the relative difference of doubles that still counts as equal.
    :param early_results: how often `<table>__early`, what open windows hold so far, is refreshed; by default there is none.
    :param deduplicate: `duplicates(...)`, taken out of the input of a row table.
    :param deterministic: False allows what two runs may differ by (clocks, random numbers, the order
        of rows), which is refused otherwise; such ranges stay UNVERIFIABLE.
    :param metrics: columns of numbers that `lakehouse metrics` shows, by key, of the window that closed last.
    :param stale_after: this table's own LAKEHOUSE_STALE_AFTER.
    :param context: `around(...)`: a row table may join its input with itself within that time.
    :param keeps: "latest" keeps one row for each of the `keys` (the function groups by them),
        "versions" each version of one, with `valid_from` and `valid_to`.
    :param publish: where the rows go on to, version by version: `[kafka_topic(...)]`.
    :param ttl: how long, in event time, the state of a key lasts after its last row (row tables that call
        `process`), or a row of the inputs counts (keyed tables); by default no state lasts, and all rows count.
    :param final_rows: a keyed table counts only rows behind its frontier: whole transactions of a database.
    :param lookup: what `@lookup` declared: the input of a row table gets its answer as a column.
    :param refresh: of a reference table: how often its job looks whether its files, or the tables that
        it reads, have changed, and computes it again. A row sees the version that was in force when it
        arrived. By default the table stands still until its job is started again.
    :param report: `report(...)`: batch runs alone compute the table, each partition by itself when the
        inputs have closed; the function may sort, limit and aggregate all of its rows.
    :param marker: of an ingest table: its BOOLEAN column that is true of rows which say that time has come
        to their event time. Only these move the watermark; by default all rows do.
    :param watermark_by: of an ingest table: its column of few values, such as sites or devices, of which each holds
        the watermark back as a partition of the topic does; by default partitions alone do.
    :raises DeclarationError: for values that do not fit each other; the rest is checked with the other
        tables, by `lakehouse validate` and at the start.
    """
    source_checks.one_of("layer", layer, ("bronze", "silver", "gold"))
    source_checks.one_of("late", late, ("drop", "side_output", "update"))
    source_checks.one_of("partition_by", partition_by, tuple(PARTITION_LENGTHS))
    source_checks.one_of("keeps", keeps, ("", "latest", "versions"))
    option_rules.check_metrics(metrics, window, keys)
    if report:
        window = partition_as_window(report, window, partition_by)

    def declare(function: Callable[..., "DataFrame"]) -> Table:
        return Table(
            name=_named(function.__name__),
            layer=layer,
            transformation=function,
            inputs=_inputs(function),
            event_time=event_time,
            delay=duration(delay, "delay"),
            window=window,
            keys=tuple(keys),
            late=late,
            expectations=tuple(expectations),
            partition_by=partition_by,
            owner=owner,
            tolerance=tolerance,
            early_results=duration(early_results, "early_results"),
            deduplicate=deduplicate,
            deterministic=deterministic,
            metrics=tuple(metrics),
            stale_after=duration(stale_after, "stale_after"),
            context=context,
            keeps=keeps,
            publish=tuple(publish),
            ttl=duration(ttl, "ttl"),
            final_rows=final_rows,
            lookup=lookup,
            refresh=duration(refresh, "refresh"),
            report=report,
            marker=marker,
            watermark_by=watermark_by,
            kind=kinds.of(report, keeps, window),
        )

    return declare


def sql_table(
    name: str, query: str, *, description: str = "", **declared: Unpack[Declared]
) -> Table:
    """Declares the table that a SQL query computes.

        campaign_clicks = sql_table(
            "campaign_clicks",
            "SELECT window, campaign_id, count(*) AS clicks FROM {ad_events} JOIN {campaigns} USING (ad_id) "
            "WHERE event_type = 'click' GROUP BY window, campaign_id",
            layer="gold", window=tumbling("10 seconds"), keys=["campaign_id"],
        )

    The same rules hold as for a function: it keeps `_arrival` in a row table, and groups by `window` in a window table.

    :param name: of the table and of the variable.
    :param query: Spark's SQL. Inputs stand in braces; a brace of SQL's own is written twice.
    :param description: shown in the UI.
    :param declared: what `table` takes.
    :raises DeclarationError: as `table`, and for a query without an input.
    """
    try:
        fields = [field for _, field, _, _ in Formatter().parse(query) if field is not None]
    except ValueError as err:
        raise DeclarationError(
            f"table={name}, query: {err}; write a brace that is not an input's twice"
        ) from err
    inputs = tuple(dict.fromkeys(fields))
    if unusable := [each for each in inputs if not each.isidentifier()]:
        raise DeclarationError(
            f"table={name}, input={unusable[0]!r}: inputs are names in braces, such as {{ad_events}}"
        )
    if not inputs:
        raise DeclarationError(
            f"table={name}: the query names no input; write it in braces, such as FROM {{ad_events}}"
        )

    def transformation(**frames: Any) -> "DataFrame":
        spark: SparkSession = next(iter(frames.values())).sparkSession
        return spark.sql(query, **frames)

    parameters = [
        inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in inputs
    ]
    # functions take any attribute, and their type knows none of them
    transformation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    transformation.__name__, transformation.__doc__ = name, description
    transformation.__module__ = inspect.stack()[1].frame.f_globals["__name__"]
    return replace(table(**declared)(transformation), sql=query)


def _named(name: str) -> str:
    if not columns.is_table_name(name):
        raise DeclarationError(
            f"table={name}: '__' marks side tables (quarantine, late), a leading '_' the log tables, and the rest is a Python "
            "name; rename it"
        )
    return name


def _inputs(function: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    unusable = [
        p.name
        for p in parameters
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.default is not p.empty
    ]
    if unusable or not parameters:
        raise DeclarationError(
            f"table={function.__name__}: its parameters name its inputs, at least one, without defaults or * "
            f"(found {', '.join(unusable) or 'none'})"
        )
    return tuple(p.name for p in parameters)
