"""The one function that commits: what it refuses, and that a lost answer is no second commit."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.errors import CommitError
from lakehouse.storage.delta import (
    committer,
    delta_log,
    delta_writer,
    housekeeping,
    log_state,
    small_commits,
    table_creation,
)

APP = "t:stream:1"


@pytest.fixture
def table(tmp_path):
    table_creation.create(tmp_path / "t", StructType([StructField("n", LongType())]), False, "n")
    return tmp_path / "t"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers})


@pytest.mark.parametrize("answer", [errno.EEXIST, errno.EIO])
def test_a_commit_whose_answer_was_lost_is_there_once(table, monkeypatch, answer):
    link = os.link

    def lost(*files):
        link(*files)
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(os, "link", lost)
    for batch in range(3):
        assert delta_writer.append(rows(batch), table, APP, batch, {}) == batch + 1
    assert delta_log.latest(table) == 3 and log_state.rows(table) == 3
    assert list(delta_log.folder(table).glob(".*tmp")) == []


def test_an_error_after_a_commit_has_landed_is_none(table, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "unlink", fails)
    assert delta_writer.append(rows(1), table, APP, 0, {}) == 1
    assert delta_log.latest(table) == 1 and log_state.rows(table) == 1


def test_a_table_is_made_once_and_by_one_of_those_that_make_it(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_log, "exists", lambda path: False)  # each has looked before
    columns = StructType([StructField("n", LongType())])
    first, second = (
        committer.head(table_creation.create(tmp_path / "t", columns, False, "n").path).metadata
        for _ in range(2)
    )
    assert first["id"] == second["id"] and delta_log.latest(tmp_path / "t") == 0


def test_an_error_of_deltalake_after_its_commit_has_landed_is_none(table):
    opened = DeltaTable(str(table))
    with committer.by_deltalake(table) as properties:
        write_deltalake(opened, rows(1), mode="append", commit_properties=properties)
        raise CommitFailedError("its answer was lost")
    with pytest.raises(CommitFailedError), committer.by_deltalake(table):
        raise CommitFailedError("another writer was faster")
    assert delta_log.latest(table) == 1


def test_a_file_that_is_committed_twice_is_read_once(table):
    write_deltalake(str(table), rows(1), mode="append")
    again = delta_log.actions(table, 1)
    for version in (2, 3):  # deltalake and Spark do so by themselves, after a lost answer
        assert committer._create(table, version, again)
    assert [len(delta_log.moved(table, version)) for version in (1, 2, 3)] == [1, 0, 0]
    assert [change.version for change in delta_log.changes(table, 0)] == [1]
    DeltaTable(str(table)).delete()
    assert committer._create(table, 5, again), "it was restored, say"
    assert [kind for kind, _ in delta_log.moved(table, 5)] == ["add"]


def test_a_commit_that_did_not_land_raises_its_error(table, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken, pytest.raises(OSError, match="Input/output"):
        broken.setattr(os, "link", fails)
        delta_writer.append(rows(1), table, APP, 0, {})
    assert delta_writer.append(rows(1), table, APP, 0, {}) == 1


def test_a_full_disk_leaves_no_half_commit(table, monkeypatch):
    write_text = Path.write_text

    def full(path, text):
        write_text(path, text[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk, pytest.raises(OSError, match="No space left"):
        disk.setattr(Path, "write_text", full)
        delta_writer.append(rows(1), table, APP, 0, {})
    assert [file.name for file in delta_log.folder(table).iterdir()] == [f"{0:020}.json"]
    assert delta_writer.append(rows(1), table, APP, 0, {}) == 1


def test_a_commit_stands_though_its_checkpoint_cannot_be_made(table, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(committer, "CHECKPOINTS", 2)
    monkeypatch.setitem(committer.head(table).metadata, "configuration", {})
    with monkeypatch.context() as disk:
        disk.setattr(delta_log, "open_table", full)
        for batch in range(2):
            assert delta_writer.append(rows(batch), table, APP, batch, {}) == batch + 1
    assert "version=2: no checkpoint of its log could be made" in caplog.text
    for batch in (2, 3):
        delta_writer.append(rows(batch), table, APP, batch, {})
    assert delta_log.checkpoints(table) == [4] and log_state.rows(table) == 4


def test_a_checkpoint_is_made_once_the_log_outweighs_a_part_of_the_last(table, monkeypatch):
    monkeypatch.setattr(committer, "CHECKPOINTS", 2)
    monkeypatch.setattr(committer, "_OUTWEIGHED", 9)

    def commits(times: int) -> list[int]:
        monkeypatch.setitem(committer.head(table).metadata, "configuration", {})
        for _ in range(times):
            delta_writer.append(rows(1), table, APP, delta_log.latest(table), {})
        return delta_log.checkpoints(table)

    many = [small_commits.files_of(rows(n), table)[0] for n in range(100)]
    small_commits.commit(many, table, APP, 0, "{}")
    assert commits(1) == [2], "the first"
    assert commits(18) == [2], "of a hundred files"
    committer.forget(table)  # as by another process
    assert commits(2) == [2, 22], "so many commits are the most"
    monkeypatch.setattr(committer, "_OUTWEIGHED", 0.01)
    assert commits(2) == [2, 22, 24]
    monkeypatch.setattr(committer, "_OUTWEIGHED", 9)
    commits(1)
    DeltaTable(str(table)).create_checkpoint()
    housekeeping.cut(table, 25)  # as another process does
    assert commits(1) == [25, 26], "of one that is gone nothing is known"
    assert log_state.rows(table) == DeltaTable(str(table)).count() == 125


@pytest.mark.parametrize(
    ("properties", "feature"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "changeDataFeed"),
        ({"delta.constraints.positive": "n > 0"}, "checkConstraints"),
    ],
)
def test_a_feature_that_is_not_kept_is_refused(table, properties, feature):
    delta_writer.append(rows(1), table, APP, 0, {})
    version, metadata = committer.head(table).version, committer.head(table).metadata
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    asked = metadata | {"configuration": metadata["configuration"] | properties}
    assert committer._create(table, version + 1, [{"protocol": protocol}, {"metaData": asked}])
    with pytest.raises(CommitError, match=f"it has {feature}, which commits here do not keep"):
        delta_writer.append(rows(2), table, APP, 1, {})
    assert committer._create(table, version + 2, [{"metaData": metadata}])
    delta_writer.append(rows(2), table, APP, 1, {})


def test_a_table_of_which_nothing_may_be_removed_is_only_added_to(table):
    state = committer.head(table)
    metadata = state.metadata | {"configuration": state.properties | {"delta.appendOnly": "true"}}
    assert committer._create(table, state.version + 1, [{"metaData": metadata}])
    version = delta_writer.append(rows(1), table, APP, 0, {})
    files = log_state.files_at(table, version)
    with pytest.raises(CommitError, match="appendOnly"):
        small_commits.replace([], files, table, version, None, "{}")


def test_a_commit_to_a_table_that_is_gone_is_refused(table):
    committer.forget(table)
    with pytest.raises(CommitError, match="there is none, so it has been removed"):
        small_commits.commit([], table.parent / "none", APP, 0, "{}")
