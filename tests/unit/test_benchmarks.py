"""What makes a benchmark void, and what is drawn of its numbers. Its parts run by `make bench`; one of them in `test_ui`, too."""

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks import (
    avro,
    check,
    keyed_stream,
    plot,
    publishing,
    savepoint,
    soak,
    upgrade,
)
from benchmarks.latency import Latency
from benchmarks.measure import BenchmarkError, Cost
from benchmarks.publishing import Published
from benchmarks.results import Found, Series
from benchmarks.targets import targets
from benchmarks.upgrade import Exchange, Look, Upgraded
from lakehouse.settings import Settings
from lakehouse.sinks.avro import decoded, encoder

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
    reader._values = [json.dumps(each).encode() for each in values]
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
