"""The state of a table by its log: what a log lacks is said, and never read as files that are not there."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log, log_state


@pytest.fixture
def table(tmp_path) -> Path:
    for n in range(5):
        write_deltalake(str(tmp_path / "rows"), pa.table({"n": [n]}), mode="append")
    return tmp_path / "rows"


def commit(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def test_files_are_those_of_a_version_and_of_the_commits_after_it(table):
    assert [len(log_state.files_at(table, version)) for version in range(5)] == [1, 2, 3, 4, 5]
    assert len(log_state.files_since(table, 2)) == 5


def test_a_log_with_a_gap_is_refused(table):
    commit(table, 2).unlink()
    assert len(log_state.files_at(table, 1)) == 2
    for read in (
        lambda: log_state.newest(table),
        lambda: log_state.files_since(table, 0),
    ):
        with pytest.raises(CommitError, match="version=2: its log lacks this commit"):
            read()
    with pytest.raises(CommitError, match="version=4: its log does not have this version any more"):
        log_state.files_at(table, 4)


def test_a_version_whose_log_was_cut_is_refused(table):
    for version in (0, 1, 2):
        commit(table, version).unlink()
    with pytest.raises(CommitError, match="version=3: its log does not have this version any more"):
        log_state.files_at(table, 3)


def test_a_cut_that_was_killed_leaves_a_log_that_is_read_from_its_checkpoint(table):
    DeltaTable(str(table)).create_checkpoint()  # of version 4
    write_deltalake(str(table), pa.table({"n": [5]}), mode="append")
    for killed_after in range(5):
        assert len(log_state.files_since(table)) == 6
        commit(table, killed_after).unlink()
    assert len(log_state.files_since(table)) == 6
    assert log_state.files_since(table / "none") == []


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_lost(table):
    (there, *_), unseen = delta_log.files(table), {"path": "x" * 300}
    assert delta_log.lost(table, [there, {"path": "gone"}]) == [{"path": "gone"}]
    with pytest.raises(OSError, match="name too long"):
        delta_log.lost(table, [there, unseen])
