"""Rows erased from a record: gone from it, from what was computed, and from the disk; the streams
go on and the reconciliation holds."""

import copy
import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from batch_jobs import commands
from lakehouse import (
    expect,
    ingest_table,
    kafka,
    lookup,
    report_table,
    row_table,
    session,
    tumbling,
    window_table,
)
from lakehouse.maintenance import erasure
from lakehouse.ranges import Range
from lakehouse.stream.engines import early_results
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
WHO = "someone-to-forget"
WHERE = f"user = '{WHO}'"

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@lookup(schema="greeting STRING")
async def profile(user: str) -> dict:
    return {"greeting": f"dear {user}"}


@row_table(
    layer="silver",
    expectations=[expect.column_values_to_be_between("value", max_value=1000)],
    lookup=profile,
)
def valid_clicks(clicks: DataFrame) -> DataFrame:
    return clicks.withColumn("twice", F.col("value") * 2).drop("profile")


@window_table(
    layer="gold",
    window=tumbling("1 minute"),
    keys=["user"],
    late="update",
    early_results="1 second",
)
def minutes(valid_clicks: DataFrame) -> DataFrame:
    return valid_clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=session("10 minutes"), keys=["value"])
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "value").agg(F.max("user").alias("user"))


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def hourly(valid_clicks: DataFrame) -> DataFrame:
    return valid_clicks.groupBy("window", "user").agg(F.sum("twice").alias("twice"))


@report_table(
    layer="gold",
    keys=["user"],
    suffix="txt",
    draw=(lambda rows, span: "\n".join(rows["user"].to_pylist())),
)
def users_of_an_hour(valid_clicks: DataFrame) -> DataFrame:
    return valid_clicks.groupBy("user").agg(F.count("*").alias("clicks"))


RUNNING = ("valid_clicks", "minutes", "sessions")


def at(seconds: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "value": value}


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory) -> Stage:
    """Hours of clicks, of two users; the hour in which those of the first two arrived is over, and all streams have gone on."""
    stage = Stage(spark, tmp_path_factory.mktemp("erase"), HERE)
    stage._now = datetime(2026, 1, 2, tzinfo=UTC)
    bad = [json.dumps(at(20, WHO) | {"value": "many"}), b"\xff" + WHO.encode()[:3], "no JSON"]
    stage.feed(
        "clicks",
        [at(10), at(20, WHO), at(3_500), at(3_790, WHO), at(3_800, "b"), at(30, WHO, 5_000), *bad],
    )
    stage.run(*RUNNING)
    # the last early results of a job that is killed then
    early_results.settle(stage.session, stage.session.catalog.table("minutes"))
    for hour in range(4, 7):
        stage.advance("clicks", at(hour * 3_600, "probe", hour))
        stage.run(*RUNNING)
        stage._now += timedelta(hours=1)
    stage.backfill("users_of_an_hour", Range(START, START + timedelta(hours=2)))
    return stage


@pytest.fixture
def stage(whole, tmp_path) -> Stage:
    """A copy of it, to be changed."""
    stage = copy.deepcopy(whole, {id(whole.session): whole.session})
    root = shutil.copytree(whole.session.settings.root, tmp_path / "lake")
    stage.session = replace(whole.session, settings=replace(whole.session.settings, root=root))
    return stage


def erase(stage: Stage, *arguments: str, answer: str | None = None):
    """With an `answer` a person is asked; without one nobody is."""
    environment = {"LAKEHOUSE_ROOT": str(stage.session.settings.root), "LAKEHOUSE_TABLES": __name__}
    asked = [] if answer is not None or "--dry-run" in arguments else ["--yes"]
    result = CliRunner().invoke(
        commands.app, ["erase", *arguments, *asked], env=environment, input=answer
    )
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def traces(stage: Stage) -> dict[str, int]:
    """The files that tell of the user, of all that are there: by the folder of the table, or the file."""
    found: dict[str, int] = {}
    for path in stage.session.settings.root.rglob("*"):
        folder = path.relative_to(stage.session.settings.root).parts[:2]
        if not path.is_file() or folder[0] == "_checkpoints" or path.suffix == ".crc":
            continue
        told = (
            str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_text()
        )
        if WHO in told:
            found[folder[-1]] = found.get(folder[-1], 0) + 1
    return found


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
def test_rows_are_gone_for_good_and_everything_follows(stage):
    before = traces(stage)
    assert set(before) == {
        "clicks", "clicks__quarantine", "valid_clicks", "valid_clicks__quarantine", "valid_clicks__answers",
        "minutes", "minutes__early", "sessions", "users_of_an_hour", "users_of_an_hour__report",
    }  # fmt: skip
    planned = erase(stage, "clicks", "--where", WHERE, "--dry-run", "--json")
    assert planned.exit_code == 0, planned.stderr
    found = json.loads(planned.stdout)
    assert (found["rows"], found["quarantined"], found["undecoded"]) == (3, 1, 2)
    assert set(found["follow"]) == {*RUNNING, "users_of_an_hour"}, "hourly has never run"
    assert traces(stage) == before, "nothing was changed"

    done = erase(stage, "clicks", "--where", WHERE)
    assert done.exit_code == 0, done.stderr
    assert traces(stage) == {}, "neither rows nor old versions, commit logs or logs"
    assert stage.rows("clicks").where("user IN ('a', 'b')").count() == 3
    assert stage.rows("clicks", "quarantine").count() == 2, "what no one can read stays"
    for name in (*RUNNING, "users_of_an_hour"):
        span = Range(START, START + timedelta(hours=2)) if name not in RUNNING else None
        assert assert_stream_equals_batch(stage, name, span).rows_in_table
    assert json.loads(erase(stage, "clicks", "--where", WHERE, "--json").stdout)["follow"] == {}, (
        "nothing is left to do"
    )

    stage.feed("clicks", [at(7 * 3_600 + 60, "c")])
    stage.advance("clicks", at(9 * 3_600, "probe"))
    stage.run(*RUNNING, "hourly")  # one that has never run begins with what is left
    assert stage.rows("valid_clicks").where("user = 'c'").count() == 1
    for name in RUNNING:
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_what_is_open_or_not_read_yet_is_refused(stage):
    stage.feed("clicks", [at(40, WHO)])  # late, by hours; no stream has read it
    unread = erase(stage, "clicks", "--where", WHERE)
    assert unread.exit_code == 2 and "minutes" not in unread.stderr, unread.stderr
    assert "sessions, valid_clicks may still read these rows" in unread.stderr
    chain = [
        at(second, WHO if second == 24_600 else "a", 77) for second in range(24_600, 32_400, 540)
    ]
    stage.feed("clicks", chain)
    stage.feed("clicks", [at(32_220, "a", 77)])
    stage.run(*RUNNING)
    going_on = erase(stage, "clicks", "--where", f"{WHERE} AND value = 77")
    assert going_on.exit_code == 2, going_on.stdout
    assert (
        "sessions has something of these rows in what closes at 2026-01-01T10:00:00Z"
        in going_on.stderr
    )
    assert traces(stage)["clicks"], "nothing was erased"


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
def test_an_erasure_that_was_killed_is_taken_up_again(stage):
    session, record = stage.session, stage.session.catalog.table("clicks")
    erasure._rewrite(session, record, WHERE, erasure.planned(session, record, WHERE))
    assert "minutes" in traces(stage)
    erasure.erase(session, record, WHERE)
    assert stage.rows("minutes").where(WHERE).count() == 0
    assert_stream_equals_batch(stage, "minutes")


@pytest.mark.slow
@pytest.mark.parallel
def test_what_is_refused(stage):
    before = {
        path: path.stat().st_mtime_ns for path in stage.session.settings.root.rglob("*.json*")
    }
    last = erase(stage, "clicks", "--where", "user = 'probe'")
    assert last.exit_code == 2 and "its frontier is 2026-01-01T05:59:55Z" in last.stderr, (
        last.stderr
    )
    derived = erase(stage, "minutes", "--where", WHERE)
    assert derived.exit_code == 2 and "erase them in its ingest table" in derived.stderr
    wrong = erase(stage, "clicks", "--where", "person = 'x'")
    assert wrong.exit_code == 2 and "a condition on the columns of clicks" in wrong.stderr
    assert erase(stage, "clicks", "--where", "user = 'nobody'").exit_code == 0
    assert {
        path: path.stat().st_mtime_ns for path in stage.session.settings.root.rglob("*.json*")
    } == before


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_person_is_asked_before_anything_is_erased(stage):
    before = traces(stage)
    for answer in ("n\n", "", "\n"):  # the second: a script without --yes has nothing to read
        refused = erase(stage, "clicks", "--where", WHERE, answer=answer)
        assert refused.exit_code == 1 and "Erase this for good?" in refused.stdout, refused.stderr
        assert stage.rows("clicks").where(WHERE).count() == 3 and traces(stage) == before
    for_scripts = erase(stage, "clicks", "--where", WHERE, "--json", answer="y\n")
    assert for_scripts.exit_code == 2 and "then add --yes" in for_scripts.stderr
    done = erase(stage, "clicks", "--where", WHERE, answer="y\n")
    assert done.exit_code == 0 and "erased" in done.stdout and traces(stage) == {}, done.stderr
    assert "Erase this" not in erase(stage, "clicks", "--where", WHERE, answer="").stdout, (
        "nothing is left to ask about"
    )
