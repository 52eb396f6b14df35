"""What is gone, torn, or older than the rest is noticed: side tables, log tables, a table made
again under its name, a handover."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import reconciling
from assets import sensors as dagster_sensors
from batch_jobs import backfill as handover_job
from lakehouse.batch import batch_state, compute
from lakehouse.cli import main, table_status
from lakehouse.declare.catalog import load
from lakehouse.errors import JobError, RangeError
from lakehouse.maintenance import erasure, replay_quarantine
from lakehouse.ranges import Range
from lakehouse.reconcile import coverage, reconciliation
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.position import handovers
from lakehouse.storage.session import Session
from lakehouse.stream import queries as stream_run
from lakehouse.transform import creation
from support.torn_logs import empty

SENSORS = ("lakehouse.examples.sensors.tables",)
DAY = datetime(2026, 1, 1, tzinfo=UTC)
RECORD, VALID, AVERAGES, TRENDS = (
    "sensor_readings",
    "valid_readings",
    "sensor_averages",
    "sensor_trends",
)


@pytest.fixture
def session(spark, filled, tmp_path) -> Session:
    """The filled lakehouse, to be damaged."""
    settings = Settings(root=shutil.copytree(filled, tmp_path / "root"), tables=SENSORS)
    return Session(settings, load(settings), spark)


def make_again(session: Session, name: str) -> None:
    """Removes a table, and makes it again with the rows of its first hour."""
    table = session.catalog.table(name)
    path = session.path(table)
    rows = DeltaTable(str(path)).to_pyarrow_table(filters=[("_partition", "=", "2026-01-01-00")])
    shutil.rmtree(path)
    creation.create(session, table)
    write_deltalake(str(path), rows, mode="append")


def due(session: Session) -> dict[str, str]:
    return {
        each.partition: each.why for each in coverage.due(session, session.catalog.table(AVERAGES))
    }


@pytest.mark.parametrize("name", [AVERAGES, VALID])
def test_certificates_tell_nothing_of_a_table_or_an_input_that_was_made_again_under_its_name(
    session, name
):
    table = session.catalog.table(AVERAGES)
    reconciliation.reconcile_parts(session, table, Range(DAY, DAY + timedelta(hours=3)))
    assert due(session) == {}
    make_again(session, name)
    again = due(session)
    assert len(again) == 3 and all(
        why.startswith(f"{name} was made again, or put back") for why in again.values()
    )
    found = coverage.coverage(session, table)
    assert (found.reconciled, len(found.changed)) == (0, 3)


def test_certificates_of_a_table_count_no_more_when_an_older_copy_of_it_was_put_back(session):
    table, hours = session.catalog.table(AVERAGES), Range(DAY, DAY + timedelta(hours=3))
    copy = shutil.copytree(session.path(table), session.settings.root / "copy")
    DeltaTable(str(session.path(table))).delete("_partition = '2026-01-01-01'")
    compute.backfill(session, table, Range(DAY + timedelta(hours=1), DAY + timedelta(hours=2)))
    reconciliation.reconcile_parts(session, table, hours)
    assert due(session) == {}
    shutil.rmtree(session.path(table))
    copy.rename(session.path(table))
    assert len(due(session)) == len(due(session)) == 3, "and they are remembered"
    assert {c.verdict for c in reconciliation.reconcile_parts(session, table, hours)} == {
        "EQUAL"
    } and due(session) == {}


def test_tables_does_not_say_equal_of_what_was_changed_since(session):
    table = session.catalog.table(AVERAGES)

    def shown() -> tuple[str | None, str]:
        state = next(each for each in table_status.overview(session) if each.table == AVERAGES)
        return state.verdict, state.why

    reconciliation.reconcile_parts(session, table, Range(DAY, DAY + timedelta(hours=3)))
    assert shown() == ("EQUAL", "")
    DeltaTable(str(session.path(table))).delete("_partition = '2026-01-01-01'")
    verdict, why = shown()
    assert verdict == "PENDING" and why.startswith(
        "1 partition changed since it was reconciled EQUAL: "
    )
    compute.backfill(session, table, Range(DAY + timedelta(hours=1), DAY + timedelta(hours=2)))
    reconciliation.reconcile_parts(session, table, Range(DAY, DAY + timedelta(hours=3)))
    assert shown() == ("EQUAL", "")
    next((session.path(table) / "_partition=2026-01-01-02").glob("*.parquet")).unlink()
    assert shown()[0] == "DIFFERENT" and "a data file is missing" in shown()[1]
    environment = {"LAKEHOUSE_ROOT": str(session.settings.root), "LAKEHOUSE_TABLES": SENSORS[0]}
    told = CliRunner().invoke(main.app(), ["table", "list"], env=environment)
    assert (
        told.exit_code == 0 and f"table={AVERAGES}, verdict=DIFFERENT: 1 partition" in told.stderr
    )


def test_certificates_of_a_table_that_is_not_there_any_more_are_not_believed(session):
    table = session.catalog.table(AVERAGES)
    reconciliation.reconcile_parts(session, table, Range(DAY, DAY + timedelta(hours=3)))
    shutil.rmtree(session.path(table))
    assert set(due(session).values()) == {f"{AVERAGES} is not there any more"}


@pytest.mark.parametrize("hours", [["00"], ["00", "01", "02"]], ids=["the first", "all"])
def test_partitions_that_somebody_emptied_before_they_were_reconciled_are_due(session, hours):
    path = str(session.path(session.catalog.table(AVERAGES)))
    DeltaTable(path).delete(" OR ".join(f"_partition = '2026-01-01-{hour}'" for hour in hours))
    assert due(session) == {f"2026-01-01-{hour}": "new" for hour in ("00", "01", "02")}
    assert coverage.coverage(session, session.catalog.table(AVERAGES)).partitions == 3


def test_a_quarantine_that_was_removed_is_said_and_its_rows_are_counted(session, capsys):
    record, path = (
        session.catalog.table(RECORD),
        session.path(session.catalog.table(RECORD), "quarantine"),
    )
    rows = DeltaTable(str(path)).count()
    assert table_status.lost_quarantines(session) == {}
    creation.create(session, record)
    assert capsys.readouterr().err == ""
    shutil.rmtree(path)
    with pytest.raises(RangeError, match="the folder is gone, and the quarantined rows with it"):
        replay_quarantine.planned(session, record)
    assert table_status.lost_quarantines(session) == {RECORD: rows}
    creation.create(session, record)
    assert f"quarantine={path}: the folder is gone" in capsys.readouterr().err
    environment = {"LAKEHOUSE_ROOT": str(session.settings.root), "LAKEHOUSE_TABLES": SENSORS[0]}
    for command in (["table", "list"], ["table", "quarantine", RECORD]):
        shown = CliRunner().invoke(main.app(), command, env=environment)
        assert shown.exit_code == 0 and f"{rows} quarantined rows are gone" in shown.stderr, command


def test_rows_put_aside_of_a_topic_that_is_no_input_any_more_are_told_of(session):
    record = session.catalog.table(RECORD)
    rows = DeltaTable(str(session.path(record, "quarantine"))).count()
    name, source = next(iter(session.catalog.topics_of(record).items()))
    renamed = replace(
        session.catalog,
        sources=session.catalog.sources | {name: replace(source, address="another")},
    )
    found = replay_quarantine.planned(replace(session, catalog=renamed), record)
    assert found.bad == {f"topic {source.address} is no input of the table any more": rows}


@pytest.mark.parametrize("name", [VALID, AVERAGES])
def test_what_holds_rows_follows_an_erasure_though_its_commit_log_is_gone(session, name):
    empty(CommitLog(session.settings, session.catalog.table(name)))
    with pytest.raises(RangeError, match=f"{name} has something of these rows"):
        erasure.planned(session, session.catalog.table(RECORD), "sensor_id = 'sensor-1'")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_stream_does_not_begin_behind_a_handover_that_is_gone(session):
    table = session.catalog.table(TRENDS)
    assert (
        sum(
            commit.written
            for commit in handover_job.run(session, handover_job.begin(session, TRENDS))
        )
        > 0
    )
    layout.note(session.settings, table, "handover.json").unlink()
    with pytest.raises(
        JobError, match="it held the handover up to which batch runs have filled the table"
    ):
        stream_run.start(session, table, available_now=True)
    list(handover_job.run(session, handover_job.begin(session, TRENDS)))
    stream_run.start(session, table, available_now=True).awaitTermination()
    rows = session.read(table).groupBy("sensor_id", "window").count().where(F.col("count") > 1)
    assert rows.isEmpty() and reconciliation.reconcile(session, table).verdict == "EQUAL"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_handover_that_is_gone_is_put_back_once_the_stream_has_begun(session, capsys):
    """Else the next life of the query would write what lies before it once more."""
    table = session.catalog.table(TRENDS)
    list(handover_job.run(session, handover_job.begin(session, TRENDS)))
    stream_run.start(session, table, available_now=True).awaitTermination()
    before = handovers.handover_of(session.settings, table)
    layout.note(session.settings, table, "handover.json").unlink()
    stream_run.start(session, table, available_now=True).awaitTermination()
    assert handovers.handover_of(session.settings, table) == before is not None
    assert (
        f"file={layout.note(session.settings, table, 'handover.json')}: it was gone"
        in capsys.readouterr().err
    )
    assert (
        session.read(table)
        .groupBy("sensor_id", "window")
        .count()
        .where(F.col("count") > 1)
        .isEmpty()
    )


def test_dagster_is_told_again_of_a_table_that_was_made_again(session):
    sensor = dagster_sensors.closed_partitions(session.settings, session.catalog)

    def told(cursor: str) -> set[str]:
        with dg.DagsterInstance.ephemeral() as instance:
            result = sensor.evaluate_tick(dg.build_sensor_context(instance, cursor=cursor))
        return {
            event.partition for event in result.asset_events if event.asset_key.path[-1] == AVERAGES
        }

    assert told('{"sensor_averages": "2026-01-01-02"}') == set(), "told already"
    assert told('{"sensor_averages": "2026-02-01-00"}') == {
        f"2026-01-01-0{hour}" for hour in range(3)
    }


def test_a_table_with_rows_and_without_a_commit_log_is_not_called_reconciled_nor_empty(session):
    averages = session.catalog.table(AVERAGES)
    reconciliation.reconcile_parts(session, averages, Range(DAY, DAY + timedelta(hours=3)))
    reconciliation.reconcile_parts(
        session, session.catalog.table(VALID), Range(DAY, DAY + timedelta(hours=3))
    )
    schedule = reconciling.reconcile_closed_partitions(session.settings, session.catalog)

    def skipped() -> str:
        return schedule.evaluate_tick(
            dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
        ).skip_message

    assert skipped() == "every closed partition has a certificate, and nothing was changed"
    commit_log = CommitLog(session.settings, averages).path
    empty(CommitLog(session.settings, averages))
    assert f"{AVERAGES} have rows and no frontier" in skipped()
    with pytest.raises(RangeError, match=f"commit log={commit_log}: the table has rows"):
        batch_state.closed_until(session, averages)
