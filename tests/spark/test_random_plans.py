"""Plans that are drawn at random give by a plan that is made once what Spark gives for a new one."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from lakehouse.runtime.prepared_plans import NotPreparedError, PreparedPlan
from support.drawn_rows import COLUMNS, rows

PLANS = 48  # as many as there are expressions, or more: each begins with another one
SIZES = (60, 0, 1)
KINDS = ("long", "text", "instant", "decimal", "truth", "texts", "double")
LEAVES = {
    "long": ["v"],
    "text": ["k", "body"],
    "instant": ["at"],
    "decimal": ["price"],
    "texts": ["tags"],
}
# name: (kind of the result, kinds of the arguments, the expression)
EXPRESSIONS: dict[str, tuple[str, tuple[str, ...], Callable[..., Column]]] = {
    "add": ("long", ("long", "long"), lambda a, b: F.try_add(a, b)),
    "modulo": ("long", ("long",), lambda a: F.pmod(a, F.lit(7))),
    "bits": ("long", ("long",), lambda a: a.bitwiseXOR(F.lit(21))),
    "length": ("long", ("text",), lambda a: F.length(a).cast("long")),
    "hash": ("long", ("text", "instant"), lambda a, b: F.xxhash64(a, b)),
    "parse": ("long", ("text",), lambda a: F.expr("try_cast(k AS BIGINT)") + F.length(a)),
    "hour": ("long", ("instant",), lambda a: F.hour(a).cast("long")),
    "micros": ("long", ("instant",), F.unix_micros),
    "size": ("long", ("texts",), lambda a: F.size(a).cast("long")),
    "position": ("long", ("texts",), lambda a: F.array_position(a, "t1")),
    "folded": ("long", ("texts",), lambda a: F.aggregate(a, F.lit(0), lambda n, t: n + F.length(t)).cast("long")),
    "of json": ("long", ("text",), lambda a: F.from_json(a, "a STRING, b BIGINT")["b"]),
    "upper": ("text", ("text",), F.upper),
    "concat": ("text", ("text", "long"), lambda a, b: F.concat_ws("-", a, b.cast("string"))),
    "part": ("text", ("text",), lambda a: F.substring(a, 2, 3)),
    "regexp": ("text", ("text",), lambda a: F.regexp_replace(a, "[0-9]+", "#")),
    "case": ("text", ("truth", "text"), lambda a, b: F.when(a, b).otherwise("other")),
    "coalesce": ("text", ("text", "text"), F.coalesce),
    "json": ("text", ("long", "text"), lambda a, b: F.to_json(F.struct(a.alias("a"), b.alias("b")))),
    "path": ("text", ("text",), lambda a: F.get_json_object(a, "$.a")),
    "format": ("text", ("instant",), lambda a: F.date_format(a, "yyyy-MM-dd HH:mm")),
    "digest": ("text", ("text",), lambda a: F.sha2(a, 256)),
    "joined": ("text", ("texts",), lambda a: F.array_join(a, ",")),
    "hour of": ("instant", ("instant",), lambda a: F.date_trunc("hour", a)),
    "later": ("instant", ("instant",), lambda a: a + F.expr("INTERVAL 90 MINUTES")),
    "day": ("instant", ("instant",), lambda a: a.cast("date").cast("timestamp")),
    "least": ("instant", ("instant", "instant"), F.least),
    "half": ("decimal", ("decimal",), lambda a: F.round(a / 2, 2).cast("decimal(12,2)")),
    "either": ("decimal", ("truth", "decimal"), lambda a, b: F.when(a, b)),
    "less": ("truth", ("long", "long"), lambda a, b: a < b),
    "same": ("truth", ("text", "text"), lambda a, b: a.eqNullSafe(b)),
    "like": ("truth", ("text",), lambda a: a.like("%1%")),
    "in": ("truth", ("text",), lambda a: a.isin("k1", "k2", "")),
    "null": ("truth", ("decimal",), lambda a: a.isNull()),
    "not": ("truth", ("truth", "truth"), lambda a, b: ~a | b),
    "holds": ("truth", ("texts", "text"), F.array_contains),
    "any": ("truth", ("texts",), lambda a: F.exists(a, lambda t: t == "t2")),
    "split": ("texts", ("text",), lambda a: F.split(a, "")),
    "mapped": ("texts", ("texts",), lambda a: F.transform(a, lambda t, n: F.concat(t, n.cast("string")))),
    "sorted": ("texts", ("texts", "texts"), lambda a, b: F.array_sort(F.array_union(a, b))),
    "keys": ("texts", ("text", "long"), lambda a, b: F.map_keys(F.create_map(F.coalesce(a, F.lit("")), b))),
    "root": ("double", ("long",), lambda a: F.sqrt(F.abs(a % 1000).cast("double"))),
    "ratio": ("double", ("decimal", "long"), lambda a, b: F.try_divide(a.cast("double"), b.cast("double"))),
    "sine": ("double", ("double",), F.sin),
}  # fmt: skip


class Draw:
    """Draws functions of rows. The same seed gives the same function; `seen` counts what it has drawn."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self._choose, self._seen = random.Random(seed), seen

    def expression(self, kind: str, depth: int) -> Column:
        leaves = LEAVES.get(kind, [])
        if leaves and (not depth or self._choose.random() < 0.2):
            return F.col(self._choose.choice(leaves))
        fitting = [name for name, (made, _, _) in EXPRESSIONS.items() if made == kind]
        return self.named(self._choose.choice(fitting), depth)

    def named(self, name: str, depth: int) -> Column:
        self._seen[name] += 1
        _, kinds, made = EXPRESSIONS[name]
        return made(*(self.expression(each, max(depth - 1, 0)) for each in kinds))

    def function(self, number: int, names: DataFrame) -> Callable[[DataFrame], DataFrame]:
        """Returns one to three operators, one after the other, and columns at the end: the `number`th of each, and others."""
        operators = self._operators(names)
        first = list(operators)[number % len(operators)]
        more = self._choose.choice((0, 1, 2))
        chosen = [first, *(self._choose.choice(list(operators)) for _ in range(more))]
        self._seen.update(chosen)
        steps = [step for name in chosen for step in operators[name]()]
        others = [self.expression(self._choose.choice(KINDS), 3) for _ in range(2)]
        ends = [self.named(list(EXPRESSIONS)[number % len(EXPRESSIONS)], 3), *others]
        columns = [end.alias(f"c{place}") for place, end in enumerate(ends)]

        def made(rows: DataFrame) -> DataFrame:
            for step in steps:
                rows = step(rows)
            return rows.select("k", "v", *columns)

        return made

    def _operators(self, names: DataFrame) -> dict[str, Callable[[], Iterator]]:
        """Returns the operators; each keeps the columns of the rows, and may add, drop or change rows."""
        by_k = Window.partitionBy("k").orderBy("v", "at", "price", "body", F.to_json("tags"))
        own = [name.split()[0] for name in COLUMNS.split(", ")]

        def of(*steps: Callable[[DataFrame], DataFrame]) -> Callable[[], Iterator]:
            return lambda: iter(steps)

        def filtered() -> Iterator:
            condition = self.expression("truth", 3)
            yield lambda d: d.where(condition)

        def changed() -> Iterator:
            long, text = self.expression("long", 3), self.expression("text", 3)
            yield lambda d: d.withColumns({"v": long, "k": text})

        def grouped() -> Iterator:
            key, most = self.expression("text", 2), self.expression("long", 2)
            # of one row for each key: the values that are least, whatever the order of rows
            rest = [F.min(name).alias(name) for name in own if name not in ("k", "v")]
            yield lambda d: d.groupBy(key.alias("k")).agg(F.max(most).alias("v"), *rest)

        def windowed() -> Iterator:
            rest = [F.max(name).alias(name) for name in ("price", "body", "tags")]
            yield (
                lambda d: (
                    d.groupBy("k", F.window("at", "1 hour").alias("w"))
                    .agg(F.count("*").alias("v"), *rest)
                    .withColumn("at", F.col("w.end"))
                )
            )

        def joined() -> Iterator:
            how = self._choose.choice(("left", "inner", "left_semi", "left_anti"))
            yield lambda d: d.join(names, "k", how).select(*own)

        def joined_to_itself() -> Iterator:
            condition = self.expression("truth", 1)
            yield lambda d: d.join(d.where(condition).select("k", "v").distinct(), ["k", "v"])

        def united() -> Iterator:
            condition = self.expression("truth", 2)
            yield lambda d: d.where(condition).unionByName(d.where("v > 500"))

        return {
            "filter": filtered,
            "columns": changed,
            "group": grouped,
            "window": windowed,
            "join": joined,
            "self join": joined_to_itself,
            "union": united,
            "distinct": of(lambda d: d.distinct()),
            "rank": of(lambda d: d.withColumn("r", F.rank().over(by_k)).where("r <= 2").drop("r")),
            "previous": of(lambda d: d.withColumn("v", F.coalesce(F.lag("v").over(by_k), "v"))),
            "explode": of(lambda d: d.withColumn("k", F.explode_outer("tags"))),
            "arrow": of(lambda d: d.mapInArrow(lambda batches: batches, d.schema)),
        }


def outcome(made: Callable[[], pa.Table]) -> tuple[pa.Schema | None, list[str]]:
    """Returns the rows in a fixed order; no schema and the error's name if a value is refused."""
    try:
        table = made()
    except PySparkException as err:
        return None, [str(err.getCondition())]
    return table.schema, sorted(map(repr, table.to_pylist()))


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_plans_drawn_at_random_give_what_new_ones_give(spark: SparkSession, fresh_seed, say):
    print(f"seed {fresh_seed}")
    names = spark.createDataFrame([(f"k{n}", f"n{n}") for n in range(20)], "k STRING, name STRING")
    columns = spark.createDataFrame([], COLUMNS).schema
    seen: Counter[str] = Counter()
    for number in range(PLANS):
        seed = fresh_seed * PLANS + number
        function = Draw(seed, seen).function(number, names)
        try:
            plan = PreparedPlan(
                spark, lambda inputs, made=function: made(inputs["rows"]), {"rows": columns}
            )
        except NotPreparedError as err:
            seen[f"refused: {err}"] += 1
            continue
        for count in SIZES:
            given = rows(to_arrow_schema(columns, timezone="UTC"), count, seed + count)
            found = outcome(lambda plan=plan, given=given: plan.run({"rows": given}))
            wanted = outcome(
                lambda function=function, given=given: function(
                    spark.createDataFrame(given)
                ).toArrow()
            )
            assert found == wanted, f"seed {seed}, {count} rows"
            seen["rows"] += len(wanted[1])
            seen["failed"] += wanted[0] is None
        plan.close()
        seen["prepared"] += 1
    say("random plans", fresh_seed, seen)
    assert seen["prepared"] > PLANS * 0.9, seen
    assert seen["rows"] > 10 * PLANS and seen["failed"] < seen["prepared"], seen
    operators = Draw(0, Counter())._operators(names)
    assert not [name for name in (*EXPRESSIONS, *operators) if not seen[name]], seen
