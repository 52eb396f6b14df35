"""Keyed tables with `ttl`: at each version what their function makes of the rows that count at their frontier."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from batch_jobs import erase
from lakehouse.batch.late_view import late_rows
from lakehouse.errors import RangeError
from lakehouse.storage import version_rows
from lakehouse.stream.strategy import strategy
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from support import expiring
from support.expiring import START, TTL, sale, view
from support.kept import equal_at_every_version

KEPT = ("sold", "items", "interest", "best", "largest")


@pytest.fixture
def stage(stage_of) -> Stage:
    return stage_of(expiring)


def values(stage: Stage, name: str, *columns: str) -> set[tuple]:
    return {tuple(row) for row in stage.rows(name).select(*columns).collect()}


def until(stage: Stage, seconds: float) -> None:
    stage.advance("sales", sale(99, seconds + 5))


@pytest.mark.parallel
def test_a_key_goes_when_its_newest_row_is_more_than_the_ttl_behind(stage):
    stage.feed("sales", [sale(1, 0), sale(2, 10), sale(1, 20), sale(3, 30)])
    stage.run("sold", "items")
    until(stage, 70)
    stage.run("sold", "items")
    assert values(stage, "sold", "item", "sales") == {(1, 1), (2, 1), (3, 1), (99, 2)}
    until(stage, 70.000001)
    stage.run("sold", "items")
    assert values(stage, "sold", "item", "sales") == {(1, 1), (3, 1), (99, 4)}
    path = stage.session.path(stage.session.catalog.table("sold"))
    went, came = version_rows.moved(path, stage.session.read is None or 3)
    assert {row["item"] for row in went.to_pylist()} - {row["item"] for row in came.to_pylist()} == {2}
