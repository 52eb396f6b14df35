"""Keyed and versioned tables of a record: one row for each key, or for each version of it; and joins with what was valid then."""

from datetime import UTC
from decimal import Decimal
from types import ModuleType

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lakehouse import kafka, keyed_table, tumbling, versioned_table, window_table
from lakehouse.batch import reference_tables
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.columns import ARRIVAL
from lakehouse.errors import DeclarationError, JobError, RangeError
from lakehouse.reconcile import reconciliation
from lakehouse.storage.position import checkpoints
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.state_reader import state
from lakehouse.stream.strategy import strategy
from lakehouse.testing import COMMIT_POINTS, Aborted, Stage, assert_stream_equals_batch
from support import auctions, backfills, payments
from support.auctions import auction
from support.payments import (
    advance,
    at,
    balances_of,
    cities,
    happened,
    move,
    moved,
    paid,
    pay,
    payment_topic,
    person_topic,
    versions_of,
)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_has_a_row_for_each_key_and_sums_to_zero_at_each_version(stage_of):
    stage = stage_of(payments)
    for n in range(3):
        pay(stage, paid(n, "a", "b", "2.50"), paid(n, "b", "c", "1.00"))
        stage.run("balances")
    assert balances_of(stage) == {
        "a": (Decimal("-7.50"), 3),
        "b": (Decimal("4.50"), 6),
        "c": (Decimal("3.00"), 3),
    }
    table = stage.session.catalog.table("balances")
    sums = [
        stage.session.read(table, version).agg(F.sum("balance")).head()[0]
        for version in range(1, 4)
    ]
    assert sums == [0, 0, 0]
    [remembered] = state(stage.session, table, {"person": "b"}).collect()
    assert (remembered["person"], remembered["balance"], remembered["payments"]) == (
        "b",
        Decimal("4.50"),
        6,
    )
    with pytest.raises(RangeError, match="key=name: the columns of its key are person"):
        state(stage.session, table, {"name": "b"})
    with pytest.raises(RangeError, match="its streaming query keeps no state, or has not run yet"):
        state(stage.session, stage.session.catalog.table("payments_with_city"))
    found = assert_stream_equals_batch(stage, "balances")
    assert (found.rows_in_table, found.rows_by_batch_runs) == (3, 0)


@pytest.mark.slow
@pytest.mark.parallel
def test_one_row_of_all_rows_is_declared_as_its_refusal_says(spark, tmp_path):
    def counted(happened):
        return happened.agg(F.count("*").alias("n"))

    made = ModuleType("made")
    counted.__module__ = "made"
    made.happened, made.payment_topic, made.person_topic = happened, payment_topic, person_topic
    made.counted = keyed_table(layer="gold", keys=[])(counted)
    advice = r"group by a constant: (groupBy\(.*\)) and (keys=\['of'\])"
    with pytest.raises(DeclarationError, match=advice):
        catalog_of([made])

    def counted(happened):
        return happened.groupBy(F.lit("all").alias("of")).agg(F.count("*").alias("n"))

    counted.__module__ = "made"
    made.counted = keyed_table(layer="gold", keys=["of"])(counted)
    stage = Stage(spark, tmp_path, made)
    for n in range(3):
        pay(stage, paid(n, "a", "b", "2.50"), paid(n, "b", "c", "1.00"))
        stage.run("counted")
        assert [(r.of, r.n) for r in stage.rows("counted").collect()] == [("all", 2 * n + 2)]
    assert_stream_equals_batch(stage, "counted")


LAST_TWO = "avg(amount) OVER (PARTITION BY payer ORDER BY at ROWS 1 PRECEDING)"


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize(
    "function, by_spark",
    [
        # one of two rows of a key changes later: by a state of Spark's the other one would be gone
        (lambda rows: rows.groupBy("payer", "payee").agg(F.sum("amount").alias("amount")), True),
        (lambda rows: rows.groupBy("payer", "payee").agg(F.avg("amount").alias("amount")), False),
        (lambda rows: rows.withColumn("amount", F.expr(LAST_TWO)), False),
    ],
    ids=["sums", "an average", "a row for each payment"],
)
def test_two_rows_of_a_key_stop_their_table_with_a_line(spark, tmp_path, function, by_spark):
    def kept(happened):
        paid = happened.where("kind = 'payment'").select("payer", "payee", "amount", "at")
        return function(paid).select("payer", "amount")

    kept.__module__ = "made"
    made = ModuleType("made")
    made.happened, made.payment_topic, made.person_topic = happened, payment_topic, person_topic
    made.kept = keyed_table(layer="gold", keys=["payer"])(kept)
    stage = Stage(spark, tmp_path, made)
    pay(stage, paid(0, "a", "b", "2.50"))
    stage.run("kept", by_spark=by_spark)
    pay(stage, paid(1, "a", "c", "1.00"), paid(2, "b", "c", "1.00"))
    with pytest.raises(StepFailed) as failed:
        stage.run("kept", by_spark=by_spark)
    cause = failed.value.__cause__
    assert isinstance(cause, JobError)
    assert str(cause) == (
        "table=kept, payer=a: its function returned 2 rows of this key, and a keyed table keeps one; group by the keys, or "
        "name in keys= all columns by which its rows differ"
    )
    assert stage.rows("kept").count() == 1


@pytest.mark.slow
@pytest.mark.parallel
def test_a_history_has_versions_and_a_row_finds_the_one_valid_then(stage_of):
    stage = stage_of(payments)
    pay(stage, paid(-10, "x", "y"))  # a topic that has said nothing yet holds no watermark back
    move(stage, moved(0, "a", "Oslo"), moved(20, "a", "Bergen"))
    pay(stage, *(paid(n) for n in (5, 19.5, 20, 25)))
    stage.run("cities", "payments_with_city")
    move(stage, moved(26, "b", "Rome"), key="b")
    move(stage, None, sent=at(30))
    pay(stage, paid(26), paid(31))
    advance(stage, 100)
    stage.run("cities", "payments_with_city", "payments_by_all")
    assert versions_of(stage) == [("Oslo", 0, 20), ("Bergen", 20, 30), (None, 30, None)]
    rows = stage.rows("payments_with_city").where("payer = 'a'").orderBy("at").collect()
    assert [r.city for r in rows] == ["Oslo", "Oslo", "Bergen", "Bergen", "Bergen", None]
    rules = stage.rows("payments_by_all").where("payer = 'a'").orderBy("at", "rule").collect()
    assert [r.rule for r in rules] == ["Oslo", "Oslo", "Bergen", "Bergen", "Bergen", "Rome", "Rome"]
    for name in ("cities", "payments_with_city", "payments_by_all"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_change_that_comes_late_changes_nothing_behind_the_border(stage_of):
    stage = stage_of(payments)
    pay(stage, paid(-10, "x", "y"))  # a topic that has said nothing yet holds no watermark back
    move(stage, moved(0, "a", "Oslo"), moved(60, "a", "Bergen"))
    pay(stage, paid(10), paid(40))
    advance(stage, 30)
    stage.run("cities", "payments_with_city")
    move(stage, moved(5, "a", "Paris"))  # late: it counts from the border on
    # and this one never, for Paris, which is later, is known by then
    move(stage, moved(2, "a", "Rome"))
    pay(stage, paid(36))
    advance(stage, 100)
    stage.run("cities", "payments_with_city")
    assert versions_of(stage) == [
        ("Oslo", 0, 35.000001),
        ("Paris", 35.000001, 60),
        ("Bergen", 60, None),
    ]
    rows = stage.rows("payments_with_city").where("payer = 'a'").orderBy("at").collect()
    assert [r.city for r in rows] == ["Oslo", "Paris", "Paris"]
    for name in ("cities", "payments_with_city"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_was_changed_by_hand_is_found_and_computed_recreated(stage_of):
    stage = stage_of(payments)
    pay(stage, paid(0, "a", "b", "2.50"))
    move(stage, moved(0, "a", "Oslo"), moved(20, "a", "Bergen"))
    stage.run("balances", "cities")
    both = [stage.session.catalog.table(name) for name in ("balances", "cities")]
    DeltaTable(str(stage.session.path(both[0]))).update(
        {"balance": "9.99"}, predicate="person = 'a'"
    )
    DeltaTable(str(stage.session.path(both[1]))).delete("city = 'Oslo'")
    pay(stage, paid(1, "c", "d"))
    move(stage, moved(1, "c", "Rome"), key="c")
    stage.run("balances", "cities")
    found = [reconciliation.reconcile(stage.session, each) for each in both]
    assert [(c.verdict, c.missing, c.extra, c.changed) for c in found] == [
        ("DIFFERENT", 0, 0, 1),
        ("DIFFERENT", 1, 0, 0),
    ]
    assert (
        "person=a: batch balance=-2.50, payments=1, table balance=9.99, payments=1"
        in found[0].examples[0]
    )
    for each in both:
        assert list(backfills.run(stage.session, each.name)) == []
        stage.run(each.name)
        assert_stream_equals_batch(stage, each.name)
    pay(stage, paid(2, "a", "b", "2.50"))
    stage.run("balances")
    assert balances_of(stage)["a"] == (Decimal("-5.00"), 2), "it goes on from there"


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_killed_at_each_commit_point_every_row_counts_once(stage_of):
    stage = stage_of(payments)
    pay(stage, paid(-10, "x", "y"))
    for n, point in enumerate(COMMIT_POINTS):
        move(stage, moved(n, "a", f"city {n}"))
        pay(stage, paid(n, "a", "b", "2.50"))
        stage.run("balances", "cities", "payments_with_city", abort_at=point)
    advance(stage, 100)
    stage.run("balances", "cities", "payments_with_city")
    assert balances_of(stage) == {"a": (Decimal("-10.00"), 4), "b": (Decimal("10.00"), 4)}
    assert versions_of(stage) == [(f"city {n}", n, n + 1 if n < 3 else None) for n in range(4)]
    for name in ("balances", "cities", "payments_with_city"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_batch_that_is_replayed_closes_what_it_had_closed_however_far_the_stream_is_by_then(
    stage_of,
):
    stage = stage_of(payments)
    # two in one file, of which the replay finds one marked as replaced: Spark's V2 writes cannot read such a file
    move(stage, moved(0, "a", "Rome"), moved(0, "b", "Bari"))
    pay(stage, paid(1, "a"))
    advance(stage, 10)
    stage.run("cities")
    move(stage, moved(20, "a", "Oslo"))
    pay(stage, paid(21, "a"))
    advance(stage, 30)
    session, table = stage.session, stage.session.catalog.table("payments_with_city")

    def crash(point: str) -> None:
        if point == "rows":
            raise Aborted(point)

    with pytest.raises(StepFailed, match="Aborted"):
        queries.start(session, table, available_now=True, reached=crash).awaitTermination()
    assert stage.frontier("payments_with_city") is None, (
        "its rows are written, its commit log does not know"
    )
    stage.run("cities", "payments_with_city")
    advance(stage, 40)
    stage.run("cities", "payments_with_city")
    found = {
        (r["at"].astimezone(UTC), r.city)
        for r in stage.rows("payments_with_city").where("payer = 'a'").collect()
    }
    assert found == {(at(1), "Rome"), (at(21), "Oslo")}
    assert_stream_equals_batch(stage, "payments_with_city")


def test_what_a_state_or_history_cannot_be_is_refused(spark, tmp_path):
    def declared(function, declare=keyed_table(layer="gold", keys=["kind"])) -> ModuleType:  # noqa: B008
        made = ModuleType("made")
        function.__module__ = "made"
        made.happened, made.payment_topic, made.person_topic = happened, payment_topic, person_topic
        made.cities, made.kept = cities, declare(function)
        return made

    def kept(happened):
        return happened.groupBy("kind").agg(F.count("*").alias("n")).where("n > 1")

    with pytest.raises(
        DeclarationError, match=r"keys=\[\]: a keyed table needs a key; name the columns"
    ):
        catalog_of([declared(kept, keyed_table(layer="gold", keys=[]))])

    def kept(happened):
        return happened.groupBy("kind", "person").count().limit(3)

    with pytest.raises(DeclarationError, match="operators=GlobalLimit: which rows it takes is"):
        Stage(spark, tmp_path, declared(kept))

    def kept(happened):
        return happened.dropDuplicates(["kind"]).select("kind", "person")

    with pytest.raises(DeclarationError, match="operators=Deduplicate: which rows it takes is"):
        Stage(spark, tmp_path, declared(kept))

    def kept(cities):
        return cities

    with pytest.raises(DeclarationError, match="it is computed from every row of one ingest table"):
        catalog_of([declared(kept, versioned_table(layer="gold", keys=["city"]))])

    def kept(happened, cities):
        return happened.join(cities, "person").groupBy("window").count()

    with pytest.raises(DeclarationError, match="a versioned table is read row by row"):
        catalog_of([declared(kept, window_table(layer="gold", window=tumbling("1 minute")))])


@pytest.mark.parametrize("kind", ["DOUBLE", "TIMESTAMP", "STRUCT<n: INT>"])
def test_the_key_of_a_compacted_topic_is_text_or_a_whole_number(kind):
    with pytest.raises(DeclarationError, match="a key is text or a whole number"):
        kafka("people", schema=f"person {kind}", key="person")


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parallel
@pytest.mark.parametrize("declare", [keyed_table, versioned_table])
def test_rows_computed_with_what_a_reference_table_said_before_are_computed_again(
    spark, tmp_path, declare
):
    module, file = auctions.with_names(tmp_path, "category,name\n1,art\n2,coins\n")

    def kept(auctions, category_names):
        named = auctions.join(F.broadcast(category_names), "category")
        if declare is versioned_table:
            return named.select("category", "id", "name", "at", ARRIVAL)
        return named.groupBy("category").agg(F.max("name").alias("name"), F.count("id").alias("id"))

    kept.__module__ = "named"
    module.kept = declare(layer="gold", keys=["category"])(kept)
    stage = Stage(spark, tmp_path / "root", module)
    session = stage.session
    assert strategy(session, session.catalog.table("kept")) == (
        "versions" if declare is versioned_table else "merge"
    )
    reference_tables.rebuild(session, session.catalog.table("category_names"))
    stage.feed("auctions", [auction(1, 1, 1), auction(2, 1, 2)])
    stage.run("kept")
    stage.run("kept")  # nothing has changed: it goes on as it is
    assert checkpoints.standing(session.settings, session.catalog.table("kept")).generation == 1
    file.write_text("category,name\n1,paintings\n2,coins\n")
    reference_tables.rebuild(session, session.catalog.table("category_names"))
    stage.feed("auctions", [auction(3, 1, 2, seconds=1)])
    stage.run("kept")
    assert {
        name for (name,) in stage.rows("kept").where("category = 1").select("name").collect()
    } == {"paintings"}
    assert_stream_equals_batch(stage, "kept")
