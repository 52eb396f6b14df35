"""Reference tables that are refreshed while the stream runs: each row sees the version in force when it arrived."""

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import pytest

from lakehouse.batch import compute
from lakehouse.errors import CommitError
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.log.commits import NOTHING
from lakehouse.storage.position import reference_versions
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.stream import prepared_steps, queries
from lakehouse.testing import Stage, assert_stream_equals_batch
from streaming_jobs.command_groups import views
from streaming_jobs.progress import JobStatus, ReferenceStatus
from streaming_jobs.references import References

START = datetime(2026, 1, 1, tzinfo=UTC)
SHOP = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import files, ingest_table, kafka, keyed_table, reference_table, row_table, tumbling, window_table

sale_topic = kafka("sales", schema="id BIGINT NOT NULL, item STRING NOT NULL, at TIMESTAMP NOT NULL")
price_list = files("prices.csv", schema="item STRING, price BIGINT")


@reference_table(layer="bronze", keys=["item"], refresh="5 minutes")
def prices(price_list: DataFrame) -> DataFrame:
    return price_list


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@row_table(layer="silver", keys=["id"], late="update")
def priced(sales: DataFrame, prices: DataFrame) -> DataFrame:
    return sales.join(F.broadcast(prices), "item", "left")


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["item"], late="update")
def takings(priced: DataFrame) -> DataFrame:
    return priced.groupBy("window", "item").agg(F.sum("price").alias("cents"), F.count("*").alias("n"))


@keyed_table(layer="gold", keys=["item"])
def worth(sales: DataFrame, prices: DataFrame) -> DataFrame:
    return sales.join(prices, "item").groupBy("item").agg(F.sum("price").alias("cents"))
"""


class Shop:
    """A stage with a shop whose prices change, and what each sale cost when it arrived."""

    def __init__(self, spark, folder: Path) -> None:
        self.folder, self.sold, self.price = folder, 0, 0
        self.expected: dict[int, int] = {}
        self.reprice(100, refresh=False)
        self.stage = Stage(spark, folder / "root", importlib.import_module("refreshed_shop"))
        self.session = self.stage.session
        self.prices = self.session.catalog.table("prices")

    def reprice(self, price: int, *, refresh: bool = True) -> None:
        (self.folder / "prices.csv").write_text(f"item,price\npen,{price}\n")
        self.price = price
        if refresh:
            assert self.stage.refresh("prices")

    def sale(self, minutes: float) -> dict:
        self.sold += 1
        self.expected[self.sold] = self.price
        at = START + timedelta(minutes=minutes)
        return {"id": self.sold, "item": "pen", "at": at.isoformat()}

    def sell(self, *minutes: float, **how) -> None:
        self.stage.feed("sales", [self.sale(each) for each in minutes], **how)

    def advance(self, minutes: float) -> None:
        for _ in range(2):  # the first raises the watermark, the second carries it
            self.sell(minutes)

    def paid(self) -> dict[int, int]:
        rows = (
            self.session.read(self.session.catalog.table("priced")).select("id", "price").collect()
        )
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["price"] for row in rows}

    def seen(self) -> list[list[int]]:
        """The versions that the rows of each step saw, oldest step first."""
        lines = [*self.session.commit_log(self.session.catalog.table("priced")).by_stream()]
        return [line.inputs[SEEN]["prices"] for line in reversed(lines) if line.arrived]


@pytest.fixture
def shop(spark, tmp_path, monkeypatch) -> Iterator[Shop]:
    (tmp_path / "refreshed_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "refreshed_shop", raising=False)
    return Shop(spark, tmp_path)


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
def test_each_row_sees_the_version_in_force_when_it_arrived(shop):
    stage, table = shop.stage, shop.session.catalog.table("priced")
    shop.sell(1, 2, 3)
    stage.run("priced")
    shop.reprice(200)
    shop.sell(4, 1.5)
    shop.reprice(300)
    shop.sell(5, 6, abort_at="begin")
    stage.run("priced", files_per_batch=1, abort_at="rows")
    assert shop.paid() == shop.expected
    (shop.folder / "prices.csv").unlink()  # nobody has looked, or nobody can
    shop.sell(7)
    shop.reprice(400)
    shop.advance(90)
    shop.sell(20, 30)  # late, and merged by a batch run
    late = {shop.sold - 1, shop.sold}
    shop.reprice(500)
    shop.advance(200)
    stage.run("priced", abort_at="commit_log")
    stage.run("takings")
    assert {n: p for n, p in shop.expected.items() if n not in late} == shop.paid()
    assert shop.seen()[-1] == [3, 4, 5], "one step, of which each row sees what it met"
    assert len(shop.seen()) > 3 and shop.seen()[0] == [1]

    stage.update("priced")
    stage.update("takings")
    assert shop.paid() == shop.expected
    for name in ("priced", "takings"):
        assert_stream_equals_batch(stage, name)
    whole = Range(START, START + timedelta(hours=3))
    again = compute.backfill(shop.session, table, whole)
    assert again.version == NOTHING and again.inputs[SEEN] == {"prices": [1, 2, 3, 4]}


@pytest.mark.slow
@pytest.mark.parallel
def test_what_cannot_be_known_any_more_is_reported(shop):
    stage, table = shop.stage, shop.session.catalog.table("priced")
    shop.sell(1)
    shop.reprice(200)
    shop.advance(90)
    shop.advance(200)
    stage.run("priced")
    stored = shop.session.path(shop.prices)
    delta_log.open_table(stored).create_checkpoint()
    for version in range(2):
        delta_log.commit_file(stored, version).unlink()
    found = reconciliation.reconcile_parts(shop.session, table)
    verdicts = {c.start.hour: c.verdict for c in found if c.rows_in_table or c.detail}
    assert verdicts == {0: "UNVERIFIABLE", 1: "EQUAL"}
    assert "version=1: rows saw it when they arrived" in found[0].detail

    note = layout.note(
        shop.session.settings, shop.session.catalog.table("sales"), "references.jsonl"
    )
    note.write_text(note.read_text().splitlines()[0] + "\n")
    with pytest.raises(CommitError, match=r"it had 2 lines, and has 1.*restore it from a copy"):
        shop.sell(4)
    reference_versions._known.clear()  # as another process finds it
    with pytest.raises(CommitError, match="rows of priced saw version 2 of prices"):
        compute.backfill(shop.session, table, Range(START, START + timedelta(hours=1)))


@pytest.mark.slow
@pytest.mark.parallel
def test_a_keyed_table_is_computed_again_with_each_version(shop):
    stage, table = shop.stage, shop.session.catalog.table("worth")

    def cents() -> int:
        return shop.session.read(table).collect()[0]["cents"]

    shop.sell(1, 2)
    stage.run("worth")
    assert cents() == 200
    shop.reprice(300)
    stage.run("worth", abort_at="rows")  # no row has come
    assert cents() == 600
    shop.reprice(500)
    shop.sell(3)
    stage.run("worth", abort_at="commit_log")
    assert cents() == 1500
    assert_stream_equals_batch(stage, "worth")
    pinned = [
        line.inputs["references"]["prices"] for line in shop.session.commit_log(table).by_stream()
    ]
    assert pinned == [3, 2, 1]


@pytest.mark.slow
@pytest.mark.parallel
def test_prepared_steps_are_prepared_again_with_each_version(shop, monkeypatch):
    monkeypatch.setattr(prepared_steps, "ORDINARY_FIRST", 0)
    stage, names = shop.stage, ("priced", "worth")
    queries.prepare(shop.session, list(shop.session.catalog))
    shop.sell(1)
    running = {
        name: queries.start(shop.session, shop.session.catalog.table(name)) for name in names
    }
    try:
        for price in (100, 200, 300):
            if price > 100:
                shop.reprice(price)
            for n in range(4):
                shop.sell(price / 100 + n / 10)
                for query in running.values():
                    query.processAllAvailable()
        assert running["priced"].run.prepared.ways == {"rows": ""}
        assert running["worth"].run.prepared.ways == {"groups that changed": "", "rows": ""}
    finally:
        for query in running.values():
            query.stop()
    assert shop.paid() == shop.expected
    assert [seen for seen, _ in groupby(shop.seen())] == [[1], [2], [3]]
    [worth] = shop.session.read(shop.session.catalog.table("worth")).collect()
    assert worth["cents"] == 300 * shop.sold, "all rows by the present version"
    shop.advance(90)
    stage.run(*names)
    for name in names:
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_refresh_that_fails_keeps_the_rows_and_is_reported(shop):
    changed = replace(shop.prices, refresh=timedelta(milliseconds=200))
    references = References(shop.session, [changed], lambda: None)
    references.fill()
    references.start()

    def until(so: Callable[[ReferenceStatus], bool]) -> ReferenceStatus:
        deadline = time.monotonic() + 60
        while not so(found := references.status[0]):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    try:
        first = until(lambda status: status.version == 1)
        shop.reprice(200, refresh=False)
        second = until(lambda status: status.version == 2)
        assert second.made > first.made and not second.error
        (shop.folder / "prices.csv").write_text("item,cents\npen,3\n")
        failed = until(lambda status: bool(status.error))
        assert "first line='item,cents'" in failed.error and failed.version == 2
        job = JobStatus("shop", 1, 0, 0, 0, "running", "", "", references=(failed,))
        told = views.troubles(shop.session.settings, "shop", job)
        assert told[0].startswith("table=prices: it could not be refreshed since")
        assert "version 2 stays in use" in told[0]
        shop.reprice(300, refresh=False)
        assert not until(lambda status: status.version == 3).error
    finally:
        references.stop()
