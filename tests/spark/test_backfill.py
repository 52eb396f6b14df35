"""A backfill of many partitions: planned, published one by one, cut short and gone on with, followed, refused."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from batch_jobs import backfill, commands
from lakehouse import ingest_table, kafka, row_table, session, window_table
from lakehouse.batch import batch_state
from lakehouse.declare.catalog import load
from lakehouse.declare.columns import ARRIVAL
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.examples.sensors import tables as sensors
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.lag import lag
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import backfills

SENSORS = (sensors.__name__,)
VALID, AVERAGES, TRENDS = "valid_readings", "sensor_averages", "sensor_trends"
START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("2026-01-01-00", "2026-01-01-01", "2026-01-01-02")


click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(layer="silver")
def named_clicks(clicks: DataFrame) -> DataFrame:
    return clicks.where("user != ''")


@window_table(layer="gold", window=session("10 seconds"), keys=["user"])
def sessions(named_clicks: DataFrame) -> DataFrame:
    return named_clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


def at(hour: int, minute: int = 0) -> datetime:
    return START + timedelta(hours=hour, minutes=minute)


def hours(commits: list[Commit]) -> list[str]:
    return [f"{c.start:%H}" for c in commits]


def rewritten(commits: list[Commit]) -> list[tuple[str, str]]:
    return [(c.table, f"{c.start:%H}") for c in commits if c.version != NOTHING]


def rows_of(session: Session, name: str):
    return session.read(session.catalog.table(name))


def remove(session: Session, name: str, predicate: str | None = None) -> None:
    """By another hand: the table has fewer rows than it is to have."""
    DeltaTable(str(session.path(session.catalog.table(name)))).delete(predicate)


def outdated(session: Session, name: str) -> list[str]:
    return [p[-2:] for p in batch_state.read(session, session.catalog.table(name)).outdated]


@pytest.fixture
def session(spark, filled, tmp_path) -> Session:
    """A copy of the filled lakehouse, to be changed."""
    settings = Settings(root=shutil.copytree(filled, tmp_path / "lake"), tables=SENSORS)
    return Session(settings, load(settings), spark)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_run_that_is_cut_short_goes_on_where_it_was(session):
    whole = digest(rows_of(session, AVERAGES))
    remove(session, AVERAGES, "sensor_id = 'sensor-1'")
    commits = backfills.run(session, AVERAGES, at(0), at(3))
    assert hours([next(commits)]) == ["00"]
    commits.close()
    assert digest(rows_of(session, AVERAGES).where("_partition > '2026-01-01-00'")).rows == 12, (
        "not touched"
    )
    assert backfill.plan(session, AVERAGES, at(0), at(3)).done == ("2026-01-01-00",)
    assert backfill.plan(session, AVERAGES, at(0), at(2)).done == (), "another range is another run"
    other = replace(session.catalog.table(AVERAGES), keys=())
    tables = replace(session.catalog, tables=session.catalog.tables | {AVERAGES: other})
    assert backfill.plan(replace(session, catalog=tables), AVERAGES, at(0), at(3)).done == (), (
        "so is another declaration"
    )
    assert hours(list(backfills.run(session, AVERAGES, at(0), at(3)))) == ["01", "02"]
    assert digest(rows_of(session, AVERAGES)) == whole
    assert backfill.plan(session, AVERAGES, at(0), at(3)).done == (), (
        "it ended: this would be another"
    )
    assert backfill.plan(session, AVERAGES, at(0), at(3)).estimated_seconds > 0


@pytest.mark.slow
@pytest.mark.parallel
def test_what_was_done_is_done_again_if_its_input_was_rewritten_meanwhile(session):
    remove(session, AVERAGES, "sensor_id = 'sensor-1'")
    commits = backfills.run(session, AVERAGES, at(0), at(3))
    next(commits)
    next(commits)
    commits.close()
    remove(session, VALID, "_partition = '2026-01-01-01' AND sensor_id = 'sensor-2'")
    list(backfills.run(session, VALID, at(0), at(3)))
    assert backfill.plan(session, AVERAGES, at(0), at(3)).done == ("2026-01-01-00",)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_commit_that_a_crash_kept_from_the_commit_log_is_told_by_the_next_run(session):
    remove(session, VALID, "_partition = '2026-01-01-01'")

    def killed(*given: object, **more: object) -> None:
        raise OSError

    with pytest.MonkeyPatch.context() as patched, pytest.raises(OSError):
        patched.setattr(CommitLog, "append", killed)  # no line can be written
        list(backfills.run(session, VALID, at(1), at(2)))
    assert outdated(session, AVERAGES) == [], "nobody knows"
    assert {c.version for c in backfills.run(session, VALID, at(1), at(2))} == {NOTHING}, (
        "the rows are there"
    )
    assert outdated(session, AVERAGES) == ["01"]
    told = next(
        c
        for c in session.commit_log(session.catalog.table(VALID)).rewriting()
        if c.version != NOTHING
    )
    assert told.version == delta_writer.version(session.path(session.catalog.table(VALID)))


def test_what_is_unchanged_since_its_certificate_is_not_read(session):
    averages = session.catalog.table(AVERAGES)
    reconciliation.reconcile(session, averages, Range(at(0), at(3)))
    for name in ("sensor_readings", VALID, AVERAGES):
        for file in session.path(session.catalog.table(name)).glob("_partition=*/*.parquet"):
            file.write_bytes(b"not Parquet")  # in its place, so that only a reader notices
    remove(session, VALID, "_partition = '2026-01-01-02'")
    assert backfill.plan(session, AVERAGES, at(0), at(3)).unchanged == KEYS[:2]
    commits = list(backfills.run(session, AVERAGES, at(0), at(2)))
    assert [(c.span, c.version, c.left) for c in commits] == [
        (Range(at(0), at(1)), NOTHING, 1),
        (Range(at(1), at(2)), NOTHING, 0),
    ]
    assert backfill.plan(session, AVERAGES, at(0), at(2), again=True).unchanged == ()
    with pytest.raises(Exception, match="is not a Parquet file"):
        list(backfills.run(session, AVERAGES, at(0), at(2), again=True))


def other_declaration(session: Session) -> Session:
    other = replace(session.catalog.table(AVERAGES), keys=())
    return replace(
        session, catalog=replace(session.catalog, tables=session.catalog.tables | {AVERAGES: other})
    )


def requarantined(session: Session) -> Session:
    averages = session.catalog.table(AVERAGES)
    row = {"reason": "by hand", "_partition": KEYS[1], "_origin": "stream"}
    path = str(session.path(averages, "quarantine"))
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
    write_deltalake(path, pa.Table.from_pylist([row], schema), mode="append")
    return session


def removing(name: str, predicate: str) -> Callable[[Session], Session]:
    def removed(session: Session) -> Session:
        remove(session, name, predicate)
        return session

    return removed


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (other_declaration, ()),
        (requarantined, ()),
        (removing(AVERAGES, "_partition = '2026-01-01-01'"), (KEYS[0], KEYS[2])),
        (removing(VALID, "_partition = '2026-01-01-01'"), (KEYS[0], KEYS[2])),
    ],
    ids=["declaration", "quarantine", "rows", "input"],
)
def test_what_was_changed_since_its_certificate_is_computed(session, change, left):
    reconciliation.reconcile(session, session.catalog.table(AVERAGES), Range(at(0), at(3)))
    assert backfill.plan(session, AVERAGES, at(0), at(3)).unchanged == KEYS
    assert backfill.plan(change(session), AVERAGES, at(0), at(3)).unchanged == left


@pytest.mark.slow
@pytest.mark.parallel
def test_what_reads_a_rewritten_partition_is_pending_until_it_follows(session):
    remove(session, VALID, "_partition = '2026-01-01-01' AND sensor_id = 'sensor-2'")
    # as if it had never been there
    remove(session, AVERAGES, "_partition = '2026-01-01-01' AND sensor_id = 'sensor-2'")
    assert rewritten(list(backfills.run(session, VALID, at(0), at(3)))) == [(VALID, "01")]
    assert outdated(session, AVERAGES) == ["01"], "what did not change has nothing to be followed"
    assert reconciliation.reconcile(session, session.catalog.table(AVERAGES)).verdict == "PENDING"

    shown = CliRunner().invoke(
        commands.app, ["backfill", VALID, "--start", "2026-01-01T00", "--end", "2026-01-01T03", "--cascade", "--json"],
        env={"LAKEHOUSE_ROOT": str(session.settings.root), "LAKEHOUSE_TABLES": SENSORS[0]},
    )  # fmt: skip
    assert shown.exit_code == 0, shown.stderr
    told = [json.loads(line) for line in shown.stdout.splitlines()]
    outcomes = [(t["table"], t["outcome"], t["start"][11:13]) for t in told]
    assert outcomes == [(VALID, "unchanged", h) for h in ("00", "01", "02")] + [
        (AVERAGES, "rewritten", "01")
    ]
    assert outdated(session, AVERAGES) == []
    assert reconciliation.reconcile(session, session.catalog.table(AVERAGES)).verdict == "EQUAL"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_cascade_follows_through_windows_that_straddle(session, spark):
    stage = Stage(spark, session.settings.root, sensors)
    stage.run(TRENDS)
    whole = digest(rows_of(session, TRENDS))
    last = "sensor_id = 'sensor-2' AND _partition = '2026-01-01-00'"
    remove(session, VALID, last)
    remove(session, TRENDS, "sensor_id = 'sensor-2' AND window.end < '2026-01-01T01:00:30'")
    commits = list(backfills.run(session, VALID, at(0), at(1), cascade=True))
    assert [(c.table, f"{c.start:%H}") for c in commits] == [
        (VALID, "00"),
        (AVERAGES, "00"),
        (TRENDS, "00"),
        (TRENDS, "01"),
    ]
    assert rewritten(commits)[:2] == [(VALID, "00"), (TRENDS, "00")], (
        "averages hold these rows still"
    )
    assert digest(rows_of(session, TRENDS)) == whole


@pytest.mark.slow
@pytest.mark.parallel
def test_a_session_that_straddles_follows_as_a_whole(spark, tmp_path):
    stage = Stage(spark, tmp_path, sys.modules[__name__])
    stage.feed("clicks", [click(n) for n in (3_560, 3_570, 3_580, 3_590, 3_600, 3_610, 3_700)])
    stage.advance("clicks", click(4 * 3_600, "b"))
    stage.run("named_clicks", "sessions")
    whole = digest(stage.rows("sessions"))
    # it holds two sessions together
    remove(stage.session, "named_clicks", "at = '2026-01-01T00:59:50Z'")
    remove(stage.session, "sessions")
    commits = list(backfills.run(stage.session, "named_clicks", at(0), at(1), cascade=True))
    assert digest(stage.rows("sessions")) == whole
    assert [c.table for c in commits if c.version != NOTHING] == ["named_clicks", "sessions"]
    assert outdated(stage.session, "sessions") == []


def click(second: float, user: str = "a") -> dict[str, str]:
    return {"user": user, "at": (START + timedelta(seconds=second)).isoformat()}


def test_what_the_input_does_not_hold_any_more_is_not_replaced_by_nothing(session):
    remove(session, "sensor_readings", "event_time < '2026-01-01T01:00:00Z'")
    before = delta_writer.version(session.path(session.catalog.table(VALID)))
    for refuse in (backfill.plan, backfills.run):
        with pytest.raises(
            RangeError,
            match=r"partitions=2026-01-01-00 to 2026-01-01-00 \(1\).*begins at 2026-01-01T01",
        ):
            refuse(session, VALID, at(0), at(3))
    assert delta_writer.version(session.path(session.catalog.table(VALID))) == before
    assert len(list(backfills.run(session, VALID, at(1), at(3)))) == 2
    remove(session, VALID, "event_time < '2026-01-01T01:00:00Z'")
    with pytest.raises(RangeError, match=r"table=sensor_averages, partitions=2026-01-01-00"):
        backfill.plan(session, AVERAGES, at(0), at(3))
    remove(session, "sensor_readings")
    with pytest.raises(RangeError, match="is empty"):
        backfill.plan(session, VALID, at(1), at(3))


def test_a_table_of_other_columns_on_disk_is_refused_before_anything_is_computed(session):
    path = str(session.path(session.catalog.table(AVERAGES)))
    DeltaTable(path).alter.add_columns(Field("more", "long"))
    with pytest.raises(DeclarationError, match="columns=more: the table on disk has other columns"):
        list(backfills.run(session, AVERAGES, at(0), at(1)))


@pytest.mark.slow
@pytest.mark.parallel
def test_a_stream_goes_on_across_a_rewrite_of_its_input_and_takes_nothing_for_new(spark, tmp_path):
    stage = Stage(spark, tmp_path, sensors)
    stage.feed("sensor_readings", [reading(h, m, f"sensor-{m}") for h in range(3) for m in (0, 20)])
    stage.advance("sensor_readings", reading(3, 0))
    stage.run(VALID, AVERAGES)
    session, table = stage.session, stage.session.catalog.table(AVERAGES)
    before = digest(rows_of(session, AVERAGES))
    query = queries.start(session, table)
    try:
        remove(session, VALID, "sensor_id = 'sensor-0' AND _partition = '2026-01-01-00'")
        # to fill an empty partition looks like an append
        remove(session, VALID, "_partition = '2026-01-01-01'")
        assert rewritten(list(backfills.run(session, VALID, at(0), at(2)))) == [
            (VALID, "00"),
            (VALID, "01"),
        ]
        stage.advance("sensor_readings", reading(4, 0))
        stage.run(VALID)
        query.processAllAvailable()
        assert query.isActive and query.exception() is None
    finally:
        query.stop()
    assert digest(rows_of(session, AVERAGES).where("_partition < '2026-01-01-03'")) == before
    assert stage.frontier(AVERAGES) > at(3)
    assert_stream_equals_batch(stage, AVERAGES)


def reading(hour: int, minute: int, sensor: str = "sensor-1") -> dict[str, str]:
    return {
        "sensor_id": sensor,
        "event_time": at(hour, minute).isoformat(),
        "temperature_f": "50.00",
    }


def test_a_thousand_partitions_are_planned_within_seconds(session, tmp_path):
    record, valid = (session.catalog.table(name) for name in ("sensor_readings", VALID))
    arrival = rows_of(session, VALID).select(ARRIVAL).head()[0].asDict()
    row = {"sensor_id": "sensor-1", "_arrival": arrival, "_origin": "stream"}
    rows = [
        row | {"event_time": at(n, 30), "_partition": f"{at(n):%Y-%m-%d-%H}"} for n in range(1_000)
    ]
    for each in (record, valid):
        path = str(session.path(each))
        schema = pa.schema(DeltaTable(path).schema().to_arrow())
        write_deltalake(path, pa.Table.from_pylist(rows, schema), mode="append")
    last = next(session.commit_log(valid).by_stream())
    session.commit_log(valid).append(replace(last, batch=last.batch + 1, frontier=at(1_000)))
    began = time.monotonic()
    planned = backfill.plan(replace(session, spark=None), VALID, at(0), at(1_000))
    assert time.monotonic() - began < 10
    assert (
        len(planned.partitions) == 1_000
        and planned.input_files >= 1_000
        and planned.rows_replaced >= 1_000
    )
    assert [d.partitions for d in planned.downstream] == [1_000, 1_001]


@pytest.fixture
def told(tmp_path) -> Callable[..., Session]:
    """Tells that the record or its reader wrote a version so many seconds ago, in commit logs alone."""
    settings = Settings(root=tmp_path, tables=SENSORS)
    lakehouse = Lakehouse(settings, load(settings))

    def wrote(
        name: str = "", version: int = 0, ago: float = 0, written: int = 1, read: int = 0
    ) -> Session:
        if name:
            inputs = (
                {"tables": {"sensor_readings": {"reservoirVersion": read + 1, "index": -1}}}
                if name == VALID
                else {}
            )
            at = datetime.now(UTC) - timedelta(seconds=ago)
            commit = Commit(
                name, "stream", 1, version, version, at, "", written=written, inputs=inputs
            )
            lakehouse.commit_log(lakehouse.catalog.table(name)).append(commit)
        return lakehouse

    return wrote


def test_how_far_a_stream_is_behind_is_read_from_commit_logs(told):
    def seconds(**settings: object) -> int:
        return round(
            lag(Lakehouse(replace(told().settings, **settings), told().catalog), datetime.now(UTC))
            / timedelta(seconds=1),
            -1,
        )

    told("sensor_readings", 1, 90)
    assert seconds() == 0, "its reader never ran"
    told(VALID, 1, 80, read=1)
    told("sensor_readings", 2, 70, written=0)
    assert seconds() == 0, "there is nothing to read"
    told("sensor_readings", 3, 60)
    told("sensor_readings", 4, 50)
    assert seconds() == 60
    told(VALID, 2, 40, read=3)
    assert seconds() == 50
    assert seconds(batch_within="30 seconds") == 0, "it is not at work"
    assert seconds(freshness={"sensors": "every 5 minutes"}) == 0, "it waits on purpose"


def test_a_backfill_waits_while_a_stream_is_behind(told):
    told(VALID, 1, 80, read=1)
    told("sensor_readings", 2, 60)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(backfill._give_way, told())
        with pytest.raises(TimeoutError):
            waiting.result(1)
        told(VALID, 2, read=2)
        waiting.result(30)
