"""The exporter over a real lakehouse, with a job that runs and then is killed; dashboards and alerts against what it shows."""

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import psutil
import pytest
from deltalake import DeltaTable
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as text_format
from pyspark.sql import functions as F
from typer.testing import CliRunner

from examples.visits import tables as visits
from lakehouse.cli import main
from lakehouse.declare import catalog
from lakehouse.errors import DeclarationError, SettingsError
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import producer as sensors
from lakehouse.examples.sensors import tables as tables_of_sensors
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Workload
from lakehouse.reconcile import reconciliation
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate, certificates, certify
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.session import Session
from lakehouse.testing import Stage, change_event
from streaming_jobs import progress
from streaming_jobs.exporters import metrics
from streaming_jobs.exporters.metric_families import DECLARED
from streaming_jobs.exporters.metrics import LastWindows
from streaming_jobs.supervision import desired, supervisor
from support import ROOT, changed_accounts

BEGIN = 1_767_225_600_000  # 2026-01-01T00:00:00Z
WORKLOAD = Workload(
    seed=7, rate=20, disorder_ms=2_000, late_share=0, malformed_share=0.05, partitions=2
)
PATHS = 120  # more than the keys that are shown
IN_TENTHS = """

@window_table(layer="gold", window=tumbling("10 minutes"), keys=["sensor_id"], late="side_output")
def sensor_tenths(valid_readings):
    return valid_readings.groupBy("window", "sensor_id").agg(F.count("*").alias("readings"))
"""  # long windows, so Spark keeps state for them
WITH_LOOKUP = """
from lakehouse import files, lookup, reference_table
from lakehouse.storage.lakehouse import Lakehouse

maker_file = files({path!r}, schema="sensor_id STRING, maker STRING")


@reference_table(layer="silver", refresh="1 second")
def makers(maker_file):
    return maker_file


@lookup(schema="known BOOLEAN")
def owner(sensor_id):
    return {{"known": True}}


@row_table(layer="silver", lookup=owner)
def owned_readings(valid_readings):
    return valid_readings.withColumn("known", F.col("owner.known")).drop("owner")
"""
Labels = dict[str, str]
Exposed = dict[str, list[tuple[Labels, float]]]


def beside_a_job(test: Callable) -> Callable:
    """Of the tests that look at one running job: they take turns at it."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.parallel,
        pytest.mark.timeout(900),  # the first one starts the job, beside two other workers
        pytest.mark.xdist_group("metrics"),
    ):
        test = mark(test)
    return test


class Running(NamedTuple):
    """A lakehouse, the exposition while its job ran, and how many records the job had been sent."""

    settings: Settings
    text: str
    sent: int


@pytest.fixture(scope="module")
def running(spark, tmp_path_factory, quick_jvm) -> Iterator[Running]:
    root, modules = tmp_path_factory.mktemp("metrics"), tmp_path_factory.mktemp("modules")
    (modules / "makers.csv").write_text("sensor_id,maker\nsensor-1,a\n")
    more = IN_TENTHS + WITH_LOOKUP.format(path=str(modules / "makers.csv"))
    (modules / "sensors.py").write_text(inspect.getsource(tables_of_sensors) + more)
    (modules / "changed_accounts.py").write_text(inspect.getsource(changed_accounts))
    examples = ("lakehouse.examples.ads.tables", "examples.visits.tables")
    tables = ("sensors", "changed_accounts", *examples)
    nightly = {"visits": "scheduled 0 3 * * *"}
    settings = Settings(
        root=root,
        jars=from_environment().jars,
        tables=tables,
        spark_conf=quick_jvm,
        freshness=nightly,
    )
    desired.wish(settings, "visits", "running", "a test")
    kafka_broker.start(settings, jars.resolve(settings.jars))
    path = pytest.MonkeyPatch()
    path.syspath_prepend(modules)
    path.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
    try:
        sent = produce(settings, 0, 3)
        # the job's process takes as long to start as the other tables to be filled
        with ThreadPoolExecutor() as beside:
            job = beside.submit(supervisor.start, settings, "sensors", wait=400)
            views_and_visits(Stage(spark, root, ads, visits))
            read_a_database(Stage(spark, root, changed_accounts))
            job.result()
        session = Session(settings, catalog.load(settings), spark)
        derived = [
            session.catalog.table(n) for n in ("valid_readings", "sensor_averages", "sensor_trends")
        ]
        for minute in range(3, 60):  # windows close by what arrives after them
            if all(any(c.written for c in session.commit_log(t).by_stream()) for t in derived):
                break
            sent += produce(settings, minute, minute + 1)
            awaited(
                lambda expected=sent: arrived(settings, "sensor_readings") >= expected, "recorded"
            )
        reconciliation.reconcile(session, derived[1])
        awaited(
            lambda: of_query(settings, "sensor_readings").rows >= sent, "told by the status file"
        )
        awaited(
            lambda: of_query(settings, "sensor_tenths").state_rows,
            "state of Spark's in the status file",
        )
        awaited(lambda: of_query(settings, "owned_readings").lookups, "questions to the service")
        awaited(lambda: progress.read(settings, "sensors").references, "the refreshed table")
        yield Running(settings, exposition(settings), sent)
    finally:
        now = supervisor.status(settings, "sensors")
        if now and now.alive:
            psutil.Process(now.pid).kill()
        kafka_broker.stop(settings)
        path.undo()
        sys.modules.pop("sensors", None)


def views_and_visits(stage: Stage) -> None:
    """A window of each table of ads and visits: few rows, but one page more often than there are keys to show."""
    ad = stage.rows("campaigns").head().ad_id
    views = [{"ad_id": ad, "event_type": "view", "event_time": f"{BEGIN + i}"} for i in range(7)]
    stage.feed("ad_events", views)
    stage.advance("ad_events", views[0] | {"event_time": f"{BEGIN + 60_000}"})
    pages = [request(f"/page/{i:03}", f"192.0.2.{i % 5}") for i in range(PATHS)]
    stage.feed("requests", [*pages, request("/page/119", "192.0.2.7")])
    stage.advance("requests", request("/", at="01:00"))
    stage.run("campaign_views", "visits", "visitors_by_country", "page_views")


def read_a_database(stage: Stage) -> None:
    account = {"id": 1, "owner": "a", "balance": Decimal(1)}
    sent = datetime.fromtimestamp(BEGIN / 1000, UTC)
    stage.feed("account_log", [change_event("r", account, position=1, sent=sent)])


def request(path: str, ip: str = "192.0.2.1", at: str = "00:00") -> str:
    return f'{ip} - - [01/Jan/2026:{at}:01 +0000] "GET {path} HTTP/1.1" 200 5 "-" "a"'


def produce(settings: Settings, start_minute: int, end_minute: int) -> int:
    records = sensors.records(WORKLOAD, BEGIN + start_minute * 60_000, BEGIN + end_minute * 60_000)
    kafka_broker.ensure_topics(settings, {"sensor-readings": WORKLOAD.partitions}, TOPIC)
    return send(records, "sensor-readings", client_config(settings)).sent


def arrived(settings: Settings, name: str) -> int:
    return sum(
        c.arrived for c in CommitLog(settings, catalog.load(settings).table(name)).by_stream()
    )


def of_query(settings: Settings, table: str) -> progress.QueryStatus:
    return next(q for q in progress.read(settings, "sensors").queries if q.table == table)


def awaited(condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def exposition(settings: Settings) -> str:
    return generate_latest(metrics.registry(Lakehouse(settings, catalog.load(settings)))).decode()


def parsed(text: str, by: Callable = text_string_to_metric_families) -> Exposed:
    """Sample name -> labels and value of each series, as a parser reads them: by default that of OpenMetrics."""
    found: Exposed = {}
    for family in by(text):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(exposed: Exposed, name: str, **labels: str) -> float:
    (found,) = [v for known, v in exposed[name] if labels.items() <= known.items()]
    return found


@pytest.fixture(scope="module")
def exposed(running) -> Exposed:
    return parsed(running.text)


# ---- what is shown


@beside_a_job
def test_every_declared_metric_is_shown_with_its_labels(exposed):
    for declared in DECLARED:
        labels = {*declared.labels, declared.name} if declared.states else {*declared.labels}
        assert declared.name in exposed, f"{declared.name}: no sample"
        assert all(known.keys() == labels for known, _ in exposed[declared.name])
    assert {v for _, v in exposed["lakehouse_scrape_errors_total"]} == {0}


@beside_a_job
def test_a_running_job_as_it_stands(running, exposed):
    status, job = supervisor.status(running.settings, "sensors"), {"pipeline": "sensors"}
    assert value(exposed, "lakehouse_job_up", **job) == 1
    assert value(exposed, "lakehouse_job_state", lakehouse_job_state="running", **job) == 1
    assert (
        value(exposed, "lakehouse_job_state", lakehouse_job_state="never_ran", pipeline="ads") == 1
    )
    started = datetime.fromisoformat(status.started_at).timestamp()
    assert value(exposed, "lakehouse_job_start_time_seconds", **job) == started
    assert 0 <= value(exposed, "lakehouse_job_heartbeat_age_seconds", **job) < 60
    assert value(exposed, "lakehouse_job_resident_memory_bytes", process="jvm", **job) > 50e6
    assert value(exposed, "lakehouse_table_rows_total", table="sensor_readings") == running.sent
    assert value(exposed, "lakehouse_table_quarantined_rows_total", table="sensor_readings") > 0
    assert value(exposed, "lakehouse_table_dropped_by_spark_total", table="sensor_averages") == 0
    assert value(exposed, "lakehouse_table_state_bytes", table="sensor_tenths") > 0
    lags = [known for known, _ in exposed["lakehouse_table_lag_records"]]
    assert sorted((lag["topic"], lag["partition"]) for lag in lags) == [
        ("sensor-readings", "0"),
        ("sensor-readings", "1"),
    ]


@beside_a_job
def test_the_frontier_and_the_verdict_are_those_of_commit_log_and_log_table(running, exposed):
    averages = {"pipeline": "sensors", "table": "sensor_averages"}
    at = value(exposed, "lakehouse_table_frontier_timestamp_seconds", **averages)
    commit_log = CommitLog(
        running.settings, catalog.load(running.settings).table("sensor_averages")
    )
    assert at in {c.frontier.timestamp() for c in commit_log.by_stream()}
    assert value(exposed, "lakehouse_table_frontier_delay_seconds", **averages) == pytest.approx(
        time.time() - at, abs=300
    )
    verdict = "lakehouse_certificate_verdict"
    assert {s[verdict]: v for s, v in exposed[verdict] if s["table"] == "sensor_averages"} == {
        "EQUAL": 1, "DIFFERENT": 0, "PENDING": 0, "OPEN": 0, "UNVERIFIABLE": 0,
    }  # fmt: skip
    recorded = len(
        certificates(running.settings, catalog.load(running.settings).table("sensor_averages"))
    )
    assert (
        value(exposed, "lakehouse_certificates_total", verdict="EQUAL", **averages) == recorded > 0
    )
    assert (
        BEGIN / 1000
        < value(exposed, "lakehouse_certificate_reconciled_until_timestamp_seconds", **averages)
        <= at
    )


@beside_a_job
def test_results_are_the_rows_of_the_window_that_closed_last(spark, running, exposed):
    session = Session(running.settings, catalog.load(running.settings), spark)
    for name, key, column in (
        ("campaign_views", "campaign_id", "views"),
        ("visitors_by_country", "country", "visitors"),
    ):
        rows = session.read(session.catalog.table(name)).withColumn("end", F.col("window.end"))
        last = rows.where(F.col("end") == rows.agg(F.max("end")).head()[0]).collect()
        shown = {known[key]: v for known, v in exposed[f"lakehouse_result_{name}_{column}"]}
        assert shown == {row[key]: float(row[column]) for row in last} and shown
        end = value(exposed, "lakehouse_results_window_end_timestamp_seconds", table=name)
        assert end == last[0].end.timestamp()
    temperatures = exposed["lakehouse_result_sensor_averages_average_c"]
    assert all(
        re.fullmatch(r"sensor-\d+", known["sensor_id"]) and -60 <= v <= 60
        for known, v in temperatures
    )


@beside_a_job
def test_of_many_keys_the_greatest_values_are_shown_and_the_others_counted(exposed):
    views = {known["path"]: v for known, v in exposed["lakehouse_result_page_views_views"]}
    assert len(views) == 100 and views["/page/119"] == 2 == max(views.values())
    assert value(exposed, "lakehouse_results_left_out", table="page_views") == PATHS - 100


@beside_a_job
def test_a_killed_job_is_dead_and_its_counts_stay(running, exposed):
    status = supervisor.status(running.settings, "sensors")
    os.kill(status.pid, signal.SIGKILL)
    psutil.wait_procs(
        [psutil.Process(status.pid)] if psutil.pid_exists(status.pid) else [], timeout=10
    )
    awaited(lambda: not progress.is_alive(status.jvm, status.jvm_started), "end of its JVM")
    dead = parsed(exposition(running.settings))
    assert value(dead, "lakehouse_job_up", pipeline="sensors") == 0
    assert value(dead, "lakehouse_job_state", pipeline="sensors", lakehouse_job_state="dead") == 1
    assert value(dead, "lakehouse_table_rows_total", table="sensor_readings") == running.sent
    assert {
        v for known, v in dead["lakehouse_table_query_active"] if known["pipeline"] == "sensors"
    } == {0}
    assert "lakehouse_table_rows_per_second" not in dead, "how fast it was says nothing about now"
    assert "lakehouse_job_resident_memory_bytes" not in dead


# ---- the exporter


@pytest.fixture
def settings(filled, tmp_path) -> Settings:
    """A lakehouse without jobs, to be changed."""
    root = shutil.copytree(filled, tmp_path / "root")
    return Settings(root=root, tables=("lakehouse.examples.sensors.tables",), metrics_port=0)


def test_what_cannot_be_read_is_counted_and_costs_only_itself(settings, capfd):
    folder = layout.job_folder(settings, "sensors")
    folder.mkdir(parents=True)
    (folder / "status.json").write_text("{")
    known = metrics.registry(Lakehouse(settings, catalog.load(settings)))
    for scrapes in (1, 2):
        shown = parsed(generate_latest(known).decode())
        assert value(shown, "lakehouse_scrape_errors_total", part="job") == scrapes
        assert value(shown, "lakehouse_scrape_errors_total", part="table") == 0
        assert (
            value(shown, "lakehouse_table_frontier_timestamp_seconds", table="sensor_averages") > 0
        )
        assert len(shown["lakehouse_result_sensor_averages_readings"]) > 0
    said = capfd.readouterr().err
    assert (
        said.count("JSONDecodeError") == 1
        and said.count(f"metrics of job: JobError: file={folder / 'status.json'}") == 2
    )


def test_an_empty_lakehouse_has_metrics_and_stays_empty(tmp_path):
    shown = parsed(exposition(Settings(root=tmp_path / "new")))
    assert {known["pipeline"]: v for known, v in shown["lakehouse_job_up"]} == {
        "sensors": 0,
        "ads": 0,
    }
    assert {v for _, v in shown["lakehouse_scrape_errors_total"]} == {0}
    assert not (tmp_path / "new").exists(), "looking makes nothing"


def test_once_prints_what_the_endpoint_serves_on_loopback(settings):
    environment = to_environment(settings)
    once = CliRunner().invoke(main.app(), ["metrics", "--once"], env=environment)
    assert once.exit_code == 0, once.stderr
    command = [sys.executable, "-m", "lakehouse", "metrics"]
    with subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    ) as exporter:
        url = exporter.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
        (listening,) = psutil.Process(exporter.pid).net_connections()
        assert listening.laddr.ip == "127.0.0.1"
        asked = urllib.request.Request(
            url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            served = answer.read().decode()
        exporter.send_signal(signal.SIGINT)
        assert exporter.wait(10) == 0
    series = [
        {name: len(found) for name, found in parsed(text, by).items()}
        for text, by in ((once.stdout, text_format), (served, text_string_to_metric_families))
    ]
    assert series[0] == series[1] and len(series[0]) > 10
    promtool = shutil.which("promtool")
    assert promtool, "no promtool on the PATH (Debian and Ubuntu: apt install prometheus)"
    check = [promtool, "check", "metrics"]
    judged = subprocess.run(check, input=once.stdout, capture_output=True, text=True, timeout=60)
    assert judged.returncode == 0, judged.stderr


def test_a_port_that_is_taken_is_refused_with_the_address(settings):
    loaded = catalog.load(settings)
    server, _ = metrics.serve(Lakehouse(settings, loaded))
    try:
        with pytest.raises(
            SettingsError, match=r"metrics_host=127\.0\.0\.1, metrics_port=\d+: cannot listen there"
        ):
            metrics.serve(Lakehouse(replace(settings, metrics_port=server.server_port), loaded))
    finally:
        server.shutdown()
        server.server_close()


def test_the_verdicts_of_ranges_are_summed_as_they_come_and_after_the_log_table_was_compacted(
    tmp_path,
):
    settings, begin = Settings(root=tmp_path), datetime(2026, 1, 1, tzinfo=UTC)
    kept = Verdicts(settings)
    assert kept.now() == {}

    def given(verdict: str, first: int, last: int, minutes: int) -> None:
        start, end = begin + timedelta(hours=first), begin + timedelta(hours=last)
        at = begin + timedelta(minutes=minutes)
        certify(
            settings,
            [Certificate("t", start, end, verdict, 1, 1, 0, "", "", None, 1, {}, "", at, 0.1)],
        )

    given("EQUAL", 0, 4, 0)
    given("DIFFERENT", 1, 2, 1)
    given("EQUAL", 2, 3, 2)
    found = kept.now()["t"]
    assert (found.verdict, found.counts, len(found.different)) == (
        "EQUAL",
        {"EQUAL": 2, "DIFFERENT": 1},
        1,
    )
    assert found.reconciled_until == begin + timedelta(hours=4)
    given("EQUAL", 0, 3, 3)
    assert not kept.now()["t"].different and kept.now()["t"].counts["EQUAL"] == 3
    log_table = DeltaTable(str(tmp_path / "_commit_log" / "_certificates"))
    log_table.optimize.compact()
    log_table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert kept.now() == Verdicts(settings).now() and kept.now()["t"].counts == {
        "EQUAL": 3,
        "DIFFERENT": 1,
    }


def test_a_metric_that_is_no_column_of_numbers_is_named(settings):
    loaded = catalog.load(settings)
    for column, said in (
        ("median_c", "it has no such column; one of"),
        ("sensor_id", "str is no number; name a column of numbers"),
    ):
        averages = replace(loaded.table("sensor_averages"), metrics=(column,))
        with pytest.raises(DeclarationError, match=said):
            LastWindows(settings).last(averages)


def test_a_name_that_two_columns_would_have_is_refused(settings):
    averages = catalog.load(settings).table("sensor_averages")
    named = {
        "a": replace(averages, name="a", metrics=("b_c",)),
        "a_b": replace(averages, name="a_b", metrics=("c",)),
    }
    with pytest.raises(DeclarationError, match="lakehouse_result_a_b_c"):
        metrics.registry(Lakehouse(settings, catalog.Catalog({}, named)))


# ---- dashboards, alerts, docs

FUNCTIONS = {
    "absent",
    "changes",
    "delta",
    "deriv",
    "increase",
    "max",
    "rate",
    "sum",
    "time",
    "topk",
}
WORDS = {"and", "or", "unless", "bool", "offset"}
GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def checked(expression: str, exposed: Exposed, shown: str = "") -> None:
    """Fails unless each metric, label and label value of a PromQL expression is exposed, and each label in `shown` is left."""
    metrics_named, bare = set(), re.sub(r"\[[^\]]*\]", "", expression)
    for name, matchers in SELECTOR.findall(bare):
        assert name in exposed, f"{name}: no such metric in {expression}"
        for label, operator, wanted in MATCHER.findall(matchers):
            values = {known.get(label) for known, _ in exposed[name]} - {None}
            assert values, f"{name} has no label {label}: {expression}"
            if operator in ("=", "=~") and "$" not in wanted:
                assert all(part in values for part in wanted.split("|")), (
                    f"{label}={wanted}: one of {values}"
                )
    grouped = [label.strip() for labels in GROUPED.findall(bare) for label in labels.split(",")]
    rest = re.sub(r'"[^"]*"', "", re.sub(r"\{[^}]*\}", "", GROUPED.sub("", bare)))
    for name, called in re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\()?", rest):
        if called and name not in WORDS:
            assert name in FUNCTIONS, f"{name}: no function of this list in {expression}"
        elif name not in WORDS:
            assert name in exposed, f"{name}: no such metric in {expression}"
            metrics_named.add(name)
    assert metrics_named, f"{expression}: it names no metric"
    labels = {
        name: {label for known, _ in exposed[name] for label in known} for name in metrics_named
    }
    for label in grouped:
        assert all(label in known for known in labels.values()), (
            f"{label}: a label of {labels} in {expression}"
        )
    left = set(grouped) if re.match(r"(sum|max)\b", expression) else set.union(*labels.values())
    for label in re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown):
        assert label in left, f"{label}: not among the labels {left} of {expression}"


@beside_a_job
@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("lakehouse_job_upp == 1", ""),
        ('lakehouse_job_up{pipelin="x"}', ""),
        ('lakehouse_certificate_verdict{lakehouse_certificate_verdict="DIFERENT"} == 1', ""),
        ("sum by (topic) (lakehouse_table_rows_per_second)", ""),
        ("rates(lakehouse_table_rows_total[5m])", ""),
        ("rate(lakehouse_table_row_total[5m])", ""),
        ("sum(lakehouse_table_rows_per_second)", "{{table}}"),
        ("lakehouse_job_up", "{{ $labels.table }}"),
        ("time()", ""),
    ],
)
def test_the_check_finds_what_is_wrong(exposed, expression, shown):
    with pytest.raises(AssertionError):
        checked(expression, exposed, shown)


@beside_a_job
@pytest.mark.parametrize("name", ["jobs", "results"])
def test_every_panel_of_a_dashboard_shows_what_is_exposed(exposed, name):
    dashboard = json.loads((ROOT / "ops" / "grafana" / f"{name}.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 8 and len({panel["id"] for panel in dashboard["panels"]}) == len(
        dashboard["panels"]
    )
    for panel in panels:
        assert panel["title"] and panel["description"] and panel["targets"]
        for target in panel["targets"]:
            checked(target["expr"], exposed, target["legendFormat"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(
                r"label_values\((.*), (\w+)\)", variable["query"]["query"]
            ).groups()
            checked(selector, exposed, f"{{{{{label}}}}}")


@beside_a_job
def test_every_alert_asks_for_what_is_exposed_and_the_docs_list_it(exposed):
    import yaml

    groups = yaml.safe_load((ROOT / "ops" / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        checked(rule["expr"], exposed, " ".join(rule["annotations"].values()))
    documented = re.findall(
        r"^\| (Lakehouse\w+) \|",
        (ROOT / "docs" / "operate" / "alerts.md").read_text(),
        re.MULTILINE,
    )
    assert documented == [rule["alert"] for rule in rules]
    config = yaml.safe_load((ROOT / "ops" / "prometheus" / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    ((scrape,),) = (job["static_configs"] for job in config["scrape_configs"])
    (target,) = scrape["targets"]
    assert target == f"{Settings().metrics_host}:{Settings().metrics_port}"
