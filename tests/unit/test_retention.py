"""What maintenance keeps of logs and files, for whom, and for how long."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from batch_jobs import maintain
from lakehouse.declare.catalog import load
from lakehouse.errors import JobError
from lakehouse.examples.sensors import tables as sensors
from lakehouse.maintenance import retention
from lakehouse.maintenance.retention import Maintenance
from lakehouse.reconcile import invalidation
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, housekeeping, log_state
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate, certificates, certify
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import unwritten
from lakehouse.storage.versions import read_holds
from support.small_log import Log, aged


def test_what_a_reader_has_still_to_read_stays_until_it_has_read_it(tmp_path):
    settings = Settings(root=tmp_path, tables=(sensors.__name__,))
    catalog = load(settings)
    path, checkpoint = (
        table_path(settings, catalog.table("valid_readings")),
        tmp_path / "_checkpoints" / "sensor_averages" / "1",
    )

    def append() -> None:
        rows = pa.table({"x": [1], "_partition": ["2026-01-01-00"]})
        write_deltalake(str(path), rows, mode="append", partition_by=["_partition"])

    def read_up_to(version: int) -> None:
        """Two micro-batches, the last of which Spark prepares once more: it began where the one before ended."""
        for batch, end in enumerate((version, version + 1)):
            offset = {
                "reservoirId": str(DeltaTable(str(path)).metadata().id),
                "reservoirVersion": end,
                "index": -1,
            }
            for name, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1")):
                (checkpoint / name).mkdir(parents=True, exist_ok=True)
                (checkpoint / name / str(batch)).write_text(text)

    def maintained() -> Maintenance:
        (place,) = retention.places(Lakehouse(settings, catalog), catalog.table("valid_readings"))
        return retention.maintain(settings, replace(place, closed=lambda _: True))

    for version in range(6):
        append()
        if version == 2:
            DeltaTable(str(path)).create_checkpoint()
    added = {v: set(DeltaTable(str(path), version=v).file_uris()) for v in range(6)}
    read_up_to(4)
    assert (maintained().files, len(DeltaTable(str(path)).file_uris())) == (6, 1)
    aged(tmp_path, 3)
    append()
    DeltaTable(str(path)).create_checkpoint()
    aged(tmp_path, 2)
    held = maintained()
    assert (held.held_by, held.oldest, held.commits, held.obsolete) == ("sensor_averages", 2, 2, 0)
    assert all(Path(file).exists() for file in added[5]), (
        "it goes on at version 4, and 2 can be read"
    )
    read_up_to(7)
    free = maintained()
    assert (free.held_by, free.oldest, free.commits, free.obsolete) == ("", 7, 5, 6)
    assert not any(Path(file).exists() for file in added[5]) and DeltaTable(str(path)).count() == 7
    assert sorted(p.name[:20] for p in (path / "_delta_log").glob("*.json"))[0] == f"{7:020}"


def test_a_log_of_many_versions_is_cut_and_what_readers_were_told_of_stays(tmp_path):
    log = Log(tmp_path)
    last = log.append(8)
    first = set(DeltaTable(str(log.path)).file_uris())
    housekeeping.compact(log.path, ("2026-01-01-00",))
    assert log.maintained() == (last, "") and all(Path(file).exists() for file in first), (
        "for a day"
    )
    assert (
        log.append(3) == last + 4
        and log.maintained() == (last + 3, "")
        and DeltaTable(str(log.path)).count() == 11
    )


def test_a_run_that_is_under_way_keeps_all_that_there_was_when_it_began(tmp_path):
    log = Log(tmp_path)
    last = log.append(4)
    with read_holds.under_way(log.settings):
        log.append(6)
        with read_holds.under_way(log.settings):  # a later one
            log.append(6)
        told, who = log.maintained()
        assert last - 1 <= told <= last and who == "a run that is under way"
    assert log.maintained() == (last + 11, "")


def test_where_nothing_may_be_written_a_run_is_not_kept_from_reading(tmp_path):
    settings = Settings(root=tmp_path / "none")
    with read_holds.under_way(settings):
        assert read_holds.began(settings) is None and not any(tmp_path.iterdir())


def test_what_a_certificate_has_not_looked_at_stays_as_long_as_the_history(tmp_path):
    log = Log(tmp_path)
    last = log.append(4)
    invalidation.look(log.lakehouse, log.catalog.table("sensor_averages"), {}, [])
    log.append(4)
    assert log.maintained() == (last, "the reconciliation of sensor_averages")
    aged(log.path, 2)
    assert log.maintained()[0] > last
    invalidation.look(log.lakehouse, log.catalog.table("sensor_averages"), {}, [])
    last = log.append(4)
    assert log.maintained() == (last - 4, "the reconciliation of sensor_averages")
    invalidation.look(log.lakehouse, log.catalog.table("sensor_averages"), {}, [])
    assert log.maintained() == (last - 1, "")


def test_what_a_new_table_would_begin_with_stays_for_so_many_versions(tmp_path, caplog):
    log = Log(tmp_path)
    first = log.append(3)

    def step(batch: int, versions: int) -> int:
        """So many versions ahead of 01:00, and the frontier behind it."""
        last, at = log.append(versions, "2026-01-01-01"), datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
        made = replace(unwritten(log.table, "stream", 1, batch), frontier=at, version=last)
        CommitLog(log.settings, log.table).append(made)
        return last

    for batch, versions in enumerate((4, 3)):  # and a compaction
        step(batch, versions)
        assert log.maintained() == (first, "a table yet to be declared") and not caplog.messages
    last = step(2, 1)
    assert log.maintained() == (last - 1, "")
    [ended] = caplog.messages
    assert "versions=8: a table that is declared now and begins at 2026-01-01T01:00:00Z" in ended
    step(3, 9)
    assert log.maintained()[1] == "" and len(caplog.messages) == 1, "what is gone is held no more"


@pytest.mark.parametrize("further", [{}, {"batch": 0}, {"batch": "x", "inputs": {}}])
def test_a_commit_of_other_code_with_the_mark_of_the_stream_is_named(tmp_path, further):
    settings = Settings(root=tmp_path, tables=(sensors.__name__,))
    lakehouse = Lakehouse(settings, load(settings))
    path = table_path(settings, lakehouse.catalog.table("valid_readings"))
    rows = pa.table({"x": [1], "_partition": ["2026-01-01-00"]})
    mark = json.dumps({"app": "valid_readings:stream:1"} | further)
    foreign = CommitProperties(custom_metadata={"userMetadata": mark})
    write_deltalake(str(path), rows)
    write_deltalake(str(path), rows, mode="append", commit_properties=foreign)
    with pytest.raises(JobError, match=r"table=valid_readings, version=1, userMetadata=.*RESTORE"):
        list(maintain.run(lakehouse, "valid_readings"))
    DeltaTable(str(path)).restore(0)
    assert list(maintain.run(lakehouse, "valid_readings"))


def test_log_tables_are_made_few_files_while_verdicts_come_in(tmp_path):
    settings = Settings(root=tmp_path)
    for minute in range(3):
        certify(settings, [_certificate(minute)])
    (place,) = retention.log_tables(settings)
    early = log_state.newest(place.path)
    certify(settings, [_certificate(3)])
    housekeeping._compact(early, ("",))
    done = retention.maintain(settings, place)
    assert (done.files, len(DeltaTable(str(place.path)).file_uris())) == (2, 1)
    assert [c.at.minute for c in certificates(settings)] == [0, 1, 2, 3]


def _certificate(minute: int) -> Certificate:
    at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
    return Certificate(
        table="sensor_averages", start=at, end=at, verdict="EQUAL", rows_in_table=1, rows_recomputed=1, rows_by_batch_runs=0,
        checksum_in_table="", checksum_recomputed="", frontier=at, version=1, inputs={}, code_version="", at=at, seconds=0.0,
    )  # fmt: skip


def test_a_job_cuts_the_log_that_has_grown_and_leaves_files(tmp_path, monkeypatch):
    log = Log(tmp_path)
    monkeypatch.setattr(retention, "_GROWN", 4)
    cuts, files = retention.LogCuts(log.lakehouse), set[str]()
    for versions, oldest in ((3, 0), (4, 5), (3, 5), (1, 9)):
        last = log.append(versions)
        files |= set(DeltaTable(str(log.path)).file_uris())
        cuts.cut([log.table])
        assert delta_log.oldest(log.path) == oldest, last
    with read_holds.under_way(log.settings):
        log.append(5)
        cuts.cut([log.table])
        assert delta_log.oldest(log.path) in (9, 10), "a run reads what was there as it began"
    assert all(Path(file).exists() for file in files)
    log.append(4)
    with publishing(log.settings, log.table):
        cuts.cut([log.table])
    assert delta_log.oldest(log.path) in (9, 10), "another process rewrites it"
