"""A commit log that was cut, damaged or removed is read again."""

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
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import commit_cache, log_tables
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.testing import Stage
from support.torn_logs import TABLES, commit_log_of, cut, lines_of, table_of

MOMENT = timedelta(microseconds=1)


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


def whole_of(settings: Settings) -> list[str]:
    """The lines of all commit logs."""
    paths = layout.commit_logs(settings).glob("*.jsonl")
    caches = (path for path in paths if "." not in path.stem)
    return [line for path in caches for line in path.read_text().splitlines() if line.endswith("}")]


def copied(settings: Settings, name: str) -> int:
    rows = DeltaTable(str(layout.log_table(settings, "_commits"))).to_pyarrow_table(
        columns=["table"]
    )
    return rows["table"].to_pylist().count(name)


@pytest.mark.parametrize("name", TABLES)
def test_a_commit_log_that_was_cut_is_read_again(settings, name):
    whole = lines_of(settings, name)
    log_tables.flush(settings, catalog.load(settings))
    cut(settings, name, 3)
    later = replace(
        whole[-1], batch=whole[-1].batch + 1, at=whole[-1].at + timedelta(days=1), seconds=123456.75
    )
    # a job that runs goes on, and its lines soon reach further than what was copied
    commit_log = CommitLog(settings, table_of(settings, name))
    more = [replace(later, batch=later.batch + n, at=later.at + n * MOMENT) for n in range(5)]
    for each in more:
        commit_log.append(each)
    assert log_tables.flush(settings, catalog.load(settings)) in (0, 5)
    assert lines_of(settings, name) == [*whole, *more]
    log_tables.flush(settings, catalog.load(settings))
    assert copied(settings, name) == len(whole) + 5, "each line once"
    assert log_tables.flush(settings, catalog.load(settings)) == 0


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("name", TABLES)
def test_a_commit_log_that_is_gone_is_read_again_whole(settings, name, flushed):
    """With late and bad rows, which the table's own commits know of as well."""
    whole = lines_of(settings, name)
    if flushed:
        log_tables.flush(settings, catalog.load(settings))
    commit_log_of(settings, name).unlink()
    assert lines_of(settings, name) == whole
    assert log_tables.flush(settings, catalog.load(settings)) == (
        0 if flushed else len(whole_of(settings))
    )


@pytest.mark.parametrize("name", TABLES)
def test_commits_are_known_though_the_folder_with_all_notes_is_gone(settings, name, capfd):
    """But how many rows came late to windows that a step had closed before they were counted: that is said."""
    whole = lines_of(settings, name)
    shutil.rmtree(layout.commit_logs(settings))
    made = lines_of(settings, name)
    is_said = (
        "micro-batches wrote their rows before they counted the late ones" in capfd.readouterr().err
    )
    assert is_said == (name == "sensor_averages"), "whose ranges close"
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
    if name == "sensor_averages":
        written.pop()  # the last step is taken up again when its job is started
    assert [line.batch for line in made] == [line.batch for line in written]
    for line, was in zip(made, written, strict=True):
        assert {n: getattr(line, n) for n in known} == {n: getattr(was, n) for n in known}
        assert (line.heads, line.frontier) == (was.heads, was.frontier)


def test_a_line_that_only_looks_whole_is_said_and_read_again(settings, capfd):
    path, whole = commit_log_of(settings, "valid_readings"), lines_of(settings, "valid_readings")
    lines = path.read_bytes().splitlines(keepends=True)
    torn = lines[1][: lines[1].index(b'"inputs"')] + b'"inputs":{}\n'
    path.write_bytes(b"".join([lines[0], torn, *lines[2:]]))
    assert len(lines_of(settings, "valid_readings")) == len(whole) - 1
    assert lines_of(settings, "valid_readings") == whole
    assert (
        capfd.readouterr().err.count(f"commit log={path}: a line holds one commit, and one is torn")
        == 1
    )


def test_a_log_table_that_was_removed_is_said(settings, capfd):
    tables = catalog.load(settings)
    commit_log = CommitLog(settings, tables.table("sensor_readings"))
    log_tables.flush(settings, tables)
    commit_cache.trim(commit_log, longest=0, recent=commit_log.path.stat().st_size // 2)
    assert log_tables.flush(settings, tables) == 0 and capfd.readouterr().err == ""
    shutil.rmtree(layout.log_table(settings, "_commits"))
    assert log_tables.flush(settings, tables) > 0
    assert f"commit log={commit_log.path}: it was trimmed" in capfd.readouterr().err
    assert log_tables.flush(settings, tables) == 0 and capfd.readouterr().err == ""


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
    assert lines_of(settings, table.name) == []
    queries.start(session, table, available_now=True).awaitTermination()
    made = lines_of(settings, table.name)
    assert {line.at for line in made}.isdisjoint(line.at for line in before)
    assert log_tables.flush(settings, session.catalog) == len(made)
    assert copied(settings, table.name) == len(before) + len(made)
