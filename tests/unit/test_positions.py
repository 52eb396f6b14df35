"""How far a table has read its input, and what comes next, by the input's log alone."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakehouse.errors import CommitError
from lakehouse.stream import positions
from lakehouse.stream.positions import Position


@pytest.fixture
def path(tmp_path):
    """Version 0: two files; 1: one; 2: these three in one, by compaction; 3: rows in place of all; 4: one file more."""
    path = tmp_path / "input"
    rows = pa.table({"p": ["a", "b"], "n": [1, 2]})
    write_deltalake(path, rows, partition_by=["p"])
    write_deltalake(path, pa.table({"p": ["a"], "n": [3]}), mode="append")
    DeltaTable(str(path)).optimize.compact()
    write_deltalake(path, rows, mode="overwrite")
    write_deltalake(path, pa.table({"p": ["a"], "n": [4]}), mode="append")
    return path


def test_files_come_commit_by_commit_and_what_was_put_in_place_of_others_does_not_come(path):
    found = positions.following(path, Position(0), 1_000)
    assert (len(found.files), found.rows, found.end) == (2 + 1 + 1, 4, Position(5))
    assert all(file.exists() for file in found.files)
    assert positions.following(path, found.end, 1_000).files == ()


def test_a_commit_is_cut_between_two_files_and_nothing_comes_twice(path):
    at, pieces = Position(0), []
    while (piece := positions.following(path, at, 1)).files:
        pieces.append(piece)
        at = piece.end
    assert [piece.end for piece in pieces] == [
        Position(0, 0),
        Position(1),
        Position(2),
        Position(5),
    ]
    files = [file for piece in pieces for file in piece.files]
    assert len(files) == len(set(files)) == 4
    assert positions.between(path, Position(0, 0), Position(2)).files == tuple(files[1:3])
    assert positions.between(path, Position(0), Position(0, 0)).files == tuple(files[:1])


def test_an_end_that_is_set_is_kept_to(path):
    assert positions.following(path, Position(0), 1_000, until=1).end == Position(2)
    assert positions.following(path, Position(2), 1_000, until=3) == positions.Piece(
        (), 0, Position(4)
    )


def test_of_a_log_that_was_cut_it_is_said(path):
    (path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(
        CommitError, match=r"input=input, version=0: its log begins with 1, .*lakehouse bootstrap"
    ):
        positions.following(path, Position(0), 1_000)
    with pytest.raises(CommitError, match=r"version=5: the table's log ends before it"):
        positions.between(path, Position(4), Position(10))


def test_positions_that_spark_noted_are_gone_on_from():
    offset = Position(7, 3).offset("id")
    assert Position.of(offset) == Position(7, 3)
    assert Position.of(offset | {"index": -100}) == Position(7), (
        "Spark's own beginning of a version"
    )
    assert Position.of(offset | {"isStartingVersion": True}) == Position(8), "all of that version"
