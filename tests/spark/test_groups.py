"""Keyed tables of joins, ranks, filters and of other keyed tables: at each version what their function makes of their inputs."""

from collections import Counter
from datetime import timedelta
from itertools import count
from random import Random
from types import ModuleType

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lakehouse import keyed_table, tumbling, window_table
from lakehouse.batch import reference_tables
from lakehouse.errors import JobError
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.keyed import keyed_files, point_reads
from lakehouse.storage.keyed.row_index import RowIndex, Truncated
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.engines import group_reads, group_writes, groups, keyed, sums
from lakehouse.stream.strategy import strategy
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from lakehouse.transform import keeping, plan
from lakehouse.transform.analysis import groups as groups_of
from lakehouse.transform.analysis import shapes
from support import auctions
from support.auctions import KEPT, auction, bid, person
from support.kept import equal_at_every_version


@pytest.fixture
def stage(stage_of) -> Stage:
    return stage_of(auctions)


def values(stage: Stage, name: str, *columns: str) -> set[tuple]:
    return {tuple(row) for row in stage.rows(name).select(*columns).collect()}


def test_by_which_columns_rows_belong_together_is_found_in_the_plan(stage):
    session = stage.session
    found = {
        name: keeping.group_uses(plan.plan_of(session, session.catalog.table(name)))
        for name in KEPT
        if strategy(session, session.catalog.table(name)) == "groups"
    }
    assert found.keys() == set(KEPT) - {"residents", "bid_counts"}
    assert (found["offers"].columns, found["offers"].of) == (
        ("seller",),
        {"auctions": [("seller",)], "residents": [("id",)]},
    )
    assert (found["winning_bids"].columns, found["winning_bids"].of) == (
        ("auction",),
        {"auctions": [("id",)], "bids": [("auction",)]},
    )
    assert found["average_prices"].of == {"winning_bids": [("category",)]}
    assert found["popular"].of == {"bids": [("auction",)]}
    assert found["last_bids"].of == {"bids": [("bidder",)]}
    assert (found["balances"].columns, found["balances"].of) == (
        ("id",),
        {"bids": [("bidder",), ("auction",)]},
    )
    for name in ("most_bids", "total", "dear_bids"):
        assert not found[name].columns, name


@pytest.mark.parallel
def test_a_day_or_hour_of_an_instant_is_such_a_column_where_there_is_no_other(spark):
    made = [auctions.START + timedelta(hours=7.3 * n) for n in range(-90_000, 90_000, 600)]
    instants = pa.table({"at": pa.array(made, pa.timestamp("us", "UTC"))})
    rows = in_spark(spark, instants.append_column("id", pa.array(range(len(made)))))
    marked = shapes.marked(rows, "bids")

    def found(by: str, *keys: str, instant: str = "at") -> dict:
        counted = marked.groupBy(F.expr(by.format(instant)).alias("by"), "id").count()
        return groups_of.uses(counted.select("by", "count", *keys[1:]), keys).of

    for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second"):
        value = Truncated("at", unit)
        assert found(f"date_trunc('{unit}', {{}})", "by") == {"bids": [(value,)]}
        [expected] = rows.select(F.date_trunc(unit, "at").alias("by")).toArrow().columns
        assert value.of(instants["at"]).to_pylist() == expected.to_pylist(), unit
    of_date = Truncated("at", "date")
    for by in ("to_date({})", "date({})", "CAST({} AS DATE)"):
        assert found(by, "by") == {"bids": [(of_date,)]}
    assert of_date.of(instants["at"]).to_pylist() == [each.date() for each in made]
    assert found("to_date({})", "by", "id") == {"bids": [("id",)]}, "a column as it is will do"
    for by in (
        "date_trunc('millennium', {})",
        "to_date({}) + 1",
        "to_date(from_utc_timestamp({}, 'CET'))",
    ):
        assert found(by, "by") == {}


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_changes_is_computed_again_and_nothing_else(stage, monkeypatch):
    stage.feed("people", [person(1, "OR"), person(2, "CA"), person(3, "ID")])
    stage.feed("auctions", [auction(10, 1, 7), auction(11, 2, 7), auction(12, 3, 8)])
    stage.feed("bids", [bid(10, 5, 100, 1), bid(10, 6, 200, 2), bid(11, 5, 50, 3)])
    stage.run(*KEPT)
    assert values(stage, "offers", "auction", "name") == {(10, "person 1"), (12, "person 3")}
    assert values(stage, "winning_bids", "auction", "price") == {(10, 200), (11, 50)}
    assert values(stage, "average_prices", "category", "average", "auctions") == {(7, 125, 2)}
    assert values(stage, "popular", "auction", "bidders") == {(11, 1)}
    assert values(stage, "most_bids", "auction", "bids") == {(10, 2), (11, 1)}
    assert values(stage, "total", "total", "people") == {(0, 4)}
    assert values(stage, "dear_bids", "auction", "bids") == {(10, 1)}
    stage.feed("bids", [bid(12, 6, 70, 4), bid(10, 7, 150, 5), bid(12, 8, 60, 200)])
    stage.feed("auctions", [auction(13, 3, 8, 6)])
    stage.run(*KEPT)
    assert values(stage, "offers", "auction", "name") == {
        (10, "person 1"),
        (12, "person 3"),
        (13, "person 3"),
    }
    assert values(stage, "winning_bids", "auction", "price") == {(10, 200), (11, 50), (12, 70)}
    assert values(stage, "average_prices", "category", "average", "auctions") == {
        (7, 125, 2),
        (8, 70, 1),
    }
    assert values(stage, "popular", "auction", "bidders") == {(10, 3), (11, 1)}, "12 left again"
    assert values(stage, "last_bids", "bidder", "place", "auction") == {
        (5, 1, 11),
        (5, 2, 10),
        (6, 1, 12),
        (6, 2, 10),
        (7, 1, 10),
        (8, 1, 12),
    }
    for name in ("residents", "offers", "average_prices", "most_bids", "balances"):
        assert_stream_equals_batch(stage, name)
    last = next(stage.session.commit_log(stage.session.catalog.table("offers")).by_stream())
    assert (last.arrived, last.written) == (1, 2), "one auction came; its seller has two"
    rows_of, deleted = RowIndex.rows_of, []

    def noted(self, files, wanted, most):
        deleted.append(any(files.values()))
        return rows_of(self, files, wanted, most)

    monkeypatch.setattr(RowIndex, "rows_of", noted)
    monkeypatch.setattr(keyed_files, "_DEAD", 1)  # so that files with deleted rows stay
    stage.feed("bids", [bid(10, 9, 250, 8)])  # the row of another bid is no more
    stage.run("winning_bids", "average_prices")
    found = values(stage, "average_prices", "category", "average", "auctions")
    assert found == {(7, 150, 2), (8, 70, 1)}
    assert True in deleted, "the auctions of a category are found without reading all of them"


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_whatever_happens_each_version_is_what_the_function_makes_of_its_inputs(stage, monkeypatch):
    """Rows in any order and crashes; some steps touch too much, and some are written by Spark."""
    monkeypatch.setattr(groups, "_MANY", 4)
    monkeypatch.setattr(group_writes, "_COMPARED", 6)
    random, seen, new = Random(26), Counter[str](), count(1)
    most, whole = [], keyed.swap
    for module in (group_reads, group_writes):
        monkeypatch.setattr(module, "few_at_once", lambda run: 8)
    for module in (group_writes, sums):
        monkeypatch.setattr(module, "is_short", lambda run, path, rows: rows <= 8)
    monkeypatch.setattr(group_writes, "swap", lambda *given: most.append(1) or whole(*given))
    names = [name for name in KEPT if name not in ("bid_counts", "residents")]
    for turn in range(5):
        for _ in range(random.randint(1, 3)):
            at = random.uniform(0, 300)
            what = random.choice(("person", "auction", "bids", "bids"))
            seen[what] += 1
            if what == "person":
                stage.feed(
                    "people", [person(random.randint(1, 4), random.choice(("OR", "CA")), at)]
                )
            elif what == "auction":
                row = auction(next(new), random.randint(1, 4), random.randint(1, 3), at)
                stage.feed("auctions", [row])
            else:
                rows = [
                    bid(random.randint(1, 9), random.randint(1, 6), random.randint(1, 50), at + n)
                    for n in range(random.randint(1, 6))
                ]
                stage.feed("bids", rows)
        stage.run("bid_counts", "residents")
        chosen = [*random.sample(names[:-1], 5), *names[-1:] * (turn % 2)]
        point = (*COMMIT_POINTS, None)[turn]
        seen[f"crash at {point}"] += point is not None
        stage.run(*(name for name in names if name in chosen), abort_at=point)
    stage.run(*KEPT)
    steps = {name: equal_at_every_version(stage, name) for name in names}
    assert min(steps.values()) > 1 and most, (steps, most)
    assert all(seen[f"crash at {point}"] for point in COMMIT_POINTS), seen
    assert values(stage, "total", "total") == {(0,)}


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_of_an_input_that_are_replaced_or_taken_away_are_followed(spark, tmp_path):
    module = ModuleType("replaced")
    module.bid_topic, module.bids = auctions.bid_topic, auctions.bids

    def minutes(bids):
        return bids.groupBy("window", "auction").agg(F.sum("price").alias("price"))

    def highest(minutes):
        return minutes.groupBy("auction").agg(F.max("price").alias("price"))

    minutes.__module__ = highest.__module__ = "replaced"
    module.minutes = window_table(
        layer="gold", window=tumbling("1 minute"), keys=["auction"], late="update"
    )(minutes)
    module.highest = keyed_table(layer="gold", keys=["auction"])(highest)
    stage = Stage(spark, tmp_path, module)
    stage.feed("bids", [bid(1, 5, 10, 1), bid(2, 5, 20, 2)])
    stage.advance("bids", bid(3, 5, 1, 4000))
    stage.run("minutes", "highest")
    assert values(stage, "highest", "auction", "price") == {(1, 10), (2, 20)}
    stage.feed("bids", [bid(1, 6, 7, 30)])
    stage.run("minutes", "highest")
    stage.update("minutes")
    stage.run("highest")
    assert values(stage, "highest", "auction", "price") == {(1, 17), (2, 20)}
    DeltaTable(str(stage.session.path(stage.session.catalog.table("minutes")))).delete(
        "auction = 2"
    )
    stage.run("highest")
    assert values(stage, "highest", "auction", "price") == {(1, 17)}
    equal_at_every_version(stage, "highest")
    path = stage.session.path(stage.session.catalog.table("highest"))
    assert [row["price"] for row in point_reads.get(path, ["auction"], "1")] == [17]
    assert stage.frontier("highest") == stage.frontier("minutes")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_whose_rows_were_found_by_other_columns_is_computed_whole(stage, monkeypatch):
    """As by a version of this library that took other columns from the same function."""
    stage.feed("bids", [bid(1, 2, 10, 1), bid(2, 3, 5, 2)])
    with monkeypatch.context() as former:
        former.setattr(keeping, "key_columns", lambda step: ["net"])
        stage.run("debits", "credits", "net")
    assert values(stage, "net", "account", "net") == {(1, 10), (2, -5), (3, -5)}
    stage.feed("bids", [bid(3, 1, 7, 3)])
    queries.prepare(stage.session, [stage.session.catalog.table("net")])  # as a job starts
    stage.run("debits", "credits", "net")
    rows = stage.rows("net").collect()
    assert sorted((row.account, row.net) for row in rows) == [(1, 3), (2, -5), (3, 2)]
    stage.feed("bids", [bid(4, 1, 1, 4)])
    stage.run("debits", "credits", "net")
    assert equal_at_every_version(stage, "net") == 3


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_tables_of_one_ingest_table_are_joined_at_versions_that_have_read_the_same(stage):
    """The sum is zero at every version, however far each of the two tables is."""
    chain = ("net", "net_total")
    stage.feed("bids", [bid(1, 2, 10, 1), bid(2, 3, 5, 2)])
    stage.run("debits", *chain)
    assert stage.frontier("net") is None, "of the credits there is nothing yet"
    stage.run("credits", *chain)
    assert values(stage, "net", "account", "net") == {(1, 10), (2, -5), (3, -5)}
    stage.feed("bids", [bid(3, 1, 7, 3)])
    stage.run("credits", *chain)
    assert values(stage, "net", "account", "net") == {(1, 10), (2, -5), (3, -5)}
    stage.feed("bids", [bid(4, 1, 1, 4)])
    stage.run("debits", *chain)
    assert values(stage, "net", "account", "net") == {(1, 10), (2, -5), (3, -5)}
    DeltaTable(str(stage.session.path(stage.session.catalog.table("credits")))).optimize.compact()
    stage.run("credits", *chain)
    assert values(stage, "net", "account", "net") == {(1, 2), (2, -5), (3, 2), (4, 1)}
    session = stage.session
    for name in chain:
        assert equal_at_every_version(stage, name) == 2
    for line in session.commit_log(session.catalog.table("net_total")).by_stream():
        assert session.read(session.catalog.table("net_total"), line.version).head().total == 0


@pytest.mark.slow
@pytest.mark.parallel
def test_a_reference_table_that_has_changed_is_in_all_rows_and_null_is_a_key(spark, tmp_path):
    module, names = auctions.with_names(tmp_path, "category,name\n1,art\n")

    def sizes(auctions, category_names):
        counted = auctions.groupBy("category").agg(F.count_distinct("seller").alias("sellers"))
        return counted.join(F.broadcast(category_names), "category", "left")

    sizes.__module__ = "named"
    module.sizes = keyed_table(layer="gold", keys=["category"])(sizes)
    stage = Stage(spark, tmp_path / "root", module)
    reference_tables.rebuild(stage.session, stage.session.catalog.table("category_names"))
    stage.feed("auctions", [auction(1, 1, 1), auction(2, 1, None), auction(3, 2, None)])
    stage.run("sizes")
    assert values(stage, "sizes", "category", "sellers", "name") == {(1, 1, "art"), (None, 2, None)}
    stage.feed("auctions", [auction(4, 3, None)])
    stage.run("sizes")
    assert values(stage, "sizes", "category", "sellers", "name") == {(1, 1, "art"), (None, 3, None)}
    names.write_text("category,name\n1,paintings\n")
    reference_tables.rebuild(stage.session, stage.session.catalog.table("category_names"))
    stage.feed("auctions", [auction(5, 4, None)])
    stage.run("sizes")
    assert values(stage, "sizes", "category", "sellers", "name") == {
        (1, 1, "paintings"),
        (None, 4, None),
    }
    assert_stream_equals_batch(stage, "sizes")


@pytest.mark.parallel
def test_two_rows_of_one_key_are_refused_with_the_key(spark, tmp_path):
    module = ModuleType("twice")
    module.bid_topic, module.bids = auctions.bid_topic, auctions.bids

    def twice(bids):
        return bids.select("auction", "price").distinct()

    twice.__module__ = "twice"
    module.twice = keyed_table(layer="gold", keys=["auction"])(twice)
    stage = Stage(spark, tmp_path, module)
    stage.feed("bids", [bid(1, 5, 10, 1), bid(2, 5, 10, 1), bid(2, 5, 20, 2)])
    with pytest.raises(
        StepFailed, match="table=twice, auction=2: its function returned 2 rows"
    ) as failed:
        stage.run("twice")
    assert isinstance(failed.value.__cause__, JobError)
