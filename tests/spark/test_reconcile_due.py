"""All that is due, reconciled by one command: the choice is that of Dagster's schedule, the exit code says what came of it."""

import json
import shutil
from datetime import UTC, datetime

import dagster as dg
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from assets import definitions, reconciling
from batch_jobs import commands
from lakehouse.declare.catalog import load
from lakehouse.ranges import Range, joined, parse_range
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.publish_lock import reconciling as holding
from lakehouse.storage.log.certificates import certificates
from lakehouse.storage.log.commit_log import CommitLog
from support.torn_logs import empty

TABLES = ("lakehouse.examples.sensors.tables",)
VALID, AVERAGES = "valid_readings", "sensor_averages"
ALLOWED = {f"LAKEHOUSE_REPAIR__SENSOR_AVERAGES__{name}": "1000" for name in ("PARTITIONS", "ROWS")}


@pytest.fixture
def own(filled, tmp_path) -> Settings:
    """A filled lakehouse to change: three closed hours of two derived tables, none reconciled."""
    root = shutil.copytree(filled, tmp_path / "root")
    return Settings(root=root, tables=TABLES, jars=from_environment().jars)


def table_of(settings: Settings, name: str):
    return load(settings).table(name)


def due(settings: Settings, *options: str, **variables: str):
    environment = {"LAKEHOUSE_ROOT": str(settings.root), "LAKEHOUSE_TABLES": TABLES[0]} | variables
    return CliRunner().invoke(commands.app, ["reconcile", "due", *options], env=environment)


def lines(result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def scheduled(settings: Settings) -> list[tuple[str, Range]]:
    """What Dagster's schedule would have reconciled now, in order."""
    schedule = reconciling.reconcile_closed_partitions(settings, load(settings))
    tick = schedule.evaluate_tick(
        dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
    )
    return [
        (each["table"], parse_range(each["start"], each["end"]))
        for request in tick.run_requests or ()
        for each in request.run_config["ops"]["reconcile_ranges"]["config"]["ranges"]
    ]


def reconciled(found: list[dict]) -> list[tuple[str, Range]]:
    """The ranges of the certificates, neighbours of a table together."""
    names = dict.fromkeys(each["table"] for each in found)
    return [
        (name, span)
        for name in names
        for span in joined(parse_range(c["start"], c["end"]) for c in found if c["table"] == name)
    ]


@pytest.mark.usefixtures("spark")
def test_what_is_due_is_what_the_schedule_asks_for_and_nothing_is_due_after_it(own):
    asked = scheduled(own)
    assert [name for name, _ in asked] == [VALID, AVERAGES]
    done = due(own, "--json")
    assert done.exit_code == 0, done.output
    assert reconciled(lines(done)) == asked
    assert {each["verdict"] for each in lines(done)} == {"EQUAL"}
    again = due(own)
    assert (again.exit_code, again.stdout) == (0, "") and "nothing is due" in again.stderr
    assert scheduled(own) == []


@pytest.mark.usefixtures("spark")
def test_a_difference_is_an_exit_code_until_it_is_repaired_as_far_as_the_setting_allows(own):
    averages = table_of(own, AVERAGES)
    DeltaTable(str(table_path(own, averages))).delete("_partition = '2026-01-01-01'")
    refused = due(own, "--repair")
    assert refused.exit_code == 2 and "leave --repair out" in refused.stderr
    assert not certificates(own), "refused before anything is done"

    found = due(own, AVERAGES)
    assert found.exit_code == 1, found.output
    (line,) = [each for each in found.stdout.splitlines() if "DIFFERENT" in each]
    assert line.startswith(f"{AVERAGES} [2026-01-01T01:00:00Z, 2026-01-01T02:00:00Z) DIFFERENT: ")
    assert "rows changed by hand" in line
    again = due(own, AVERAGES)
    assert (again.exit_code, again.stdout) == (1, ""), "nothing is due, and it still differs"
    assert f"`lakehouse reconcile repair {AVERAGES}` rewrites it" in again.stderr

    repaired = due(own, AVERAGES, "--repair", "--json", **ALLOWED)
    assert repaired.exit_code == 0, repaired.output
    (line,) = lines(repaired)
    assert (line["partition"], line["verdict"]) == ("2026-01-01-01", "EQUAL")


@pytest.mark.usefixtures("spark")
def test_a_table_that_another_process_has_or_that_fails_is_said_and_the_others_go_on(own):
    with holding(own, table_of(own, VALID)):
        beside = due(own, "--json")
    assert beside.exit_code == 3 and "that process is reconciling the table" in beside.stderr
    held, *others = lines(beside)
    assert (held["table"], held["verdict"]) == (VALID, None)
    assert {each["table"] for each in others} == {AVERAGES}

    empty(CommitLog(own, table_of(own, AVERAGES)))
    broken = due(own)
    assert broken.exit_code == 3 and f"{AVERAGES}, commit log=" in broken.stderr
    assert VALID in broken.stdout and " EQUAL: " in broken.stdout


@pytest.mark.usefixtures("spark")
def test_a_run_of_dagsters_goes_on_behind_a_table_that_another_process_has(own):
    config = {"ranges": [{"table": VALID}, {"table": AVERAGES}]}
    job = definitions.build(own).resolve_job_def("reconcile")
    with dg.DagsterInstance.ephemeral() as instance, holding(own, table_of(own, VALID)):
        run = job.execute_in_process(
            {"ops": {"reconcile_ranges": {"config": config}}},
            instance=instance,
            raise_on_error=False,
        )
    assert not run.success
    (verdict,) = run.get_asset_check_evaluations()
    assert (verdict.asset_key.path[-1], verdict.passed) == (AVERAGES, True)
    (failure,) = [event for event in run.all_events if event.is_step_failure]
    assert f"{VALID}: no verdict: " in failure.step_failure_data.user_failure_data.description


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("name", "rule"),
    [("sensor_readings", "only the stream writes"), ("sensor_trends", "stream's first rows")],
)
def test_what_cannot_be_reconciled_is_refused_before_a_jvm_starts(own, name, rule, monkeypatch):
    monkeypatch.setattr("lakehouse.runtime.spark_session.opened", None)  # to call it would fail
    environment = {"LAKEHOUSE_ROOT": str(own.root), "LAKEHOUSE_TABLES": TABLES[0]}
    refused = CliRunner().invoke(commands.app, ["reconcile", "run", name], env=environment)
    assert refused.exit_code == 2 and rule in " ".join(refused.output.split())
