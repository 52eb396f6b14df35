"""Event time that goes on while topics are silent (`quiet_timeout`): the last windows close, by a commit that is a fact."""

from datetime import timedelta

import pytest

from lakehouse.testing import Stage, assert_stream_equals_batch
from support import quiet
from support.quiet import TABLES, after, at


@pytest.fixture
def stage(spark, tmp_path) -> Stage:
    return Stage(spark, tmp_path, quiet)


def test_the_last_windows_close_while_no_row_comes(stage):
    stage.feed("clicks", [at(1), at(2), at(14), at(3, "bob")])
    stage.run(*TABLES)
    assert stage.frontier("clicks") == after(9) and not stage.rows("by_ten_seconds").count()
    stage.quiet("clicks", timedelta(seconds=11))
    stage.run(*TABLES)
    assert {stage.frontier(name) for name in ("clicks", "of_ann", "by_ten_seconds")} == {after(20)}
    assert stage.rows("by_ten_seconds").count() == 3
    # on time are those that are not behind it; what comes later than it says is late
    stage.feed("clicks", [at(21), at(8)])
    stage.quiet("clicks", timedelta(hours=2))
    stage.run(*TABLES)
    assert stage.frontier("clicks") == after(20 + 7200)
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    lines = list(stage.lake.commit_log(stage.lake.catalog.table("by_ten_seconds")).by_stream())
    assert sum(line.late for line in lines) == 1
    assert [row.clicks for row in stage.rows("by_hour").collect()] == [5]
    assert sorted(row.clicks for row in stage.rows("sessions").collect()) == [1, 4]
