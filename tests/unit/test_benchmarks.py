"""What makes a benchmark void, and what is drawn of its numbers. Its parts run by `make bench`; one of them in `test_ui`, too."""

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import (
    avro,
    check,
    keyed_step,
    keyed_stream,
    one_more,
    one_more_tables,
    plot,
    publishing,
    report,
    savepoint,
    scale,
    soak,
    upgrade,
)
from benchmarks.lag import Lag
from benchmarks.latency import Latency
from benchmarks.measure import BenchmarkError, Cost
from benchmarks.nexmark import run as nexmark_run
from benchmarks.nexmark import spark as nexmark_spark
from benchmarks.nexmark import tables as nexmark_tables
from benchmarks.nexmark.comparison import Query, Side
from benchmarks.one_more import Spent
from benchmarks.publishing import Published
from benchmarks.results import Found, Series
from benchmarks.targets import targets
from benchmarks.upgrade import Exchange, Look, Upgraded
from lakehouse.declare.catalog import catalog_of
from lakehouse.settings import Settings
from lakehouse.sinks.formats.avro import decoded, encoder
from lakehouse.stream.advance import Report

VIEWS = {("a", 0): 3, ("b", 0): 1, ("a", 10_000): 2}


@pytest.mark.parametrize(
    "found",
    [
        {("a", 0): 3, ("b", 0): 1},
        {**VIEWS, ("a", 10_000): 1},
        {**VIEWS, ("c", 0): 1},
    ],
    ids=["missing", "wrong", "too many"],
)
def test_a_wrong_count_makes_the_run_void(found: dict) -> None:
    check.compare("case", dict(VIEWS), VIEWS)
    with pytest.raises(BenchmarkError, match=r"case: 1 of 3 counts are wrong .* the run is void"):
        check.compare("case", found, VIEWS)


def test_no_closed_window_makes_the_run_void() -> None:
    assert check.upto(VIEWS, 10_000) == {("a", 0): 3, ("b", 0): 1}, (
        "a window that ends at the frontier is closed"
    )
    with pytest.raises(BenchmarkError, match="no closed window"):
        check.compare("case", {}, check.upto(VIEWS, 9_999))


def test_targets_are_judged_round_by_round() -> None:
    ours = Series("catch-up", "ours", 1_000_000, [Cost(2, 4), Cost(4, 8), Cost(2, 4)])
    by_hand = Series("catch-up", "hand-written", 1_000_000, [Cost(3, 4), Cost(6, 8), Cost(1, 4)])
    goals = targets(Found([ours, by_hand], [Latency("ours", (1.0, 9.0, 2.0), 0.5)]))
    assert [(goal.value, goal.met) for goal in goals] == [(1.5, True), (1.0, False), (2.0, True)]


def test_targets_of_a_publication_are_those_of_its_target():
    published = [
        Published("Kafka", (0.2, 0.4, 0.9), 60_000),
        Published("PostgreSQL", (0.9, 1.2, 1.4), 40_000),
        Published(publishing.SPARK, (2.0,), 90_000),
    ]
    goals = targets(Found(published=published))
    assert [(goal.value, goal.limit, goal.met) for goal in goals] == [
        (60_000, 50_000, True),
        (40_000, 50_000, False),
        (0.4, 0.5, True),
        (1.2, 1.0, False),
    ]
    assert published[1].p95 == pytest.approx(1.38)


def test_a_lag_has_a_target_where_one_is_set():
    lags = [Lag("cdc", "a commit", (1.0, 2.0, 6.0), 0.5), Lag("shop", "a click", (9.0, 9.0), 0.5)]
    assert [(goal.value, goal.limit) for goal in targets(Found(lags=lags))] == [(2.0, 3.0)]
    assert (lags[0].p95, lags[0].worst) == (pytest.approx(5.6), 6.0)


@pytest.mark.parametrize(
    ("numbers", "wrong", "once", "void"),
    [
        ([0, 1, 2], 0, True, False),
        ([0, 1, 1, 2], 0, False, False),
        ([0, 1, 1, 2], 0, True, True),
        ([0, 2], 0, False, True),
        ([0, 1, 2, 3], 0, False, True),
        ([0, 1, 2], 1, False, True),
    ],
)
def test_a_topic_must_hold_the_rows_and_once_where_that_is_promised(numbers, wrong, once, void):
    reader = publishing.TopicReader(Settings(bootstrap_servers="localhost:1"), "payments", once)
    values = [{"n": n, "cents": publishing.cents(n) + wrong} for n in numbers]
    reader.values = [json.dumps(each).encode() for each in values]
    with pytest.raises(BenchmarkError, match="void") if void else nullcontext():
        reader.check(3)


def test_a_row_in_avro_is_the_row_in_json():
    encoded = encoder(avro.SCHEMA, avro._ID)
    for n in (0, 7, 12_345_678):
        found, sent = (
            decoded(encoded(avro.row(n)), json.dumps(avro.SCHEMA)),
            avro._json(avro.row(n)),
        )
        found, sent = json.loads(found), json.loads(sent)
        assert {"note": None, **found, "at": instant(found)} == {**sent, "at": instant(sent)}


def instant(row: dict) -> datetime:
    return datetime.fromisoformat(row["at"])


def test_a_soak_finds_what_grows_after_its_warm_up():
    minutes = range(121)
    samples = {name: [5.0 * bound.scale] * 121 for name, bound in soak.BOUNDS.items()}
    samples |= {"seconds": [30.0 * n for n in minutes], "batches": [100.0 * n for n in minutes]}
    # warm after ten minutes
    samples["JVM memory"] = [min(n, 20) * 40.0 * soak.MIB for n in minutes]
    samples["Delta logs"] = [100 * n * 9.0 * soak.KIB for n in minutes]
    found = {t.name: t for t in soak.trends(samples, 600)}
    assert all(t.within for t in found.values())
    assert found["Delta logs"].slope == pytest.approx(9) and found[
        "JVM memory"
    ].slope == pytest.approx(0)
    samples["driver memory"] = [n * 2.0 * soak.MIB for n in minutes]
    found = soak.trends(samples, 600)
    assert [(t.name, round(t.slope)) for t in found if not t.within] == [("driver memory", 240)]
    with pytest.raises(BenchmarkError, match="longer"):
        soak.trends(samples, 3_500)
    drawn = plot.svg(samples["seconds"], {"JVM & driver": samples["driver memory"]})
    assert drawn.count("L") == 120 and "JVM &amp; driver" in drawn


def of(revision: int, held: int, most: int = 1) -> dict[str, int]:
    return {"revision": revision, "held": held, "most": most}


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([of(1, 9), of(2, 1)], "rows of the versions [1, 2]"),
        ([], "rows of the versions []"),
        ([of(2, 12, most=2)], "a window is there 2 times"),
        ([of(2, 9)], "9 rows, and 10 before"),
        ([of(2, 10)], ""),
    ],
)
def test_a_reader_sees_what_is_mixed_twice_or_missing(found: list[dict], wrong: str):
    last = Look(0, 1, revision=1, rows=10)
    now = upgrade.seen(1, 1.5, found, last)
    assert now == Look(1, 1.5, wrong=wrong) if wrong else now == Look(1, 1.5, 2, 10)


def test_what_a_reader_saw_wrong_counts_by_its_seconds():
    def look(at: float, revision: int, wrong: str = "") -> Look:
        return Look(at, at + 0.25, revision, 10, wrong)

    looks = [look(0, 1), look(1, 0, "it failed"), look(2, 2), look(3, 0, "it failed"), look(4, 1)]
    assert upgrade.summary(looks) == (5, 0.25, 0.5, ("it failed",))
    with pytest.raises(BenchmarkError, match=r"saw the versions \[1, 2\]; the run is void"):
        upgrade.summary(looks[:4])
    exchanges = (Exchange("promote", 0.5, 30), Exchange("roll-back", 1.5, 20))
    found = Upgraded(
        1, 100, (12.0, 10.0, 11.0), (10.0, 10.0, 10.0), exchanges, *upgrade.summary(looks)
    )
    goals = targets(Found(upgrades=[found]))
    assert [(goal.value, goal.met) for goal in goals] == [(0.5, False), (1.5, False), (1.1, True)]


def test_a_key_that_was_counted_twice_or_not_makes_the_run_void():
    wanted = keyed_stream.counted(3, 7)
    assert sorted(wanted.values()) == [2, 2, 3]
    rows = list(wanted.items())
    keyed_stream.compare("totals", rows, wanted)
    key, n = rows[0]
    for found in (rows[1:], [*rows, rows[0]], [(key, n + 1), *rows[1:]], [*rows, ("other", 1)]):
        with pytest.raises(BenchmarkError, match=r"totals: . rows for 3 keys, .*; the run is void"):
            keyed_stream.compare("totals", found, wanted)
    messages = list(keyed_stream.records(range(7), 3, 1_000))
    assert len({message.value for message in messages}) == 7
    assert {key for key in wanted if any(key in str(each.value) for each in messages)} == {*wanted}


def test_a_pause_that_began_before_or_ends_after_counts_whole():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    at = [start + timedelta(seconds=second) for second in range(60)]
    commits = [at[second] for second in (0, 1, 2, 9, 10, 30)]
    gaps = [
        savepoint.longest_gap(commits, at[a], at[b]) for a, b in ((0, 2), (0, 3), (8, 9), (11, 12))
    ]
    assert gaps == [1, 7, 7, 20]
    with pytest.raises(BenchmarkError, match="no two commits"):
        savepoint.longest_gap(commits, at[40], at[50])


def test_queries_that_spark_cannot_stream_are_named_with_its_reason(capsys):
    ours, spark = Side(6_000, 2.0, (0.1, 0.3, 0.2)), Side(6_300, 3.0, (0.5,))
    found = [
        Query("q0_bids", 5_500, ours, spark),
        *(Query(name, 9, ours, cannot="no ranks") for name in ("q18", "q19")),
    ]
    report.show(Console(width=120), Found(nexmark=found), [])
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if "q0_bids" in line)
    for number in ("3,000", "2,100", "1.43", "0.20 (0.30)", "0.50 (0.50)", "5,500"):
        assert number in row
    assert "Spark has no stream for q18, q19: no ranks" in shown
    written = report.as_json(Found(nexmark=found), [], {})["nexmark"]
    assert [each["times"] for each in written] == [pytest.approx(3_000 / 2_100), None, None]


def test_streams_by_hand_are_of_queries_that_there_are():
    catalog = catalog_of([nexmark_tables])
    by_hand = {*nexmark_spark.BY_HAND, *nexmark_spark.RANKED, *nexmark_spark.ADDED}
    assert by_hand <= {*catalog.tables}
    for name, ranked in nexmark_spark.RANKED.items():
        assert {*ranked.keys} <= {*catalog.table(name).keys}
    for kept, ingest in nexmark_spark.ONCE.items():
        assert catalog.table(kept).inputs == (ingest,)


def test_a_query_is_fed_what_it_and_what_it_reads_are_computed_from():
    catalog = catalog_of([nexmark_tables])

    def of(name: str) -> tuple[list[str], list[str]]:
        table = catalog.table(name)
        before = [each.name for each in nexmark_run.above(catalog, table)]
        return before, nexmark_run.ingest_of(catalog, table)

    queries = [table for table in catalog if nexmark_run.number(table) is not None]
    places = {t.name: nexmark_run.place(catalog, t) for t in queries}
    order = [int(name[1:].partition("_")[0]) for name in sorted(places, key=lambda n: places[n])]
    assert order[:10] == [0, 1, 2, 3, 5, 7, 8, 9, 4, 6] and sorted(order) == [*range(24)]
    assert of("q13_bids_with_side_input") == ([], ["nexmark_bids"])
    assert of("q12_bids_by_arrival") == ([], ["nexmark_bids_by_arrival"])
    assert of("q4_average_prices") == (
        ["auctions", "q9_winning_bids"],
        ["nexmark_auctions", "nexmark_bids"],
    )


def test_a_step_takes_what_all_its_micro_batches_take():
    def report(batch: int, **milliseconds: int) -> Report:
        return Report("q0", batch, "", durationMs=milliseconds)

    spark = [report(n, triggerExecution=n * 100, addBatch=n) for n in range(4)]
    idle = [report(4, triggerExecution=9), report(-1)]
    query = SimpleNamespace(recentProgress=[*spark, *idle, report(5, addBatch=700)])
    assert nexmark_run.seconds(query, 1) == pytest.approx(1.2)
    assert nexmark_run.newest(SimpleNamespace(recentProgress=[])) == -1


def test_one_more_table_adds_its_share_of_what_four_add():
    without = [Spent(0.2, 1.0, 300, 200), Spent(0.1, 1.0, 310, 210)]
    found = one_more.added("row", "append", Spent(0.35, 3.2, 325, 209), without, 4)
    assert (found.cores, found.steps, found.jvm, found.python) == pytest.approx((0.05, 0.8, 5, 1))
    assert found.cpu == pytest.approx(0.0625)
    assert one_more.added("row", "append", Spent(0.2, 0, 0, 0), without, 4).cpu is None


def test_each_kind_of_one_more_table_is_declared_four_times():
    catalog = catalog_of([one_more_tables])
    kinds = {kind: one_more_tables.names(kind) for kind in one_more_tables.KINDS}
    assert {*catalog.tables} == {"payments", "balances"}.union(*kinds.values())
    assert all(len(names) == one_more_tables.COPIES for names in kinds.values())
    assert catalog.table("versions_3").kind.keeps_versions
    sent = [next(records) for records in [one_more.records(200)] for _ in range(3)]
    assert [json.loads(each.value or b"")["id"] for each in sent] == [0, 1, 2]
    assert [each.time_ms - sent[0].time_ms for each in sent] == [0, 5, 10]


def test_steps_with_a_ttl_count_once_as_many_keys_expire_as_come():
    assert keyed_step.starting_steps(10_000_000, 10_000, 200) == 5
    for keys, changed, steps, wrong in (
        (10_000_000, 10_000, 9, "steps=9"),
        (10_000_000, 10_001, 200, "changed=10,001"),
        (1_000_000, 10_000, 200, "give 2,000,000 keys"),
    ):
        with pytest.raises(BenchmarkError, match=wrong):
            keyed_step.starting_steps(keys, changed, steps)


def test_a_wall_is_where_the_line_of_a_cost_reaches_its_limit():
    cost = scale.Cost("part", "s", {10: 2.0, 100: 20.0}, limit=100.0)
    assert cost.line == pytest.approx((0, 0.2))
    assert cost.wall == pytest.approx(500)
    assert (cost.at(100), cost.at(1_000)) == pytest.approx((20, 200))
    assert scale.Cost("part", "s", {10: 1.0, 100: 100.0}).power == pytest.approx(2)
