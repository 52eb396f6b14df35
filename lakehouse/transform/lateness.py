"""Event time: arrival, watermark, windows, lateness. No other module decides them.

Lateness is data: an ingest table stores with each row, in the struct `_arrival`, the watermark in force
when the row arrived. Every computation, stream or batch, compares with that stored instant and so
makes the same decision however its input is cut into micro-batches. The streaming query makes Spark
close windows by the same instants (`driven_by_stored_watermark`).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache, reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Sql
from pyspark.sql import functions as F

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import (
    ARRIVAL,
    ARRIVAL_TYPE,
    WINDOW,
    WINDOW_TIME,
    quoted,
)
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.declare.windows import Duplicates, Window
from lakehouse.durations import spark_interval
from lakehouse.ranges import (
    BEGINNING,
    EPOCH,
    FORMATS,
    PARTITION_LENGTHS,
    PartitionBy,
    Range,
    text,
)
from lakehouse.runtime.prepared_plans import Moment
from lakehouse.transform import arrival_fields
from lakehouse.transform.decoding.values import java_class

_INSTANT = timedelta(microseconds=1)
_LATE = "_late"
_WATERMARK = "_watermark"  # `_arrival.watermark` as a column, so that a query need not read the rest of the struct
# by this internal key Spark finds the event-time column of an operator
_WATERMARKED = {"spark.watermarkDelayMs": 0}


def partition_of(instant: Column, length: PartitionBy) -> Column:
    return F.date_format(instant, FORMATS[length][1])


def instant_of(window: Window | None, event_time: str) -> Column:
    """Returns the instant that places a row in a range: its event time, or the last instant of its window."""
    return instant_of_window() if window else F.col(event_time)


def instant_of_stored(catalog: Catalog, table: Table) -> Column:
    """Returns the instant that places a stored row of a table in time."""
    return instant_of(table.window, catalog.event_time(table))


def instant_of_window() -> Column:
    return F.expr(f"{WINDOW}.end - interval 1 microsecond")


def out_of_time(
    event_time: str, sources: Iterable[RecordSource], topic: Column, sent: Column
) -> list[Column]:
    """Returns why a record cannot be placed in time, null if it can: no event time, one too early, one too far ahead.

    With a history, a record also does not count if the other of the two has the rows of its time. `sent` is the
    record's own timestamp.
    """
    moment = F.col(event_time)
    ahead = F.unix_micros(moment) - F.unix_micros(sent)
    reasons = [F.when(moment.isNull(), F.lit(f"event time missing: {event_time}"))]
    for source in sources:
        of_topic = topic == source.address  # of one topic Spark knows this before it runs
        first, most_ahead = source.min_event_time, source.max_future_skew
        early, too_far = moment < F.lit(first), ahead > most_ahead // _INSTANT
        why = f"event time more than {most_ahead} ahead of the record's timestamp"
        reasons.append(F.when(of_topic & early, F.lit(f"event time before {text(first)}")))
        reasons.append(F.when(of_topic & too_far, F.lit(why)))
        if source.until:
            later = f"event time from {text(source.until)} on, of which the topic has the rows"
            is_later = moment >= F.lit(source.until)
            reasons.append(F.when(of_topic & is_later, F.lit(later)))
        if source.starting:
            earlier = (
                f"event time before {text(source.starting)}, of which the history has the rows"
            )
            is_earlier = moment < F.lit(source.starting)
            reasons.append(F.when(of_topic & is_earlier, F.lit(earlier)))
    return reasons


def window_of(span: Range) -> dict[str, Column]:
    """Returns the column `window` for rows of one range."""
    ends = (F.lit(span.start).alias("start"), F.lit(span.end).alias("end"))
    return {WINDOW: F.struct(*ends)}


def of_windows(rows: DataFrame) -> DataFrame:
    """Returns results of windows as rows of their own: each at the last instant of its window, and none of them late.

    They are final when they appear, so no watermark was in force. The frontier of their table shows that
    they are complete.
    """
    moment = instant_of_window()
    values: dict[str, Column] = {"watermark": F.lit(BEGINNING), "time": F.lit(EPOCH)}
    values |= {"topic": F.lit(""), "partition": F.lit(0), "offset": F.lit(0)}
    kinds = ARRIVAL_TYPE.removeprefix("struct<").removesuffix(">").split(",")
    fields = (values[name].cast(kind).alias(name) for name, kind in (f.split(":") for f in kinds))
    return rows.withColumns({WINDOW_TIME: moment, ARRIVAL: F.struct(*fields)})


def between(instant: Column, span: Range) -> Column:
    return (instant >= F.lit(span.start)) & (instant < F.lit(span.end))


def passing(row: Column, *instants: datetime | Moment) -> list[Column]:
    """Returns instants of one micro-batch as columns; `row` is any number that each row has.

    As literals they would be part of the code that Spark generates, which would be compiled again for
    each micro-batch, and run cold: most of the cost of a short one. A literal array is passed to the
    code instead; a constant index would be folded. A prepared plan has moments.
    """
    moments = [each for each in instants if isinstance(each, Moment)]
    literals = F.array(*(F.lit(each) for each in instants if not isinstance(each, Moment)))
    first = row.bitwiseAND(F.lit(0))
    columns = [moment.column(row) for moment in moments] or [
        F.get(literals, first + F.lit(n)) for n in range(len(instants))
    ]
    # never null, as the column's type says
    return [F.coalesce(instant, F.lit(EPOCH)) for instant in columns]


def between_passing(instant: Column, first: datetime | Moment, before: datetime | Moment) -> Column:
    """Returns the condition of `between` for a range of one micro-batch; files cannot be chosen by it."""
    start, end = passing(F.unix_micros(instant), first, before)
    return (instant >= start) & (instant < end)


def is_late_by(table: Table) -> timedelta:
    """Returns how far before the watermark a row is late for a keyed table: more than its `ttl`, or even at the watermark."""
    return table.ttl or -_INSTANT


def flagged(rows: DataFrame, table: Table, event_time: str) -> DataFrame:
    """Returns `rows` (with `event_time` and `_arrival`) with the column `window`, if declared, and `_late`.

    A row is late if its window (in a row table: its partition) had ended when it arrived. A row that is
    computed with its neighbours, as in a session, whose end is not known yet, is late if it is not after
    the watermark. Spark makes the same comparisons.
    """
    for columns in _flags(table, event_time, _WATERMARK in rows.columns):
        rows = rows.withColumns(columns)
        if table.window and table.window.zone != "UTC" and WINDOW in columns:
            # Spark cannot see that the window is made of the event time
            rows = rows.withMetadata(WINDOW, _WATERMARKED)
    return rows


# made once for each table: a call of Spark for each column costs more than a short step's rows
@lru_cache(maxsize=256)
def _flags(table: Table, event_time: str, has_watermark: bool) -> tuple[dict[str, Column], ...]:
    """Returns the columns that `flagged` adds, set after set; `has_watermark` if the watermark is already a column."""
    window = table.window
    moment = F.col(event_time)
    watermark = F.col(_WATERMARK) if has_watermark else F.col(f"{ARRIVAL}.watermark")
    added = {} if has_watermark else {_WATERMARK: watermark}
    if table.kind.keeps_latest:
        behind = watermark - F.lit(is_late_by(table))
        return (added | {_LATE: moment < behind if table.counts_by_time else F.lit(False)},)
    # the window of a counted row is known among the rows of its partition only
    is_counted = window is not None and window.kind == "count"
    if table.kind.is_upserted or table.context or table.as_of or table.ttl or is_counted:
        return (added | {_LATE: moment <= watermark},)
    if window is None:
        end = _end_of(PARTITION_LENGTHS[table.partition_by], event_time)  # partitions are UTC
        return (added | {_LATE: end <= watermark},)
    added |= {WINDOW: _assigned(window, event_time)}
    if window.kind == "tumbling" and window.zone == "UTC":
        return (added | {_LATE: _end_of(window.size, event_time, window.offset) <= watermark},)
    closes = moment if table.by_neighbours else F.col(f"{WINDOW}.end")
    return added, {_LATE: closes <= F.col(_WATERMARK)}


def _end_of(span: timedelta, event_time: str, offset: timedelta = timedelta(0)) -> Column:
    """Returns the end of the span that holds the event time, with spans counted from 1970 plus `offset`.

    It computes in microseconds, at a tenth of the cost of the calendar or of windows, for each row.
    """
    size, shift = (length // timedelta(microseconds=1) for length in (span, offset))
    instant = F.unix_micros(event_time)
    return F.timestamp_micros(instant - F.pmod(instant - F.lit(shift), F.lit(size)) + size)


def _assigned(window: Window, event_time: str) -> Column:
    if window.kind == "session":
        return F.session_window(event_time, spark_interval(window.size))
    if window.zone == "UTC":
        spans = (spark_interval(length) for length in (window.size, window.slide, window.offset))
        return F.window(event_time, *spans)
    return _assigned_by_zone(window, event_time)


def _assigned_by_zone(window: Window, event_time: str) -> Column:
    """Returns the column `window`, by arithmetic on the time that the zone's clock shows. Sliding windows multiply rows."""
    size, slide, offset = (
        F.lit(span // _INSTANT) for span in (window.size, window.slide, window.offset)
    )
    table = window.clock.table
    clock = java_class("Clock")
    shown = Column(clock.asShown(table, F.unix_micros(event_time)._jc))
    last = shown - F.pmod(shown - offset, slide)

    def bounds(start: Column) -> Column:
        times = {"start": start, "end": start + size}
        reached = {name: Column(clock.asReached(table, at._jc)) for name, at in times.items()}
        return F.struct(*(F.timestamp_micros(at).alias(name) for name, at in reached.items()))

    if window.kind == "tumbling":
        return bounds(last)
    ended = shown - size
    first = ended - F.pmod(ended - offset, slide) + slide
    # windows whose start and end the clock skips have the bounds of others
    return F.explode(F.array_distinct(F.transform(F.sequence(first, last, slide), bounds)))


def arrivals(rows: DataFrame, event_time: str) -> DataFrame:
    """Returns the columns that `flagged` and `counts` need: a fraction of a table of texts is read, and copied."""
    return rows.select(event_time, F.col(f"{ARRIVAL}.watermark").alias(_WATERMARK))


@lru_cache(maxsize=256)
def counts(table: Table, event_time: str) -> tuple[Column, ...]:
    """Returns the columns to observe of `flagged` rows: arrived rows, late rows, and the watermark that they bring.

    `late_from` and `late_to` are the least and greatest instant, in microseconds, that late rows missed:
    of their window, or their own where no window is known yet.
    """
    missed = F.when(F.col(_LATE), F.unix_micros(missed_instant(table, event_time)))
    return (
        F.count(F.lit(1)).alias("arrived"),
        F.count(missed).alias("late"),
        F.max(_WATERMARK).alias("watermark"),
        F.min(missed).alias("late_from"),
        F.max(missed).alias("late_to"),
    )


def missed_instant(table: Table, event_time: str) -> Column:
    """Returns the instant of what a late row missed: that of its window, or its own where its neighbours decide."""
    return F.col(event_time) if table.by_neighbours else instant_of(table.window, event_time)


def accepted(rows: DataFrame, *, late_too: bool = False) -> DataFrame:
    """Returns the `flagged` rows that a table is computed from."""
    return (rows if late_too else rows.where(f"NOT {_LATE}")).drop(_LATE, _WATERMARK)


def counted(rows: DataFrame, table: Table, event_time: str, end: datetime | Moment) -> DataFrame:
    """Returns accepted `rows` with the column `window`: each row once for each full count window that it is in.

    `rows` are whole partitions up to `end`. The last window of a partition that has closed by `end` is complete
    however few rows it holds.
    """
    window = table.window
    keys = table.keys
    assert window is not None, table.name
    closes = _end_of(PARTITION_LENGTHS[table.partition_by], event_time)
    every = window.every
    order = [F.col(event_time), *arrival_fields.places(rows)]
    of_key = Sql.partitionBy(*map(quoted, keys), closes)
    numbered = rows.withColumn("_row", F.row_number().over(of_key.orderBy(*order)))
    # window n, from 1 on, ends with row n * every
    first = F.ceil(F.col("_row") / every)
    last = F.floor((F.col("_row") + window.rows - 1) / every)
    number = first if every == window.rows else F.explode(F.sequence(first, last))
    of_window = Sql.partitionBy(*map(quoted, keys), closes, "_number")
    newest = F.max("_row").over(of_window)
    (until,) = passing(F.unix_micros(closes), end)
    full = newest == F.col("_number") * every
    # the first window that the end of the partition cuts short has rows that no full one has
    cut = (newest > (F.col("_number") - 1) * every) & (closes <= until)
    reached = F.max(event_time).over(of_window) + F.expr("interval 1 microsecond")
    window_end = F.when(full, reached).otherwise(closes)
    bounds = {"_start": F.min(event_time).over(of_window), "_end": window_end}
    placed = numbered.withColumn("_number", number).withColumns(bounds | {"_complete": full | cut})
    # windows with the same bounds would be one: of those with one end each starts before the next
    of_end = Sql.partitionBy(*map(quoted, keys), closes, "_end").orderBy(F.desc("_number"))
    start = F.timestamp_micros(F.unix_micros("_start") - F.dense_rank().over(of_end) + 1)
    window_column = F.struct(start.alias("start"), F.col("_end").alias("end"))
    windowed = placed.where("_complete").withColumn(WINDOW, window_column)
    return windowed.drop("_row", "_number", "_complete", *bounds)


def firsts(
    rows: DataFrame, others: DataFrame, duplicates: Duplicates, event_time: str
) -> DataFrame:
    """Returns `rows` without those with an earlier duplicate in `others`, which also has the same rows.

    Source order is (time of arrival, topic, partition, offset, place in the message); the batches of an ingest
    table never go back in it. So a row's arrival decides whether it is kept, and no later row changes that.
    """
    order = F.struct(*arrival_fields.places(rows))
    keys = [F.col(quoted(key)).alias(f"_key_{key}") for key in duplicates.keys]
    before = others.select(*keys, F.col(event_time).alias("_then"), order.alias("_before"))
    distance = F.abs(F.unix_micros(event_time) - F.unix_micros("_then"))
    apart = distance <= duplicates.within // _INSTANT
    same = [F.col(quoted(key)) == F.col(quoted(f"_key_{key}")) for key in duplicates.keys]
    return rows.join(before, reduce(and_, [*same, apart, F.col("_before") < order]), "left_anti")


def late(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(_LATE)).drop(_LATE, _WATERMARK)


def driven_by_stored_watermark(rows: DataFrame, event_time: str) -> DataFrame:
    """Returns streaming `rows` whose watermark in Spark is `_arrival.watermark`, not the maximum of `event_time`.

    Spark finds the event-time column of a stateful operator by a metadata key. `withWatermark` puts
    it on a column with the stored watermark; this function then gives the key to `event_time`. So Spark
    closes windows by the very instants that the late filter compared with, and drops no row that it
    accepted. The key is internal to Spark: a Spark without it would refuse the query, as an aggregation
    without a watermark.
    """
    rows = rows.withColumn(_WATERMARK, F.col(f"{ARRIVAL}.watermark"))
    rows = rows.withWatermark(_WATERMARK, "0 seconds")
    lent = {event_time: _WATERMARKED, _WATERMARK: {}}
    columns = {name: F.col(quoted(name)) for name in rows.columns}
    columns |= {name: columns[name].alias(name, metadata=lent[name]) for name in lent}
    return rows.select(*columns.values())
