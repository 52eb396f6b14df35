"""A commit log that was cut or damaged: what is missing is put back or made again, and what nobody knows any more is named."""

import shutil
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehouse.declare import catalog
from lakehouse.examples.sensors import tables as sensors
from lakehouse.settings import Settings
from lakehouse.storage.disk import files, layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import commit_log_repair, commit_log_trimming, log_tables
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.testing import Stage
from support.torn_logs import TABLES, commit_log_of, cut, lines_of, table_of


@pytest.fixture(scope="module")
def many(spark, tmp_path_factory) -> Path:
    """Tables of many micro-batches, of two partitions of a topic, with late and bad rows; of none `_commits` has a line."""
    stage = Stage(spark, tmp_path_factory.mktemp("many"), sensors)
    for minute in range(0, 60, 10):
        rows = [
            (minute // 10 % 2, reading(f"00:{minute + n}:00", f"{50 + n}.00"))
            for n in range(1, 10, 3)
        ]
        stage.feed("sensor_readings", [*rows, reading("00:00:01", "40.00"), b"junk"])
    stage.advance("sensor_readings", reading("02:10:00", "60.00"))
    stage.run("valid_readings", files_per_batch=1)
    stage.run("sensor_averages", files_per_batch=1)
    return stage.session.settings.root


def reading(time: str, fahrenheit: str) -> dict[str, str]:
    return {
        "sensor_id": "sensor-1",
        "event_time": f"2026-01-01T{time}Z",
        "temperature_f": fahrenheit,
    }


@pytest.fixture
def settings(many, tmp_path) -> Settings:
    return Settings(
        root=shutil.copytree(many, tmp_path / "root"), tables=("lakehouse.examples.sensors.tables",)
    )


def copied(settings: Settings, name: str) -> int:
    rows = DeltaTable(str(layout.log_table(settings, "_commits"))).to_pyarrow_table(
        columns=["table"]
    )
    return rows["table"].to_pylist().count(name)


@pytest.mark.parametrize("name", TABLES)
def test_lines_that_were_copied_are_put_back(settings, name, capfd):
    whole = lines_of(settings, name)
    log_tables.flush(settings, catalog.load(settings))
    cut(settings, name, 3)
    later = replace(
        whole[-1], batch=whole[-1].batch + 1, at=whole[-1].at + timedelta(days=1), seconds=123456.75
    )
    # a job that runs goes on, and its lines soon reach further than what was copied
    for number in range(5):
        CommitLog(settings, table_of(settings, name)).append(
            replace(later, batch=later.batch + number)
        )
    assert len(lines_of(settings, name)) == len(whole) - 3 + 5
    assert log_tables.flush(settings, catalog.load(settings)) == 5, (
        "and that was where it failed forever"
    )
    told = capfd.readouterr().err
    assert (
        f"commit log={commit_log_of(settings, name)}" in told
        and "3 missing" in told
        and "3 are put back from _commits" in told
    )
    assert lines_of(settings, name) == [
        *whole,
        *(replace(later, batch=later.batch + n) for n in range(5)),
    ]
    assert copied(settings, name) == len(whole) + 5, "each line once"
    assert len(files.moved_aside(commit_log_of(settings, name))) == 1
    assert log_tables.flush(settings, catalog.load(settings)) == 0
    assert commit_log_repair.mend(settings, table_of(settings, name)) == ""


def test_a_commit_log_that_is_gone_is_put_back_whole(settings):
    whole = lines_of(settings, "valid_readings")
    log_tables.flush(settings, catalog.load(settings))
    commit_log_of(settings, "valid_readings").unlink()
    told = commit_log_repair.mend(settings, table_of(settings, "valid_readings"))
    assert "it was gone" in told and f"{len(whole)} are put back" in told
    assert lines_of(settings, "valid_readings") == whole
    assert log_tables.flush(settings, catalog.load(settings)) == 0


@pytest.mark.parametrize("name", TABLES)
def test_lines_that_were_not_copied_are_made_again_from_the_tables_own_commits(settings, name):
    whole = lines_of(settings, name)
    if name == "sensor_readings":
        done = settings.root / "_checkpoints" / name / "1" / "commits" / f"{whole[-1].batch}"
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()  # Spark knows the last micro-batch as done, so it will not run again
    table = table_of(settings, name)
    cut(settings, name, len(whole) - 1)
    told = commit_log_repair.mend(settings, table)
    assert "made again from the table's own commits" in told and "not known any more" in told, told
    made = lines_of(settings, name)
    known = (
        "generation",
        "batch",
        "version",
        "code_version",
        "inputs",
        "written",
        "quarantined",
        "watermark",
    )
    written = [
        whole[0],
        *(line for before, line in pairwise(whole) if line.version > before.version),
    ]
    if name != "sensor_readings":
        written.pop()  # the last commit of a table that is stepped is looked at once more when its job is started
    assert [line.batch for line in made] == [line.batch for line in written]
    for line, was in zip(made, written, strict=True):
        assert {n: getattr(line, n) for n in known} == {n: getattr(was, n) for n in known}
        if name == "sensor_readings":
            assert (line.heads, line.frontier, line.arrived) == (
                was.heads,
                was.frontier,
                was.arrived,
            )
    furthest = [line.frontier for line in made]
    assert furthest == sorted(furthest) and furthest[-1] <= whole[-1].frontier
    assert furthest[:-1] == [line.frontier for line in written[:-1]]
    assert commit_log_repair.mend(settings, table) == ""


def test_a_micro_batch_that_a_crash_kept_from_the_commit_log_is_no_damage(settings):
    cut(settings, "valid_readings", 1)
    assert commit_log_repair.mend(settings, table_of(settings, "valid_readings")) == "", (
        "it is run again"
    )


def test_a_line_that_only_looks_whole_is_said_and_left_out(settings, capfd):
    path = commit_log_of(settings, "valid_readings")
    lines = path.read_bytes().splitlines(keepends=True)
    torn = lines[1][: lines[1].index(b'"inputs"')] + b'"inputs":{}\n'
    path.write_bytes(b"".join([lines[0], torn, *lines[2:]]))
    whole = len(lines)
    for _ in range(2):
        assert len(lines_of(settings, "valid_readings")) == whole - 1
        assert (
            len(list(CommitLog(settings, table_of(settings, "valid_readings")).rewriting())) < whole
        )
    assert (
        capfd.readouterr().err.count(f"commit log={path}: a line holds one commit, and one is torn")
        == 1
    )


def test_a_log_table_that_was_removed_is_said(settings, capfd):
    tables = catalog.load(settings)
    commit_log = CommitLog(settings, tables.table("sensor_readings"))
    log_tables.flush(settings, tables)
    commit_log_trimming.trim(commit_log, longest=0, recent=commit_log.path.stat().st_size // 2)
    assert log_tables.flush(settings, tables) == 0 and capfd.readouterr().err == ""
    shutil.rmtree(layout.log_table(settings, "_commits"))
    assert log_tables.flush(settings, tables) > 0
    assert f"commit log={commit_log.path}: it was trimmed" in capfd.readouterr().err
    assert log_tables.flush(settings, tables) == 0 and capfd.readouterr().err == ""


def test_the_first_line_of_a_trimmed_commit_log_may_be_torn_too(settings):
    tables = catalog.load(settings)
    commit_log = CommitLog(settings, tables.table("sensor_readings"))
    log_tables.flush(settings, tables)
    commit_log_trimming.trim(commit_log, longest=0, recent=commit_log.path.stat().st_size // 2)
    whole = list(commit_log)
    commit_log.path.write_bytes(b"#garbage" + commit_log.path.read_bytes()[8:])
    assert log_tables.flush(settings, tables) == 0
    assert list(commit_log) == whole, "nothing was missing"
    CommitLog(settings, tables.table("sensor_readings")).append(
        replace(whole[0], batch=99, at=whole[0].at + timedelta(days=1))
    )
    assert log_tables.flush(settings, tables) == 1 and len(files.moved_aside(commit_log.path)) == 1


def test_what_is_known_of_a_table_that_was_removed_is_not_put_into_the_one_made_recreated(
    settings, spark
):
    session = Session(settings, catalog.load(settings), spark)
    log_tables.flush(settings, session.catalog)
    table = session.catalog.table("valid_readings")
    before = lines_of(settings, table.name)
    for side in ("", "quarantine"):
        shutil.rmtree(table_path(settings, table, side))
    commit_log_of(settings, table.name).unlink()
    queries.prepare(session, [table])
    assert commit_log_repair.mend(settings, table) == ""
    queries.start(session, table, available_now=True).awaitTermination()
    made = lines_of(settings, table.name)
    assert {line.at for line in made}.isdisjoint(line.at for line in before)
    assert log_tables.flush(settings, session.catalog) == len(made)
    assert copied(settings, table.name) == len(before) + len(made)
