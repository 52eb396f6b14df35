"""A live `dagster dev` on a filled lakehouse: its API answers, a run succeeds, a browser sees graph and bar."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator

import pytest

from assets.demo import lineage
from benchmarks import beside
from lakehouse.declare import catalog
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.ads.producer import PRODUCER
from lakehouse.examples.sensors import tables as sensors
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.ranges import Range, partition_range
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING
from streaming_jobs.supervision import desired, supervisor
from support import ROOT
from support.dagster_dev import DOCS, UI, dagster_dev, ended, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HOURS = ["2026-01-01-00", "2026-01-01-01", "2026-01-01-02"]


@pytest.fixture(scope="module")
def ui(filled, tmp_path_factory, quick_jvm) -> Iterator[UI]:
    root = tmp_path_factory.mktemp("ui") / "root"
    shutil.copytree(filled, root)
    tables = ("lakehouse.examples.sensors.tables", "lakehouse.examples.ads.tables")
    with dagster_dev(
        Settings(root=root, tables=tables, jars=from_environment().jars, spark_conf=quick_jvm)
    ) as live:
        yield live


@pytest.fixture(scope="module")
def filled_bar(ui) -> UI:
    """The UI when its sensor has told of the closed partitions."""
    query = """{ assetNodeOrError(assetKey: {path: ["sensor_averages"]}) {
        ... on AssetNode { partitionStats { numMaterialized } } } }"""
    until(
        lambda: ui.ask(query)["assetNodeOrError"]["partitionStats"]["numMaterialized"] == 3,
        "three partitions told",
    )
    return ui


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, (
        "no chromium on the PATH: the browser tests need one (Debian and Ubuntu: apt install chromium)"
    )
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(60_000)
    yield page
    page.close()


def test_the_location_loads_without_error(ui):
    found = ui.ask(
        """{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus locationOrLoadError {
             __typename ... on PythonError { message } ... on RepositoryLocation { repositories {
               jobs { name } assetNodes { assetKey { path } isMaterializable }
               schedules { name scheduleState { status } } sensors { name sensorState { status } } } } } } } } }"""
    )
    (location,) = found["workspaceOrError"]["locationEntries"]
    assert location["locationOrLoadError"]["__typename"] == "RepositoryLocation", location
    (repository,) = location["locationOrLoadError"]["repositories"]
    assert len(repository["assetNodes"]) == 12
    jobs = {job["name"] for job in repository["jobs"]}
    assert {
        "start_sensors",
        "stop_sensors",
        "restart_sensors",
        "rescale_sensors",
        "reconcile",
        "repair",
        "update",
        "maintain",
    } <= jobs
    schedules, sensors = repository["schedules"], repository["sensors"]
    assert {s["name"]: s["scheduleState"]["status"] for s in schedules} == dict.fromkeys(
        (
            "reconcile_closed_partitions", "repair_differences", "merge_late_rows", "maintain_hourly",
            "check_expectations_hourly",
        ),
        "RUNNING",
    ) | dict.fromkeys(("savepoint_daily", "follow_versions"), "STOPPED")  # fmt: skip
    assert {s["name"]: s["sensorState"]["status"] for s in sensors} == dict.fromkeys(
        (
            "closed_partitions", "report_written_tables", "streaming_job_states", "supervise_streaming_jobs",
            "send_notifications", "automation",
        ),
        "RUNNING",
    )  # fmt: skip


def test_the_browser_sees_the_graph(ui, page, tmp_path):
    tables = catalog.catalog_of([sensors, ads])
    page.goto(lineage(ui.address, tables))  # all groups open
    for name in ("sensor_topic", "sensors", "sensor_readings", "valid_readings", "sensor_averages"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.screenshot(path=tmp_path / "graph.png")


def test_the_browser_sees_the_partition_bar(filled_bar, page, tmp_path):
    page.goto(f"{filled_bar.address}/assets/sensor_averages?view=partitions")
    page.get_by_text("Materialized (3)").wait_for()
    page.screenshot(path=tmp_path / "partitions.png")


def test_a_backfill_from_the_ui_is_a_batch_run_in_a_process_of_its_own(filled_bar):
    """The process that Dagster makes for a run is not quite a usual one: it has no main file."""
    launched = filled_bar.ask(
        DOCS["Backfill"], table="sensor_averages", start=HOURS[0], end=HOURS[1]
    )["launchRun"]
    assert ended(filled_bar, launched) == "SUCCESS"
    told = filled_bar.ask(DOCS["Table"], table="sensor_averages")["assetNodeOrError"]
    assert {m["partition"] for m in told["assetMaterializations"]} == set(HOURS[:2])
    for event in told["assetMaterializations"]:
        assert {"label": "outcome", "text": "unchanged"} in event["metadataEntries"]
    outcomes = {
        c["name"]: c["executionForLatestMaterialization"]
        for c in told["assetChecksOrError"]["checks"]
    }
    assert {name: execution["status"] for name, execution in outcomes.items()} == dict.fromkeys(
        ("stream_equals_batch", "expectations_hold"), "SUCCEEDED"
    )


def test_a_job_that_needs_a_configuration_is_launched_with_that_of_the_docs_and_refused_without(
    filled_bar,
):
    refused = filled_bar.ask(DOCS["Launch"], job="reconcile")["launchRun"]
    assert (
        refused["__typename"] == "RunConfigValidationInvalid"
        and "ops" in refused["errors"][0]["message"]
    )
    (config,) = re.findall(
        r"^\| `reconcile` \| `(\{.*\})` \|$",
        (ROOT / "docs" / "reference" / "http.md").read_text(),
        re.MULTILINE,
    )
    launched = filled_bar.ask(DOCS["Launch"], job="reconcile", config=json.loads(config))[
        "launchRun"
    ]
    assert ended(filled_bar, launched) == "SUCCESS"


@pytest.mark.turn(1)
@pytest.mark.timeout(900)
def test_a_day_is_backfilled_from_the_browser_beside_a_live_stream_that_never_stops(
    ui, page, tmp_path
):
    """24 hours whose rows somebody deleted, at 5,000 events a second; in the end each window is the oracle's."""

    def from_the_browser(settings: Settings, day: Range) -> None:
        first, hours = supervisor.status(settings, "ads").pid, list(day.partitions("hour"))
        # until then it warns before it launches
        until(lambda: told_of_the_day(ui), "Dagster learns what the stream has filled")
        page.goto(f"{ui.address}/assets/campaign_views?view=partitions")
        page.get_by_role("button", name="Materialize").first.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("textbox").first.fill(f"[{hours[0]}...{hours[-1]}]")
        page.keyboard.press("Enter")
        dialog.get_by_text("24 partitions", exact=True).wait_for()
        page.screenshot(path=tmp_path / "backfill.png")
        dialog.get_by_role("button", name="Launch backfill").click()
        until(
            lambda: backfills(ui) and backfills(ui)[0]["status"] != "REQUESTED",
            "the backfill ends",
            seconds=600,
        )
        assert backfills(ui) == [{"status": "COMPLETED_SUCCESS", "numPartitions": 24}]
        page.goto(f"{ui.address}/assets/campaign_views?view=partitions")
        page.get_by_text("Materialized").first.wait_for()
        page.screenshot(path=tmp_path / "backfilled.png")
        status = supervisor.status(settings, "ads")
        assert (status.pid, status.state) == (first, "running")
        commit_log = CommitLog(settings, catalog.load(settings).table("campaign_views")).rewriting()
        rewritten = [c.start for c in commit_log if c.role == "batch" and c.version != NOTHING]
        assert sorted(rewritten) == [partition_range(hour, "hour").start for hour in hours], (
            "each once"
        )

    found = beside.run(ui.settings, 10, from_the_browser, past_rate=2)
    assert found.during, "windows closed while it ran"


def told_of_the_day(ui: UI) -> bool:
    found = ui.ask(
        """{ views: assetNodeOrError(assetKey: {path: ["campaign_views"]}) {
               ... on AssetNode { partitionStats { numMaterialized } } }
             campaigns: assetNodeOrError(assetKey: {path: ["campaigns"]}) {
               ... on AssetNode { assetMaterializations(limit: 1) { timestamp } } } }"""
    )
    return found["views"]["partitionStats"]["numMaterialized"] >= 24 and bool(
        found["campaigns"]["assetMaterializations"]
    )


def backfills(ui: UI) -> list[dict]:
    query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { status numPartitions } } } }"
    return ui.ask(query)["partitionBackfillsOrError"]["results"]


@pytest.mark.turn(2)
def test_a_streaming_job_is_started_seen_killed_healed_and_stopped_from_the_ui(ui, page, tmp_path):
    settings, ads = ui.settings, PRODUCER
    kafka_broker.start(settings, jars.resolve(settings.jars))
    try:
        kafka_broker.ensure_topics(settings, {ads.topic: ads.workload.partitions}, TOPIC)
        begin = 1_767_225_600_000
        send(ads.records(ads.workload, begin, begin + 60_000), ads.topic, client_config(settings))
        launched(page, ui, "start_ads")
        until(lambda: at_work(settings), "the job runs")
        first = supervisor.status(settings, "ads")
        os.kill(first.pid, signal.SIGKILL)
        until(
            lambda: at_work(settings) and supervisor.status(settings, "ads").pid != first.pid,
            "the sensor heals it",
        )
        until(lambda: "its process died" in last_told(ui), "Dagster learns why")
        page.goto(f"{ui.address}/assets/streaming_job/ads?view=events")
        page.get_by_text("its process died").first.wait_for()
        page.screenshot(path=tmp_path / "healed.png")

        assert ended(ui, ui.ask(DOCS["Launch"], job="restart_ads")["launchRun"]) == "SUCCESS"
        assert at_work(settings) and any(
            e.why.startswith("restart asked for") for e in desired.history(settings, "ads")
        )
        launched(page, ui, "stop_ads")
        until(lambda: supervisor.status(settings, "ads").state == "stopped", "the job stops")
    finally:
        supervisor.stop(settings, "ads", now=True)
        kafka_broker.stop(settings)


def launched(page, ui: UI, job: str) -> None:
    """Runs a job as a person does: its launchpad, one click."""
    page.goto(f"{ui.address}/locations/__repository__@lakehouse/jobs/{job}")
    page.get_by_text("Launchpad", exact=True).click()
    # once it is enabled
    page.get_by_role("button", name=re.compile("launch run", re.IGNORECASE)).click()


def last_told(ui: UI) -> str:
    """What the node of the streaming job says of itself, as text."""
    return json.dumps(ui.ask(DOCS["Job"], pipeline="ads")["assetNodeOrError"]["assetObservations"])


def at_work(settings: Settings) -> bool:
    status = supervisor.status(settings, "ads")
    return status is not None and status.state == "running"
