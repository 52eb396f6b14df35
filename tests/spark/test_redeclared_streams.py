"""Streams whose table is declared otherwise: what is refused, and what goes on."""

import shutil
from dataclasses import replace
from datetime import UTC, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import backfill
from lakehouse import session, tumbling, window_table
from lakehouse.cli import change_plan
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range
from lakehouse.reconcile import diagnosis, reconciliation
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import checkpoint_files, declared_state, state_partitions
from lakehouse.storage.session import Session
from lakehouse.stream import generations, queries, rescaling
from lakehouse.stream import handover as handovers
from lakehouse.stream.state_reader import state
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import creation
from support import backfills, changing_tables, starts
from support.changing_tables import START, at, changed, doubled, larger, more


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def behind(counted: DataFrame) -> DataFrame:
    return counted.groupBy("window", "user").agg(F.sum("value").alias("value"))


def narrower(clicks: DataFrame) -> DataFrame:
    return clicks.withColumn("value", F.col("value").cast("int"))


@pytest.mark.slow
@pytest.mark.parallel
def test_what_has_read_nothing_begins_as_it_is_declared_now(stage_of):
    """Spark has made a checkpoint of the windows, and both they and the type of what they read change."""
    stage = stage_of(changing_tables)
    known = stage.session.catalog
    former = replace(known, tables=known.tables | {"behind": behind})
    present = changed(former, "counted", transformation=narrower)
    present = changed(present, "behind", window=tumbling("2 hours"))
    counted, longer = present.table("counted"), present.table("behind")
    stage.session = replace(stage.session, catalog=former)
    queries.prepare(stage.session, [behind])
    stage.run("behind")
    stage.session = replace(stage.session, catalog=present)
    assert {each.action for each in change_plan.planned(stage.session, list(present))} == {"begin"}
    with pytest.raises(DeclarationError, match=r"columns=value: .*it has no row"):
        creation.create(stage.session, counted)  # as a batch run, beside a job
    queries.prepare(stage.session, [counted, longer])
    stage.feed("clicks", [at(minute, value=minute % 7) for minute in range(1, 200, 20)])
    stage.advance("clicks", at(400))
    stage.run("counted", "behind")
    assert dict(stage.rows("counted").dtypes)["value"] == "int"
    assert_stream_equals_batch(stage, "behind")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_window_of_two_hours_does_not_go_on_where_one_of_one_hour_was(stage_of):
    stage = stage_of(changing_tables)
    for minute in (1, 70, 130):
        stage.feed("clicks", [at(minute)])
    stage.advance("clicks", at(200))
    stage.run("sums", "visits", "counted", "totals")
    before = stage.rows("sums").count()
    begun = stage.session
    stage.advance("clicks", at(500))
    for name, changes in (("sums", {"window": tumbling("2 hours")}), ("visits", {"window": session("1 minute")}),
                          ("sums", {"transformation": larger}), ("totals", {"transformation": doubled})):  # fmt: skip
        other = replace(begun, catalog=changed(begun.catalog, name, **changes))
        with pytest.raises(
            DeclarationError, match=f"table={name}, .* its checkpoint was made with"
        ):
            queries.start(other, other.catalog.table(name), available_now=True)
    assert before and stage.rows("sums").count() == before
    stage.session = replace(begun, catalog=changed(begun.catalog, "sums", late="drop", owner="me"))
    stage.run("sums")
    assert stage.rows("sums").count() > before, "what is harmless goes on"
    lengths = {r.window.end - r.window.start for r in stage.rows("sums").collect()}
    assert lengths == {timedelta(hours=1)}


@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_is_computed_whole_after_its_backfill_and_a_row_table_goes_on_once_accepted(
    stage_of,
):
    stage = stage_of(changing_tables)
    stage.feed("clicks", [at(1, value=2), at(2, value=9)])
    stage.run("counted", "totals")
    session = stage.session
    other = changed(
        changed(session.catalog, "totals", transformation=doubled), "counted", transformation=more
    )
    stage.session = session = replace(session, catalog=other)
    for name in ("counted", "totals"):
        with pytest.raises(DeclarationError, match=f"table={name}, function: "):
            stage.run(name)
    assert list(backfills.run(session, "totals")) == []
    declared_state.accept(Lakehouse(session.settings, other), other.table("counted"))
    stage.feed("clicks", [at(3, value=3), at(4, value=8)])
    stage.run("counted", "totals")
    assert {r.user: r.value for r in stage.rows("totals").collect()} == {"a": 44}
    assert sorted(r.value for r in stage.rows("counted").collect()) == [2, 8, 9], (
        "the rows before stay as they were"
    )
    assert_stream_equals_batch(stage, "totals")


@pytest.mark.slow
@pytest.mark.parallel
def test_short_windows_go_on_under_an_accepted_function_and_a_backfill_brings_the_past_under_it(
    stage_of,
):
    stage = stage_of(changing_tables)
    stage.feed("clicks", [at(1), at(2)])
    stage.advance("clicks", at(61))
    stage.run("ticks")
    stage.session = replace(
        stage.session, catalog=changed(stage.session.catalog, "ticks", transformation=larger)
    )
    with pytest.raises(DeclarationError, match="`lakehouse table accept ticks`"):
        stage.run("ticks")
    declared_state.accept(stage.session, stage.session.catalog.table("ticks"))
    stage.feed("clicks", [at(62)])
    stage.advance("clicks", at(130))
    stage.run("ticks")
    hours = [Range(START + timedelta(hours=n), START + timedelta(hours=n + 1)) for n in range(2)]
    found = [
        reconciliation.reconcile_parts(stage.session, stage.session.catalog.table("ticks"), hour)[0]
        for hour in hours
    ]
    assert [each.verdict for each in found] == ["DIFFERENT", "EQUAL"], (
        "windows that closed before, and after"
    )
    assert found[0].cause.startswith(diagnosis.CODE)
    values = {
        (r.window.start.astimezone(UTC) - START) // timedelta(minutes=1): r.value
        for r in stage.rows("ticks").collect()
    }
    assert values == {1: 1, 2: 1, 61: 4, 62: 2}, "each window is of one function"
    stage.backfill("ticks", Range(START, START + timedelta(hours=2)))
    assert_stream_equals_batch(stage, "ticks")


@pytest.mark.slow
@pytest.mark.parallel
def test_shuffle_partitions_that_spark_keeps_to_are_said_with_the_remedy(stage_of):
    stage = stage_of(changing_tables)
    stage.feed("clicks", [at(1), at(70)])
    stage.run("sums", "counted", "totals")
    settings, known = stage.session.settings, stage.session.catalog
    as_begun = replace(settings, shuffle_partitions=1)  # what the session of the tests has
    assert declared_state.remarks(Lakehouse(as_begun, known), list(known)) == []
    told = declared_state.remarks(
        Lakehouse(replace(settings, shuffle_partitions=8), known), list(known)
    )
    assert [each.partition(",")[0] for each in told] == ["table=sums", "table=totals"], (
        "the others have no state"
    )
    assert all("shuffle_partitions=8: its state is in 1 partitions" in each for each in told)
    assert all("`lakehouse stream rescale changing_tables`" in each for each in told), told
    overridden = replace(
        settings, shuffle_partitions=8, spark_conf={"spark.sql.shuffle.partitions": "1"}
    )
    assert declared_state.remarks(Lakehouse(overridden, known), list(known)) == []
    assert list(backfills.run(stage.session, "totals")) == []
    assert (
        len(
            declared_state.remarks(
                Lakehouse(replace(settings, shuffle_partitions=8), known), list(known)
            )
        )
        == 1
    )


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_of_other_partitions_holds_the_same(stage_of, spark, monkeypatch):
    """Windows, sessions and totals: from one partition to three, to two before the next row, and on through a crash."""
    stage, names = stage_of(changing_tables), ("sums", "visits", "totals")
    spread = [at(minute, user, minute) for minute in range(1, 170, 7) for user in "abcde"]
    stage.feed("clicks", spread[:60])
    stage.advance("clicks", at(84))
    stage.run(*names)
    rows = {name: held(stage, name) for name in names}
    settings, known = stage.session.settings, stage.session.catalog
    killed_before_its_checkpoint_is_in_place(stage, "sums")
    stage.run("sums")  # goes on with the one of before
    try:
        for before, now in ((1, 3), (3, 2)):
            other = Lakehouse(replace(settings, shuffle_partitions=now), known)
            assert len(declared_state.remarks(other, list(known))) == 3
            spark.conf.set("spark.sql.shuffle.partitions", str(now))
            stage.session = Session.on(other, spark)
            due = list(rescaling.due(other, known))
            assert {(table.name, *numbers) for table, *numbers in due} == {
                (name, before, now) for name in names
            }
            commits = {name: last_commit(stage, name) for name in names}
            if before == 1:
                with monkeypatch.context() as damaged:
                    assert is_refused(damaged, stage, "sums", instead="visits")
                assert len(list(rescaling.due(other, known))) == 3, "it goes on with the one before"
            found = [rescaling.rescale(stage.session, *each) for each in due]
            assert [each.verdict for each in found] == ["EQUAL"] * 3
            kept = {each.table: state(stage.session, known.table(each.table)) for each in found}
            assert {name: each.count() for name, each in kept.items()} == {
                each.table: each.rows for each in found
            }
            assert commits == {name: last_commit(stage, name) for name in names}, "nothing was read"
            assert not list(rescaling.due(other, known))
            assert not declared_state.remarks(other, list(known))
        assert {name: held(stage, name) for name in names} == rows, "the same before and after"
        assert not starts.fit(stage.session, known.table("sums"))
        stage.feed("clicks", spread[60:])
        stage.advance("clicks", at(400))
        stage.run(*names, abort_at="rows")
        assert not list(rescaling.due(other, known))
        for name in names:
            assert_stream_equals_batch(stage, name)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "1")


def killed_before_its_checkpoint_is_in_place(stage: Stage, name: str) -> None:
    """As a command leaves a table that is killed when it has noted its next generation."""
    table = stage.session.catalog.table(name)
    checkpoint = checkpoint_files.newest(stage.session.settings, table)
    divided = state_partitions.divide(stage.session.spark, checkpoint, 3)
    generations.go_on_divided(stage.session, table, divided, "it is killed")
    checkpoint_files.newest(stage.session.settings, table).rename(divided)


def is_refused(damaged: pytest.MonkeyPatch, stage: Stage, name: str, instead: str) -> bool:
    """Whether a state is not taken that does not hold what the table's did: it is that of another table."""
    catalog, divide = stage.session.catalog, state_partitions.divide
    checkpoint = checkpoint_files.newest(stage.session.settings, catalog.table(instead))
    damaged.setattr(
        state_partitions, "divide", lambda spark, _, now: divide(spark, checkpoint, now)
    )
    own = checkpoint_files.newest(stage.session.settings, catalog.table(name))
    found = rescaling.rescale(stage.session, catalog.table(name), 1, 3)
    kept = checkpoint_files.newest(stage.session.settings, catalog.table(name))
    return found is not None and found.verdict == "DIFFERENT" and kept == own


def last_commit(stage: Stage, name: str) -> tuple[int, int]:
    last = next(stage.session.commit_log(stage.session.catalog.table(name)).by_stream())
    return last.generation, last.batch


def held(stage: Stage, name: str) -> list[str]:
    rows = stage.rows(name)
    return sorted(map(str, rows.select([c for c in rows.columns if c[0] != "_"]).collect()))


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_under_another_name_is_filled_as_the_refusal_says(stage_of):
    stage = stage_of(changing_tables)
    for minute in (1, 70, 130):
        stage.feed("clicks", [at(minute)])
    stage.advance("clicks", at(400))
    stage.run("sums")
    session = stage.session
    other = replace(session.catalog.table("sums"), name="longer_sums", window=tumbling("2 hours"))
    stage.session = session = replace(
        session,
        catalog=replace(session.catalog, tables=session.catalog.tables | {other.name: other}),
    )
    assert list(backfill.run(session, backfill.begin(session, other.name)))
    stage.advance("clicks", at(700))
    stage.run(other.name)
    found = {r.window.start.astimezone(UTC): r.value for r in stage.rows(other.name).collect()}
    assert found[START] == 2 and found[START + timedelta(hours=2)] == 1
    assert_stream_equals_batch(stage, other.name)


def test_a_window_that_is_changed_before_a_first_one_has_closed_is_refused(stage_of):
    """There is neither a row nor a checkpoint yet; what was read is in no window but the ones of before."""
    stage = stage_of(changing_tables)
    settings, known = stage.session.settings, stage.session.catalog
    stage.feed("clicks", [at(0.2)])
    # at the full hour, 7 seconds before the frontier
    handovers.begin(stage.session, known.table("ticks"))
    stage.run("ticks")
    assert delta_log.latest(stage.session.path(known.table("ticks"))) == 0
    other = changed(known, "ticks", window=tumbling("20 seconds"))
    with pytest.raises(DeclarationError, match=r"table=ticks, window=.*20"):
        starts.begin(Lakehouse(settings, other), other.table("ticks"))
    shutil.rmtree(stage.session.path(known.table("ticks")))
    creation.create(stage.session, known.table("ticks"))
    starts.begin(Lakehouse(settings, other), other.table("ticks"))
