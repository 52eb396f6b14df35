"""What an input has closed is there without a further row: in a first load, behind filtered rows, after restarts and crashes."""

import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from deltalake import DeltaTable

from lakehouse.cli.table_status import overview
from lakehouse.stream import queries
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from support import first_load
from support.changing_tables import changed
from support.first_load import TABLES, after, at

WINDOWS = [name for name in TABLES if name not in ("clicks", "of_ann", "totals", "moments")]
STEPPED = [name for name in TABLES if name != "clicks"]
LAST = 60 * 24 * 2 + 30  # minutes: half an hour into the third day


@pytest.fixture
def stage(stage_of) -> Stage:
    return stage_of(first_load)


def closed(stage: Stage, name: str) -> list[tuple]:
    """The windows of a table: user, end in minutes, clicks."""
    rows = stage.rows(name).collect()
    ends = [row.window.end.astimezone(after(0).tzinfo) - after(0) for row in rows]
    return sorted(
        (r.user, end / timedelta(minutes=1), r.clicks) for r, end in zip(rows, ends, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_first_load_in_one_step_closes_all_windows(stage):
    stage.feed("clicks", [at(1), at(2), at(70), at(3, "bob"), at(LAST)])
    stage.run(*STEPPED)
    frontiers = {name: stage.frontier(name) for name in TABLES}
    assert frontiers == dict.fromkeys(TABLES, after(LAST, -5))
    assert closed(stage, "by_hour") == [("ann", 60, 2), ("ann", 120, 1), ("bob", 60, 1)]
    assert closed(stage, "by_minute") == [
        ("ann", 2, 1),
        ("ann", 3, 1),
        ("ann", 71, 1),
        ("bob", 4, 1),
    ]
    assert closed(stage, "by_slide") == [
        *(("ann", 20, 2), ("ann", 40, 2), ("ann", 80, 1), ("ann", 100, 1)),
        *(("bob", 20, 1), ("bob", 40, 1)),
    ]
    assert closed(stage, "by_day") == [("ann", 18.5 * 60, 3), ("bob", 18.5 * 60, 1)]
    assert closed(stage, "visits") == [("ann", 17, 2), ("ann", 85, 1), ("bob", 18, 1)]
    assert closed(stage, "hours_of_ann") == [("ann", 60, 2), ("ann", 120, 1)]
    assert closed(stage, "hours_of_hours") == [("ann", 120, 3), ("bob", 120, 1)]
    commits = {name: len(list(lines(stage, name))) for name in STEPPED}
    stage.run(*STEPPED)
    assert {name: len(list(lines(stage, name))) for name in STEPPED} == commits, "nothing waits"
    # what comes later than that is late, and what is not goes on
    stage.feed("clicks", [at(50), at(LAST + 1), at(LAST + 200)])
    stage.run(*STEPPED)
    assert {stage.frontier(name) for name in TABLES} == {after(LAST + 200, -5)}
    assert sum(line.late for line in lines(stage, "by_hour")) == 1
    for name in WINDOWS:
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_crash_before_the_windows_close_leaves_none_open(stage, point):
    stage.feed("clicks", [at(1), at(2), at(3, "bob"), at(200)])
    stage.run("of_ann", "by_hour", "visits", abort_at=point)
    # rows that the row table filters, and none that Spark would read
    stage.feed("clicks", [at(700, "bob")])
    stage.run("of_ann")
    stage.run("hours_of_ann", "by_hour", "visits", "hours_of_hours", abort_at=point)
    names = ("hours_of_ann", "by_hour", "visits", "hours_of_hours")
    assert {stage.frontier(name) for name in names} == {after(700, -5)}
    assert closed(stage, "hours_of_ann") == [("ann", 60, 2), ("ann", 240, 1)]
    assert closed(stage, "visits") == [("ann", 17, 2), ("ann", 215, 1), ("bob", 18, 1)]
    stage.feed("clicks", [at(1_000, "bob")])
    stage.run("of_ann")
    stage.run(*names)
    assert {stage.frontier(name) for name in names} == {after(1_000, -5)}
    for name in names:
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_running_job_closes_windows_while_all_rows_are_filtered(stage):
    names = ("of_ann", "by_hour", "hours_of_ann", "moments")
    stage.feed("clicks", [at(1), at(70)])
    stage.run(*names)
    session, catalog = stage.session, stage.session.catalog
    running = [queries.start(session, catalog.table(name)) for name in names]
    try:
        for minutes in (130, 190, 500):
            stage.feed("clicks", [at(minutes, "bob")])
            wait_for(stage, running, after(minutes, -5))
    finally:
        for query in running:
            query.stop()
    assert closed(stage, "hours_of_ann") == [("ann", 60, 1), ("ann", 120, 1)]
    for name in ("by_hour", "hours_of_ann"):
        assert_stream_equals_batch(stage, name)


def test_a_table_that_waits_or_is_empty_says_why(stage):
    stage.feed("clicks", [at(1, "bob"), at(2, "bob")])
    stage.run("by_minute")
    pipeline = stage.session.catalog.table("of_ann").pipeline
    assert waits(stage) == {
        "clicks": "",
        "of_ann": "it has read nothing yet: clicks is complete up to 2026-01-01T00:01:55Z; "
        f"`lakehouse stream status {pipeline}` shows its job",
        "by_minute": "rows wait: the frontier is 2026-01-01T00:01:55Z, the first window closes at 2026-01-01T00:02:00Z; "
        "it closes once a later row comes, or by itself if the topic is declared with quiet_timeout",
    }
    stage.feed("clicks", [at(60, "bob"), at(1, "bob")])
    stage.run("of_ann")
    assert waits(stage) == {
        "clicks": "",
        "of_ann": "no rows: of those of its input 0 came late, 0 were quarantined, and its function left out the others",
        "by_minute": "behind: complete up to 2026-01-01T00:01:55Z, its input clicks up to 2026-01-01T00:59:55Z",
    }
    stage.run("by_minute")
    assert waits(stage)["by_minute"] == ""


def test_an_open_session_waits_though_its_first_row_is_long_past(stage):
    stage.feed("clicks", [at(1), at(10), at(20)])
    stage.run("visits")
    assert waiting(stage, "visits")["visits"].startswith(
        "rows wait: the frontier is 2026-01-01T00:19:55Z, the last session closes at 2026-01-01T00:35:00Z;"
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_longer_delay_takes_nothing_back_that_has_closed(stage):
    stage.feed("clicks", [at(1), at(200)])
    stage.run("by_minute")
    catalog = changed(stage.session.catalog, "clicks", delay=timedelta(hours=3))
    stage.session = replace(stage.session, catalog=catalog)
    stage.feed("clicks", [at(50), at(201)])
    assert stage.frontier("clicks") == after(200, -5)
    stage.run("by_minute")
    assert sum(line.late for line in lines(stage, "by_minute")) == 1
    assert_stream_equals_batch(stage, "by_minute")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_commit_of_maintenance_does_not_hide_the_frontier(stage):
    stage.feed("clicks", [at(1)])
    stage.feed("clicks", [at(2), at(200)])
    path = stage.session.path(stage.session.catalog.table("clicks"))
    DeltaTable(str(path)).optimize.compact()
    stage.run("by_minute", "by_hour")
    assert {stage.frontier(name) for name in ("by_minute", "by_hour")} == {after(200, -5)}
    assert closed(stage, "by_minute") == [("ann", 2, 1), ("ann", 3, 1)]
    assert closed(stage, "by_hour") == [("ann", 60, 2)]


def waits(stage: Stage) -> dict[str, str]:
    names = ("clicks", "of_ann", "by_minute")
    return waiting(stage, *names)


def waiting(stage: Stage, *names: str) -> dict[str, str]:
    return {s.table: s.waits for s in overview(stage.session) if s.table in names}


def lines(stage: Stage, name: str):
    return stage.session.commit_log(stage.session.catalog.table(name)).by_stream()


def wait_for(stage: Stage, running: list, frontier: datetime) -> None:
    """Returns when the tables of these queries are complete up to the frontier; raises what one failed with."""
    deadline = time.monotonic() + 120
    while {stage.frontier(query.name) for query in running} != {frontier}:
        for query in running:
            if error := query.exception():
                raise error
        assert time.monotonic() < deadline, {q.name: stage.frontier(q.name) for q in running}
        time.sleep(0.1)
