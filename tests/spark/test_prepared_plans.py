"""Plans that are made once give what Spark gives for a new plan, or are refused with the reason."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from lakehouse.runtime.prepared_plans import Moment, NotPreparedError, PreparedPlan
from lakehouse.transform import observing
from support.drawn_rows import COLUMNS, rows

SIZES = (50, 0, 1, 300)


@pytest.fixture(scope="module")
def names(spark) -> DataFrame:
    return spark.createDataFrame(
        [(f"k{n}", f"n{n}") for n in range(20)], "k STRING, name STRING"
    ).persist()


def by_k():
    return Window.partitionBy("k").orderBy("v", "at")


FUNCTIONS = {
    "filter": lambda d, _: d.where("v % 3 <> 0").withColumn("w", F.col("v") * 2).drop("body"),
    "json": lambda d, _: d.select("k", F.from_json("body", "a STRING, b BIGINT").alias("j")),
    "join": lambda d, names: d.drop("body").join(names, "k", "left"),
    "broadcast": lambda d, names: d.drop("body").join(F.broadcast(names), "k"),
    "semi join": lambda d, names: d.join(names, "k", "left_semi"),
    "rank": lambda d, _: d.select("k", "v", F.rank().over(by_k()).alias("r")).where("r <= 2"),
    "aggregate": lambda d, _: d.groupBy("k").agg(F.sum("price").alias("s"), F.max("at").alias("m")),
    "distinct": lambda d, _: d.select("k", "v").distinct(),
    "count distinct": lambda d, _: d.groupBy(F.col("v") % 7).agg(F.countDistinct("k").alias("n")),
    "lists": lambda d, _: d.groupBy("k").agg(F.sort_array(F.collect_list("v")).alias("all")),
    "explode": lambda d, _: d.select("k", F.explode("tags").alias("tag")),
    "windows": lambda d, _: d.groupBy(F.window("at", "1 hour"), "k").agg(F.count("*").alias("n")),
    "union": lambda d, _: d.select("k").union(d.select(F.upper("k"))),
    "self join": lambda d, _: d.select("k", "v").join(d.groupBy("k").agg(F.sum("v").alias("s")), "k"),
    "types": lambda d, _: d.select(
        F.struct("k", "at").alias("s"),
        F.col("at").cast("date").alias("day"),
        F.encode("k", "UTF-8").alias("bytes"),
        F.create_map(F.lit("a"), "v").alias("map"),
        F.col("at").cast("timestamp_ntz").alias("local"),
        F.lit(1.5).cast("float").alias("f"),
    ),
    "python": lambda d, _: d.select("k", F.udf(lambda v: v + 1, "long")("v").alias("w")),
    "arrow": lambda d, _: d.select("k", "v").mapInArrow(lambda batches: batches, "k STRING, v BIGINT"),
    "groups in arrow": lambda d, _: d.select("k", "v").groupBy("k").applyInArrow(lambda t: t.slice(0, 1), "k STRING, v BIGINT"),
}  # fmt: skip
REFUSED = {
    "random": (lambda d, _: d.select("k", F.rand()), "not deterministic"),
    "uuid": (lambda d, _: d.select("k", F.expr("uuid()")), "not deterministic"),
    "sample": (lambda d, _: d.select("k").sample(0.5), "a sample"),
    "present": (lambda d, _: d.select("k", F.current_timestamp()), "the present time"),
    "clock": (lambda d, _: d.select("k", F.lit(datetime.now(UTC))), "another plan each time"),
    "action": (lambda d, _: d.select("k", F.lit(d.count())), "runs an action|Error"),
    "broadcast of rows": (lambda d, names: names.join(F.broadcast(d.select("k", "v")), "k"), "is made once"),
    "kept rows": (lambda d, _: d.select("k", "v").persist(), "is made once"),
    "subquery": (lambda d, _: d.where(F.col("v") > d.select(F.avg("v")).scalar()), "a subquery|Subquer"),
}  # fmt: skip


def prepared(spark, function, names) -> tuple[PreparedPlan, pa.Schema]:
    columns = spark.createDataFrame([], COLUMNS).schema
    plan = PreparedPlan(spark, lambda inputs: function(inputs["rows"], names), {"rows": columns})
    return plan, to_arrow_schema(columns, timezone="UTC")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_prepared_plan_gives_what_a_new_one_gives(spark, names, name):
    plan, columns = prepared(spark, FUNCTIONS[name], names)
    for count in SIZES:
        given = rows(columns, count, count)
        found = plan.run({"rows": given})
        wanted = FUNCTIONS[name](spark.createDataFrame(given), names).toArrow()
        assert found.schema.equals(wanted.schema)
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    plan.close()


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_from_run_to_run_is_refused(spark, names, name):
    function, reason = REFUSED[name]
    with pytest.raises(NotPreparedError, match=reason):
        prepared(spark, function, names)
    spark.catalog.clearCache() if name == "kept rows" else None


def test_what_is_observed_is_of_the_last_run(spark, names):
    def function(d, _, outcome="seen"):
        measures = [
            F.count("*").alias("n"),
            F.max("at").alias("last"),
            F.max(F.when(F.col("v") < 0, "x")).alias("none"),
        ]
        return d.observe(outcome, *measures).where("v > 10")

    plan, columns = prepared(spark, function, names)
    for count in (10, 30):
        given, outcome = rows(columns, count, count), Observation()
        plan.run({"rows": given})
        function(spark.createDataFrame(given), None, outcome).collect()
        wanted = observing.observed(outcome)
        found = plan.observed()["seen"]
        assert (found["n"], found["none"]) == (count, None)
        assert found["last"] == max(given["at"].to_pylist()) == wanted["last"].astimezone(UTC)


def test_a_moment_is_set_for_each_run(spark):
    columns = spark.createDataFrame([], COLUMNS).schema
    now = Moment(spark)
    plan = PreparedPlan(
        spark,
        lambda inputs: inputs["rows"].select(now.column(F.col("v")).alias("now")),
        {"rows": columns},
        [now],
    )
    given = rows(to_arrow_schema(columns, timezone="UTC"), 2, 1)
    for instant in (
        datetime(2026, 1, 1, 12, 30, 0, 1, tzinfo=UTC),
        datetime(1700, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ):
        assert plan.run({"rows": given}, [instant])["now"].to_pylist() == [instant] * 2


def test_a_run_that_fails_leaves_the_plan_usable(spark, names):
    plan, columns = prepared(
        spark, lambda d, _: d.select(F.expr("assert_true(v < 900)"), "v"), names
    )
    good = rows(columns, 5, 3)
    bad = good.set_column(1, "v", pa.array([999] * 5, pa.int64()))
    for _ in range(3):
        with pytest.raises(Exception, match="v < 900"):
            plan.run({"rows": bad})
        assert plan.run({"rows": good.filter(pc.less(good["v"], 900))}).num_rows > 0


def test_runs_hold_no_memory(spark, names):
    java = spark._jvm.lakehouse.plans.PreparedPlan
    before = java.held()
    plan, columns = prepared(spark, FUNCTIONS["rank"], names)
    given = rows(columns, 200, 1)
    plan.run({"rows": given})
    once = java.held()
    for _ in range(50):
        plan.run({"rows": given})
    assert java.held() == once
    plan.close()
    assert java.held() == before
