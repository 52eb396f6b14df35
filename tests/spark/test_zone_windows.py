"""Windows of time zones in Spark: those of a walk by the clock, and the same in stream and batch over its changes."""

import random
from collections import Counter
from datetime import datetime, timedelta

import pytest

from lakehouse import sliding, tumbling
from lakehouse.ranges import EPOCH, Range, utc
from lakehouse.storage.log.commits import NOTHING
from lakehouse.testing import assert_stream_equals_batch
from lakehouse.transform import lateness
from support import zoned
from support.zone_oracle import ZONES, Walk, moment

# windows of a zone are counted from a Monday, the fourth day after 1970 began
AS_WEEKS = timedelta(days=4)
WINDOWS = {
    "quarters": ("15 minutes", "15 minutes"),
    "hours": ("1 hour", "1 hour"),
    "shifts": ("8 hours", "8 hours"),
    "weeks": ("7 days", "7 days"),
    "slides": ("1 hour", "45 minutes"),
    "skipped": ("3 hours", "15 minutes"),
}


@pytest.mark.parametrize("zone", ZONES)
def test_spark_places_a_row_in_the_windows_of_a_walk_by_the_clock(spark, zone):
    oracle = Walk(zone, moment("2017-11-01"), moment("2019-03-01"))
    draw = random.Random(zone)
    instants = [
        moment("2018-01-01") + timedelta(microseconds=draw.randrange(365 * 86_400_000_000))
        for _ in range(300)
    ]
    clock = tumbling("1 hour", zone=zone).clock
    changes = [at for at in _changes(clock) if moment("2018-01-01") < at < moment("2019-01-01")]
    instants += [
        at + timedelta(minutes=m, microseconds=u)
        for at in changes
        for m in range(-200, 200, 7)
        for u in (-1, 0)
    ]
    rows = spark.createDataFrame([(at,) for at in instants], "at TIMESTAMP")
    for name, (size, slide) in WINDOWS.items():
        window = tumbling(size, zone=zone) if size == slide else sliding(size, slide, zone=zone)
        placed = rows.select("at", lateness._assigned(window, "at").alias("w")).collect()
        held: dict[datetime, list] = {at: [] for at in instants}
        for row in placed:
            held[utc(row.at)].append((utc(row.w.start), utc(row.w.end)))
        for at, shown in held.items():
            expected = oracle.windows(at, window.size, window.slide, timedelta(0))
            assert sorted(shown) == sorted(expected), (name, at)


def _changes(clock) -> list[datetime]:
    return [EPOCH + timedelta(microseconds=at) for at in clock._starts[1:]]


def _lots(draw: random.Random) -> list[list[dict]]:
    """Calls before and after each change of a clock of 2026 in Berlin, on Lord Howe and in St John's."""
    lots = []
    for days in (
        ("2026-03-07", "2026-03-28"),
        ("2026-04-04", "2026-10-03"),
        ("2026-10-24", "2026-10-31"),
    ):
        for start in map(moment, days):
            at, lot = start, []
            while at < start + timedelta(days=3):
                lot.append({"line": draw.choice("ab"), "at": at.isoformat()})
                at += timedelta(seconds=draw.randrange(1_800))
            # within the delay, so that none is late
            lots.append(sorted(lot, key=lambda row: row["at"][:12] + str(draw.random())))
    return lots


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_streams_over_the_changes_of_clocks_hold_the_windows_of_a_walk(stage_of):
    stage, draw = stage_of(zoned), random.Random(29)
    fed: Counter = Counter()
    names = [t.name for t in zoned.TABLES]
    for n, lot in enumerate(_lots(draw)):
        stage.feed("calls", lot)
        fed.update((row["line"], row["at"]) for row in lot)
        if n % 2:  # a crash in the first of several micro-batches
            stage.run(*names, abort_at={3: "rows", 5: "commit_log"}.get(n))
    assert stage.crashes.total() > 3
    for each in zoned.TABLES:
        window = each.window
        oracle = Walk(window.zone, moment("2026-01-01"), moment("2026-12-31"))
        expected: Counter = Counter()
        for (line, at), count in fed.items():
            held = oracle.windows(
                datetime.fromisoformat(at), window.size, window.slide, window.offset - AS_WEEKS
            )
            for span in held:
                expected[line, span] += count
        frontier = stage.frontier(each.name)
        expected = Counter({k: n for k, n in expected.items() if k[1][1] <= frontier})
        rows = stage.rows(each.name).collect()
        shown = {(r.line, (utc(r.window.start), utc(r.window.end))): r.calls for r in rows}
        assert len(shown) == len(rows)
        assert shown == expected, each.name
        assert len(expected) > 3
        assert_stream_equals_batch(stage, each.name)
        span = Range(moment("2026-10-25"), moment("2026-10-26"))
        assert stage.backfill(each.name, span).version == NOTHING, "it has these rows"


def test_rows_late_for_a_shift_are_merged_into_it(stage_of):
    stage = stage_of(zoned)
    night = [{"line": "a", "at": f"2026-10-25T0{hour}:30:00Z"} for hour in (0, 1, 2, 3, 4)]
    stage.feed("calls", night[:3])
    stage.advance("calls", {"line": "b", "at": "2026-10-26T12:00:00Z"})
    stage.run("shifts")
    stage.feed("calls", night[3:])
    stage.run("shifts")
    stage.update("shifts")
    rows = stage.rows("shifts").where("line = 'a'").collect()
    assert [(utc(r.window.start), utc(r.window.end), r.calls) for r in rows] == [
        (moment("2026-10-24T20:00"), moment("2026-10-25T05:00"), 5)
    ]
