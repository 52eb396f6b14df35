"""Notes and logs that are gone or garbage, without a session."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from lakehouse.errors import JobError
from lakehouse.reconcile import invalidation
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import commit_cache
from lakehouse.storage.log.certificates import Certificate, certify
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.log_tables import flush
from lakehouse.storage.position import handovers
from lakehouse.storage.versions import interruptions
from support.sensors_log import TABLE, micro_batch
from support.small_log import Log

SENSORS = ("lakehouse.examples.sensors.tables",)
DAY = datetime(2026, 1, 1, tzinfo=UTC)
VALID, AVERAGES = "valid_readings", "sensor_averages"


def test_a_note_of_a_reconciliation_that_became_garbage_is_named_and_moved_aside(tmp_path, capfd):
    note = tmp_path / "_commit_log" / f"{TABLE.name}.reconciliation.json"
    note.parent.mkdir()
    note.write_text('{"versions": ')
    assert invalidation.looked_at(Settings(root=tmp_path), TABLE) == {}
    assert note.name in capfd.readouterr().err
    assert [path.read_text() for path in note.parent.glob(f"{note.name}.*")] == ['{"versions": ']


def test_a_handover_that_became_garbage_stops_who_needs_it_and_stays_where_it_is(tmp_path):
    handover = layout.note(Settings(root=tmp_path), TABLE, "handover.json")
    handover.parent.mkdir()
    handover.write_text('{"frontier": ')
    with pytest.raises(
        JobError, match="holds the handover at which the stream begins, and cannot be read"
    ):
        handovers.handover_of(Settings(root=tmp_path), TABLE)
    assert handover.exists()


def test_a_hole_in_a_log_is_a_log_that_was_cut(tmp_path):
    log = Log(tmp_path)
    last = log.append(5)
    assert len(delta_log.changes(log.path, 0)) == last
    (log.path / "_delta_log" / f"{last - 2:020}.json").unlink()
    assert delta_log.changes(log.path, 0) is None
    assert len(delta_log.changes(log.path, last - 2)) == 2, "behind the hole nothing is missing"


def test_a_log_table_that_was_removed_is_filled_again_from_commit_logs_that_were_trimmed_meanwhile(
    tmp_path,
):
    settings = Settings(root=tmp_path, tables=SENSORS)
    commit_log = CommitLog(settings, TABLE)
    for batch in range(40):
        commit_log.append(micro_batch(batch, (batch, 0) if batch % 4 == 0 else None))
    flush(settings, [TABLE])
    commit_cache.trim(commit_log, longest=4_000, recent=1_500)
    shutil.rmtree(layout.log_table(Settings(root=tmp_path), "_commits"))
    kept = len(list(commit_log))
    assert flush(settings, [TABLE]) == kept < 40
    commit_log.append(micro_batch(40))
    assert flush(settings, [TABLE]) == 1


def test_verdicts_of_a_log_table_that_was_made_again_replace_those_of_the_one_before(tmp_path):
    settings = Settings(root=tmp_path, tables=SENSORS)

    def found(hour: int, verdict: str) -> Certificate:
        start = DAY + timedelta(hours=hour)
        at = start + timedelta(days=1)
        return Certificate(
            AVERAGES,
            start,
            start + timedelta(hours=1),
            verdict,
            1,
            1,
            0,
            "",
            "",
            at,
            1,
            {},
            "",
            at,
            0.0,
        )

    for hour in range(3):
        certify(settings, [found(hour, "EQUAL")])
    verdicts = Verdicts(settings)
    assert verdicts.now()[AVERAGES].counts == {"EQUAL": 3}
    shutil.rmtree(layout.log_table(Settings(root=tmp_path), "_certificates"))
    assert verdicts.now() == {}
    certify(settings, [found(5, "DIFFERENT")])
    assert verdicts.now()[AVERAGES].counts == {"DIFFERENT": 1}


def test_maintenance_keeps_what_a_query_whose_checkpoint_is_gone_has_not_read(tmp_path):
    log = Log(tmp_path)
    before = log.append(4)
    reader = CommitLog(log.settings, log.catalog.table(AVERAGES))
    reader.append(
        replace(
            micro_batch(0), inputs={"tables": {VALID: {"reservoirVersion": before, "index": -1}}}
        )
    )
    log.append(6)
    assert log.maintained() == (before, AVERAGES)


def test_maintenance_keeps_what_a_reader_has_not_read_though_its_commit_log_is_gone(tmp_path):
    """What is stepped says in each commit of its own what it has read."""
    log = Log(tmp_path)
    before = log.append(4)
    reader = log.catalog.table(AVERAGES)
    mark = {
        "app": f"{AVERAGES}:stream:1",
        "batch": 0,
        "inputs": {"tables": {VALID: {"reservoirVersion": before, "index": -1}}},
    }
    write_deltalake(
        str(table_path(log.settings, reader)), pa.table({"x": [1]}), mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(mark)}),
    )  # fmt: skip
    log.append(6)
    assert log.maintained() == (before, AVERAGES)


@pytest.mark.parametrize("text", ["", "{", "7"])
def test_a_note_of_an_upgrade_that_cannot_be_read_is_named_and_nothing_starts(tmp_path, text):
    settings = Settings(root=tmp_path)
    path = layout.upgrade(settings, "averages", "upgrade.json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(JobError, match=r"upgrade\.json: .* cannot be read .* put it back"):
        interruptions.check(settings)
    path.write_text('{"state": "filled", "at": "", "code_version": "v", "command": "promote"}')
    with pytest.raises(JobError, match="`lakehouse upgrade promote averages` again"):
        interruptions.check(settings)


def test_the_lock_of_a_command_that_fills_an_upgrade_is_no_upgrade(tmp_path):
    settings = Settings(root=tmp_path)
    lock = layout.upgrade_lock(settings, "averages")
    lock.parent.mkdir(parents=True)
    lock.touch()
    interruptions.check(settings)
    assert list(interruptions.promoting(settings)) == []
