"""A table that reads a dimension: each partition is reconciled with the version that its writers read, and a change is named."""

import importlib
import sys
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from lakehouse.batch import reference_tables
from lakehouse.ranges import Range
from lakehouse.reconcile import diagnosis, reconciliation
from lakehouse.reconcile.provenance import Provenance, written_by
from lakehouse.testing import Stage

START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = [f"2026-01-01-{hour:02}" for hour in range(3)]
SHOP = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import files, ingest_table, kafka, reference_table, tumbling, window_table

sale_topic = kafka("sales", schema="item STRING NOT NULL, at TIMESTAMP NOT NULL")
price_list = files("prices.csv", schema="item STRING, price BIGINT")


@reference_table(layer="bronze", keys=["item"])
def prices(price_list: DataFrame) -> DataFrame:
    return price_list


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["item"])
def takings(sales: DataFrame, prices: DataFrame) -> DataFrame:
    return sales.join(prices, "item").groupBy("window", "item").agg(F.sum("price").alias("cents"))
"""


def sale(minutes: int) -> dict:
    return {"item": "pen", "at": (START + timedelta(minutes=minutes)).isoformat()}


@pytest.fixture
def stage(spark, tmp_path, monkeypatch):
    """Hours 0 and 1 were written with the first prices, hour 2 half with these and half with the second."""
    (tmp_path / "repriced_shop.py").write_text(SHOP)
    priced(tmp_path, 100)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "repriced_shop", raising=False)
    stage = Stage(spark, tmp_path / "root", importlib.import_module("repriced_shop"))
    stage.feed("sales", [sale(minute) for minute in range(0, 150, 5)])
    stage.advance("sales", sale(150))
    stage.run("takings")
    priced(tmp_path, 300)
    assert reference_tables.rebuild(stage.session, stage.session.catalog.table("prices"))
    stage.feed("sales", [sale(minute) for minute in range(155, 185, 5)])
    stage.advance("sales", sale(200))
    stage.run("takings")
    return stage


def priced(folder, cents: int) -> None:
    (folder / "prices.csv").write_text(f"item,price\npen,{cents}\n")


@pytest.mark.slow
@pytest.mark.parallel
def test_each_partition_is_reconciled_with_the_dimension_its_writers_read(stage):
    table = stage.session.catalog.table("takings")
    versions = DeltaTable(str(stage.session.path(stage.session.catalog.table("prices")))).version()
    read = [{"prices": versions - 1}, {"prices": versions}]
    first = Provenance((table.code_version,), (read[0],))
    assert written_by(stage.session.settings, table, HOURS) == {
        HOURS[0]: first, HOURS[1]: first, HOURS[2]: Provenance((table.code_version,), tuple(read)),
    }  # fmt: skip

    whole = Range(START, START + timedelta(hours=3))
    found = reconciliation.reconcile_parts(stage.session, table, whole)
    assert [(c.start.hour, c.verdict) for c in found] == [
        (0, "EQUAL"),
        (1, "EQUAL"),
        (2, "DIFFERENT"),
    ]
    assert found[0].inputs["references"] == read[0] and found[2].inputs["references"] == read[1]
    assert found[2].changed == 4, (
        "three windows before the price was changed, and the one in the midst of which it was"
    )
    assert (
        found[2].cause
        == f"{diagnosis.DIMENSION}: while it was written, from {read[0]} to {read[1]}"
    )

    stage.backfill("takings", Range(START + timedelta(hours=2), START + timedelta(hours=3)))
    assert {c.verdict for c in reconciliation.reconcile_parts(stage.session, table, whole)} == {
        "EQUAL"
    }, "a backfill reads the present prices"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_dimension_that_is_not_kept_any_more_makes_what_it_gave_unverifiable(stage):
    prices = DeltaTable(str(stage.session.path(stage.session.catalog.table("prices"))))
    prices.create_checkpoint()
    for version in range(prices.version()):
        (
            stage.session.path(stage.session.catalog.table("prices"))
            / "_delta_log"
            / f"{version:020}.json"
        ).unlink()
    table = stage.session.catalog.table("takings")
    found = reconciliation.reconcile_parts(
        stage.session, table, Range(START, START + timedelta(hours=3))
    )
    assert [(c.end.hour, c.verdict) for c in found] == [(2, "UNVERIFIABLE"), (3, "DIFFERENT")]
    assert (
        found[0].detail
        == f"it was computed with prices at version {prices.version() - 1}, not kept any more"
    )
