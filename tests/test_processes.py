"""Which process runs which pipeline, and with what: own resources, several in one, one that dies of memory."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakehouse.declare import catalog
from lakehouse.errors import JobError, SettingsError
from lakehouse.examples.ads import producer as ads
from lakehouse.producers.sender import send
from lakehouse.producers.topics import TOPIC
from lakehouse.producers.workload import Record
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Resources, Settings, from_environment, to_environment
from lakehouse.storage import layout
from lakehouse.storage.lake import Lake
from streaming_jobs import control_loop, desired, lease, progress, supervisor
from support import ROOT, TESTS
from support.sensors_job import (
    BEGIN,
    MINUTE,
    WORKLOAD,
    arrived,
    awaited,
    every_offset_once,
    go_on,
    produce,
    the_oracle_agrees,
)

BOTH = ("lakehouse.examples.sensors.tables", "lakehouse.examples.ads.tables")
TOGETHER = {"all": ("sensors", "ads")}


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """A lakehouse of its own; what runs in it at the end is killed."""
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=BOTH, spark_conf=quick_jvm
    )
    yield settings
    for folder in (settings.root / "_jobs").glob("*"):
        supervisor.stop(settings, folder.name, now=True)
    kafka_broker.stop(settings)


# ---- settings


def test_a_pipeline_has_resources_of_its_own_and_the_others_those_of_all():
    given = {
        "LAKEHOUSE_RESOURCES__ADS__DRIVER_MEMORY": "2g",
        "LAKEHOUSE_RESOURCES__ADS__SPARK_MASTER": "local[4]",
        "LAKEHOUSE_RESOURCES__ADS__STATE_MEMORY_MB": "64",
        "LAKEHOUSE_DRIVER_MEMORY": "3g",
    }
    settings = from_environment(to_environment(from_environment(given)))
    own, other = settings.for_pipeline("ads"), settings.for_pipeline("sensors")
    assert (own.driver_memory, own.spark_master, own.state_memory_mb) == ("2g", "local[4]", 64)
    assert (other.driver_memory, other.spark_master, other.state_memory_mb) == (
        "3g",
        "local[2]",
        512,
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MEMORY", "2g", r"resources.ads.memory: there is no setting of that name; did you mean"),
        ("DRIVER_MEMORY", "", "resources of ads: driver_memory='': a number and its unit"),
        ("DRIVER_MEMORY", "2 gigabytes", "resources of ads: .*a number and its unit"),
        ("STATE_MEMORY_MB", "1", "resources of ads: .*at least 16"),
        ("STATE_MEMORY_MB", "much", "resources.ads.state_memory_mb='much': a whole number"),
        ("ROOT", "/elsewhere", "resources.ads.root: .*there are driver_memory, .*step_rows"),
        ("SCHEDULER_POOLS", "/nowhere", "resources of ads: scheduler_pools='/nowhere': a file"),
    ],
)
def test_resources_that_cannot_be_are_refused_at_the_start(name, value, said):
    with pytest.raises(SettingsError, match=said):
        from_environment({f"LAKEHOUSE_RESOURCES__ADS__{name}": value})


def test_pipelines_that_share_a_process_are_one_by_its_name():
    settings = from_environment({"LAKEHOUSE_TOGETHER__ALL": "sensors, ads"})
    found, apart = catalog.load(settings), catalog.load(Settings())
    assert found.pipelines() == ["all"] and apart.pipelines() == ["sensors", "ads"]
    assert [t.name for t in found.of_pipeline("all")] == [t.name for t in apart]
    assert [t.code_version for t in found] == [t.code_version for t in apart], (
        "the same declarations, and the same checkpoints"
    )
    assert settings.members("all") == ("sensors", "ads") and settings.members("visits") == (
        "visits",
    )
    assert catalog.load(
        Settings(
            together={"ads": ("ads", "sensors")}, resources={"ads": Resources(driver_memory="2g")}
        )
    ).pipelines() == ["ads"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"together": {"all": ("sensors", "visits")}},
            "together of all=.*'visits': no such pipeline",
        ),
        ({"together": {"ads": ("sensors",)}}, "together of ads=.*'ads': another pipeline's name"),
        (
            {"together": {"a": ("sensors",), "b": ("ads", "sensors")}},
            "'sensors': a pipeline runs in one process",
        ),
        ({"together": {"a": ()}}, r"together of a=\(\): the pipelines that share a process"),
        (
            {"together": TOGETHER, "freshness": {"ads": "every 10 seconds"}},
            "freshness of ads=.*no such pipeline.*one of all",
        ),
        (
            {"resources": {"visits": Resources(driver_memory="2g")}},
            r"resources of visits=Resources\(driver_memory='2g'\): there is no such pipeline",
        ),
    ],
)
def test_what_cannot_be_together_is_refused_at_the_start(given, said):
    with pytest.raises(SettingsError, match=said):
        catalog.load(Settings(**given))


def test_no_pipeline_of_a_shared_process_is_run_by_another(settings):
    shared = replace(settings, together=TOGETHER)
    with lease.held(shared, "all") as turn:
        turn.check()
        assert lease.others(settings, "ads") == {"all"} and lease.others(shared, "all") == set()
        with (
            pytest.raises(JobError, match=r"pipeline='ads'.*one process fills a table"),
            lease.held(settings, "ads"),
        ):
            pass
        # as on a file system that does not lock
        layout.job_file(settings, "ads", "lease").unlink()
        with (
            lease.held(settings, "ads"),
            pytest.raises(JobError, match="pipeline='ads', epoch=1: pid="),
        ):
            turn.check()
    with (
        lease.held(settings, "sensors"),
        pytest.raises(JobError, match=r"pipeline='sensors'.*one process fills a table"),
        lease.held(shared, "all"),
    ):
        pass


# ---- processes


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_pipelines_are_put_into_one_process_and_apart_again_on_the_same_checkpoints(
    settings, spark
):
    kafka_broker.start(settings, jars.resolve(settings.jars))
    sent, seen = produce(settings, 0, 10), views(settings, 0, 10)
    pools = settings.root / "pools.xml"
    pools.write_text(
        re.search(r"```xml\n(.*?)```", (ROOT / "docs" / "supervision.md").read_text(), re.DOTALL)[1]
    )
    shared = replace(
        settings, together=TOGETHER, resources={"all": Resources(scheduler_pools=str(pools))}
    )
    alone = supervisor.start(settings, "sensors", wait=240)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the first lot", 240)

    both = supervisor.start(shared, "all", wait=240)
    assert not supervisor.status(settings, "sensors").alive and both.pid != alone.pid
    assert "in the process 'all'" in desired.history(settings, "sensors")[-1].why
    assert {q.table for q in both.queries} >= {"sensor_averages", "campaign_views"}
    sent, seen = sent + go_on(settings, 10, 20), seen + views(settings, 10, 20)
    awaited(
        lambda: (
            (arrived(settings, "sensor_readings"), arrived(settings, "ad_events")) == (sent, seen)
        ),
        "all in one",
        240,
    )
    weighed = ("campaign_views", "sensor_averages")
    awaited(
        lambda: [weight_of(both, table) for table in weighed] == [3, 1],
        "the pools, with the first jobs in them",
        60,
    )

    assert control_loop.step(settings, "sensors").action == "start", (
        "it was wanted, and its process has ended"
    )
    awaited(lambda: supervisor.status(settings, "sensors").state == "running", "alone again", 240)
    assert not supervisor.status(shared, "all").alive
    sent += go_on(settings, 20, 30)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the last lot", 240)
    stopped = supervisor.stop(settings, "sensors")
    assert {q.dropped_by_spark for q in stopped.queries} == {0}

    lake = Lake(spark, settings, catalog.load(settings))
    every_offset_once(lake, sent)
    the_oracle_agrees(lake)
    for name in ("sensor_averages", "campaign_views"):
        certificate = reconciliation.reconcile(lake, lake.catalog.table(name))
        assert certificate.verdict == "EQUAL" and certificate.rows_in_table > 100, certificate


def weight_of(job: progress.JobStatus, table: str) -> int:
    """Of the scheduler pool of a table's query, as Spark shows it; 0 before its first job."""
    with urllib.request.urlopen(f"{job.ui}/stages/", timeout=60) as page:
        row = re.search(rf">{table}</a>(.*?)</tr>", page.read().decode(), re.DOTALL)
    # after the least share of the cores
    return int(re.findall(r"<td>(\d+)</td>", row[1])[1]) if row else 0


def views(settings: Settings, start_minute: int, end_minute: int) -> int:
    """Sends events of ads; how many."""
    records = ads.records(WORKLOAD, BEGIN + start_minute * MINUTE, BEGIN + end_minute * MINUTE)
    kafka_broker.ensure_topics(settings, {"ad-events": WORKLOAD.partitions}, TOPIC)
    return send(records, "ad-events", client_config(settings)).sent


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_job_that_dies_of_memory_takes_no_other_with_it(settings, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    settings = replace(
        settings,
        tables=("lakehouse.examples.sensors.tables", "support.hungry"),
        restarts=1,
        resources={"hungry": Resources(driver_memory="512m")},
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    kafka_broker.ensure_topics(settings, {"orders": 1}, TOPIC)
    sent = produce(settings, 0, 5)
    well, hungry = (supervisor.start(settings, name, wait=240) for name in ("sensors", "hungry"))
    order = json.dumps({"at": "2026-01-01T00:00:00Z", "size": 600_000_000}).encode()
    send([Record(None, order, 0, BEGIN, BEGIN, "ordinary")], "orders", client_config(settings))

    def given_up() -> bool:
        control_loop.step(settings, "hungry")
        return supervisor.status(settings, "hungry").state == "crash_loop"

    awaited(given_up, "restarted once, then given up", 300)
    assert "ended, killed or out of memory" in supervisor.status(settings, "hungry").error
    assert supervisor.status(settings, "hungry").pid != hungry.pid, "it was tried again"
    sent += produce(settings, 5, 10)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the other goes on", 240)
    now = supervisor.status(settings, "sensors")
    assert (now.pid, now.state, [q.restarts for q in now.queries if q.restarts]) == (
        well.pid,
        "running",
        [],
    )
