"""Kinds of change that a team makes to a running table, each with what `lakehouse plan` is to say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import ModuleType
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    around,
    count,
    duplicates,
    expect,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    session,
    sliding,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.cli.change_plan import Action
from lakehouse.declare.table import Table
from lakehouse.transform.functions.patterns import Pattern, begin, followed_by
from lakehouse.transform.functions.process import KeyedProcess, process

SCHEMA = "user STRING NOT NULL, at TIMESTAMP NOT NULL, value INT NOT NULL"
MINUTE = timedelta(minutes=1)
click_topic = kafka("clicks", schema=SCHEMA)
tap_topic = kafka("taps", schema=SCHEMA)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def taps(tap_topic: DataFrame) -> DataFrame:
    return tap_topic


@row_table(layer="silver")
def rows(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 1")


def more_rows(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 3")


def one_column_more(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 1").withColumn("n", F.length("user"))


def one_column_less(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 1").drop("value")


def renamed(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 1").withColumnRenamed("value", "points")


def wider(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 1").withColumn("value", F.col("value").cast("bigint"))


def as_text(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 1").withColumn("value", F.col("value").cast("string"))


def with_taps(clicks: DataFrame, taps: DataFrame) -> DataFrame:
    return clicks.unionByName(taps).where("value > 1")


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def hours(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


visits = replace(hours, name="visits", window=session("2 minutes"))


def largest(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.max("value").alias("value"))


def by_value(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "value").agg(F.count(F.lit(1)).alias("n"))


def of_both(clicks: DataFrame, taps: DataFrame) -> DataFrame:
    return clicks.unionByName(taps).groupBy("window", "user").agg(F.sum("value").alias("value"))


@row_table(layer="silver", context=around(before="4 minutes"))
def pairs(clicks: DataFrame) -> DataFrame:
    return _joined(clicks, "4 minutes")


def longer_pairs(clicks: DataFrame) -> DataFrame:
    return _joined(clicks, "12 minutes")


def _joined(clicks: DataFrame, within: str) -> DataFrame:
    others = clicks.select(F.col("user").alias("other"), F.col("at").alias("then"))
    near = F.expr(f"other <> user AND then BETWEEN at - interval {within} AND at")
    return clicks.join(others, near, "left_semi")


class Counting(KeyedProcess):
    """A user's value, and the one before if that was shortly before."""

    output = "user STRING, at TIMESTAMP, total BIGINT"
    times = 1

    def on_row(self, state, row, timers):
        before, at = state.get("last", (0, row["at"]))
        near = row["at"] - at <= 10 * MINUTE
        state["last"] = (row["value"], row["at"])
        total = self.times * row["value"] + (before if near else 0)
        yield {"user": row["user"], "at": row["at"], "total": total}


class CountingTwice(Counting):
    times = 2


@row_table(layer="silver", context=around(before="10 minutes"))
def recent_totals(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=Counting(), within=10 * MINUTE, at="at")


def recent_doubles(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=CountingTwice(), within=10 * MINUTE, at="at")


@row_table(layer="silver", ttl="30 minutes")
def running_totals(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=Counting(), at="at")


def running_doubles(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=CountingTwice(), at="at")


def rising(least: int) -> Pattern:
    return Pattern(
        begin("low", lambda row: row["value"] < 3),
        followed_by("high", lambda row: row["value"] > least),
        within=15 * MINUTE,
        output="user STRING, at TIMESTAMP, low INT, high INT",
        select=lambda low, high: {"user": low["user"], "low": low["value"], "high": high["value"]},
        at="at",
    )


RISING, STEEP = rising(4), rising(6)


@row_table(layer="gold", context=around(before="15 minutes"))
def rises(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=RISING, within=RISING.within, at="at")


def steep_rises(clicks: DataFrame) -> DataFrame:
    return process(clicks, by=["user"], function=STEEP, within=STEEP.within, at="at")


@keyed_table(layer="gold", keys=["user"])
def totals(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.sum("value").alias("value"))


def counts(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("value").agg(F.count(F.lit(1)).alias("n"))


@versioned_table(layer="silver", keys=["user"])
def history(clicks: DataFrame) -> DataFrame:
    return clicks.select("user", "value", "at", "_arrival")


def history_of_some(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 3").select("user", "value", "at", "_arrival")


Then = Literal["always", "onward", "refused"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change of a table.

    :param of: the table that is changed.
    :param changes: what is declared otherwise.
    :param planned: what `lakehouse plan` says.
    :param done: the way that is taken; else the planned one.
    :param then: the rows in the end are as if the table had `always` been so; from the change `onward` by
        the new code, those before as they were; or it is `refused` and goes on as before.
    """

    of: Table
    changes: Mapping[str, Any]
    planned: Action
    done: Action | None = None
    then: Then = "always"

    @property
    def way(self) -> Action:
        return self.done or self.planned


def _by(function: Any, **changes: Any) -> dict[str, Any]:
    return {"transformation": function} | changes


KINDS = {
    "filter_from_here_on": Kind(rows, _by(more_rows), "accept", then="onward"),
    "filter": Kind(rows, _by(more_rows), "accept", "upgrade"),
    "column_added_from_here_on": Kind(rows, _by(one_column_more), "accept", then="onward"),
    "column_added": Kind(rows, _by(one_column_more), "accept", "upgrade"),
    "column_dropped": Kind(rows, _by(one_column_less), "accept", "upgrade"),
    "column_renamed": Kind(rows, _by(renamed), "accept", "upgrade"),
    "column_widened": Kind(rows, _by(wider), "accept", "upgrade"),
    "column_of_another_type": Kind(rows, _by(as_text), "accept", "upgrade"),
    "duplicates_left_out": Kind(
        rows, {"deduplicate": duplicates("user", "value", within="20 minutes")}, "accept", "upgrade"
    ),
    "partitions": Kind(rows, {"partition_by": "day"}, "upgrade"),
    "another_input": Kind(rows, _by(with_taps, inputs=("clicks", "taps")), "upgrade"),
    "expectation": Kind(
        rows,
        {"expectations": (expect.column_values_to_be_between("value", max_value=5),)},
        "in place",
        then="onward",
    ),
    "another_layer": Kind(rows, {"layer": "gold"}, "another name", then="refused"),
    "aggregate": Kind(hours, _by(largest), "upgrade"),
    "key": Kind(hours, _by(by_value, keys=("value",)), "upgrade"),
    "window_length": Kind(hours, {"window": tumbling("2 hours")}, "upgrade"),
    "window_across_a_minute": Kind(hours, {"window": tumbling("30 seconds")}, "upgrade"),
    "window_slides": Kind(hours, {"window": sliding("1 hour", "20 minutes")}, "upgrade"),
    "window_of_sessions": Kind(hours, {"window": session("4 minutes")}, "upgrade"),
    "window_of_counts": Kind(hours, {"window": count(5)}, "upgrade"),
    "gap": Kind(visits, {"window": session("4 minutes")}, "upgrade"),
    "another_input_of_windows": Kind(hours, _by(of_both, inputs=("clicks", "taps")), "upgrade"),
    "late_policy": Kind(hours, {"late": "drop"}, "in place"),
    "join_bound": Kind(
        pairs, _by(longer_pairs, context=around(before="12 minutes")), "upgrade"
    ),
    "process_function": Kind(recent_totals, _by(recent_doubles), "accept", "upgrade"),
    "state_that_lasts": Kind(running_totals, _by(running_doubles), "accept", "upgrade"),
    "pattern": Kind(rises, _by(steep_rises), "accept", "upgrade"),
    "keyed_function": Kind(totals, _by(counts, keys=("value",)), "compute whole"),
    "versioned_function": Kind(history, _by(history_of_some), "compute whole"),
}  # fmt: skip


CHANGES_NO_ROW = ("column_widened", "another_layer", "late_policy")
Version = Literal["before", "after", "always"]


def named(kinds: Mapping[str, Kind], *versions: Version) -> dict[str, Any]:
    """By their names what is read, what is changed as it was, and each kind as a table.

    :param versions: a kind's table has its name as it was `before` and is `after`; one that was `always` so is `always_…`.
    """
    found = {name: globals()[name] for name in ("click_topic", "tap_topic", "clicks", "taps")}
    for name, kind in kinds.items():
        now = replace(kind.of, **kind.changes)
        found[kind.of.name] = kind.of
        if "before" in versions:
            found[name] = replace(kind.of, name=name)
        if "after" in versions:
            found[name] = replace(now, name=name)
        if "always" in versions:
            found[f"always_{name}"] = replace(now, name=f"always_{name}")
    return found


def declared(kinds: Mapping[str, Kind], *versions: Version) -> ModuleType:
    """A module of these tables."""
    found = ModuleType(__name__)
    vars(found).update(named(kinds, *versions))
    return found
