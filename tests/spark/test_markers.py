"""A watermark that marked rows alone move (`marker=`): as a stream and in batch, cut, crashed and made again from the log."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakehouse.cli import lateness_report
from lakehouse.errors import DeclarationError
from lakehouse.ranges import BEGINNING
from lakehouse.stream import queries
from lakehouse.testing import Stage, assert_stream_equals_batch
from stories import marked
from stories.story import ALL_AT_ONCE
from stories.suites import SUITES

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float, value: int = 1) -> dict:
    """A click; one whose value is 0 is a marker."""
    return {"user": "ann", "at": (START + timedelta(seconds=seconds)).isoformat(), "value": value}


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def stage(stage_of) -> Stage:
    return stage_of(marked)


def frontier(stage: Stage) -> float:
    return (stage.frontier("clicks") - START).total_seconds()


@pytest.mark.slow
@pytest.mark.parallel
def test_marked_rows_alone_move_the_watermark_that_batch_repeats(stage):
    stage.feed("clicks", [at(1), at(50)], abort_at="rows")
    assert stage.frontier("clicks") == BEGINNING
    stage.feed("clicks", [at(20, 0), (1, at(60))])
    assert stage.frontier("clicks") == BEGINNING, "the second partition is not marked yet"
    stage.feed("clicks", [(1, at(40, 0)), at(21)])
    assert frontier(stage) == 15
    # before the watermark, 15, with 70 still ahead of it; a malformed marker does nothing
    stage.feed("clicks", [at(3), at(70), at(18), {"user": "ann", "at": None, "value": 0}])
    assert frontier(stage) == 15
    stage.wait(timedelta(minutes=5))
    stage.feed("clicks", [at(55, 0)])
    assert frontier(stage) == 50, "the second partition is silent, and holds nothing back"
    log = stage.session.commit_log(table_of(stage))
    line = next(log.by_stream())
    shown = lateness_report.histogram(stage.session, table_of(stage))[1]
    assert shown[0].rows == 8 and sum(bucket.rows for bucket in shown) == 10
    # the line is read again, with the same heads
    path = log.path
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:-1]) + kept[-1][:50])
    log.read_on()
    assert next(log.by_stream()) == line
    stage.advance("clicks", at(3700, 0))
    stage.run("by_ten_seconds", "marked_sessions", abort_at="commit_log", files_per_batch=1)
    for name in ("by_ten_seconds", "marked_sessions"):
        assert_stream_equals_batch(stage, name)
    by_start = {
        r.window.start.astimezone(UTC): r.clicks for r in stage.rows("by_ten_seconds").collect()
    }
    assert by_start[START] == 1, "the row at 3 s came behind the marker at 20 s"
    assert by_start[after(10)] == 1 and by_start[after(70)] == 1


def table_of(stage: Stage):
    return stage.session.catalog.table("clicks")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_story_with_every_disturbance_agrees(player):
    occurred = player.play(SUITES["markers"], replace(ALL_AT_ONCE, tables=("by_ten_seconds",)))
    assert occurred["late rows"] and occurred["duplicates"] and occurred["a silent topic"]


def test_a_marker_that_is_no_boolean_is_refused(stage):
    other = replace(table_of(stage), marker="value")
    with pytest.raises(
        DeclarationError, match="marker='value': bigint; the function returns a BOOLEAN"
    ):
        queries.prepare(stage.session, [other])
    missing = replace(table_of(stage), marker="mark")
    with pytest.raises(DeclarationError, match="no such column"):
        queries.prepare(stage.session, [missing])
