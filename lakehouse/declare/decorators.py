"""A decorator for each kind of table: each takes the options that its kind has, and no other.

    ad_topic = kafka("ad-events", schema="ad_id STRING NOT NULL, event_type STRING, event_time STRING NOT NULL")

    @ingest_table(layer="bronze", event_time="event_time", delay="5 seconds")
    def ad_events(ad_topic: DataFrame) -> DataFrame:
        return ad_topic.withColumn("event_time", timestamp_millis(col("event_time").try_cast("long")))

    @window_table(layer="gold", window=tumbling("10 seconds"), keys=["campaign_id"])
    def campaign_views(ad_events: DataFrame, campaigns: DataFrame) -> DataFrame:
        views = ad_events.where("event_type = 'view'").join(broadcast(campaigns), "ad_id")
        return views.groupBy("window", "campaign_id").agg(count("*").alias("views"))

A decorator declares the table that a pure `DataFrame -> DataFrame` function computes. The function's parameters
name its inputs: sources or other tables, of any loaded module. `sql` makes such a function of a query.
Declaring is cheap: nothing here needs a session, a broker or Great Expectations. `lakehouse.declare.catalog`
checks the graph.

Every decorator takes the options of `Common`. It raises TypeError for an option of another kind, and
DeclarationError for values that do not fit each other. The rest is checked with the other tables, by
`lakehouse validate` and at the start.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from lakehouse.declare import columns, kinds, option_rules, reports
from lakehouse.declare.expectations import Expectation
from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.declare.kinds import Kind
from lakehouse.declare.lookups import Lookup
from lakehouse.declare.remarks import check_all
from lakehouse.declare.table import LatePolicy, Layer, Table
from lakehouse.declare.targets import Target
from lakehouse.declare.windows import Duplicates, Interval, Window, tumbling
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError
from lakehouse.ranges import PARTITION_LENGTHS, PartitionBy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[..., "DataFrame"]
Decorator = Callable[[Function], Table]
Duration = str | timedelta
_DURATIONS = ("delay", "early_results", "refresh", "stale_after", "ttl")
_SEQUENCES = ("expectations", "keys", "metrics", "publish")
_CHOICES = {
    "layer": ("bronze", "silver", "gold"),
    "late": ("drop", "side_output", "update"),
    "partition_by": tuple(PARTITION_LENGTHS),
}


class Common(TypedDict, total=False):
    """Options of every kind of table.

    layer: `bronze`, `silver` or `gold`: a group of the UI and a folder below the root. It is required.
    expectations: what rows must hold, as `expect` makes them; a row that breaks one is quarantined.
    publish: where the rows go on to, version by version: `[kafka_topic(...)]`.
    deterministic: False allows clocks, random numbers and the order of rows, by which two runs may differ
        and which are refused otherwise; such ranges stay UNVERIFIABLE.
    owner: shown in the UI.
    """

    layer: Required[Layer]
    expectations: Sequence[Expectation]
    publish: Sequence[Target]
    deterministic: bool
    owner: str


class Partitioned(Common, total=False):
    """Options of tables with partitions.

    partition_by: "hour" (the default) or "day" of event time: what a batch run replaces in one commit.
    stale_after: the table's own LAKEHOUSE_STALE_AFTER.
    """

    partition_by: PartitionBy
    stale_after: Duration


class Compared(Common, total=False):
    """Options of tables that a reconciliation compares.

    tolerance: the relative difference of doubles that still counts as equal, 0 by default.
    """

    tolerance: float


class Derived(Partitioned, Compared, total=False):
    """Options of tables that batch runs compute range by range."""


def ingest_table(
    *,
    event_time: str,
    delay: Duration = "0 seconds",
    marker: str = "",
    watermark_by: str = "",
    **options: Unpack[Partitioned],
) -> Decorator:
    """Declares a table of every row of its sources: topics, a folder, a Delta or Iceberg table, or a source of your own.

        @ingest_table(layer="bronze", event_time="at", delay="5 seconds")
        def readings(reading_topic: DataFrame) -> DataFrame:
            return reading_topic

    :param event_time: the column of event time, or "ingestion_time", the time of arrival.
    :param delay: how far the watermark stays behind the latest event time.
    :param marker: a BOOLEAN column. Only rows in which it is true move the watermark; by default all rows do.
    :param watermark_by: a column of few values, such as sites or devices. Each value holds the watermark back
        as a partition of the topic does; by default partitions alone do.
    """
    if not event_time:
        raise DeclarationError(
            "event_time='': rows are late by their event time; name its column, or 'ingestion_time'"
        )
    return _decorator(
        kinds.INGEST,
        options,
        event_time=event_time,
        delay=delay,
        marker=marker,
        watermark_by=watermark_by,
    )


def row_table(
    *,
    event_time: str = "",
    keys: Sequence[str] = (),
    late: LatePolicy = "side_output",
    context: Interval | None = None,
    deduplicate: Duplicates | None = None,
    lookup: Lookup | None = None,
    ttl: Duration = "0 seconds",
    **options: Unpack[Derived],
) -> Decorator:
    """Declares a table that is computed row by row, of tables with event time: filters, projections, joins, `process`.

        @row_table(layer="silver")
        def hot(readings: DataFrame) -> DataFrame:
            return readings.where("celsius > 30")

    :param event_time: the column of event time, if it is not that of the first input.
    :param keys: the columns of a row's identity.
    :param late: what happens to rows that miss their partition: `side_output` keeps them in view as
        `<table>__late`, `drop` counts them only, `update` has batch runs merge them once the partition
        has closed.
    :param context: `around(...)`: the function may join its input with itself within that time.
    :param deduplicate: `duplicates(...)`, which are left out of the input.
    :param lookup: declared by `@lookup`; the input gets its answer as a column.
    :param ttl: how long, in event time, the state of `process` lasts after the last row of its key; by default no state lasts.
    """
    return _decorator(
        kinds.ROW,
        options,
        event_time=event_time,
        keys=keys,
        late=late,
        context=context,
        deduplicate=deduplicate,
        lookup=lookup,
        ttl=ttl,
    )


def window_table(
    *,
    window: Window,
    keys: Sequence[str] = (),
    late: LatePolicy = "side_output",
    early_results: Duration = "0 seconds",
    metrics: Sequence[str] = (),
    **options: Unpack[Derived],
) -> Decorator:
    """Declares a table with a row for each window and key; the function groups by the column `window`, which its input gets.

        @window_table(layer="gold", window=tumbling("10 seconds"), keys=["sensor_id"])
        def averages(readings: DataFrame) -> DataFrame:
            return readings.groupBy("window", "sensor_id").agg(F.avg("celsius").alias("celsius"))

    :param window: `tumbling`, `sliding`, `session` or `count`.
    :param keys: the columns of a row's identity beside `window`.
    :param late: what happens to rows that miss their window: `side_output` keeps them in view as
        `<table>__late`, `drop` counts them only, `update` has batch runs merge them once the partition
        has closed.
    :param early_results: how often `<table>__early`, the results of open windows so far, is refreshed; by default there is none.
    :param metrics: numeric columns of the window that closed last, which `lakehouse metrics` shows by key.
    """
    option_rules.check_metrics(metrics, window, keys)
    return _decorator(
        kinds.WINDOW,
        options,
        window=window,
        keys=keys,
        late=late,
        early_results=early_results,
        metrics=metrics,
    )


def keyed_table(
    *,
    keys: Sequence[str],
    ttl: Duration = "0 seconds",
    final_rows: bool = False,
    **options: Unpack[Compared],
) -> Decorator:
    """Declares a table with the latest row of each key: the function groups all rows so far by the keys.

        @keyed_table(layer="gold", keys=["account_id"])
        def balances(payments: DataFrame) -> DataFrame:
            return payments.groupBy("account_id").agg(F.sum("amount").alias("balance"))

    :param keys: the columns that identify a row.
    :param ttl: how long, in event time, a row of the inputs counts; by default always.
    :param final_rows: only rows behind the frontier count: whole transactions of a database.
    """
    return _decorator(kinds.KEYED, options, keys=keys, ttl=ttl, final_rows=final_rows)


def versioned_table(*, keys: Sequence[str], **options: Unpack[Compared]) -> Decorator:
    """Declares a table with every version of each key, from `valid_from` until `valid_to`, of the rows of an ingest table.

        @versioned_table(layer="silver", keys=["customer_id"])
        def customer_history(customer_events: DataFrame) -> DataFrame:
            return customer_events.select("customer_id", "country", "deleted", "at", "_arrival")

    :param keys: the columns that identify what has versions.
    """
    return _decorator(kinds.VERSIONED, options, keys=keys)


def reference_table(
    *,
    keys: Sequence[str] = (),
    refresh: Duration = "0 seconds",
    **options: Unpack[Common],
) -> Decorator:
    """Declares a table that is computed whole, of files or of tables without event time.

        @reference_table(layer="bronze", keys=["ad_id"])
        def campaigns(campaign_files: DataFrame) -> DataFrame:
            return campaign_files

    :param keys: the columns that identify a row.
    :param refresh: how often its job checks its files or tables for changes and computes it again. A row sees the
        version that was in force when it arrived. By default the table stands still until its job restarts.
    """
    return _decorator(kinds.REFERENCE, options, keys=keys, refresh=refresh)


def report_table(
    *,
    keys: Sequence[str] = (),
    suffix: str = "",
    draw: reports.Draw | None = None,
    **options: Unpack[Derived],
) -> Decorator:
    """Declares a table that batch runs alone compute, each hour or day by itself when its inputs have closed.

        def page(rows: pa.Table, span: Range) -> str:
            return "\\n".join(f"{row['place']}. {row['path']}" for row in rows.to_pylist())

        @report_table(layer="gold", partition_by="day", keys=["place"], suffix="txt", draw=page)
        def pages_of_a_day(page_visits: DataFrame) -> DataFrame: ...

    The function may sort, limit and aggregate all rows of a partition.

    :param keys: the columns that identify a row, and the order of rows in `draw`.
    :param suffix: the kind of file that `draw` makes, such as "html", "md" or "png"; by default there is no file.
    :param draw: returns the file of a partition, text or bytes, for its rows (an Arrow table in the order of `keys`)
        and its range of event time.
    """
    partition_by = options.get("partition_by", "hour")
    one_of("partition_by", partition_by, _CHOICES["partition_by"])
    return _decorator(
        kinds.REPORT,
        options,
        window=tumbling(PARTITION_LENGTHS[partition_by]),  # its windows are its partitions
        keys=keys,
        report=reports.report(suffix, draw),
    )


DECORATORS: dict[Kind, Callable[..., Decorator]] = {
    kinds.INGEST: ingest_table,
    kinds.ROW: row_table,
    kinds.WINDOW: window_table,
    kinds.KEYED: keyed_table,
    kinds.VERSIONED: versioned_table,
    kinds.REFERENCE: reference_table,
    kinds.REPORT: report_table,
}


def options_of(kind: Kind) -> set[str]:
    """Returns the names of the options that the decorator of this kind takes."""
    parameters = inspect.signature(DECORATORS[kind]).parameters
    (shared,) = parameters["options"].annotation.__args__  # of Unpack[...]
    return {*parameters.keys() - {"options"}, *shared.__annotations__}


def _decorator(kind: Kind, shared: Mapping[str, Any], **own: Any) -> Decorator:
    for name in shared:
        _check_option(kind, name)
    if "layer" not in shared:
        raise TypeError(f"@{kind}_table needs layer=, one of {', '.join(_CHOICES['layer'])}")
    options = {**own, **shared}
    chosen = {name: allowed for name, allowed in _CHOICES.items() if name in options}
    check_all(*(partial(one_of, name, options[name], chosen[name]) for name in chosen))
    options |= {name: duration(options[name], name) for name in _DURATIONS if name in options}
    options |= {name: _listed(name, options[name]) for name in _SEQUENCES if name in options}

    def declare(function: Function) -> Table:
        name = function.__name__
        if not columns.is_table_name(name):
            raise DeclarationError(
                f"table={name}: a Python name without '__', which marks side tables, and without a leading '_', which marks log "
                "tables; rename it"
            )
        return Table(
            name=name,
            transformation=function,
            inputs=_inputs(function),
            kind=kind,
            sql=getattr(function, "query", ""),
            **options,
        )

    return declare


def _listed(name: str, value: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(value, str):  # of which tuple() makes its letters
        raise DeclarationError(f"{name}={value!r}: it is a list; write {name}=[{value!r}]")
    return tuple(value)


def _check_option(kind: Kind, name: str) -> None:
    """Raises TypeError for an option that this kind lacks, with the kinds that have it."""
    options = options_of(kind)
    if name in options:
        return
    owners = [f"@{other}_table" for other in DECORATORS if name in options_of(other)]
    near = get_close_matches(name, options, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    if owners:
        meant = f"; {name} is an option of {', '.join(owners)}"
    raise TypeError(
        f"@{kind}_table has no option {name!r}{meant} (it has {', '.join(sorted(options))})"
    )


def _inputs(function: Function) -> tuple[str, ...]:
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
