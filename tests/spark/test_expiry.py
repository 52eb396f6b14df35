"""Keyed tables with `ttl`: what their function makes of the rows that count at their frontier, and of no others."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from lakehouse.batch.late_merge import late_rows
from lakehouse.maintenance import erasure
from lakehouse.storage.delta import version_rows
from lakehouse.stream.strategy import strategy
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from support import expiring
from support.expiring import START, TTL, sale, view

HOUR = 3_600


def values(stage: Stage, name: str) -> set[tuple]:
    return {tuple(row)[:-1] for row in stage.rows(name).collect()}


def known(stage: Stage, name: str) -> dict[int, int]:
    return {row.item: row.sales for row in stage.rows(name).collect() if row.item < 99}


def until(stage: Stage, seconds: float) -> None:
    stage.advance("sales", sale(99, seconds + 5))


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(2)
def test_a_key_goes_when_its_newest_row_is_more_than_the_ttl_behind(stage_of):
    stage = stage_of(expiring)
    stage._now = START + timedelta(hours=3)  # rows are erased once their hour of arrival is over
    session, sold = stage.session, stage.session.catalog.table("sold")
    assert strategy(session, sold) == "groups", "Spark's aggregate would take nothing out"
    stage.feed("sales", [sale(1, 0), sale(2, 10), sale(1, 20), sale(3, 30)])
    stage.run("sold")
    until(stage, 70)
    stage.run("sold", "items")
    assert known(stage, "sold") == {1: 1, 2: 1, 3: 1}, "10 is a minute before 70, and not more"

    stage.quiet("sales", timedelta(seconds=10))
    stage.run("sold", "items", abort_at="rows")
    assert stage.frontier("sold") == START + timedelta(seconds=80)
    assert known(stage, "sold") == {1: 1, 3: 1}, "no row has come, and 2 is gone"
    last = next(session.commit_log(sold).by_stream())
    assert last.arrived == 0 and last.frontier == stage.frontier("items")
    went, came = version_rows.moved(session.path(sold), last.version)
    assert [row["item"] for row in went.to_pylist()] == [2] and not came.num_rows
    assert {row.sales: row.items for row in stage.rows("items").collect()} == {1: 2, 2: 1}

    stage.feed("sales", [sale(1, 19), sale(2, 25), sale(2, 5), sale(2, 12)])
    stage.run("sold")
    assert known(stage, "sold") == {1: 1, 2: 1, 3: 1}, "2 is back, with the row that counts"
    assert next(session.commit_log(sold).by_stream()).late == 3
    assert {row.item for row in late_rows(session, sold).collect()} == {1, 2}

    stage.wait(timedelta(hours=1))
    until(stage, HOUR + 100)
    stage.run("sold")
    assert known(stage, "sold") == {}
    assert erasure.erase(session, session.catalog.table("sales"), "item < 99").rows == 8, (
        "what expired is needed no more"
    )
    stage.feed("sales", [sale(4, HOUR + 90)])
    stage.run("sold", "items")
    assert known(stage, "sold") == {4: 1}
    for name in ("sold", "items"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(0)
def test_whatever_comes_and_crashes_the_rows_that_count_are_the_same(stage_of):
    """Two inputs, of which one lags; results of windows; minutes of which rows expire one by one."""
    stage, random, now = stage_of(expiring), Random(7), 0.0
    names, rows, seen = ("interest", "best", "by_minute"), [], Counter[str]()
    for turn, point in enumerate(COMMIT_POINTS):
        now += 45
        for ingest in random.sample(("sales", "views"), 1 if turn % 2 else 2):
            ahead = stage.frontier(ingest) or START
            new = [
                (random.randint(1, 4), now - random.choice((0, 2, 30, 59, 61, 130)))
                for _ in range(5)
            ]
            made = sale if ingest == "sales" else view
            stage.feed(ingest, [made(item, second) for item, second in new])
            stage.feed(ingest, [made(50, now)])
            late = [row for row in new if START + timedelta(seconds=row[1]) < ahead - TTL]
            seen["late"] += len(late)
            rows += [(ingest, *row) for row in [*new, (50, now)] if row not in late]
        stage.run("by_ten_seconds", *names, abort_at=point)
        counts = Counter[tuple[str, int]]()
        for ingest, item, second in rows:
            counts[ingest, item] += START + timedelta(seconds=second) >= since(stage, "interest")
        seen["gone"] += sum(not count for count in counts.values())
        assert {(row.item, row.views or 0) for row in stage.rows("interest").collect()} == {
            (item, counts["views", item])
            for item in {item for (_, item), count in counts.items() if count}
        }, turn
        minutes = Counter(
            (START + timedelta(seconds=second)).replace(second=0)
            for ingest, _, second in rows
            if ingest == "sales" and START + timedelta(seconds=second) >= since(stage, "by_minute")
        )
        found = {r.minute.astimezone(UTC): r.sales for r in stage.rows("by_minute").collect()}
        assert found == minutes, turn
    for name in names:
        assert_stream_equals_batch(stage, name)
    assert seen["late"] and seen["gone"], seen


def since(stage: Stage, name: str) -> datetime:
    ahead = stage.frontier(name)
    return (ahead - TTL) if ahead else datetime(1, 1, 1, tzinfo=UTC)
