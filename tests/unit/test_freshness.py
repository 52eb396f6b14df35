"""One knob a pipeline: what it may say, when its schedule ticks, what is done about a scheduled job."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import dagster as dg
import psutil
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator
from typer.testing import CliRunner

from assets import definitions
from lakehouse.cli import main
from lakehouse.declare import catalog
from lakehouse.durations import duration
from lakehouse.errors import SettingsError
from lakehouse.freshness import cron, freshness
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.lakehouse import Lakehouse
from streaming_jobs import progress
from streaming_jobs.exporters import metrics
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import desired, scheduled
from streaming_jobs.supervision.healing import WANTED, Observed, decide
from support.observed import BOUNDS, DEAD, FAILED, NOW, RUN, STOP, WELL, ago, restarted

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
        ("every 0 seconds", "longer than zero"),
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
    lakehouse = Lakehouse(settings, catalog.load(settings))
    paces = {table.name: lakehouse.pace(table) for table in lakehouse.catalog}
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
        for f in metrics.registry(Lakehouse(settings, catalog.load(settings))).collect()
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
