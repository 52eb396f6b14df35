"""Changed tables are filled beside the present ones, compared with them, exchanged and taken back."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import upgrade
from lakehouse import file_folder, row_table, tumbling
from lakehouse.batch import batch_state
from lakehouse.declare.catalog import Catalog
from lakehouse.errors import DeclarationError, JobError
from lakehouse.ranges import Range, text
from lakehouse.sinks import comparison
from lakehouse.sinks.follower import Follower
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.versions import interruptions, upgrades
from lakehouse.stream import beside, queries
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import ROOT, changing_tables
from support.changing_tables import START, at, changed, more

END = START + timedelta(hours=9)


def reshaped(clicks: DataFrame) -> DataFrame:
    """A column more, one of another name, one of another type."""
    clicks, value = clicks.where("value > 1"), F.col("value").cast("string")
    return (
        clicks.withColumn("n", F.length("user"))
        .withColumn("value", value)
        .withColumnRenamed("user", "person")
    )


def by_value(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "value").agg(F.count(F.lit(1)).alias("n"))


def minutes(stage: Stage, first: int, last: int) -> None:
    spread = range(first, last, 9)
    rows = [(at(m, value=m % 11), at(m + 1, "b", m % 7)) for m in spread]
    stage.feed("clicks", [row for pair in rows for row in pair])
    stage.advance("clicks", at(last))


def lines_of(stage: Stage, name: str) -> list[str]:
    return lines(
        delta_log.open_table(
            stage.session.path(stage.session.catalog.table(name))
        ).to_pyarrow_dataset()
    )


def lines(rows: pyarrow.dataset.Dataset) -> list[str]:
    wanted = [name for name in rows.schema.names if not name.startswith("_")]
    return sorted(map(str, rows.to_table(wanted).to_pylist()))


def filled(stage: Stage, name: str, may_differ: Range | None = None):
    list(upgrade.fill(stage.session, name, upgrade.plan(stage.session, name)))
    return upgrade.compare(stage.session, name, may_differ)


def exchange(stage: Stage, name: str, command: upgrades.Command) -> None:
    session, of = stage.session, stage.session.catalog.table(name)
    if not upgrades.check(session, of, command):
        beside.catch_up(session, of)
    upgrades.exchange(session, of, command)


CHANGES = {
    "rows": ("counted", {"transformation": reshaped}),  # a filter, columns and types
    "windows": (  # of another length, aggregate and key; Spark keeps their state
        "sums",
        {"window": tumbling("2 hours"), "transformation": by_value, "keys": ("value",)},
    ),
}


def declared(known: Catalog, then: str) -> Catalog:
    """Each changed table under the name of its change, as it was before or is `then`; and, for comparison, always so."""
    tables = dict(known.tables)
    for name, (of, changes) in CHANGES.items():
        each = known.table(of)
        tables[name] = replace(each, name=name, **(changes if then == "after" else {}))
        tables[f"always_{name}"] = replace(each, name=f"always_{name}", **changes)
    return replace(known, tables=tables)


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_of_each_change_is_as_if_it_had_always_been_so(stage_of):
    stage = stage_of(changing_tables)
    known = stage.session.catalog
    stage.session = replace(stage.session, catalog=declared(known, "before"))
    both = (name for each in CHANGES for name in (each, f"always_{each}"))
    queries.prepare(stage.session, [stage.session.catalog.table(name) for name in both])
    minutes(stage, 0, 70)
    stage.run(*CHANGES)
    before = {name: lines_of(stage, name) for name in CHANGES}
    stage.session = replace(stage.session, catalog=declared(known, "after"))
    for name in CHANGES:
        assert filled(stage, name)[0].state == "filled"
        assert lines_of(stage, name) == before[name], "the table goes on as it is"
    minutes(stage, 71, 80)
    stage.feed("clicks", [at(30, "late", 3)])
    for name in CHANGES:
        path = stage.session.path(stage.session.catalog.table(name))
        old = delta_log.open_table(path).to_pyarrow_dataset()
        exchange(stage, name, "promote")
        assert lines(old) == before[name], "who had it open reads on"
        infos = [delta_log.commit_info(path, v) for v in delta_log.versions(path)]
        assert sum("exchange" in str(info.get("userMetadata")) for info in infos) == 1
    minutes(stage, 81, 200)
    for name in CHANGES:
        stage.run(name, f"always_{name}")
        assert lines_of(stage, name) == lines_of(stage, f"always_{name}"), name
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_that_has_read_rows_and_holds_none_is_upgraded(stage_of):
    stage = stage_of(changing_tables)
    known = stage.session.catalog
    stage.feed("clicks", [at(minute, value=-minute) for minute in range(1, 9)])
    stage.run("counted")
    for then, rows in ((less, 8), (more, 0)):  # from none to some, and from some to none
        stage.session = replace(
            stage.session, catalog=changed(known, "counted", transformation=then)
        )
        with pytest.raises(DeclarationError, match="`lakehouse upgrade fill counted`"):
            stage.run("counted")
        assert filled(stage, "counted")[0].state == "filled"
        exchange(stage, "counted", "promote")
        assert len(lines_of(stage, "counted")) == rows
        upgrades.drop(stage.session.settings, stage.session.catalog.table("counted"))
    stage.feed("clicks", [at(10, value=7), at(11, value=-7)])
    stage.advance("clicks", at(200, value=-1))
    stage.run("counted")
    assert_stream_equals_batch(stage, "counted")


def less(clicks: DataFrame) -> DataFrame:
    return clicks.where("value < 0")


@row_table(layer="gold", late="update")
def loud(counted: DataFrame) -> DataFrame:
    return counted.where("value > 1")


KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from lakehouse.declare.catalog import catalog_of
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import commit_log
from lakehouse.storage.versions import savepoints, upgrades
from support import changing_tables
from support.changing_tables import changed, more
root, place, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
of = {"take_table": savepoints, "exchange": delta_writer, "append": commit_log.CommitLog, "link_inputs": upgrades}[place]
step = getattr(of, place)
def killed(*given):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*given)
setattr(of, place, killed)
known = changed(catalog_of([changing_tables]), "counted", transformation=more)
upgrades.exchange(Lakehouse(Settings(root=root), known), known.table("counted"), "promote")
"""


def above(stage: Stage, least: int) -> list[str]:
    """What the table holds with that filter: none of these rows is late."""
    clicks = delta_log.open_table(stage.session.path(stage.session.catalog.table("clicks")))
    rows = clicks.to_pyarrow_table(columns=["user", "at", "value"]).to_pylist()
    return sorted(str(row) for row in rows if row["value"] > least)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_promotion_takes_no_final_window_away(stage_of):
    """Short windows become long ones, whose state Spark keeps, on a topic that gives no further row."""
    stage = stage_of(changing_tables)
    before = stage.session
    new = changed(before.catalog, "ticks", window=tumbling("20 minutes"))
    after = replace(before, catalog=new)
    stage.feed("clicks", [at(m, value=m) for m in range(61)])
    stage.run("ticks")
    reached = stage.frontier("ticks")
    stage.session = after
    assert filled(stage, "ticks")[0].state == "filled"
    # the table goes on, and the version beside is behind it
    stage.session = before
    stage.feed("clicks", [at(m, value=m) for m in range(61, 141)])
    stage.run("ticks")
    stage.session = after
    ours = stage.frontier("ticks")
    with pytest.raises(JobError, match=f"up to there, and the table up to {text(ours)}"):
        upgrades.exchange(after, new.table("ticks"), "promote")
    exchange(stage, "ticks", "promote")
    assert reached < ours == stage.frontier("ticks")
    ends = [row.window.end for row in stage.rows("ticks").orderBy("window").collect()]
    assert [end.timestamp() for end in ends] == [at_minute(m) for m in range(20, 140, 20)]
    assert_stream_equals_batch(stage, "ticks")


def at_minute(minutes: int) -> float:
    return (START + timedelta(minutes=minutes)).timestamp()


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_promotion_is_one_version_survives_kills_and_is_taken_back(stage_of, tmp_path):
    stage = stage_of(changing_tables)
    old = replace(stage.session.catalog, tables=stage.session.catalog.tables | {"loud": loud})
    new = changed(old, "counted", transformation=more)
    settings, counted = stage.session.settings, new.table("counted")
    before, after = (replace(stage.session, catalog=catalog) for catalog in (old, new))
    stage.session = before
    queries.prepare(before, [loud])
    minutes(stage, 0, 130)
    stage.run("counted", "loud")
    target = file_folder(str(tmp_path / "published"), key=["user", "at"], format="json")
    lakehouse = Lakehouse(settings, old)
    follower = Follower(lakehouse, old.table("counted"), target)
    follower.begin()

    def sent() -> list[int]:
        """How many rows of each version the follower sends; then its target is equal to the table."""
        steps = list(iter(follower.step, None))
        follower.sink.commit(follower.position)
        found = comparison.compare(lakehouse, old.table("counted"), target)
        assert (found.verdict, found.version) == ("EQUAL", delta_log.latest(path)), found
        return [step.sent for step in steps]

    path = after.path(counted)
    assert sum(sent())

    stage.session = after
    with pytest.raises(DeclarationError, match="`lakehouse upgrade fill counted`"):
        stage.run("counted")
    with pytest.raises(JobError, match="`lakehouse upgrade fill counted` comes first"):
        upgrades.check(Lakehouse(settings, new), counted, "promote")
    refused, compared = filled(stage, "counted", Range(START + timedelta(hours=1), END))
    assert [(c.differs, c.missing > 0, c.extra) for c in compared] == [(True, True, 0)] * 2
    assert "rows differ in 2026-01-01-00" in refused.refused
    with pytest.raises(JobError, match="rows differ in 2026-01-01-00"):
        upgrades.check(Lakehouse(settings, new), counted, "promote")
    assert not upgrade.compare(after, "counted", Range(START, END))[0].refused

    stage.session = before  # the job goes on under the code of before
    minutes(stage, 131, 190)
    stage.run("counted", "loud")
    stage.session = after
    assert sum(sent())
    versions = delta_log.latest(path)
    beside.catch_up(after, counted)
    for place, call in (("take_table", 1), ("append", 1), ("link_inputs", 1)):
        run = [sys.executable, "-c", KILLED, str(settings.root), place, str(call)]
        ended = subprocess.run(
            run, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")}, timeout=240
        )
        assert ended.returncode == -signal.SIGKILL, place
        if place == "take_table":
            assert lines_of(stage, "counted") == above(stage, 0)
            continue
        assert lines_of(stage, "counted") == above(stage, 5)
        with pytest.raises(JobError, match="`lakehouse upgrade promote counted` again"):
            interruptions.check(settings)
    exchange(stage, "counted", "promote")
    interruptions.check(settings)
    assert delta_log.latest(path) == versions + 1, "one version, whatever was killed"
    # by its key a row that is there twice is deleted once
    away = {*above(stage, 0)} - {*above(stage, 5)}
    assert sent() == [len(away)], "what is published follows in one version"

    minutes(stage, 191, 250)
    stage.run("counted", "loud")
    assert lines_of(stage, "counted") == above(stage, 5)
    assert batch_state.read(Lakehouse(settings, new), loud).outdated, (
        "it follows, as after a batch run"
    )
    stage.update("loud")
    for name in ("counted", "loud"):
        assert_stream_equals_batch(stage, name)

    stage.session = before
    exchange(stage, "counted", "roll-back")
    assert lines_of(stage, "counted") == above(stage, 0), "with the rows that came since"
    assert sent()[-1] == len(above(stage, 0)) - len(above(stage, 5))
    minutes(stage, 251, 310)
    stage.run("counted")
    assert lines_of(stage, "counted") == above(stage, 0)
    assert_stream_equals_batch(stage, "counted")
    upgrades.drop(settings, counted)
    assert upgrades.of_all(Lakehouse(settings, old)) == {}
