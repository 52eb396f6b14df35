"""The batch jobs on a real, small lakehouse: backfill, its preview, its refusals; the reconciliation and what it finds."""

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F
from typer.testing import CliRunner

from batch_jobs import backfill, commands
from batch_jobs.reconcile_commands import exit_code
from lakehouse.batch import compute, reference_tables
from lakehouse.declare.catalog import load
from lakehouse.errors import JobError, LakehouseError
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.log.certificates import certificates
from lakehouse.storage.log.commits import NOTHING
from lakehouse.storage.session import Session
from support import backfills

TABLES = ("lakehouse.examples.sensors.tables",)
AVERAGES = "sensor_averages"


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def session(spark, filled, tmp_path) -> Session:
    """A copy of the filled lakehouse, to be changed."""
    settings = Settings(root=shutil.copytree(filled, tmp_path / "lake"), tables=TABLES)
    return Session(settings, load(settings), spark)


def command(session: Session, *arguments: str):
    environment = {"LAKEHOUSE_ROOT": str(session.settings.root), "LAKEHOUSE_TABLES": TABLES[0]}
    return CliRunner().invoke(commands.app, list(arguments), env=environment)


def stored(session: Session):
    return session.read(session.catalog.table(AVERAGES))


def versions(session: Session) -> list[int]:
    return [delta_writer.version(session.path(table)) for table in session.catalog]


def remove(session: Session, name: str, predicate: str | None = None) -> None:
    """By another hand: the table has fewer rows than it is to have."""
    DeltaTable(str(session.path(session.catalog.table(name)))).delete(predicate)


def origins(session: Session) -> set[tuple[str, str]]:
    rows = stored(session).select("_origin", "_partition").distinct().collect()
    return {(r["_origin"], r["_partition"][-2:]) for r in rows}


def test_a_backfill_rewrites_the_partitions_that_differ_and_leaves_the_others_to_the_stream(
    session,
):
    before = digest(stored(session))
    remove(session, AVERAGES, "_partition = '2026-01-01-01' AND sensor_id = 'sensor-1'")
    first, second = backfills.run(session, AVERAGES, at(0), at(2))
    assert (first.role, first.start, first.end, first.version) == ("batch", at(0), at(1), NOTHING)
    version = delta_writer.version(session.path(session.catalog.table(AVERAGES)))
    assert (second.start, second.end, second.version) == (at(1), at(2), version)
    assert [c.written for c in (first, second)] == [9, 9], "a late one stays out"
    assert digest(stored(session)) == before
    assert origins(session) == {("stream", "00"), ("batch", "01"), ("stream", "02")}
    certificate = reconciliation.reconcile(
        session, session.catalog.table(AVERAGES), Range(at(0), at(3))
    )
    assert (certificate.verdict, certificate.rows_in_table, certificate.rows_by_batch_runs) == (
        "EQUAL",
        27,
        9,
    )
    assert exit_code(certificate) == 0
    now = versions(session)
    assert {c.version for c in backfills.run(session, AVERAGES, at(0), at(2))} == {
        NOTHING
    } and versions(session) == now


def test_all_or_nothing_is_one_commit(session):
    remove(session, AVERAGES, "sensor_id = 'sensor-1'")
    before = versions(session)
    [commit] = backfills.run(session, AVERAGES, at(0), at(2), whole=True)
    assert (commit.start, commit.end, commit.written) == (at(0), at(2), 18)
    assert sum(versions(session)) == sum(before) + 1
    assert origins(session) == {("batch", "00"), ("batch", "01"), ("stream", "02")}


def test_what_the_quarantine_lost_is_put_back_and_the_rows_stay(session):
    aside = session.path(session.catalog.table("valid_readings"), "quarantine")
    whole = digest(session.read(session.catalog.table("valid_readings"), side="quarantine"))
    DeltaTable(str(aside)).delete()
    commits = list(backfills.run(session, "valid_readings", at(0), at(3)))
    assert {c.version for c in commits} == {NOTHING} and sum(
        c.quarantined for c in commits
    ) == whole.rows > 0
    assert digest(session.read(session.catalog.table("valid_readings"), side="quarantine")) == whole


def test_a_preview_counts_and_changes_nothing(session):
    before = sorted(path for path in session.settings.root.rglob("*"))
    span = ("--start", "2026-01-01T01", "--end", "2026-01-01T03")
    result = command(session, "backfill", "valid_readings", *span, "--dry-run", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["partitions"] == ["2026-01-01-01", "2026-01-01-02"]
    assert (found["rows_replaced"], found["input"], found["done"]) == (20, "sensor_readings", [])
    assert found["estimated_seconds"] is None, "there was no batch run before"
    assert 22 <= found["input_rows"] <= 36 and found["input_bytes"] > 0
    reached = {d["table"]: (d["start"], d["end"]) for d in found["downstream"]}
    hours = [f"2026-01-01T0{hour}:00:00Z" for hour in (1, 3, 4)]
    assert reached == {AVERAGES: (hours[0], hours[1]), "sensor_trends": (hours[0], hours[2])}, (
        "a sliding window straddles"
    )
    assert sorted(path for path in session.settings.root.rglob("*")) == before


@pytest.mark.parametrize(
    ("table", "start", "end", "said"),
    [
        (AVERAGES, at(2), at(4), "crosses the frontier 2026-01-01T03:09:55Z"),
        (AVERAGES, at(2), at(1), "the end lies after the start"),
        (AVERAGES, at(1), at(1), "nothing would be computed"),
        (AVERAGES, at(0, 30), at(1), "whole hours"),
        (AVERAGES, at(0), None, "both ends"),
        ("sensor_readings", at(0), at(1), "only the stream writes an ingest table"),
        ("sensor_average", at(0), at(1), "did you mean sensor_averages"),
    ],
)
def test_what_a_backfill_refuses(session, table, start, end, said):
    before = versions(session)
    for refuse in (backfill.plan, backfills.run):
        with pytest.raises(LakehouseError, match=said):
            refuse(session, table, start, end)
    assert versions(session) == before


def test_one_publisher_at_a_time(session):
    table = session.catalog.table(AVERAGES)
    with publishing(session.settings, table), pytest.raises(JobError, match=f"pid={os.getpid()}"):
        list(backfills.run(session, AVERAGES, at(0), at(1)))
    with publishing(session.settings, table):
        assert (
            f"pid {os.getpid()} is rewriting"
            in backfill.plan(session, AVERAGES, at(0), at(1)).conflicts[0]
        )
    with publishing(session.settings, table):
        pass  # free again


def test_the_certificate_finds_what_was_planted_deleted_and_altered(session):
    path = str(session.path(session.catalog.table(AVERAGES)))
    like = (
        DeltaTable(path)
        .to_pyarrow_table(filters=[("average_c", "=", Decimal("33.390000"))])
        .to_pylist()
    )
    DeltaTable(path).delete("average_c = 13.89")
    DeltaTable(path).update({"readings": "7"}, predicate="average_c = 10.11")
    planted = pa.Table.from_pylist(
        [like[0] | {"sensor_id": "sensor-99"}], pa.schema(DeltaTable(path).schema().to_arrow())
    )
    write_deltalake(path, planted, mode="append")

    shown = command(session, "reconcile", "run", AVERAGES)
    assert shown.exit_code == 1 and "1 missing, 1 extra, 1 changed" in shown.stdout
    recorded = certificates(session.settings, session.catalog.table(AVERAGES))
    recorded = reconciliation.summed([c for c in recorded if c.verdict != "EQUAL"])
    assert (recorded.verdict, recorded.missing, recorded.extra, recorded.changed) == (
        "DIFFERENT",
        1,
        1,
        1,
    )
    examples = {example.partition(":")[0]: example for example in recorded.examples}
    assert (
        "window=[2026-01-01T00:07:05Z, 2026-01-01T00:07:10Z), sensor_id=sensor-1"
        in examples["missing"]
    )
    assert "sensor_id=sensor-99" in examples["extra"]
    assert "readings=7" in examples["changed"] and "readings=1" in examples["changed"]

    repaired = command(
        session, "backfill", AVERAGES, "--start", "2026-01-01", "--end", "2026-01-01T03:00:00Z"
    )
    assert (
        repaired.exit_code == 0
        and "[2026-01-01T00:00:00Z, 2026-01-01T03:00:00Z)" in repaired.stdout
    )
    assert command(session, "reconcile", "run", AVERAGES).exit_code == 0


def test_exit_codes_of_the_certificate(session):
    nothing = command(
        session, "reconcile", "run", AVERAGES, "--start", "2025-01-01", "--end", "2025-01-02"
    )
    assert nothing.exit_code == 1 and "no row was compared" in nothing.stdout
    ahead = command(
        session, "reconcile", "run", AVERAGES, "--start", "2026-01-01", "--end", "2026-01-02"
    )
    assert (
        ahead.exit_code == 3
        and "OPEN" in ahead.stdout
        and "ahead of the frontier 2026-01-01T03:09:55Z" in ahead.stdout
    )
    equal = reconciliation.reconcile(session, session.catalog.table(AVERAGES))
    codes = {
        v: exit_code(replace(equal, verdict=v))
        for v in ("DIFFERENT", "PENDING", "OPEN", "UNVERIFIABLE")
    }
    assert codes == {"DIFFERENT": 1, "PENDING": 3, "OPEN": 3, "UNVERIFIABLE": 3}


PRICES = """
from lakehouse import files, reference_table

price_list = files("prices.csv", schema="item STRING, price INT")


@reference_table(layer="bronze", keys=["item"])
def prices(price_list):
    return price_list
"""


def test_a_reference_table_is_computed_again_when_something_changed_and_only_then(
    spark, tmp_path, monkeypatch
):
    (tmp_path / "price_tables.py").write_text(PRICES)
    file = tmp_path / "prices.csv"
    file.write_text("item,price\na,1\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings(root=tmp_path / "root", tables=("price_tables",))
    session = Session(settings, load(settings), spark)
    table = session.catalog.table("prices")
    assert reference_tables.refresh(session, table).written == 1
    assert reference_tables.refresh(replace(session, spark=None), table) is None, (
        "nothing is computed"
    )
    assert reference_tables.rebuild(session, table) is None, "computed, and found to be the same"
    file.write_text("item,price\na,1\nb,2\n")
    assert reference_tables.refresh(session, table).written == 2
    write_deltalake(str(session.path(table)), session.read(table).toArrow(), mode="append")
    assert reference_tables.refresh(session, table).written == 2, "by another hand"
    assert session.read(table).count() == 2
    shutil.rmtree(session.path(table))
    assert reference_tables.refresh(session, table).written == 2, "removed, to be filled again"


def test_the_first_row_is_known_by_the_statistics_and_read_where_a_file_has_none(session):
    readings = session.catalog.table("sensor_readings")
    first = session.read(readings).agg(F.min("event_time")).first()[0].astimezone(UTC)
    averages = session.catalog.table(AVERAGES)
    assert compute.first(session, averages) == first == min(session.least(readings))
    path = session.path(readings)
    with_none = DeltaTable(str(path)).to_pyarrow_table().slice(0, 1)
    DeltaTable(str(path)).alter.set_table_properties(
        {"delta.dataSkippingNumIndexedCols": "0", "delta.dataSkippingStatsColumns": ""}
    )
    write_deltalake(path, with_none, mode="append")
    assert None in session.least(readings) and compute.first(session, averages) == first
