"""The lakehouse in Dagster: real runs on a real instance, over a real filled lakehouse."""

import json
import re
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from assets import automation, checks, definitions, maintenance, reconciling, sensors
from assets.resources import LakehouseResource
from assets.testing import evaluate, materialize
from lakehouse.batch.compute import backfill
from lakehouse.declare import catalog
from lakehouse.ranges import parse_range
from lakehouse.reconcile.reconciliation import reconcile
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.session import Session
from lakehouse.storage.versions import read_holds
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus, QueryStatus
from streaming_jobs.supervision import desired
from streaming_jobs.supervision.desired import Event
from support import ROOT

SENSORS = ("lakehouse.examples.sensors.tables",)
HOURS = ["2026-01-01-00", "2026-01-01-01", "2026-01-01-02"]


@pytest.fixture(scope="module")
def built() -> dg.Definitions:
    return definitions.build(Settings(root=Path("/nowhere")))


@pytest.fixture(scope="module")
def settings(filled, tmp_path_factory) -> Settings:
    """A filled lakehouse; only certificates are added to it."""
    return copied(filled, tmp_path_factory.mktemp("shared"))


@pytest.fixture
def own(filled, tmp_path) -> Settings:
    """A filled lakehouse to change."""
    return copied(filled, tmp_path)


def copied(filled: Path, folder: Path) -> Settings:
    shutil.copytree(filled, folder / "root")
    return Settings(root=folder / "root", tables=SENSORS, jars=from_environment().jars)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def table_of(settings: Settings, name: str):
    return catalog.load(settings).table(name)


def test_column_schemas_come_from_the_tables_on_disk(settings):
    node = definitions.build(settings).resolve_asset_graph().get(dg.AssetKey("sensor_averages"))
    columns = {c.name: c.type for c in node.metadata["dagster/column_schema"].value.columns}
    assert columns["window"] == "struct<start:timestamp,end:timestamp>"
    assert columns["readings"] == "bigint"


# ---- batch runs


def damaged(settings: Settings, *hours: str) -> None:
    """By another hand: these partitions have fewer rows than they are to have."""
    stored = DeltaTable(str(settings.root / "gold" / "sensor_averages"))
    stored.delete(f"sensor_id = 'sensor-1' AND _partition IN ({', '.join(repr(h) for h in hours)})")


def test_a_range_of_partitions_is_one_batch_run(own, spark, instance):
    before = Session(own, catalog.load(own), spark).read(table_of(own, "sensor_averages")).count()
    damaged(own, HOURS[1])
    result = materialize(own, "sensor_averages", HOURS[0], HOURS[1], instance=instance)
    assert result.success
    events = {
        m.partition: m.metadata for m in result.asset_materializations_for_node("sensor_averages")
    }
    assert sorted(events) == HOURS[:2]
    told = [
        (events[h]["outcome"].value, events[h]["origin"].value, events[h]["rows"].value)
        for h in HOURS[:2]
    ]
    assert told == [("unchanged", "stream", 9), ("rewritten", "batch", 9)]
    assert "delta_version" in events[HOURS[1]] and "delta_version" not in events[HOURS[0]]
    shown = {name: value.value for name, value in events[HOURS[0]].items()}
    assert shown["range"] == "[2026-01-01T00:00:00Z, 2026-01-01T02:00:00Z)"
    assert (
        shown["partitions_rewritten"],
        shown["partitions_unchanged"],
        shown["partitions_done_before"],
    ) == (1, 1, 0)
    assert (
        shown["rows_written"] == 9
        and shown["plan"]["input"] == "valid_readings"
        and shown["plan"]["input_rows"] > 0
    )
    assert {"rows_quarantined", "seconds", "frontier"} <= shown.keys()
    table = Session(own, catalog.load(own), spark).read(table_of(own, "sensor_averages"))
    assert table.count() == before
    origins = {
        (r["_partition"], r["_origin"])
        for r in table.select("_partition", "_origin").distinct().collect()
    }
    assert origins == {(HOURS[0], "stream"), (HOURS[1], "batch"), (HOURS[2], "stream")}


def test_a_range_across_the_frontier_is_refused_in_the_librarys_words(settings):
    result = materialize(settings, "sensor_averages", HOURS[2], "2026-01-01-03")
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    assert "it crosses the frontier 2026-01-01T03:0" in failure.user_failure_data.description


def test_reference_tables_are_rebuilt_whole(tmp_path, spark):
    ads = Settings(
        root=tmp_path, tables=("lakehouse.examples.ads.tables",), jars=from_environment().jars
    )
    first, second = (materialize(ads, "campaigns") for _ in range(2))
    assert first.success and second.success
    shown = [r.asset_materializations_for_node("campaigns")[0].metadata for r in (first, second)]
    assert [(m["changed"].value, m["rows"].value) for m in shown] == [(True, 1000), (False, 1000)]
    assert evaluate(ads, "campaigns", "expectations_hold").passed


# ---- checks


def test_checks_hold_of_an_honest_lakehouse(settings, spark):
    certificate = evaluate(settings, "sensor_averages", "stream_equals_batch")
    assert certificate.passed
    assert certificate.metadata["verdict"].value == "EQUAL"
    assert (
        certificate.metadata["rows_in_table"].value
        == certificate.metadata["rows_recomputed"].value
        > 0
    )
    assert evaluate(settings, "sensor_averages", "expectations_hold").passed
    assert evaluate(settings, "valid_readings", "expectations_hold").passed


def test_checks_fail_on_planted_bad_data(own, spark):
    path = own.root / "gold" / "sensor_averages"
    planted = (
        spark.read.format("delta").load(str(path)).where(f"_partition = '{HOURS[1]}'").limit(1)
    )
    planted = planted.withColumn("sensor_id", F.lit("planted")).withColumn(
        "readings", F.lit(0).cast("bigint")
    )
    planted.write.format("delta").mode("append").save(str(path))

    certificate = evaluate(own, "sensor_averages", "stream_equals_batch")
    assert not certificate.passed
    assert certificate.severity == dg.AssetCheckSeverity.ERROR
    assert (certificate.metadata["verdict"].value, certificate.metadata["extra"].value) == (
        "DIFFERENT",
        1,
    )
    assert "sensor_id=planted" in certificate.metadata["differences"].value

    held = evaluate(own, "sensor_averages", "expectations_hold")
    assert not held.passed
    broken = [r.data for r in held.metadata["expectations"].value.records if not r.data["passed"]]
    assert [(r["unexpected"], "readings" in r["expectation"]) for r in broken] == [(1, True)]


def test_expectations_are_checked_each_hour_of_tables_that_have_rows(settings, spark, instance):
    def asked(of: Settings) -> list[dg.RunRequest]:
        (schedule,) = checks.check_expectations(of, catalog.load(of))
        at = dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
        return list(schedule.evaluate_tick(at).run_requests or ())

    (request,) = asked(settings)
    named = {(key.asset_key.to_user_string(), key.name) for key in request.asset_check_keys}
    tables = ("sensor_averages", "valid_readings")
    assert named == {(table, "expectations_hold") for table in tables}
    assert asked(replace(settings, root=settings.root / "nothing")) == []
    job = definitions.build(settings).resolve_job_def("check_expectations")
    subset = job.get_subset(asset_check_selection=set(request.asset_check_keys))
    run = subset.execute_in_process(instance=instance)
    found = {e.asset_key.to_user_string(): e.passed for e in run.get_asset_check_evaluations()}
    assert found == dict.fromkeys(tables, True)


def test_an_outage_is_no_verdict(own, spark):
    for file in (own.root / "gold" / "sensor_averages").rglob("*.parquet"):
        file.unlink()
    assert evaluate(own, "sensor_averages", "stream_equals_batch") is None
    assert evaluate(own, "sensor_averages", "expectations_hold") is None


# ---- sensors


def closings(
    settings: Settings, instance: dg.DagsterInstance, cursor: str | None = None
) -> dg.SensorResult:
    sensor = sensors.closed_partitions(settings, catalog.load(settings))
    return sensor.evaluate_tick(dg.build_sensor_context(instance, cursor=cursor))


def test_partitions_behind_the_frontier_are_told_once(settings, spark, instance):
    tick = closings(settings, instance)
    told = {(e.asset_key.to_user_string(), e.partition): e for e in tick.asset_events}
    assert sorted(told) == [
        (t, hour) for t in ("sensor_averages", "valid_readings") for hour in HOURS
    ]
    metadata = told["sensor_averages", HOURS[0]].metadata
    stored = spark.read.format("delta").load(str(settings.root / "gold" / "sensor_averages"))
    assert metadata["rows"].value == stored.where(f"_partition = '{HOURS[0]}'").count() > 0
    assert metadata["origin"].value == "stream"
    assert {"frontier", "delta_version", "code_version", "dagster/column_schema"} <= metadata.keys()
    last = next(iter(CommitLog(settings, table_of(settings, "sensor_readings"))))
    assert metadata["offsets"].value == last.inputs == {"sensor-readings": {"0": 45}}
    assert not closings(settings, instance, tick.cursor).asset_events
    assert json.loads(tick.cursor) == {"valid_readings": HOURS[2], "sensor_averages": HOURS[2]}


def test_a_tick_that_is_repeated_tells_the_same(settings, instance):
    """Events are stored before the cursor: after a crash between, the tick comes again."""
    first, again = closings(settings, instance), closings(settings, instance)
    assert first.asset_events == again.asset_events
    for tick in (first, again):
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)
    filled = instance.get_materialized_partitions(dg.AssetKey("sensor_averages"))
    assert filled == set(HOURS)


def test_a_partition_that_a_batch_run_replaced_says_so(own, instance):
    damaged(own, HOURS[1])
    assert materialize(own, "sensor_averages", HOURS[1]).success
    events = [
        e
        for e in closings(own, instance).asset_events
        if e.asset_key == dg.AssetKey("sensor_averages")
    ]
    told = [(e.partition, e.metadata["origin"].value) for e in events]
    assert told == list(zip(HOURS, ("stream", "batch", "stream"), strict=True))


def test_a_tick_tells_a_bounded_number_of_partitions(settings, instance, monkeypatch):
    monkeypatch.setattr(sensors, "_MOST", 4)
    first = closings(settings, instance)
    second = closings(settings, instance, first.cursor)
    assert [len(first.asset_events), len(second.asset_events)] == [4, 2]


def writings(
    settings: Settings, instance: dg.DagsterInstance, cursor: str | None = None
) -> dg.SensorResult:
    sensor = sensors.report_written_tables(settings, catalog.load(settings))
    return sensor.evaluate_tick(dg.build_sensor_context(instance, cursor=cursor))


def test_records_tell_what_came_in(settings, instance):
    tick = writings(settings, instance)
    (event,) = tick.asset_events
    assert event.asset_key == dg.AssetKey("sensor_readings")
    assert event.metadata["rows_quarantined"].value == 9
    assert event.metadata["rows_written"].value > 27
    assert not writings(settings, instance, tick.cursor).asset_events


def test_a_batch_run_from_the_command_line_is_told(own, spark, instance):
    cursor = writings(own, instance).cursor
    session = Session(own, catalog.load(own), spark)
    damaged(own, *HOURS)
    backfill(
        session,
        session.catalog.table("sensor_averages"),
        parse_range("2026-01-01T00:00", "2026-01-01T02:00"),
    )
    tick = writings(own, instance, cursor)
    assert [(e.partition, e.metadata["origin"].value) for e in tick.asset_events] == [
        (h, "batch") for h in HOURS[:2]
    ]
    assert not writings(own, instance, tick.cursor).asset_events


def test_a_batch_run_of_dagsters_own_is_not_told_again(own, spark, instance):
    cursor = writings(own, instance).cursor
    damaged(own, HOURS[1])
    assert materialize(own, "sensor_averages", HOURS[1], instance=instance).success
    assert not writings(own, instance, cursor).asset_events


# ---- reconciliations


def test_the_schedule_asks_for_what_is_not_certified(own, spark):
    schedule = reconciling.reconcile_closed_partitions(own, catalog.load(own))

    def asked() -> list[tuple[str, str, str]]:
        tick = schedule.evaluate_tick(
            dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
        )
        ranges = [
            r.run_config["ops"]["reconcile_ranges"]["config"]["ranges"] for r in tick.run_requests
        ]
        return [tuple(each.values()) for of_run in ranges for each in of_run]

    whole = ("2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z")
    assert asked() == [("valid_readings", *whole), ("sensor_averages", *whole)]
    session = Session(own, catalog.load(own), spark)
    for table, end in (("valid_readings", "03:00"), ("sensor_averages", "01:30")):
        reconcile(
            session,
            session.catalog.table(table),
            parse_range("2026-01-01T00:00", f"2026-01-01T{end}"),
        )
    assert asked() == [("sensor_averages", "2026-01-01T01:00:00Z", whole[1])]


def test_the_job_records_its_verdict_on_the_check(own, spark, instance):
    config = {"ops": {"reconcile_ranges": {"config": {"ranges": [{"table": "sensor_averages"}]}}}}
    job = definitions.build(own).resolve_job_def("reconcile")
    result = job.execute_in_process(config, instance=instance)
    (verdict,) = result.get_asset_check_evaluations()
    assert (verdict.check_name, verdict.passed) == ("stream_equals_batch", True)

    path = str(own.root / "gold" / "sensor_averages")
    spark.read.format("delta").load(path).limit(1).write.format("delta").mode("append").save(path)
    result = job.execute_in_process(config, instance=instance, raise_on_error=False)
    assert not result.success
    (verdict,) = result.get_asset_check_evaluations()
    assert not verdict.passed


@pytest.mark.slow
@pytest.mark.parallel
def test_a_failed_certificate_blocks_what_is_downstream_until_the_table_is_repaired(
    own, spark, instance
):
    built = definitions.build(own)

    @dg.asset(
        deps=["sensor_averages"], automation_condition=automation.on_closed(), backfill_policy=dg.BackfillPolicy.single_run(),
        partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00", timezone="UTC", fmt="%Y-%m-%d-%H"),
    )  # fmt: skip
    def report() -> None: ...

    location, cursor = dg.Definitions.merge(built, dg.Definitions(assets=[report])), None

    def requested() -> set[str]:
        nonlocal cursor
        found = dg.evaluate_automation_conditions(location, instance, cursor=cursor)
        cursor = found.cursor
        return found.get_requested_partitions(report.key)

    def certifies() -> bool:
        # Dagster keeps when a check ran to the second, and takes one of the second of a materialization for older
        time.sleep(1 - time.time() % 1)
        config = {
            "ops": {"reconcile_ranges": {"config": {"ranges": [{"table": "sensor_averages"}]}}}
        }
        return (
            built.resolve_job_def("reconcile")
            .execute_in_process(config, instance=instance, raise_on_error=False)
            .success
        )

    assert requested() == set()
    for event in closings(own, instance).asset_events:
        instance.report_runless_asset_event(event)
    assert requested() == set(HOURS)

    path = str(own.root / "gold" / "sensor_averages")
    planted = spark.read.format("delta").load(path).where(f"_partition = '{HOURS[1]}'").limit(1)
    planted.write.format("delta").mode("append").save(path)
    assert not certifies()
    assert requested() == set()
    assert materialize(own, "sensor_averages", HOURS[2], instance=instance).success
    assert requested() == set(), "another hour is replaced, and still a check fails"
    together = dg.materialize(
        [*built.assets, *built.asset_checks, report], partition_key=HOURS[2], resources=built.resources, instance=instance,
        selection=dg.AssetSelection.assets("sensor_averages", report), raise_on_error=False,
    )  # fmt: skip
    assert together.asset_materializations_for_node("sensor_averages")
    assert not together.asset_materializations_for_node("report"), (
        "in one run, too, the check comes first"
    )

    assert materialize(own, "sensor_averages", HOURS[1], instance=instance).success
    assert requested() == set(), "repaired, not reconciled"
    assert certifies()
    assert requested() == {HOURS[1], HOURS[2]}


@pytest.mark.slow
@pytest.mark.parallel
def test_what_differs_is_repaired_as_far_as_it_is_allowed_and_the_coverage_is_observed(
    own, spark, instance, monkeypatch
):
    averages, loaded = table_of(own, "sensor_averages"), catalog.load(own)
    DeltaTable(str(table_path(own, averages))).delete(f"_partition = '{HOURS[1]}'")
    config = {"ops": {"reconcile_ranges": {"config": {"ranges": [{"table": "sensor_averages"}]}}}}
    job = definitions.build(own).resolve_job_def("reconcile")
    assert not job.execute_in_process(config, instance=instance, raise_on_error=False).success
    observed = (
        instance.fetch_observations(dg.AssetKey(averages.name), limit=1)
        .records[0]
        .asset_observation.metadata
    )
    assert (
        observed["reconciled_share"].value == pytest.approx(2 / 3, abs=1e-4)
        and observed["partitions_different"].value == 1
    )
    assert observed["reconciliation_seconds_within_a_day"].value > 0

    def asked(settings: Settings):
        tick = dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
        return reconciling.repair_differences(settings, loaded).evaluate_tick(tick)

    assert (
        not asked(own).run_requests
        and "no difference that the setting `repair` allows" in asked(own).skip_message
    )
    # a run reads it where it is
    for name, amount in {"PARTITIONS": "1", "ROWS": "100000"}.items():
        monkeypatch.setenv(f"LAKEHOUSE_REPAIR__SENSOR_AVERAGES__{name}", amount)
    allowing = replace(own, repair=from_environment().repair)
    (request,) = asked(allowing).run_requests
    assert request.tags["partitions"] == HOURS[1]
    job = definitions.build(allowing).resolve_job_def("repair")
    result = job.execute_in_process(request.run_config, instance=instance)
    (repaired,) = result.asset_materializations_for_node("repair_table")
    assert (repaired.partition, repaired.metadata["verdict"].value) == (HOURS[1], "EQUAL")
    assert repaired.metadata["cause"].value.startswith("rows changed by hand")
    (verdict,) = result.get_asset_check_evaluations()
    assert verdict.passed
    assert not asked(allowing).run_requests


def test_the_asset_of_the_docs_reads_a_closed_hour(settings):
    (text, *_) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "automation.md").read_text(), re.DOTALL
    )
    exec(text, shown := {})
    lakehouse = {"lakehouse": LakehouseResource.of(settings)}
    run = dg.materialize(
        [shown["hottest_sensors"]], partition_key="2026-01-01-01:00", resources=lakehouse
    )
    (event,) = run.asset_materializations_for_node("hottest_sensors")
    assert sorted(event.metadata["hottest"].value) == ["sensor-0", "sensor-1", "sensor-2"]
    assert (
        shown["hottest_sensors"].key
        in shown["definitions"].resolve_asset_graph().get_all_asset_keys()
    )


# ---- streaming jobs


def test_the_maintenance_job_looks_after_every_table(own, instance):
    result = maintenance.maintain.execute_in_process(
        instance=instance, resources={"lakehouse": LakehouseResource.of(own)}
    )
    assert result.success and result.output_for_node("maintain_tables") == 9, (
        "four tables, their quarantines, _commits"
    )


def test_maintenance_knows_of_a_run_until_it_has_ended(spark, own, instance):
    @dg.op
    def look(lakehouse: LakehouseResource) -> bool:
        return lakehouse.session.spark is spark and read_holds.began(own) is not None

    job = dg.GraphDefinition("looking", node_defs=[look]).to_job(
        resource_defs={"lakehouse": LakehouseResource.of(own)}
    )
    assert job.execute_in_process(instance=instance).output_for_node("look") is True
    assert read_holds.began(own) is None and not spark._jsc.sc().isStopped()


def test_old_runs_and_events_without_a_run_are_forgotten_and_partitions_stay():
    @dg.op
    def nothing(context: dg.OpExecutionContext) -> None:
        context.log_event(
            dg.AssetCheckEvaluation(
                asset_key=dg.AssetKey("table"), check_name=context.job_name, passed=False
            )
        )

    with dg.DagsterInstance.local_temp() as instance:
        for name in ("reconcile", "mine"):
            assert (
                dg.GraphDefinition(name, node_defs=[nothing])
                .to_job()
                .execute_in_process(instance=instance)
                .success
            )
        for _ in range(3):
            for event in (dg.AssetObservation("job"), dg.AssetMaterialization("record")):
                instance.report_runless_asset_event(event)
        for partition in "ab":
            instance.report_runless_asset_event(
                dg.AssetMaterialization("table", partition=partition)
            )
        before = datetime.now(UTC)
        instance.report_runless_asset_event(dg.AssetObservation("job"))
        maintenance.forget(instance, before)
        (run,) = instance.get_runs()
        assert run.job_name == "mine"
        verdict = dg.AssetCheckKey(dg.AssetKey("table"), "reconcile")  # of a run that was forgotten
        (found,) = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [verdict]
        ).values()
        assert found.status.value == "FAILED"
        assert len(instance.fetch_observations(dg.AssetKey("job"), limit=5).records) == 1
        assert len(instance.fetch_materializations(dg.AssetKey("record"), limit=5).records) == 1, (
            "the last"
        )
        assert instance.get_materialized_partitions(dg.AssetKey("table")) == {"a", "b"}
        shards = {
            path.stem
            for path in Path(instance.event_log_storage.path_for_shard("x")).parent.glob("*-*.db")
        }
        assert shards == {run.run_id}


def test_a_job_that_has_read_nothing_yet_is_shown_all_the_same(own):
    at, process = progress.now(), psutil.Process()
    idle = (
        QueryStatus("sensor_readings", True, since=at),
        QueryStatus("valid_readings", True, since=at),
    )
    progress.write(
        own,
        JobStatus("sensors", process.pid, process.create_time(), 0, 0.0, "running", at, at, idle),
    )
    (told,) = (
        sensors.streaming_job_states(own, catalog.load(own))
        .evaluate_tick(dg.build_sensor_context())
        .asset_events
    )
    assert (told.metadata["queries"].value, told.metadata["rows_per_second"].value) == (2, 0.0)


def test_the_node_of_a_streaming_job_shows_how_each_query_does(own):
    at, process = progress.now(), psutil.Process()
    record = QueryStatus("sensor_readings", True, rows_per_second=50.0, lag=7, lags={"t-0": 3, "t-1": 4}, since=at,
                         frontier=at, late=2, batch_seconds=0.5, phases={"addBatch": 400}, state="running")  # fmt: skip
    paused = QueryStatus("valid_readings", False, state="paused", since=at, restarts=3, error="x", offsets="batch 7",
                         state_rows=5, state_bytes=2**20)  # fmt: skip
    status = JobStatus("sensors", process.pid, process.create_time(), 0, 0.0, "degraded", at, at, (record, paused),
                       python_bytes=2**28, jvm_bytes=2**30, ui="http://127.0.0.1:4040")  # fmt: skip
    progress.write(own, status)
    desired.note(own, "sensors", Event(at, "restarted", "its process died", 1, 1.0, True))
    sensor = sensors.streaming_job_states(own, catalog.load(own))
    tick = sensor.evaluate_tick(dg.build_sensor_context())
    (told,) = tick.asset_events
    shown = {name: value.value for name, value in told.metadata.items()}
    assert shown | {
        "state": "degraded", "queries": 1, "queries_paused": 1, "lag_records": 7, "state_rows": 5, "late": 2, "restarts": 1,
        "rows_per_second": 50.0, "batch_seconds": 0.5, "state_mib": 1.0, "python_mib": 256.0, "jvm_mib": 1024.0,
        "lag_by_partition": {"t-0": 3, "t-1": 4}, "batch_milliseconds": {"sensor_readings": {"addBatch": 400}},
        "spark_ui": "http://127.0.0.1:4040",
    } == shown  # fmt: skip
    assert 0 <= shown["frontier_delay_seconds"] < 60 and "its process died" in shown["last_restart"]
    assert [r.data["trouble"] for r in told.metadata["each_query"].records] == ["", "batch 7 x"]
    assert len(dg.serialize_value(told)) < 8_000, "a day has 1,440 of them for each job"
    assert not sensor.evaluate_tick(dg.build_sensor_context(cursor=tick.cursor)).asset_events, (
        "once a minute"
    )
    hour = {"what": json.loads(tick.cursor)["what"], "when": {"sensors": "2026-01-01T00:00:00Z"}}
    assert sensor.evaluate_tick(dg.build_sensor_context(cursor=json.dumps(hour))).asset_events
