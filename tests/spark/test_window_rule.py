"""Each row of a window table is made of rows of one window: what is not so is refused, whatever its columns are called."""

from collections import Counter
from random import Random

import pytest
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from lakehouse.transform.analysis import shapes, window_rule
from support.window_queries import Queries, Truth, in_spark

CLICK = "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, k INT, v INT, _arrival STRUCT<time: TIMESTAMP>"
ALL = "it is over all windows that are computed at once"


@pytest.fixture(scope="module")
def clicks(spark):
    return shapes.marked(spark.createDataFrame([], CLICK), "clicks", {"window"})


@pytest.fixture(scope="module")
def refs(spark):
    return spark.createDataFrame([], "k INT, v INT")


def refusals(clicks, refs, query, *, one_end=True) -> list[tuple[str, str]]:
    inputs = {"clicks": clicks, "refs": refs}
    used = {name: rows for name, rows in inputs.items() if f"{{{name}}}" in query}
    rows = clicks.sparkSession.sql(query, **used)
    return list(window_rule.across_windows(rows, one_end=one_end))


REFUSED = {
    "not grouped by": ("SELECT max(window) AS window, k, count(*) AS n FROM {clicks} GROUP BY k", "operators=Aggregate"),
    "the window of one of them": (
        "SELECT best.window, k, best.v FROM (SELECT k, max_by(struct(window, k, v), v) AS best FROM {clicks} GROUP BY k)",
        "operators=Aggregate",
    ),
    "another window": (
        "SELECT b.window, a.k FROM {clicks} a JOIN {clicks} b ON a.window <> b.window AND a.k = b.k",
        "operators=Join",
    ),
    "later windows": ("SELECT b.window, a.k FROM {clicks} a JOIN {clicks} b ON a.window >= b.window", "operators=Join"),
    "earlier starts": (
        "SELECT b.window, a.k FROM {clicks} a JOIN {clicks} b ON a.window.start < b.window.start",
        "operators=Join",
    ),
    "or another key": (
        "SELECT b.window, a.k FROM {clicks} a JOIN {clicks} b ON a.window = b.window OR a.k = b.k",
        "operators=Join",
    ),
    "the start of one is the end of another": (
        "SELECT b.window, a.k FROM {clicks} a JOIN {clicks} b ON a.window.end = b.window.start", "operators=Join",
    ),
    "a struct of one's own": (
        "SELECT struct(min(window.start) AS start, max(window.end) AS end) AS window, count(*) AS n FROM {clicks}",
        "operators=Aggregate",
    ),
    "a window of one's own": (
        "SELECT struct(window.end AS start, window.start AS end) AS window, k FROM {clicks}", "columns=window",
    ),
    "a window that is shifted": (
        "SELECT struct(window.start - INTERVAL 1 HOUR AS start, window.end AS end) AS window, window AS w, k FROM {clicks}",
        "columns=window",
    ),
    "another column of that name": (
        "SELECT w AS window, k FROM (SELECT window AS w, struct(min(window.start) OVER (PARTITION BY k) AS start, "
        "max(window.end) OVER (PARTITION BY k) AS end) AS window, k FROM {clicks})", "expression=min",
    ),
    "a rank over a column called window": (
        "SELECT w AS window, rank() OVER (PARTITION BY window ORDER BY v) AS r FROM (SELECT window AS w, k AS window, v "
        "FROM {clicks})",
        "expression=",
    ),
    "grouping sets": ("SELECT window, k, count(*) AS n FROM {clicks} GROUP BY CUBE (window, k)", "operators=Aggregate"),
    "a limit": ("SELECT window, k FROM {clicks} ORDER BY v LIMIT 3", "operators=GlobalLimit"),
    "a difference": (
        "SELECT window, k FROM {clicks} EXCEPT SELECT named_struct('start', NULL, 'end', NULL), k FROM {clicks}",
        "operators=",
    ),
    "distinct values": (
        "SELECT named_struct('start', s, 'end', s) AS window FROM (SELECT DISTINCT window.start AS s, k FROM {clicks})",
        "columns=window",
    ),
    "rows of a reference table": (
        "SELECT window, r.k FROM {refs} r LEFT JOIN {clicks} c ON r.k = c.k", "operators=Join",
    ),
    "a union with a reference table": (
        "SELECT window, k FROM {clicks} UNION ALL SELECT struct(TIMESTAMP '2026-01-01' AS start, TIMESTAMP '2026-01-02' "
        "AS end), k FROM {refs}",
        "operators=Union",
    ),
    "the windows of a reference table": (
        "SELECT struct(TIMESTAMP '2026-01-01' AS start, TIMESTAMP '2026-01-02' AS end) AS window, k FROM {refs}",
        "operators=none",
    ),
    "whether another is so": (
        "SELECT window, k FROM {clicks} c WHERE EXISTS (SELECT 1 FROM {clicks} d WHERE d.k = c.k)", "operators=Subquery",
    ),
    "whether another window is there": (
        "SELECT window, k FROM {clicks} c WHERE EXISTS (SELECT 1 FROM {clicks} d WHERE d.window.start = c.window.end)",
        "operators=Subquery",
    ),
    "an outer join on that side": (
        "SELECT window, k FROM {clicks} c WHERE EXISTS (SELECT 1 FROM {clicks} d LEFT JOIN {refs} r "
        "ON d.window = c.window AND r.k = d.k)", "operators=Subquery",
    ),
    "in none that may be null": (
        "SELECT window, k FROM {clicks} c WHERE k NOT IN (SELECT k FROM {clicks})", "operators=Subquery",
    ),
    "a reference table beside a subquery": (
        "SELECT window, k FROM {clicks} c WHERE k = (SELECT max(r.k) FROM {refs} r WHERE EXISTS "
        "(SELECT 1 FROM {clicks} d WHERE d.k = r.k))", "operators=Subquery",
    ),
    "a lateral join": (
        "SELECT window, k, n FROM {clicks} c, LATERAL (SELECT count(*) AS n FROM {clicks} d WHERE d.k = c.k)",
        "operators=Subquery",
    ),
}  # fmt: skip

ACCEPTED = {
    "q5 of Nexmark, by alias": (
        "WITH counted AS (SELECT k AS auction, count(*) AS num, window AS w FROM {clicks} GROUP BY k, window), "
        "most AS (SELECT max(num) AS num, w AS its FROM counted GROUP BY w) "
        "SELECT w AS window, auction, counted.num FROM counted JOIN most ON w = its AND counted.num >= most.num"
    ),
    "q5 of Nexmark, by start and end": (
        "WITH counted AS (SELECT k AS auction, count(*) AS num, window.start AS starttime, window.end AS endtime FROM {clicks} "
        "GROUP BY k, window), most AS (SELECT max(num) AS num, starttime AS s, endtime AS e FROM counted GROUP BY "
        "starttime, endtime) "
        "SELECT struct(starttime AS start, endtime AS end) AS window, auction, counted.num FROM counted JOIN most "
        "ON starttime = s AND endtime = e AND counted.num >= most.num"
    ),
    "q8 of Nexmark, by alias": (
        "SELECT p.w AS window, p.k FROM (SELECT DISTINCT k, window AS w FROM {clicks}) p "
        "JOIN (SELECT k, window AS its FROM {clicks} GROUP BY k, window) a ON p.k = a.k AND p.w = a.its"
    ),
    "partitioned by an alias": (
        "SELECT w AS window, k, rank() OVER (PARTITION BY w ORDER BY v) AS r FROM (SELECT window AS w, k, v FROM {clicks})"
    ),
    "joined by WHERE": "SELECT a.window, b.k FROM {clicks} a, {clicks} b WHERE a.window = b.window AND a.k <> b.k",
    "three joined by WHERE": (
        "SELECT a.window, c.k FROM {clicks} a, {clicks} b, {clicks} c WHERE a.window = b.window AND c.window = b.window"
    ),
    "tied by start and end": (
        "SELECT window, k FROM {clicks} c WHERE EXISTS (SELECT 1 FROM {clicks} d WHERE d.window.start = c.window.start "
        "AND d.window.end = c.window.end AND d.k = c.k)"
    ),
    "the most of its window": (
        "SELECT window, k FROM {clicks} c WHERE v = (SELECT max(v) FROM {clicks} d WHERE d.window = c.window)"
    ),
    "the most of its aggregates": (
        "WITH counted AS (SELECT window, k, count(*) AS n FROM {clicks} GROUP BY window, k) "
        "SELECT * FROM counted WHERE n = (SELECT max(c.n) FROM counted c WHERE c.window = counted.window)"
    ),
    "a limit in its window": (
        "SELECT window, k, x FROM {clicks} c, LATERAL (SELECT v AS x FROM {clicks} d WHERE d.window = c.window ORDER BY v "
        "LIMIT 1)"
    ),
    "a subquery in a subquery": (
        "SELECT window, k FROM {clicks} c WHERE EXISTS (SELECT 1 FROM {clicks} d WHERE d.window = c.window AND NOT EXISTS "
        "(SELECT 1 FROM {clicks} e WHERE e.window = d.window AND e.v > d.v))"
    ),
    "in its window": "SELECT window, k FROM {clicks} c WHERE (window, k) IN (SELECT window, v FROM {clicks})",
    "the same of another set": "SELECT window, k FROM {clicks} EXCEPT SELECT window, v FROM {clicks} WHERE v > 1",
    "all of both": (
        "SELECT coalesce(a.window, b.window) AS window, a.n, b.m FROM (SELECT window, count(*) AS n FROM {clicks} GROUP "
        "BY window) a "
        "FULL JOIN (SELECT window, count(*) AS m FROM {clicks} WHERE v > 1 GROUP BY window) b ON a.window = b.window"
    ),
    "all of three": (
        "SELECT window, n, m, o FROM (SELECT window, count(*) AS n FROM {clicks} GROUP BY window) "
        "FULL JOIN (SELECT window, count(*) AS m FROM {clicks} GROUP BY window) USING (window) "
        "FULL JOIN (SELECT window, count(*) AS o FROM {clicks} GROUP BY window) USING (window)"
    ),
    "a union of its windows": "SELECT window, k FROM {clicks} UNION ALL SELECT window, v FROM {clicks}",
    "reference rows of its rows": "SELECT window, c.k, r.v FROM {clicks} c LEFT JOIN {refs} r ON c.k = r.k",
    "a rollup within": "SELECT window, k, v, count(*) AS n FROM {clicks} GROUP BY window, ROLLUP (k, v)",
    "ranks of a reference table": (
        "SELECT window, c.k FROM {clicks} c JOIN (SELECT k, rank() OVER (ORDER BY v) AS r FROM {refs} LIMIT 9) r ON c.k = r.k"
    ),
    "the greatest of windows that are one": "SELECT max(window) AS window, k FROM {clicks} GROUP BY window, k",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_rows_of_several_windows_are_refused(clicks, refs, name):
    query, shown = REFUSED[name]
    found = refusals(clicks, refs, query)
    assert found and found[0][0].startswith(shown), found


@pytest.mark.parametrize("name", ACCEPTED)
def test_rows_of_one_window_are_accepted(clicks, refs, name):
    assert not refusals(clicks, refs, ACCEPTED[name])


def test_sessions_and_counted_windows_are_known_by_both_ends(clicks, refs):
    query = "SELECT a.window, b.k FROM {{clicks}} a JOIN {{clicks}} b ON {}"
    start, end = "a.window.start = b.window.start", "b.window.end = a.window.end"
    assert not refusals(clicks, refs, query.format(start))
    for one in (start, end, f"{start} AND a.window.end = b.window.start"):
        assert refusals(clicks, refs, query.format(one), one_end=False)
    assert not refusals(clicks, refs, query.format(f"{start} AND {end}"), one_end=False)


def test_all_that_is_over_several_windows_is_said_at_once(clicks, refs):
    query = (
        "SELECT a.window, a.n, r FROM (SELECT max(window) AS window, k, count(*) AS n FROM {clicks} GROUP BY k) a "
        "JOIN (SELECT window, k, rank() OVER (ORDER BY v) AS r FROM {clicks}) b ON a.window = b.window"
    )
    found = [where.partition("(")[0] for where, _ in refusals(clicks, refs, query)]
    assert found == ["operators=Aggregate", "expression=RANK"]


def test_functions_of_python_are_trusted_with_the_window_of_their_rows(clicks, refs):
    counted = "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, n INT"
    of_window = clicks.groupBy("window", "k").applyInPandas(lambda rows: rows, counted)
    assert not list(window_rule.across_windows(of_window, one_end=True))
    of_key = clicks.groupBy("k").applyInPandas(lambda rows: rows, counted)
    assert list(window_rule.across_windows(of_key, one_end=True))
    assert not list(
        window_rule.across_windows(
            clicks.mapInPandas(lambda batches: batches, clicks.schema), one_end=True
        )
    )
    in_frames = clicks.withColumn("w", F.col("window")).drop("window")
    ranked = in_frames.withColumn("r", F.rank().over(Window.partitionBy("w").orderBy("v")))
    assert not list(
        window_rule.across_windows(ranked.withColumnRenamed("w", "window"), one_end=True)
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_random_queries_are_accepted_only_if_they_keep_windows_apart(clicks, refs, fresh_seed, say):
    random = Random(fresh_seed)
    queries, truth, counted = Queries(random), Truth(random), Counter[str]()
    for _ in range(150):
        query = queries.query()
        accepted = not refusals(clicks, refs, in_spark(query))
        valid = truth.keeps_windows_apart(query)
        assert valid or not accepted, f"seed {fresh_seed}: {query}"
        counted[f"{'accepted' if accepted else 'refused'} {'valid' if valid else 'invalid'}"] += 1
    say("windows apart", fresh_seed, counted)
    assert counted["refused invalid"] >= 15, counted
    # some of those are valid for what their data cannot be: a row that is not among its own window's
    assert counted["accepted valid"] >= 2 * counted["refused valid"], counted
