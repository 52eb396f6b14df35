"""A table for each operator, over one record of clicks: what `benchmarks.matrix` puts to the test."""

import itertools
from datetime import timedelta

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    around,
    count,
    duplicates,
    ingest_table,
    kafka,
    keyed_table,
    lookup,
    reference_table,
    row_table,
    session,
    sliding,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.transform.functions.patterns import Pattern, begin, followed_by, not_followed_by
from lakehouse.transform.functions.process import KeyedProcess, Row, process
from lakehouse.transform.versions import as_of_join

click_topic = kafka(
    "clicks",
    schema="id BIGINT NOT NULL, user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(layer="silver")
def single_rows(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 20").withColumn("twice", F.col("value") * 2)


_asked = itertools.count()


@lookup(schema="answer BIGINT", retries=0, on_failure="quarantine")
async def service(user: str, value: int) -> dict[str, int]:
    """Another answer each time it is asked, and now and then none."""
    number = next(_asked)
    if number % 7 == 3:
        raise RuntimeError(f"question {number} has no answer")
    return {"answer": number}


@row_table(layer="silver", lookup=service)
def looked_up(clicks: DataFrame) -> DataFrame:
    return clicks.withColumn("answer", F.col("service.answer")).drop("service")


@row_table(layer="silver", deduplicate=duplicates("user", "value", within="20 seconds"))
def deduplicated(clicks: DataFrame) -> DataFrame:
    return clicks


@row_table(layer="silver", context=around(before="4 seconds", after="6 seconds"))
def interval_joins(clicks: DataFrame) -> DataFrame:
    renamed = {"user": "other", "at": "then", "id": "with"}
    others = clicks.where("value <= 50").select(
        *(F.col(name).alias(other) for name, other in renamed.items())
    )
    near = F.expr(
        "other = user AND then BETWEEN at - interval 4 seconds AND at + interval 6 seconds"
    )
    return clicks.where("value > 50").join(others, near, "left").drop("other")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def window_joins(clicks: DataFrame) -> DataFrame:
    others = clicks.where("value <= 50").select("window", "user", F.col("id").alias("with"))
    both = clicks.where("value > 50").join(others, ["window", "user"], "full")
    return both.groupBy("window", "user").agg(
        F.count("id").alias("clicks"), F.count("with").alias("others")
    )


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["rank"])
def ranks_in_windows(clicks: DataFrame) -> DataFrame:
    counted = clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))
    most = Window.partitionBy("window").orderBy(F.desc("clicks"), "user")
    return counted.withColumn("rank", F.row_number().over(most)).where("rank <= 2")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def tumbling_windows(clicks: DataFrame) -> DataFrame:
    return (
        clicks.where("value > 20")
        .groupBy("window", "user")
        .agg(F.count("*").alias("clicks"), F.sum("value").alias("value"))
    )


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"], late="update")
def updated_windows(clicks: DataFrame) -> DataFrame:
    return (
        clicks.where("value > 20")
        .groupBy("window", "user")
        .agg(F.count("*").alias("clicks"), F.sum("value").alias("value"))
    )


@window_table(layer="gold", window=sliding("20 seconds", "5 seconds"), keys=["user"])
def sliding_windows(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.max("value").alias("value"))


@window_table(layer="gold", window=sliding("10 minutes", "5 minutes"), keys=["user"])
def long_windows(clicks: DataFrame) -> DataFrame:
    """By Spark's own aggregate and its state, as all windows of ten minutes and longer."""
    return clicks.groupBy("window", "user").agg(
        F.count("*").alias("clicks"), F.max("value").alias("value")
    )


@window_table(layer="gold", window=session("4 seconds"), keys=["user"])
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=count(3), keys=["user"])
def count_windows(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=count(4, every=2), keys=["user"])
def sliding_count_windows(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(
    layer="gold", window=tumbling("1 day", zone="Europe/Berlin"), keys=["user"], partition_by="day"
)
def days_of_a_zone(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


windows_in_sql = window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])(
    sql(
        "windows_in_sql",
        "SELECT window, user, count(*) AS clicks FROM {clicks} GROUP BY window, user",
    )
)


@window_table(layer="gold", window=tumbling("1 minute"))
def windows_of_windows(tumbling_windows: DataFrame) -> DataFrame:
    return tumbling_windows.groupBy("window").agg(
        F.sum("clicks").alias("clicks"), F.max("value").alias("most")
    )


@row_table(layer="silver", context=around(before="30 seconds"))
def rows_of_windows(tumbling_windows: DataFrame) -> DataFrame:
    """The results that are higher than one of the same user shortly before."""
    before = tumbling_windows.select(
        F.col("user").alias("other"),
        F.col("window_time").alias("then"),
        F.col("value").alias("was"),
    )
    near = F.expr(
        "other = user AND was < value AND then < window_time AND then >= window_time - interval 30 seconds"
    )
    return tumbling_windows.drop("window").join(before, near, "left_semi")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def joins_of_tables(single_rows: DataFrame, tumbling_windows: DataFrame) -> DataFrame:
    """Several inputs, of which one is the results of windows."""
    large = single_rows.groupBy("window", "user").agg(F.max("twice").alias("twice"))
    counted = tumbling_windows.select("window", "user", "clicks")
    return large.join(counted, ["window", "user"], "full")


@row_table(layer="silver")
def unions_of_tables(single_rows: DataFrame, deduplicated: DataFrame) -> DataFrame:
    columns = ["id", "user", "at", "value", "_arrival"]
    one, other = (each.select(*columns) for each in (single_rows, deduplicated))
    return one.withColumn("of", F.lit("rows")).unionByName(other.withColumn("of", F.lit("others")))


@keyed_table(layer="gold", keys=["user"])
def keyed_tables(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(
        F.count("*").alias("clicks"),
        F.max(F.struct("at", "id", "value")).getField("value").alias("latest"),
    )


@keyed_table(layer="gold", keys=["user"])
def merged_keys(clicks: DataFrame) -> DataFrame:
    """Sums and bounds: those of the rows that came are merged with those that are there."""
    return clicks.groupBy("user").agg(
        F.count("*").alias("clicks"), F.sum("value").alias("sum"), F.max("at").alias("last")
    )


@keyed_table(layer="gold", keys=["user"], ttl="3710 seconds")
def expiring_keys(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(
        F.count("*").alias("clicks"), F.count_distinct("value").alias("values")
    )


@keyed_table(layer="gold", keys=["user"], final_rows=True)
def final_keys(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.count("*").alias("clicks"), F.max("value").alias("most"))


@reference_table(layer="silver", keys=["user"], refresh="1 minute")
def latest_values(keyed_tables: DataFrame) -> DataFrame:
    """What moves under `refreshed_references`, by which a click sees what was known when it arrived."""
    return keyed_tables.select("user", "clicks", "latest")


@row_table(layer="silver", keys=["id"], late="update")
def refreshed_references(clicks: DataFrame, latest_values: DataFrame) -> DataFrame:
    return clicks.where("value > 20").join(latest_values, "user", "left")


@keyed_table(layer="gold", keys=["user"])
def unbounded_joins(single_rows: DataFrame, keyed_tables: DataFrame) -> DataFrame:
    """Rows joined with a table that changes; distinct values, and a filter behind them."""
    joined = single_rows.drop("_arrival").join(keyed_tables, "user").where("value >= latest")
    counted = joined.groupBy("user", "clicks").agg(F.count_distinct("value").alias("values"))
    return counted.where("values > 1")


@keyed_table(layer="gold", keys=["values"])
def keyed_of_keyed(unbounded_joins: DataFrame) -> DataFrame:
    """Users move from one row to another."""
    return unbounded_joins.groupBy("values").agg(
        F.sum("clicks").alias("clicks"), F.max("user").alias("last")
    )


@versioned_table(layer="silver", keys=["user"])
def versioned_tables(clicks: DataFrame) -> DataFrame:
    return clicks.where("value <= 30").select("user", "value", "at", "_arrival")


@row_table(layer="silver")
def as_of_joins(clicks: DataFrame, versioned_tables: DataFrame) -> DataFrame:
    return as_of_join(clicks, versioned_tables, on="user", at="at", take={"valid": "value"})


SMALL_THEN_LARGE = Pattern(
    begin("small", lambda row: row["value"] < 40),
    followed_by("large", lambda row: row["value"] > 60),
    within=timedelta(seconds=15),
    output="user STRING, at TIMESTAMP, small BIGINT, large BIGINT",
    select=lambda small, large: {"user": small["user"], "small": small["id"], "large": large["id"]},
    at="at",
)


@row_table(layer="gold", context=around(before="15 seconds"))
def patterns(clicks: DataFrame) -> DataFrame:
    return process(
        clicks, by=["user"], function=SMALL_THEN_LARGE, within=SMALL_THEN_LARGE.within, at="at"
    )


SMALL_ONES_THEN_LARGER = Pattern(
    begin("small", lambda row: row["value"] < 40).times(1, 3).greedy(),
    not_followed_by(lambda row: row["value"] > 95),
    followed_by("larger", lambda row, small: row["value"] > 2 * small[-1]["value"]).optional(),
    followed_by("large", lambda row: row["value"] > 60).one_or_more().consecutive().greedy(),
    within=timedelta(seconds=15),
    output="user STRING, at TIMESTAMP, small ARRAY<BIGINT>, larger BIGINT, large BIGINT, timed_out BOOLEAN",
    select=lambda small, larger, large: _ids(small, larger, large) | {"timed_out": False},
    timed_out=lambda small, larger, large: _ids(small, larger, large) | {"timed_out": True},
    at="at",
    after_match="skip_past_last",
    skip_span=timedelta(seconds=30),
)


def _ids(small: tuple[Row, ...], larger: Row | None, large: tuple[Row, ...]) -> Row:
    return {
        "user": small[0]["user"],
        "small": [row["id"] for row in small],
        "larger": larger and larger["id"],
        "large": len(large),
    }


@row_table(layer="gold", context=around(before=SMALL_ONES_THEN_LARGER.reach))
def repeated_patterns(clicks: DataFrame) -> DataFrame:
    reach = SMALL_ONES_THEN_LARGER.reach
    return process(clicks, by=["user"], function=SMALL_ONES_THEN_LARGER, within=reach, at="at")


class RunningTotal(KeyedProcess):
    """What a user has added up to with each click, and once more after 20 seconds without one."""

    output = "user STRING, at TIMESTAMP, n BIGINT, total BIGINT"

    def on_row(self, state, row, timers):
        state["n"] = state.get("n", 0) + 1
        state.setdefault("values", []).append(row["value"])
        state["user"] = row["user"]
        timers.clear()
        timers.set(row["at"] + timedelta(seconds=20))
        yield {"user": row["user"], "n": state["n"], "total": sum(state["values"])}

    def on_timer(self, state, at, timers):
        yield {"user": state["user"], "n": -state["n"], "total": sum(state["values"])}


@row_table(layer="gold", ttl="1 minute")
def lasting_states(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=RunningTotal(), at="at")
