"""A declaration that changed under a checkpoint: what changed is named before a JVM starts, and what is harmless goes on."""

import json
import linecache
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import backfill, bootstrap
from lakehouse.declare import catalog
from lakehouse.declare.table import (
    Table,
    around,
    duplicates,
    expect,
    kafka,
    session,
    sql_table,
    table,
    tumbling,
)
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range
from lakehouse.reconcile import diagnosis, reconciliation
from lakehouse.settings import Resources, Settings, to_environment
from lakehouse.storage import begun_with, delta_log
from lakehouse.storage.commit_log import CommitLog
from lakehouse.storage.commits import Commit
from lakehouse.stream import handover as handovers
from lakehouse.stream import queries
from lakehouse.testing import assert_stream_equals_batch
from lakehouse.transform import creation

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
_LEAST = 0

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@table(layer="silver")
def counted(clicks: DataFrame) -> DataFrame:
    return _above(clicks, _LEAST)


def _above(rows: DataFrame, least: int) -> DataFrame:
    return rows.where(F.col("value") > least)


@table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def ticks(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@table(layer="gold", keeps="latest", keys=["user"])
def totals(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.sum("value").alias("value"))


visits = sql_table(
    "visits", "SELECT window, user, count(*) AS n FROM {clicks} GROUP BY window, user",
    layer="gold", window=session("10 minutes"), keys=["user"],
)  # fmt: skip


def larger(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum(F.col("value") * 2).alias("value"))


def doubled(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.sum(F.col("value") * 2).alias("value"))


def more(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 5")


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


def changed(known: catalog.Catalog, name: str, **changes: object) -> catalog.Catalog:
    """The catalogue with one table declared otherwise."""
    return replace(known, tables=known.tables | {name: replace(known.table(name), **changes)})


# ---- what is compared, without a session


@pytest.fixture
def begun(tmp_path) -> tuple[Settings, catalog.Catalog]:
    """A lakehouse whose queries have all begun."""
    settings, known = Settings(root=tmp_path, tables=(__name__,)), catalog.catalog_of([HERE])
    for each in known:
        begun_with.begin(settings, known, each)
        (tmp_path / "_checkpoints" / each.name / "1" / "offsets").mkdir(parents=True)
    return settings, known


def refused(begun, name: str, **changes: object) -> str:
    settings, known = begun
    other = changed(known, name, **changes)
    return "\n".join(begun_with.refusals(settings, other, [other.table(name)]))


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("sums", {"window": tumbling("2 hours")}, "window=tumbling, 2:00:00: its checkpoint was made with tumbling, 1:00:00"),
        ("visits", {"window": session("1 minute")}, "window=session, gap 0:01:00: its checkpoint was made with session, gap"),
        ("sums", {"keys": ("user", "at")}, "keys=user, at: its checkpoint was made with user, and rows of both would stand in"),
        ("clicks", {"delay": timedelta(minutes=1)}, "delay=0:01:00: its checkpoint was made with 0:00:05"),
        ("clicks", {"event_time": "seen"}, "event time=seen: its checkpoint was made with at, and rows are in partitions by"),
        ("counted", {"context": around(after="1 minute")}, "context=0:00:00 before to 0:01:00 after: its checkpoint was made"),
        ("counted", {"deduplicate": duplicates("user", within="1 minute")}, "duplicates=user within 0:01:00: its checkpoint"),
        ("sums", {"inputs": ("counted",)}, "input=counted: its checkpoint was made with clicks, and its positions are those"),
        ("sums", {"layer": "silver"}, "layer=silver: its checkpoint was made with gold, and the rows that are there would stay"),
        ("sums", {"partition_by": "day"}, "partitions=day: its checkpoint was made with hour"),
        ("totals", {"keeps": "versions"}, "kind=versioned: its checkpoint was made with keyed"),
        ("sums", {"transformation": larger}, "F.sum(F.col('value') * 2).alias('value')): its checkpoint was made with "),
        ("visits", {"sql": "SELECT 1"}, "query=SELECT 1: its checkpoint was made with SELECT window"),
    ],
)  # fmt: skip
def test_what_changed_is_named_with_both_values_and_what_it_means(begun, name, changes, told):
    assert told in refused(begun, name, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"late": "update"}, {"late": "drop"}, {"expectations": (expect.column_values_to_not_be_null("user"),)}, {"owner": "me"},
        {"stale_after": timedelta(hours=1)}, {"metrics": ("value",)}, {"tolerance": 0.1}, {"deterministic": False},
        {"early_results": timedelta(seconds=1)}, {"pipeline": "elsewhere"},
    ],
    ids=str,
)  # fmt: skip
def test_what_decides_no_row_of_the_stream_goes_on(begun, changes):
    assert refused(begun, "sums", **changes) == ""


def test_remedies_are_those_that_each_kind_has(begun):
    assert (
        "declare it under another name, or take the change back; `lakehouse bootstrap NAME` fills"
        in refused(begun, "sums", window=tumbling("2 hours"))
    )
    assert "`lakehouse table accept clicks` has it go on from here" in refused(
        begun, "clicks", delay=timedelta(minutes=1)
    )
    assert "`lakehouse table accept counted` has it go on from here" in refused(
        begun, "counted", transformation=more
    )
    assert "`lakehouse table accept ticks` has it go on from here" in refused(
        begun, "ticks", transformation=larger
    )
    for changes in ({"window": tumbling("20 seconds")}, {"keys": ()}):
        assert "lakehouse table accept" not in refused(
            begun, "ticks", transformation=larger, **changes
        )
    assert "lakehouse table accept" not in refused(begun, "sums", transformation=larger), (
        "its open windows are state"
    )
    assert "`lakehouse backfill totals` has its job compute it whole" in refused(
        begun, "totals", transformation=doubled
    )
    assert "lakehouse table accept" not in refused(
        begun, "counted", context=around(after="1 minute"), transformation=more
    )


def test_code_is_the_function_what_it_calls_and_the_constants_in_it(begun, monkeypatch):
    kept = begun_with.declaration(begun[1], begun[1].table("counted"))
    assert kept["function _above"].startswith("def _above(") and kept["constant _LEAST"] == "0"
    settings, known = begun
    path = settings.root / "_commit_log" / "counted.declared.json"
    for name, text in (
        ("constant _LEAST", "7"),
        ("function _above", kept["function _above"].replace(">", ">=")),
    ):
        path.write_text(json.dumps({"at": "", "declaration": kept | {name: text}}))
        (change,) = begun_with.changes(settings, known, known.table("counted"))
        assert (change.field, change.then, change.now) == (name, text, kept[name])
    # as another Python would write the same code
    spaced = kept["function _above"].replace("where(F", "where( F")
    path.write_text(json.dumps({"at": "", "declaration": kept | {"function _above": spaced}}))
    assert begun_with.changes(settings, known, known.table("counted")) == []


def test_comments_and_docstrings_are_no_change():
    def made(source: str) -> Table:
        name = f"<declared {hash(source)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        names: dict = {"__name__": __name__}
        exec(compile(source, name, "exec"), names)
        return table(layer="silver")(names["copied"])

    one = made('def copied(clicks):\n    """Words."""\n    return clicks  # all\n')
    other = made('def copied(clicks):\n    """Others."""\n\n    return (clicks)\n')
    known = catalog.catalog_of([HERE])
    assert begun_with.declaration(known, one) == begun_with.declaration(known, other)


def test_of_a_table_that_was_removed_nothing_needs_to_fit(begun):
    settings, _ = begun
    (settings.root / "_checkpoints" / "sums" / "1" / "offsets").rmdir()
    assert refused(begun, "sums", window=tumbling("2 hours")) == ""
    log = settings.root / "gold" / "sums" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{1:020}.json").touch()
    assert "window=" in refused(begun, "sums", window=tumbling("2 hours"))


def test_a_declaration_that_cannot_be_read_is_named_and_the_way_out_works(begun):
    settings, known = begun
    path = settings.root / "_commit_log" / "sums.declared.json"
    path.write_text('{"at": "2026')
    with pytest.raises(
        DeclarationError, match=r"file=.*sums\.declared\.json: .* restore it, or remove it"
    ):
        begun_with.begin(settings, known, known.table("sums"))
    path.unlink()
    begun_with.begin(settings, known, known.table("sums"))
    assert json.loads(path.read_text())["declaration"]["window"] == "tumbling, 1:00:00"


def test_of_a_lakehouse_that_kept_no_declaration_it_is_said_what_is_not_known(begun, capsys):
    settings, known = begun
    sums = known.table("sums")
    path = settings.root / "_commit_log" / "sums.declared.json"
    for code_version, said in (
        (sums.code_version, ""),
        ("0123", "its last rows were written under 0123, and what"),
    ):
        path.unlink()
        written = Commit("sums", "stream", 1, 0, 1, datetime.now(UTC), code_version)
        CommitLog(settings, sums).append(written)
        begun_with.begin(settings, known, sums)
        told = capsys.readouterr().err
        assert said in told and bool(said) == bool(told)
        assert path.exists(), "from now on it is known"
    begun_with.begin(settings, known, sums)
    assert capsys.readouterr().err == "", "once"


# ---- commands and processes, without a JVM

MODULE = """
from lakehouse import kafka, table, tumbling

thing_topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@table(layer="bronze", event_time="at", delay="5 seconds")
def things(thing_topic):
    return thing_topic


@table(layer="gold", window=tumbling("1 hour"))
def things_per_hour(things):
    return things.groupBy("window").count()
"""


@pytest.fixture
def shop(tmp_path) -> tuple[Settings, Path]:
    """A lakehouse whose queries have begun, and the module of its tables."""
    settings, file = (
        Settings(root=tmp_path / "root", tables=("declared_shop",)),
        tmp_path / "declared_shop.py",
    )
    file.write_text(MODULE)
    python = """
from lakehouse.declare import catalog
from lakehouse.storage import begun_with
from lakehouse.settings import from_environment
settings = from_environment()
known = catalog.load(settings)
for table in known:
    begun_with.begin(settings, known, table)
    (settings.root / "_checkpoints" / table.name / "1" / "offsets").mkdir(parents=True)
"""
    done = run(settings, file, "-c", python)
    assert done.returncode == 0, done.stderr
    return settings, file


def run(settings: Settings, file: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(file.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | to_environment(settings) | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=file.parent,
    )


def test_a_changed_window_is_refused_before_a_jvm_starts_and_shown_by_tables(shop):
    settings, file = shop
    file.write_text(MODULE.replace("1 hour", "2 hours"))
    told = "table=things_per_hour, window=tumbling, 2:00:00: its checkpoint was made with tumbling, 1:00:00"
    for command in (
        "lakehouse stream start",
        "lakehouse stream restart",
        "streaming_jobs.driver declared_shop",
    ):
        done = run(settings, file, "-m", *command.split())
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )
    assert not (settings.root / "_jobs" / "declared_shop" / "driver.log").exists(), (
        "no process was started"
    )
    shown = run(settings, file, "-m", "lakehouse", "table", "list", "--json")
    assert shown.returncode == 0 and len(shown.stdout.splitlines()) == 2 and told in shown.stderr
    done = run(settings, file, "-m", "lakehouse", "table", "accept", "things_per_hour")
    assert done.returncode == 2 and "declare it under another name" in done.stderr


def test_shuffle_partitions_that_change_are_said_by_start_and_in_the_log_of_the_job(shop):
    settings, file = shop
    checkpoint = settings.root / "_checkpoints" / "things_per_hour" / "1"
    (checkpoint / "state").mkdir()
    noted = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": 0,
        "conf": {"spark.sql.shuffle.partitions": "2"},
    }
    (checkpoint / "offsets" / "7").write_text(f"v1\n{json.dumps(noted)}\n{{}}")
    other = replace(settings, resources={"declared_shop": Resources(shuffle_partitions=6)})
    told = "warning: table=things_per_hour, shuffle_partitions=6: its state is in 2 partitions"
    # both end, for there is no broker
    for command in (
        "lakehouse stream start --wait 60",
        "streaming_jobs.driver declared_shop",
    ):
        done = run(other, file, "-m", *command.split())
        assert told in done.stderr and "lakehouse broker start" in done.stderr, done.stderr
    assert told not in run(settings, file, "-m", "streaming_jobs.driver", "declared_shop").stderr


def test_a_changed_delay_is_accepted_by_a_command(shop):
    settings, file = shop
    assert (
        "nothing to accept"
        in run(settings, file, "-m", "lakehouse", "table", "accept", "things").stderr
    )
    file.write_text(MODULE.replace("5 seconds", "9 seconds"))
    assert (
        "`lakehouse table accept things`"
        in run(settings, file, "-m", "lakehouse", "table", "list").stderr
    )
    done = run(settings, file, "-m", "lakehouse", "table", "accept", "things")
    assert done.returncode == 0 and "delay" in done.stdout, done.stderr
    assert "things" not in run(settings, file, "-m", "lakehouse", "table", "list").stderr


# ---- real queries


@pytest.mark.slow
@pytest.mark.parallel
def test_a_window_of_two_hours_does_not_go_on_where_one_of_one_hour_was(stage_of):
    stage = stage_of(HERE)
    for minute in (1, 70, 130):
        stage.feed("clicks", [at(minute)])
    stage.advance("clicks", at(200))
    stage.run("sums", "visits", "counted", "totals")
    before = stage.rows("sums").count()
    lake = stage.lake
    stage.advance("clicks", at(500))
    for name, changes in (("sums", {"window": tumbling("2 hours")}), ("visits", {"window": session("1 minute")}),
                          ("sums", {"transformation": larger}), ("totals", {"transformation": doubled})):  # fmt: skip
        other = replace(lake, catalog=changed(lake.catalog, name, **changes))
        with pytest.raises(
            DeclarationError, match=f"table={name}, .* its checkpoint was made with"
        ):
            queries.start(other, other.catalog.table(name), available_now=True)
    assert before and stage.rows("sums").count() == before
    stage.lake = replace(lake, catalog=changed(lake.catalog, "sums", late="drop", owner="me"))
    stage.run("sums")
    assert stage.rows("sums").count() > before, "what is harmless goes on"
    lengths = {r.window.end - r.window.start for r in stage.rows("sums").collect()}
    assert lengths == {timedelta(hours=1)}


@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_is_computed_whole_after_its_backfill_and_a_row_table_goes_on_once_accepted(
    stage_of,
):
    stage = stage_of(HERE)
    stage.feed("clicks", [at(1, value=2), at(2, value=9)])
    stage.run("counted", "totals")
    lake = stage.lake
    other = changed(
        changed(lake.catalog, "totals", transformation=doubled), "counted", transformation=more
    )
    stage.lake = lake = replace(lake, catalog=other)
    for name in ("counted", "totals"):
        with pytest.raises(DeclarationError, match=f"table={name}, function="):
            stage.run(name)
    assert list(backfill.run(lake, "totals")) == []
    begun_with.accept(lake.settings, other, other.table("counted"))
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
    stage = stage_of(HERE)
    stage.feed("clicks", [at(1), at(2)])
    stage.advance("clicks", at(61))
    stage.run("ticks")
    stage.lake = replace(
        stage.lake, catalog=changed(stage.lake.catalog, "ticks", transformation=larger)
    )
    with pytest.raises(DeclarationError, match="`lakehouse table accept ticks`"):
        stage.run("ticks")
    begun_with.accept(stage.lake.settings, stage.lake.catalog, stage.lake.catalog.table("ticks"))
    stage.feed("clicks", [at(62)])
    stage.advance("clicks", at(130))
    stage.run("ticks")
    hours = [Range(START + timedelta(hours=n), START + timedelta(hours=n + 1)) for n in range(2)]
    found = [
        reconciliation.reconcile_parts(stage.lake, stage.lake.catalog.table("ticks"), hour)[0]
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
    stage = stage_of(HERE)
    stage.feed("clicks", [at(1), at(70)])
    stage.run("sums", "counted", "totals")
    settings, known = stage.lake.settings, stage.lake.catalog
    as_begun = replace(settings, shuffle_partitions=1)  # what the session of the tests has
    assert begun_with.remarks(as_begun, known, list(known)) == []
    told = begun_with.remarks(replace(settings, shuffle_partitions=8), known, list(known))
    assert [each.partition(",")[0] for each in told] == ["table=sums", "table=totals"], (
        "the others have no state"
    )
    assert all("shuffle_partitions=8: its state is in 1 partitions" in each for each in told)
    assert "declare it under another name" in told[0] and "`lakehouse backfill totals`" in told[1]
    overridden = replace(
        settings, shuffle_partitions=8, spark_conf={"spark.sql.shuffle.partitions": "1"}
    )
    assert begun_with.remarks(overridden, known, list(known)) == []
    assert list(backfill.run(stage.lake, "totals")) == []
    assert len(begun_with.remarks(replace(settings, shuffle_partitions=8), known, list(known))) == 1


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_under_another_name_is_filled_as_the_refusal_says(stage_of):
    stage = stage_of(HERE)
    for minute in (1, 70, 130):
        stage.feed("clicks", [at(minute)])
    stage.advance("clicks", at(400))
    stage.run("sums")
    lake = stage.lake
    other = replace(lake.catalog.table("sums"), name="longer_sums", window=tumbling("2 hours"))
    stage.lake = lake = replace(
        lake, catalog=replace(lake.catalog, tables=lake.catalog.tables | {other.name: other})
    )
    assert list(bootstrap.run(lake, bootstrap.plan(lake, other.name)))
    stage.advance("clicks", at(700))
    stage.run(other.name)
    found = {r.window.start.astimezone(UTC): r.value for r in stage.rows(other.name).collect()}
    assert found[START] == 2 and found[START + timedelta(hours=2)] == 1
    assert_stream_equals_batch(stage, other.name)


def test_a_window_that_is_changed_before_a_first_one_has_closed_is_refused(stage_of):
    """There is neither a row nor a checkpoint yet; what was read is in no window but the ones of before."""
    stage = stage_of(HERE)
    settings, known = stage.lake.settings, stage.lake.catalog
    stage.feed("clicks", [at(0.2)])
    # at the full hour, 7 seconds before the frontier
    handovers.begin(stage.lake, known.table("ticks"))
    stage.run("ticks")
    assert delta_log.latest(stage.lake.path(known.table("ticks"))) == 0
    other = changed(known, "ticks", window=tumbling("20 seconds"))
    with pytest.raises(DeclarationError, match=r"table=ticks, window=.*20"):
        begun_with.begin(settings, other, other.table("ticks"))
    shutil.rmtree(stage.lake.path(known.table("ticks")))
    creation.create(stage.lake, known.table("ticks"))
    begun_with.begin(settings, other, other.table("ticks"))
