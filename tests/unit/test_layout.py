"""Names on disk: a root that an earlier version has filled is read by this one."""

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakehouse.declare import catalog
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, delta_tables
from lakehouse.storage.disk import layout

SETTINGS = Settings(tables=("lakehouse.examples.sensors.tables",))
TABLE = catalog.load(SETTINGS).table("sensor_averages")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (layout.table_path(SETTINGS, TABLE), "gold/sensor_averages"),
        (layout.table_path(SETTINGS, TABLE, "quarantine"), "gold/sensor_averages__quarantine"),
        (layout.table_path(SETTINGS, TABLE, "early"), "gold/sensor_averages__early"),
        (layout.table_path(SETTINGS, TABLE, "answers"), "gold/sensor_averages__answers"),
        (layout.note(SETTINGS, TABLE, "asked_again.json"), "_commit_log/sensor_averages.asked_again.json"),
        (layout.commit_log(SETTINGS, TABLE), "_commit_log/sensor_averages.jsonl"),
        (layout.note(SETTINGS, TABLE, "handover.json"), "_commit_log/sensor_averages.handover.json"),
        (layout.log_table(SETTINGS, "_commits"), "_commit_log/_commits"),
        (layout.flush_lock(SETTINGS), "_commit_log/.flush.lock"),
        (layout.query_checkpoints(SETTINGS, TABLE.name), "_checkpoints/sensor_averages"),
        (layout.job_file(SETTINGS, "sensors", "lease"), "_jobs/sensors/lease"),
        (layout.failure_text(SETTINGS, "sensors", TABLE.name), "_jobs/sensors/sensor_averages.failure.txt"),
        (layout.notification_file(SETTINGS, "sent.json"), "_notifications/sent.json"),
        (layout.publish_lock(SETTINGS, TABLE), "_locks/sensor_averages.lock"),
        (layout.reconcile_lock(SETTINGS, TABLE), "_locks/sensor_averages.reconcile.lock"),
        (layout.read_holds(SETTINGS), "_locks/runs"),
        (layout.lineage(SETTINGS), "_lineage.json"),
        (layout.broker(SETTINGS), "_broker"),
        (layout.warehouse(SETTINGS), "_warehouse"),
        (layout.demo_logs(SETTINGS), "_demo"),
        (layout.dagster_home(SETTINGS), "_dagster"),
    ],
)  # fmt: skip
def test_names_on_disk_stay(path, name):
    assert str(path.relative_to(SETTINGS.root)) == name


def test_a_table_is_there_once_its_log_has_a_commit(tmp_path):
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / ".commit.lock").touch()
    assert not delta_log.exists(tmp_path) and delta_log.latest(tmp_path) == -1
    (log / f"{3:020}.json").write_text('{"commitInfo": {"timestamp": 0}}\n')
    assert delta_log.exists(tmp_path) and delta_log.versions(tmp_path) == [3]
    assert delta_log.commit_info(tmp_path, 3) == {"timestamp": 0}
    assert delta_log.actions(tmp_path, 2) is None and delta_log.moved(tmp_path, 3) == []


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_text_that_looks_like_the_end_of_a_line_is_in_the_middle_of_one(tmp_path, separator):
    text = f"one{separator}other"
    write_deltalake(str(tmp_path), pa.table({"text": [text]}))
    assert separator in delta_log.commit_file(tmp_path, 0).read_text(), "the log has it as it is"
    ((_, added),) = delta_log.moved(tmp_path, 0)
    assert json.loads(added["stats"])["minValues"] == {"text": text}


def test_a_table_whose_name_has_capitals_is_found_by_it(tmp_path):
    write_deltalake(tmp_path, pa.table({"atNoon": [1]}))
    found = delta_tables.select("SELECT atNoon FROM Readings", {"Readings": tmp_path}, {})
    assert pa.table(found.read_all()).to_pydict() == {"atNoon": [1]}
