"""Files of a job that hold garbage: said by name, moved aside, and the job goes on."""

import json
import resource
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from batch_jobs import repair
from lakehouse.cli import main
from lakehouse.declare import catalog
from lakehouse.errors import SavepointError
from lakehouse.runtime import kafka_address
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.disk import files, layout
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import commit_log, reconcile_attempts
from lakehouse.storage.position import checkpoints
from lakehouse.storage.versions import savepoints
from streaming_jobs import progress
from streaming_jobs.exporters import lineage, metrics, notifications
from streaming_jobs.progress import QueryStatus
from streaming_jobs.supervision import control_loop, desired, lease
from streaming_jobs.supervision.desired import Event
from support.observed import status_of
from support.small_log import Log

NAMES = ("status.json", "desired.json", "history.json", "epoch.json")
GARBAGE = ("", "{", "3", "[]", "[3]", "{}", "\0" * 40, '{"state": 1}')


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A job that ran well, and was stopped."""
    settings = Settings(root=tmp_path / "root", tables=("lakehouse.examples.sensors.tables",))
    with lease.acquire(settings, "sensors") as turn:
        progress.write(settings, status_of(1, 1.0, state="stopped", epoch=turn.epoch))
    desired.wish(settings, "sensors", "stopped", "a test")
    desired.note(settings, "sensors", Event(progress.now(), "stopping", "a test", 1, 1.0))
    return settings


def folder(settings: Settings) -> Path:
    return layout.job_folder(settings, "sensors")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_status_and_supervise_say_which_file_move_it_aside_and_go_on(
    settings, capfd, name, garbage
):
    if (name, garbage) == ("history.json", "[]"):
        garbage = '["x"]'  # an empty history is one
    path = folder(settings) / name
    path.write_text(garbage)
    shown = CliRunner().invoke(
        main.app(), ["stream", "status", "sensors"], env=to_environment(settings)
    )
    decision = control_loop.step(settings, "sensors")
    lease.others(settings, "sensors")
    said = shown.stderr + capfd.readouterr().err
    assert shown.exit_code == 0, shown.exception
    assert said.count(f"file={path}: JSON as the lakehouse writes it") == 1, said
    (aside,) = files.moved_aside(path)
    assert aside.read_text() == garbage and aside.name in said
    assert decision.action == "nothing", decision
    again = CliRunner().invoke(
        main.app(), ["stream", "status", "sensors"], env=to_environment(settings)
    )
    assert aside.name in again.stdout.replace("\n", ""), "said until somebody has looked at it"


def test_the_epoch_goes_on_though_its_file_was_garbage(settings):
    with lease.acquire(settings, "sensors") as turn:
        progress.write(settings, status_of(1, 1.0, state="stopped", epoch=turn.epoch))
        assert turn.epoch == 2
    (folder(settings) / "epoch.json").write_text("{")
    with lease.acquire(settings, "sensors") as turn:
        assert turn.epoch == 3, "not one that a process which sleeps may have"


def test_a_status_that_is_gone_is_said_by_the_next_holder_unless_the_one_before_ended_well(
    settings, capfd
):
    (folder(settings) / "status.json").unlink()
    with pytest.raises(OSError), lease.acquire(settings, "sensors"):
        raise OSError("a test")
    assert capfd.readouterr().err == ""
    with lease.acquire(settings, "sensors"):
        assert "which JVM the process before had" in capfd.readouterr().err


def test_a_holder_writes_its_epoch_again_if_the_file_becomes_garbage(settings, capfd):
    path = layout.job_file(settings, "sensors", "epoch.json")
    with lease.acquire(settings, "sensors") as turn:
        garbage = path.with_name("garbage")
        garbage.write_text("garbage")
        # in one step, for the thread that renews the lease reads the file, too
        garbage.replace(path)
        turn.check()
        turn.check()
        assert json.loads(path.read_text())["epoch"] == turn.epoch
    assert f"file={path}" in capfd.readouterr().err


def test_what_is_wanted_of_a_job_that_runs_is_known_and_of_another_is_asked_for(settings):
    path = folder(settings) / "desired.json"
    path.write_text("{")
    why = control_loop.step(settings, "sensors").why
    assert "unreadable" in why and "lakehouse stream start sensors" in why
    assert not path.exists(), "nothing is guessed"
    me = psutil.Process()
    progress.write(settings, status_of(me.pid, me.create_time()))
    assert "it runs, and is to run" in control_loop.step(settings, "sensors").why
    assert desired.read(settings, "sensors").state == "running"


def test_a_wish_that_is_gone_is_said_too(settings):
    (folder(settings) / "desired.json").unlink()
    decision = control_loop.step(settings, "sensors")
    assert decision.trouble and "desired.json: gone" in decision.why
    never = layout.job_folder(settings, "ads")
    assert (
        control_loop.step(settings, "ads").why == "nobody has asked for it" and not never.exists()
    )


def test_what_notifications_and_lineage_remember_is_moved_aside_too(settings, capfd):
    known, to = catalog.load(settings), lineage.client(str(settings.root / "events"))
    for garbage in GARBAGE[:5]:
        told = settings.root / "_notifications" / "sent.json"
        told.parent.mkdir(exist_ok=True)
        told.write_text(garbage)
        (settings.root / "_lineage.json").write_text(garbage)
        hooked = replace(settings, notification_command="true")
        assert notifications.send(hooked, notifications.of_job(settings, "sensors")) == []
        lineage.Lineage(settings, known, to).send()
        assert len(files.moved_aside(told)) == len(
            files.moved_aside(settings.root / "_lineage.json")
        )
    assert len(files.moved_aside(told)) == 5
    assert capfd.readouterr().err.count("JSON as the lakehouse writes it") == 10


def test_notes_of_lineage_by_a_later_version_are_read(settings):
    path = layout.lineage(settings)
    path.write_text(json.dumps({"left": asdict(lineage.Sent("", "", True, "")) | {"later": 1}}))
    to = lineage.client(str(settings.root / "events"))
    lineage.Lineage(settings, catalog.load(settings), to).send()
    assert not files.moved_aside(path)


def test_an_unreadable_part_of_a_job_costs_its_own_metrics_only(settings):
    me = psutil.Process()
    queries = (
        QueryStatus("sensor_readings", True, rows=1, unanswered_since="soon"),
        QueryStatus("sensor_averages", True, rows=2),
    )
    progress.write(settings, status_of(me.pid, me.create_time(), queries=queries))
    found = samples(settings)
    assert found["lakehouse_job_up"] == [1]
    assert found["lakehouse_table_rows_total"] == [1, 2]
    assert "lakehouse_table_batch_duration_seconds" not in found
    progress.write(settings, status_of(me.pid, me.create_time()))
    path = folder(settings) / "desired.json"
    since = {"state": "running", "since": "2026-01-01T00:00:00"}  # in no zone
    path.write_text(json.dumps(json.loads(path.read_text()) | since))
    found = samples(replace(settings, freshness={"sensors": "scheduled 0 * * * *"}))
    assert found["lakehouse_job_up"] == [1]
    assert "lakehouse_job_next_run_timestamp_seconds" not in found


def samples(settings: Settings) -> dict[str, list[float]]:
    """The values of each metric, once something of a job could not be read."""
    values: dict[str, list[float]] = {}
    for family in metrics.LakehouseCollector(settings, catalog.load(settings)).collect():
        for sample in family.samples:
            values.setdefault(sample.name, []).append(sample.value)
            if sample.labels.get("part") == "job" and sample.name.endswith("errors_total"):
                assert sample.value == 1
    return values


def test_a_value_that_cannot_be_written_leaves_no_half_of_it(settings):
    path = folder(settings) / "history.json"
    before = path.read_text()
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        files.replace_file(path, [])
    assert (
        sorted(p.name for p in folder(settings).iterdir() if "history" in p.name)
        == ["history.json"]
        and before
    )
    shutil.rmtree(path)


def test_a_line_of_which_the_disk_takes_a_part_is_an_error_and_is_left_out(tmp_path):
    path = tmp_path / "lines.jsonl"
    files.append_line(path, '{"n": 1}')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError):
            files.append_line(path, '{"n": 2}')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == '{"n": 1}\n{"n":'
    files.append_line(path, '{"n": 3}')
    assert list(Notes(path, lambda line: line["n"]).newest_first()) == [3, 1]


@pytest.mark.parametrize(
    "garbage", [*GARBAGE[:-1], '{"pid": "x", "start_time": 1, "bootstrap_servers": "", "log": ""}']
)
def test_a_record_of_the_embedded_broker_that_is_garbage_is_moved_aside(tmp_path, capfd, garbage):
    path = tmp_path / "_broker" / "broker.json"
    path.parent.mkdir()
    path.write_text(garbage)
    assert kafka_address.running(Settings(root=tmp_path)) is None
    assert f"file={path}: " in capfd.readouterr().err and files.moved_aside(path)


def test_lines_of_garbage_are_said_once_and_left_out(tmp_path, capfd):
    settings, log_table = (
        Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",)),
        tmp_path / "_commit_log",
    )
    table = catalog.load(settings).table("sensor_averages")
    commit_log.note_dropped(settings, table, 3)
    for line in ("{3}", '{"rows": "many"}', '{"at": 3, "rows": 4}', '{"rows": 4}'):
        files.append_line(log_table / "sensor_averages.dropped.jsonl", line)
    commit_log.note_dropped(settings, table, 4)
    repaired = repair.Repaired(
        table.name, "2026-01-01-00", 3, "", 5, "EQUAL", datetime(2026, 1, 1, tzinfo=UTC)
    )
    files.append_line(
        log_table / "sensor_averages.repairs.jsonl",
        json.dumps(asdict(repaired), default=lambda at: at.isoformat()),
    )
    files.append_line(log_table / "sensor_averages.repairs.jsonl", '{"table": "sensor_averages"}')
    begun = checkpoints.begin(settings, table, (1, 4), "a test")
    files.append_line(
        log_table / "sensor_averages.generations.jsonl",
        '{"generation": 3, "after": 4, "why": "", "at": ""}',
    )
    for _ in range(2):
        assert commit_log.dropped_by_spark(settings, table, None) == 7
        assert list(repair.repairs(settings, table)) == [repaired]
        assert checkpoints.beginning(settings, table) == begun
    told = capfd.readouterr().err
    assert (
        told.count("and one is torn") == 6 and told.count("sensor_averages.repairs.jsonl: ") == 1
    ), told


def test_a_savepoint_is_created_though_the_last_one_is_damaged(tmp_path):
    settings = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    lakehouse = Lakehouse(settings, catalog.load(settings))
    readings = lakehouse.catalog.table("sensor_readings")
    files.append_line(layout.note(settings, readings, "repairs.jsonl"), "{}")
    savepoints.create(lakehouse, "one")
    (copy,) = layout.savepoint_root(settings, "one").rglob("sensor_readings.repairs.jsonl")
    copy.unlink()
    savepoints.create(lakehouse, "two")
    layout.savepoint_file(settings, "two", "contents.jsonl").write_text('["')
    savepoints.create(lakehouse, "three")
    assert savepoints.verify(settings, "three").files == 1
    for damaged in ("one", "two"):
        with pytest.raises(SavepointError, match=f"savepoint={damaged}, .* it cannot be used"):
            savepoints.verify(settings, damaged)


@pytest.mark.parametrize("garbage", ["", "{", "[]", "3", "{}", '{"at": 1}'])
def test_a_note_of_a_reconciliation_that_is_garbage_is_one_that_gave_no_verdict(tmp_path, garbage):
    settings = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    table = catalog.load(settings).table("sensor_averages")
    path = tmp_path / "_commit_log" / "sensor_averages.reconciling.json"
    path.parent.mkdir()
    path.write_text(garbage)
    assert f"{path} cannot be read" in reconcile_attempts.failed(settings, table)


def test_a_note_of_a_reconciliation_that_goes_while_it_is_looked_at_is_none(tmp_path, monkeypatch):
    settings = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    table = catalog.load(settings).table("sensor_averages")
    path = layout.note(settings, table, "reconciling.json")
    files.replace_file(path, {"at": "", "range": "", "why": ""})

    def read_late(late: Path) -> object:
        late.unlink()
        return files.read_json(late)

    monkeypatch.setattr(reconcile_attempts, "read_json", read_late)
    assert reconcile_attempts.failed(settings, table) == ""


@pytest.mark.parametrize(
    "garbage", ["v1\n{}\n{", "v1\n{}\n3", "v1\n{}", "", 'v1\n{}\n{"reservoirId": "x"}', "\0" * 20]
)
def test_maintenance_goes_on_though_what_a_query_has_read_is_torn(tmp_path, capfd, garbage):
    log = Log(tmp_path)
    read = log.append(4)
    identity = str(DeltaTable(str(log.path)).metadata().id)
    for batch in range(3):
        for name in ("offsets", "commits"):
            file = tmp_path / "_checkpoints" / "not_declared" / "1" / name / str(batch)
            file.parent.mkdir(parents=True, exist_ok=True)
            offset = {"reservoirId": identity, "reservoirVersion": read, "index": -1}
            file.write_text(f"v1\n{{}}\n{json.dumps(offset)}" if name == "offsets" else "v1")
    torn = tmp_path / "_checkpoints" / "not_declared" / "1" / "offsets" / "2"
    torn.write_text(garbage)
    log.append(6)
    assert log.maintained() == (read, "not_declared")
    assert f"file={torn}: it says what a query has read, and is torn" in capfd.readouterr().err
