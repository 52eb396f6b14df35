"""The two programs of docs/how-to/from-spark.md stream the same rows; a backfill by the plain one gives others."""

import json
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from lakehouse.testing import Stage, assert_stream_equals_batch
from support import ROOT

PAGE = ROOT / "docs" / "how-to" / "from-spark.md"
DAY = "2026-01-01"


def order(number: int, shop: str | None, time: str, cents: int) -> str:
    at = f"{DAY}T{time}Z"
    return json.dumps({"order_id": f"o{number}", "shop": shop, "at": at, "cents": cents})


MICRO_BATCHES = (
    (order(1, "a", "00:00:10", 100), order(2, "b", "00:00:20", 30), "no order"),
    (order(3, "a", "00:00:50", 20), order(4, "a", "00:01:40", 7), order(5, None, "00:01:41", 1)),
    (order(6, "a", "00:00:30", 5), order(7, "b", "00:01:50", 40)),  # o6 missed its minute
    (order(8, "b", "00:30:00", 9), order(9, "a", "00:30:59", 2)),
    (order(10, "a", "01:00:20", 1),),
)


@pytest.fixture
def programs(tmp_path, monkeypatch) -> tuple[dict[str, Any], ModuleType]:
    """The page's code: what the first block defines, and the module of the second."""
    before, after = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    plain: dict[str, Any] = {"__name__": "turnover_job"}
    exec(before, plain)
    (tmp_path / "orders_of_a_page.py").write_text(after)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("orders_of_a_page")
    return plain, sys.modules.pop("orders_of_a_page")


def read(rows) -> list[tuple[str, str, int]]:
    chosen = rows.selectExpr("date_format(window.start, 'HH:mm')", "shop", "cents")
    return sorted(tuple(row) for row in chosen.collect())


@pytest.mark.slow
@pytest.mark.parallel
def test_both_programs_of_the_page_stream_the_same_rows(spark, tmp_path, programs):
    plain, declared = programs
    messages, root = tmp_path / "messages", str(tmp_path / "plain")
    messages.mkdir()
    stage = Stage(spark, tmp_path / "root", declared)

    query = plain["stream"](spark.readStream.text(str(messages)), root)
    for number, values in enumerate(MICRO_BATCHES):
        (tmp_path / "next").write_text("\n".join(values))
        (tmp_path / "next").rename(messages / f"{number}.txt")  # whole, where the query looks
        query.processAllAvailable()
        stage.feed("orders", values)
    query.stop()
    stage.run("turnover")

    streamed = [
        ("00:00", "a", 120),
        ("00:00", "b", 30),
        ("00:01", "a", 7),
        ("00:01", "b", 40),
        ("00:30", "a", 2),
        ("00:30", "b", 9),
    ]
    assert read(stage.rows("turnover")) == streamed
    assert read(spark.read.format("delta").load(f"{root}/turnover")) == streamed
    assert_stream_equals_batch(stage, "turnover")
    turnover = stage.session.catalog.table("turnover")
    assert sum(commit.late for commit in stage.session.commit_log(turnover).by_stream()) == 1
    assert stage.rows("orders", side="quarantine").count() == 2

    span = (f"{DAY} 00:00:00", f"{DAY} 01:00:00")
    plain["backfill"](spark.read.text(str(messages)), root, *span)
    filled = read(spark.read.format("delta").load(f"{root}/turnover"))
    assert filled == [("00:00", "a", 125), *streamed[1:]]
