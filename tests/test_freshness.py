"""One knob a pipeline: what it may say, when its schedule ticks, what is done about a scheduled job; the same tables."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import dagster as dg
import psutil
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import definitions
from lakehouse.cli import main
from lakehouse.cron import cron
from lakehouse.declare import catalog
from lakehouse.durations import duration
from lakehouse.errors import JobError, SettingsError
from lakehouse.freshness import freshness
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage import layout
from lakehouse.storage.commit_log import CommitLog, frontier
from lakehouse.storage.digest import digest
from lakehouse.storage.files import replace_file
from lakehouse.storage.lake import Lake
from streaming_jobs import control_loop, desired, metrics, progress, scheduled, supervisor
from streaming_jobs.healing import WANTED, Observed, decide
from streaming_jobs.progress import JobStatus
from support.observed import BOUNDS, DEAD, FAILED, NOW, RUN, STOP, WELL, ago, restarted
from support.sensors_job import arrived, awaited, produce

SENSORS = ("lakehouse.examples.sensors.tables",)
NIGHTLY = {"sensors": "scheduled 0 3 * * *"}


@pytest.fixture
def settings(tmp_path) -> Settings:
    """An empty lakehouse whose pipeline is scheduled, and without a broker."""
    return Settings(root=tmp_path, jars=from_environment().jars, tables=SENSORS, freshness=NIGHTLY)


def spoken(settings: Settings, state: progress.State, pid: int, **given: object) -> None:
    """The status file of a process."""
    born, at = psutil.Process(pid).create_time(), progress.now()
    known = {"started_at": at, "heartbeat": at, "freshness": NIGHTLY["sensors"]} | given
    status = JobStatus("sensors", pid, born, 0, 0.0, state, **known)
    replace_file(layout.job_folder(settings, "sensors") / "status.json", asdict(status))


# ---- the setting


def test_the_knobs_are_read_and_handed_on_to_other_processes():
    given = {
        "LAKEHOUSE_FRESHNESS__SENSORS": "every  30 seconds",
        "LAKEHOUSE_FRESHNESS__ADS": " scheduled */10 9-17 * * 1-5",
    }
    settings = from_environment(given)
    assert settings.freshness_of("sensors").interval == timedelta(seconds=30)
    assert settings.freshness_of("ads").cron.text == "*/10 9-17 * * 1-5"
    assert str(settings.freshness_of("visits")) == "continuous"
    assert from_environment(to_environment(settings)) == settings
    assert from_environment(to_environment(Settings())).freshness == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'continuous', 'every <interval>'"),
        ("sometimes", "'continuous', 'every <interval>'"),
        ("every", "a number and a unit"),
        ("every 0 seconds", "longer than nothing"),
        ("scheduled 0 3 * *", r"\(not five fields\)"),
        ("scheduled 60 3 * * *", r"\(minute\)"),
        ("scheduled 5-2 * * * *", r"\(minute\)"),
        ("scheduled */0 * * * *", r"\(minute\)"),
        ("scheduled 0 0 31 2 *", r"\(day-of-month\)"),
    ],
)
def test_a_knob_that_cannot_be_kept_stops_at_the_start(text, said):
    with pytest.raises(SettingsError, match=f"freshness.*{said}"):
        from_environment({"LAKEHOUSE_FRESHNESS__SENSORS": text})


def test_a_pipeline_that_is_not_declared_is_refused_with_the_names_of_those_that_are():
    with pytest.raises(
        SettingsError,
        match=r"freshness of sensor='continuous': there is no such pipeline.*one of sensors, ads",
    ):
        catalog.load(Settings(freshness={"sensor": "continuous"}))


def test_dagster_ticks_at_the_minutes_that_are_told():
    expressions = ("*/10 * * * *", "5,35 9-17 * * 1-5", "0 0 29 2 *", "15 */6 1-7 * *", "0 12 1 * 1", "0 0 * * 7", "0 0 * * 5-7",
                   "0 0 1-31 * 2", "0 0 30 1,3 *", "59 23 31 12 *", "0 0 * * MON")  # fmt: skip
    for text in expressions:
        for moment in (
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2027, 2, 28, 23, 59, 30, tzinfo=UTC),
        ):
            later = (moment + timedelta(microseconds=1)).timestamp()
            ticks = list(islice(schedule_execution_time_iterator(later, text, "UTC"), 5))
            assert [cron(text).after(m) for m in (moment, *ticks)][:5] == ticks, text


def test_the_longest_time_between_two_runs_is_known():
    longest = {
        "*/10 9-17 * * 1-5": timedelta(hours=63, minutes=10),
        "0 3 1 * *": timedelta(days=31),
    }
    assert {text: cron(text).longest for text in longest} == longest


def test_only_the_head_of_a_pipeline_waits_for_the_interval():
    settings = Settings(tables=SENSORS, freshness={"sensors": "every 10 minutes"})
    lake = Lake(None, settings, catalog.load(settings))
    paces = {table.name: lake.pace(table) for table in lake.catalog}
    assert paces.pop("sensor_readings") == timedelta(minutes=10)
    assert set(paces.values()) == {duration(settings.fresh_within) / 4}


# ---- supervision


@pytest.mark.parametrize(
    ("wanted", "seen", "action", "why"),
    [
        (None, Observed("sensors"), "nothing", "nobody has asked"),
        (
            RUN,
            Observed("sensors"),
            "nothing",
            "the next run of its schedule is due at 2026-01-02T03:00:00Z",
        ),
        (RUN, replace(DEAD, state="stopped"), "nothing", "is due at 2026-01-02T03:00:00Z"),
        (RUN, DEAD, "nothing", "the last one ended as dead, without an error message"),
        (RUN, FAILED, "nothing", "the last one ended as failed, OSError: x"),
        (RUN, WELL, "nothing", "it is running"),
        (RUN, replace(WELL, heartbeat=ago(seconds=61)), "kill", "no sign of life"),
        (RUN, replace(WELL, busy=("t", ago(minutes=11))), "kill", "a micro-batch of t has run"),
        (STOP, WELL, "stop", "it is to be stopped"),
        (STOP, DEAD, "nothing", "it is stopped"),
    ],
)
def test_what_is_done_about_a_job_that_is_scheduled(wanted, seen, action, why):
    for history in ((), restarted(3, 2, 1)):
        decision = decide(
            wanted, seen, history, NOW, BOUNDS, freshness(NIGHTLY["sensors"], "sensors")
        )
        assert decision.action == action and why in decision.why, decision


def test_a_job_whose_schedule_is_taken_away_is_started_and_not_called_restarted():
    done = replace(DEAD, state="stopped", scheduled=True)
    decision = decide(RUN, done, (), NOW, BOUNDS)
    assert (decision.action, decision.why, decision.counted) == ("start", WANTED, False)


def test_a_run_that_hangs_is_ended_by_whoever_waits_for_it(settings):
    desired.wish(settings, "sensors", "running", "a test")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as hanging:
        long_ago = (datetime.now(UTC) - timedelta(minutes=2)).isoformat()
        spoken(settings, "running", hanging.pid, started_at=long_ago, heartbeat=long_ago)
        with pytest.raises(
            JobError,
            match="its run failed, and the next one tries again from where it was; no sign of life",
        ):
            scheduled.await_end(settings, "sensors", hanging.pid)


def test_a_run_that_nobody_wants_is_refused_and_one_that_fails_says_why(settings):
    with pytest.raises(
        JobError,
        match="off its schedule, nobody has asked for it; `lakehouse stream start sensors`",
    ):
        scheduled.run(settings, "sensors", by="a test")
    desired.wish(settings, "sensors", "stopped", "ann")
    with pytest.raises(JobError, match="stopped by ann at"):
        scheduled.run(settings, "sensors", by="a test")
    desired.wish(settings, "sensors", "running", "ann")
    with pytest.raises(JobError, match=r"its run failed.*none is running"):  # no broker
        scheduled.run(settings, "sensors", by="a test")
    seen = control_loop.step(settings, "sensors")
    assert seen.action == "nothing" and "none is running" in seen.why


# ---- what is shown


def test_status_and_metrics_tell_of_the_last_run_and_of_the_next(settings):
    environment, app = to_environment(settings), main.app()

    def told() -> str:
        return CliRunner().invoke(app, ["stream", "status"], env=environment).stdout

    assert (
        "sensors: scheduled 0 3 * * *; no run yet; " in told()
        and "nobody has asked for it" in told()
    )
    desired.wish(settings, "sensors", "running", "a test")
    due = scheduled.next_run(settings, "sensors")
    assert timedelta(0) < due - datetime.now(UTC) <= timedelta(days=1) and (
        due.hour,
        due.minute,
    ) == (3, 0)
    assert f"next run {due:%Y-%m-%d}T03:00:00Z" in told() and "Dagster" not in told()
    samples = {
        s.name: s.value
        for f in metrics.registry(settings, catalog.load(settings)).collect()
        for s in f.samples
    }
    assert samples["lakehouse_job_next_run_timestamp_seconds"] == due.timestamp()
    assert "lakehouse_job_interval_seconds" not in samples, "no commit is expected of it"
    at = "2026-01-01T02:00:00+00:00"
    replace_file(layout.job_folder(settings, "sensors") / "desired.json",
                          {"state": "running", "since": at, "by": "a test"})  # fmt: skip
    assert "next run 2026-01-01T03:00:00Z (is Dagster's daemon up?)" in told()


# ---- Dagster


def test_a_scheduled_pipeline_has_a_schedule_that_is_on_and_the_others_have_none(settings):
    built = definitions.build(replace(settings, tables=(*SENSORS, "lakehouse.examples.ads.tables")))
    dg.Definitions.validate_loadable(built)
    schedule = built.resolve_schedule_def("run_sensors")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    assert (schedule.cron_schedule, schedule.execution_timezone, schedule.job_name) == (
        "0 3 * * *",
        "UTC",
        "run_sensors",
    )
    (op,) = built.resolve_job_def("run_sensors").nodes
    assert op.definition.pool == "run_sensors", "one run at a time"
    assert not [s for s in built.schedules if s.name == "run_ads"]


def test_a_tick_runs_the_job_if_it_is_to_run_and_does_not(settings):
    schedule = definitions.build(settings).resolve_schedule_def("run_sensors")

    def tick() -> dg.RunRequest | str:
        at = datetime(2026, 1, 1, 3, tzinfo=UTC)
        found = schedule.evaluate_tick(dg.build_schedule_context(scheduled_execution_time=at))
        return found.run_requests[0] if found.run_requests else found.skip_message

    assert "nobody has asked for it" in tick()
    desired.wish(settings, "sensors", "running", "a test")
    assert tick().run_key == "2026-01-01-03-00"
    spoken(settings, "running", psutil.Process().pid)
    assert "goes on" in tick()
    spoken(settings, "running", psutil.Process().pid, freshness="continuous")
    assert tick().run_key, "it is drained, and run"


def test_a_run_that_fails_fails_in_dagster_with_its_error(settings, monkeypatch):
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    desired.wish(settings, "sensors", "running", "a test")
    result = (
        definitions.build(settings)
        .resolve_job_def("run_sensors")
        .execute_in_process(raise_on_error=False)
    )
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    told = failure.user_failure_data.description
    assert "its run failed" in told and "none is running" in told


# ---- the same tables


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_the_tables_are_the_same_whatever_the_knob_says(tmp_path, spark, quick_jvm, monkeypatch):
    """One topic, two lakehouses: one takes it by one knob after the other, on the same checkpoints, the other continuously."""
    home = Settings(
        root=tmp_path / "broker", jars=from_environment().jars, tables=SENSORS, spark_conf=quick_jvm
    )
    address = kafka_broker.start(home, jars.resolve(home.jars)).bootstrap_servers
    # several micro-batches, for in one alone no window would close
    plain = replace(
        home, root=tmp_path / "plain", bootstrap_servers=address, max_offsets_per_trigger=6_000
    )
    turned = replace(home, root=tmp_path / "turned", bootstrap_servers=address)
    # so long, for Spark counts intervals from the epoch: the end of a short one would come within the story, now and then
    every = replace(turned, freshness={"sensors": "every 7 days"})
    try:
        sent = [produce(home, 0, 1)]
        supervisor.start(turned, "sensors", wait=180)
        awaited(lambda: caught_up(turned, sum(sent)), "the first lot")
        done = threading.Event()
        with ThreadPoolExecutor() as beside:
            trickle = beside.submit(trickled, home, turned, 1, done)
            try:
                # in several steps, so that there is a next one that closes what was read first
                run_in_dagster(
                    replace(turned, freshness=NIGHTLY, max_offsets_per_trigger=sent[0] // 4),
                    monkeypatch,
                )
            finally:
                done.set()
            sent += trickle.result()

        # its first micro-batch comes at once, the next on a Thursday
        supervisor.start(every, "sensors", wait=180)
        awaited(lambda: caught_up(every, sum(sent)), "what the scheduled run left")
        supervisor.start(plain, "sensors", wait=180)
        awaited(lambda: caught_up(plain, sum(sent)), "all, continuously", 300)
        supervisor.stop(plain, "sensors")
        produce(home, len(sent), len(sent) + 1)
        not_hung(every)
        stopped = supervisor.stop(every, "sensors")
        assert stopped.state == "stopped" and {q.dropped_by_spark for q in stopped.queries} == {0}
        assert arrived(every, "sensor_readings") == sum(sent), (
            "the time of what came last had not come"
        )
        the_same_tables(
            Lake(spark, plain, catalog.load(plain)), Lake(spark, every, catalog.load(every))
        )
    finally:
        for each in (plain, turned):
            supervisor.stop(each, "sensors", now=True)
        kafka_broker.stop(home)


def trickled(home: Settings, settings: Settings, first: int, done: threading.Event) -> list[int]:
    """Sends a minute of event time every four seconds, from the scheduled run's begin until `done`; how many records each."""
    of_run = NIGHTLY["sensors"]
    awaited(
        lambda: done.is_set() or supervisor.status(settings, "sensors").freshness == of_run,
        "the scheduled run",
    )
    sent = [produce(home, first, first + 1)]
    while not done.wait(4):
        sent.append(produce(home, first + len(sent), first + len(sent) + 1))
    return sent


def run_in_dagster(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule's job: drains the process that runs by another knob, runs to the present and leaves no process."""
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    result = definitions.build(settings).resolve_job_def("run_sensors").execute_in_process()
    (output,) = [e.step_output_data for e in result.all_events if e.is_successful_output]
    status = supervisor.status(settings, "sensors")
    assert (status.state, status.freshness) == ("stopped", NIGHTLY["sensors"])
    assert not status.alive and not progress.is_alive(status.jvm, status.jvm_started)
    asked = [e.why for e in desired.history(settings, "sensors") if e.what == "stopping"]
    assert asked[-1].endswith(f"to be {NIGHTLY['sensors']}")
    assert "the next run of its schedule is due" in control_loop.step(settings, "sensors").why

    record, averages = (
        catalog.load(settings).table(name) for name in ("sensor_readings", "sensor_averages")
    )
    began = datetime.fromisoformat(status.started_at)
    commits = [c for c in CommitLog(settings, record).by_stream() if c.at > began]
    assert output.metadata["rows"].value == sum(c.arrived for c in commits) > 0
    ahead = frontier(settings, averages)
    assert output.metadata["frontier"].value <= ahead.timestamp()
    last, first = commits[0].watermark, commits[-1].watermark
    assert ahead >= last > first, "what the run read first is closed by what it read next"


def caught_up(settings: Settings, sent: int) -> bool:
    record = catalog.load(settings).table("sensor_readings")
    good = sum(c.written for c in CommitLog(settings, record).by_stream())
    return (
        arrived(settings, "sensor_readings") == sent and arrived(settings, "valid_readings") == good
    )


def the_same_tables(one: Lake, other: Lake) -> None:
    for name in ("sensor_readings", "valid_readings", "sensor_averages", "sensor_trends"):
        table = one.catalog.table(name)
        rows = [lake.read(table) for lake in (one, other)]
        if table.window:
            until = min(frontier(lake.settings, table) for lake in (one, other))
            rows = [each.where(F.col("window.end") <= F.lit(until)) for each in rows]
        first, second = (digest(each) for each in rows)
        assert first == second and first.rows > 100, name
    assert (
        reconciliation.reconcile(other, other.catalog.table("sensor_averages")).verdict == "EQUAL"
    )


def not_hung(settings: Settings) -> None:
    """Between two micro-batches it lives, nothing is under way at its head, and nothing is done about it."""
    seen: list[str] = []

    def idle() -> bool:
        status = supervisor.status(settings, "sensors")
        (head,) = [q for q in status.queries if q.table == "sensor_readings"]
        if head.busy_since:
            seen.clear()
        elif status.heartbeat not in seen:
            seen.append(status.heartbeat)
        assert control_loop.step(settings, "sensors").why == "it is running"
        return len(seen) == 4

    awaited(idle, "four looks in a row at an idle head", 30)
