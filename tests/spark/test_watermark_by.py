"""A watermark that each value of a column holds back (`watermark_by=`): by hand, cut, crashed, and made again from the log."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakehouse import watermarks
from lakehouse.errors import DeclarationError
from lakehouse.ranges import BEGINNING
from lakehouse.storage.log.commits import Commit
from lakehouse.stream import queries
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from support import sites

START = datetime(2026, 1, 1, tzinfo=UTC)
INGEST = ("readings", "plain_readings", "ended_readings")
HALF_A_MINUTE = timedelta(seconds=31)  # more than `idle_timeout`


def at(seconds: float, site: str | None = "north", end: bool = False) -> dict:
    moment = START + timedelta(seconds=seconds)
    return {"site": site, "at": moment.isoformat(), "is_end": end}


def table_of(stage: Stage, name: str = "readings"):
    return stage.session.catalog.table(name)


def lines(stage: Stage, name: str = "readings") -> list[Commit]:
    return list(stage.session.commit_log(table_of(stage, name)).by_stream())[::-1]


def frontier(stage: Stage, name: str = "readings") -> float:
    return (stage.frontier(name) - START).total_seconds()


@pytest.fixture
def stage(stage_of) -> Stage:
    return stage_of(sites)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_slow_site_is_not_late_with_it_and_late_without(stage):
    def feed(*rows: dict, with_it: float, without: float) -> None:
        for name in ("readings", "plain_readings"):
            stage.feed(name, rows)
        found = frontier(stage), frontier(stage, "plain_readings")
        assert found == (with_it, without)

    feed(at(100), at(10, "south"), with_it=5, without=95)
    # a row of no site holds nothing back, and neither it nor a malformed one of a site moves it
    bad = {"site": "south", "at": None}
    feed(at(110), at(20, "south"), at(300, None), bad, with_it=15, without=295)
    feed(at(31, "south"), at(120), with_it=26, without=295)
    # first seen behind the watermark: late, and the watermark does not move back
    feed(at(12, "west"), at(130), at(40, "south"), with_it=26, without=295)
    assert len(lines(stage)[-1].heads) == 4, "a partition and three sites"
    stage.wait(HALF_A_MINUTE)
    # the others are idle, and forgotten
    feed(at(200), with_it=195, without=295)
    assert len(lines(stage)[-1].heads) == 2
    feed(at(50, "south"), at(230), with_it=195, without=295)
    for name in ("readings", "plain_readings"):
        stage.advance(name, at(3700))
    stage.run("by_site", "plainly_by_site", files_per_batch=1, abort_at="commit_log")
    found = {}
    for name in ("by_site", "plainly_by_site"):
        assert_stream_equals_batch(stage, name)
        late = sum(line.late for line in lines(stage, name))
        windows = stage.rows(name).where("site = 'south'").select("window.start").collect()
        starts = sorted((row.start.astimezone(UTC) - START).total_seconds() for row in windows)
        found[name] = (late, starts)
    # late are the row of the west, and the one that came when the south was taken for idle
    assert found["by_site"] == (2, [10, 20, 30, 40])
    assert found["plainly_by_site"][1] == [10]


@pytest.mark.slow
@pytest.mark.parallel
def test_a_crash_and_a_line_that_is_lost_leave_the_same_watermarks(stage_of):
    batches = [
        [at(100), at(10, "south"), (1, at(60, end=True))],
        [at(110), at(20, "south", end=True), (1, at(70, "east", end=True)), b"junk"],
        [at(120, end=True), (1, at(30, "south")), (1, at(80, None, end=True))],
        [at(130), (1, at(40, "south", end=True))],
    ]
    calm, crashed = stage_of(sites), stage_of(sites)
    for number, batch in enumerate(batches):
        for stage in (calm, crashed):
            if number == 3:
                stage.wait(HALF_A_MINUTE)
            point = COMMIT_POINTS[number % len(COMMIT_POINTS)]
            for name in INGEST:
                stage.feed(name, batch, abort_at=point if stage is crashed else None)
    for name in INGEST:
        was, again = lines(calm, name), lines(crashed, name)
        said = [[(x.watermark, x.frontier, x.heads) for x in each] for each in (was, again)]
        assert said[0] == said[1] and len(was) == len(batches)
    # the first partition is not marked yet; it is at 20; sites of four letters are at 70; these are idle, a partition is at 80
    assert [frontier_of(x) for x in lines(crashed, "ended_readings")] == [None, 15, 65, 75]
    # each line is read again
    for name in ("readings", "ended_readings"):
        whole = lines(crashed, name)
        crashed.session.commit_log(table_of(crashed, name)).path.unlink()
        assert lines(crashed, name) == whole


def frontier_of(line: Commit) -> float | None:
    assert line.frontier is not None
    return None if line.frontier == BEGINNING else (line.frontier - START).total_seconds()


def test_of_too_many_values_those_with_the_oldest_rows_are_forgotten_and_it_is_said(
    stage, monkeypatch, caplog
):
    monkeypatch.setattr(watermarks, "MOST_VALUES", 2)
    stage.feed("readings", [at(10, "a"), at(20, "b")])
    assert frontier(stage) == 5
    stage.feed("readings", [at(30, "b"), at(40, "c")])
    assert frontier(stage) == 25 and len(lines(stage)[-1].heads) == 3
    assert "watermark_by='site'" in caplog.text and "name a column of fewer values" in caplog.text


@pytest.mark.parametrize("column, dtype", [("at", "timestamp"), ("town", "no such column")])
def test_a_column_without_few_values_is_refused(stage, column, dtype):
    other = replace(table_of(stage), watermark_by=column)
    with pytest.raises(DeclarationError, match=f"watermark_by='{column}': {dtype}; the function"):
        queries.prepare(stage.session, [other])
