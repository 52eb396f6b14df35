"""Folders and tables of others as ingest tables follow them: what comes into the register, in which order, and what is said."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse import row_table
from lakehouse.declare.columns import column_names
from lakehouse.declare.inputs.delta import delta_table
from lakehouse.declare.inputs.folder import FolderSource, folder
from lakehouse.errors import CommitError, DeclarationError, SourceError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.foreign import file_register, foreign_files
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_records import RecordReader
from lakehouse.storage.foreign.foreign_sources import files_of, lost, unread

MOST = 1_000


@row_table(layer="bronze", event_time="at")
def readings(rows): ...


class Followed:
    """A folder and the ingest table that follows it, without Spark; what was read is kept."""

    def __init__(self, root: Path, source: FolderSource | None = None, **declared) -> None:
        self.folder = root / "incoming"
        self.folder.mkdir(exist_ok=True)
        self.settings = Settings(root=root / "root")
        given = {"schema": "n BIGINT, at TIMESTAMP", "settle": "0 seconds"} | declared
        self.source = source or folder(str(self.folder), **given)
        self.read = 0
        self.records: list[tuple[str, bytes]] = []
        self.accepted: set[str] = set()
        self.resume()

    def resume(self) -> None:
        """As a process that begins: it knows what is on disk."""
        self.register = Register(self.settings, readings)
        self.feed = files_of(self.source, self.register).feed(
            lambda known: known.path in self.accepted
        )
        self.reader = RecordReader(files_of(self.source, self.register))

    def put(self, name: str, text: str | bytes, at: float = 0) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(path, (1_000 + at, 1_000 + at))
        return path

    def look(self, most: int = MOST) -> list[str]:
        self.feed.look(self.read, most)
        return [known.path for known in self.register.files]

    def take(self, most: int = MOST) -> list[str]:
        """Reads on; the lines that came."""
        self.look()
        came = []
        while self.read < self.register.end:
            rows = self.reader.read(self.read, min(self.register.end, self.read + most))
            self.read += rows.num_rows
            keys = [key.decode() for key in rows["key"].to_pylist()]
            self.records += zip(keys, rows["value"].to_pylist(), strict=True)
            came += rows["value"].to_pylist()
        return [value.decode() for value in came]


@pytest.fixture
def followed(tmp_path) -> Followed:
    return Followed(tmp_path)


def test_files_are_read_by_their_modification_time_then_by_name_those_below_and_later_ones_too(
    followed,
):
    followed.put("b.json", "b1\nb2\n", at=2)
    followed.put("day/a.json", "a1\n", at=2)
    followed.put("z.json", "z1\n", at=1)
    assert followed.take() == ["z1", "b1", "b2", "a1"]
    followed.put("older.json", "o1\n", at=0)
    assert followed.take() == ["o1"] and followed.take() == []
    assert [known.first for known in followed.register.files] == [0, 1, 3, 4]
    assert [key for key, _ in followed.records] == [
        "z.json:1",
        "b.json:1",
        "b.json:2",
        "day/a.json:1",
        "older.json:1",
    ]


def test_what_is_being_written_hidden_empty_or_of_another_name_does_not_count(tmp_path):
    followed = Followed(tmp_path, pattern="*.json*")
    for name in (".a.json", "_b.json", "c.json.tmp", "d.json.part", "e.txt", ".hidden/f.json"):
        followed.put(name, "x\n")
    followed.put("g.json", "")
    assert followed.look() == []


def test_a_file_counts_once_it_stands_still(tmp_path, monkeypatch):
    followed = Followed(tmp_path, settle="2 seconds")
    clock = 100.0
    monkeypatch.setattr("lakehouse.storage.foreign.foreign_folder.time.monotonic", lambda: clock)
    followed.put("a.json", "1\n", at=0)
    assert followed.look() == []
    clock += 1.9
    followed.put("a.json", "1\n2\n", at=1)
    assert followed.look() == []
    clock += 1.9
    assert followed.look() == []
    clock += 0.2
    assert followed.look() == ["a.json"] and followed.take() == ["1", "2"]


def test_a_file_of_another_name_is_the_same_one_and_a_copy_is_another(followed, caplog):
    first = followed.put("a.json", "1\n")
    assert followed.take() == ["1"]
    first.rename(followed.folder / "done-a.json")
    assert followed.take() == [] and "done-a.json is a.json under another name" in caplog.text
    followed.resume()
    (followed.folder / "done-a.json").rename(followed.folder / "c.json")
    assert followed.take() == []
    followed.put("copy.json", "1\n")  # beside it
    assert followed.take() == ["1"]
    (followed.folder / "c.json").unlink()
    followed.put("again.json", "1\n", at=60)  # written later: no rename keeps that
    assert followed.take() == ["1"]


def test_a_file_of_the_same_content_that_follows_within_a_second_is_another(followed):
    first = followed.put("a.json", "1\n", at=0.25)
    assert followed.take() == ["1"]
    first.unlink()
    followed.put("b.json", "1\n", at=0.75)
    assert followed.take() == ["1"]
    (followed.folder / "b.json").unlink()
    followed.put("b-on-another-disk.json", "1\n", at=0)  # which keeps whole seconds
    assert followed.take() == []


def test_a_file_that_is_renamed_before_it_is_read_is_read_under_its_new_name(followed):
    followed.put("a.json", "1\n2\n").rename(followed.put("a.json", "1\n2\n"))
    followed.look()
    (followed.folder / "a.json").rename(followed.folder / "b.json")
    with pytest.raises(foreign_files.Gone):
        followed.reader.read(0, 2)
    assert followed.take() == ["1", "2"]
    assert [key for key, _ in followed.records] == ["b.json:1", "b.json:2"]


def test_a_registered_file_that_is_gone_or_another_stops_and_can_be_accepted(followed):
    gone, changed = followed.put("a.json", "1\n2\n", at=1), followed.put("b.json", "3\n", at=2)
    followed.put("c.json", "4\n", at=3)
    followed.look()
    gone.unlink()
    with pytest.raises(
        SourceError,
        match=r"file=.*a.json, records=0 to 1: it is gone before it was read; .*accept-gap readings",
    ):
        followed.take()
    assert lost(files_of(followed.source, followed.register), 0) == [(0, 2)]
    followed.read = 2
    followed.put("b.json", "5\n", at=2)  # as many bytes, and of the same time
    with pytest.raises(
        SourceError, match=r"b.json: it is not what it was when its records were numbered"
    ):
        followed.take()
    assert lost(files_of(followed.source, followed.register), 1) == [(1, 3)]
    os.utime(changed, (2_000, 2_000))
    followed.accepted, followed.read = {"a.json", "b.json"}, 3
    assert followed.take() == ["4", "5"], "what is there now counts as a new file"


def test_a_file_that_changes_while_it_is_read_stops(tmp_path):
    followed = Followed(tmp_path)
    followed.put("a.json", "1\n2\n3\n")
    followed.look()
    assert followed.reader.read(0, 2).num_rows == 2
    followed.put("a.json", "1\n2\n33\n", at=1)
    with pytest.raises(SourceError, match="it is not what it was"):
        followed.reader.read(2, 3)


def test_a_file_that_grows_after_it_was_read_is_said_once_and_stays_a_remark(followed, caplog):
    followed.put("a.json", "1\n")
    assert followed.take() == ["1"]
    followed.put("a.json", "1\n2\n", at=5)
    assert followed.take() == [] == followed.take()
    assert caplog.text.count("it was written to since it was read") == 1
    (remark,) = followed.feed.remarks
    assert "put that into a file of another name" in remark
    assert unread(files_of(followed.source, followed.register), 1) == [
        "a.json was written to since it was registered"
    ]
    followed.put("a.json", "1\n", at=9)  # touched, and as it was
    assert (
        followed.take() == []
        and not followed.feed.remarks
        and not unread(files_of(followed.source, followed.register), 1)
    )


def test_a_file_with_a_header_alone_is_read_once_it_has_lines(tmp_path):
    followed = Followed(tmp_path, format="csv")
    followed.put("a.csv", "n,at\n")
    assert followed.take() == []
    followed.put("a.csv", "n,at\n1,2026-01-01\n", at=1)
    assert followed.take() == ["1,2026-01-01"] and followed.records == [
        ("a.csv:2", b"1,2026-01-01")
    ]


def test_a_file_whose_first_line_is_no_header_is_refused_by_its_name_and_the_others_go_on(
    tmp_path, caplog
):
    followed = Followed(tmp_path, format="csv")
    followed.put("a.csv", "at,n\n2026-01-01,1\n", at=1)
    followed.put("b.csv", "\ufeffN,At\r\n2,2026-01-01\r\n\r\n", at=2)
    assert followed.take() == ["2,2026-01-01"] == followed.take() or followed.records
    (refused,) = followed.feed.refused
    assert (
        "a.csv: it is not read, since its first line is 'at,n'" in refused
        and "'n,at'; correct it" in refused
    )
    assert caplog.text.count("a.csv") == 1
    assert unread(files_of(followed.source, followed.register), 1) == ["a.csv is not registered"]
    followed.put("a.csv", "n,at\n1,2026-01-01\n", at=3)
    assert followed.take() == ["1,2026-01-01"] and not followed.feed.refused


@pytest.mark.parametrize("cut", [20, 8, 2])
def test_a_file_of_gzip_that_does_not_end_waits(followed, cut):
    whole = gzip.compress(b"1\n2\n" * 50, mtime=0)
    followed.put("a.json.gz", whole[:-cut], at=1)
    assert followed.take() == []
    assert "a.json.gz: it is not read, since it is not whole" in followed.feed.refused[0]
    followed.put("a.json.gz", whole, at=2)
    assert followed.take() == ["1", "2"] * 50 and not followed.feed.refused


def test_no_file_of_gzip_or_parquet_by_its_content_is_refused(tmp_path):
    followed = Followed(tmp_path)
    followed.put("a.gz", "plain\n")
    followed.look()
    assert "no file of gzip" in followed.feed.refused[0]
    followed = Followed(tmp_path, format="parquet", pattern="*.parquet")
    followed.put("a.parquet", "plain\n")
    followed.look()
    assert "no file of Parquet" in followed.feed.refused[0]


def test_lines_that_are_too_long_are_cut_and_keep_their_number(tmp_path):
    followed = Followed(tmp_path, max_bytes=4)
    followed.put("a.json", b"1234\r\n12345678\n\n" + b"x" * 3_000_000 + b"\nlast")
    assert followed.take(most=2) == ["1234", "12345", "xxxxx", "last"]
    assert [key for key, _ in followed.records] == ["a.json:1", "a.json:2", "a.json:4", "a.json:5"]


def test_a_process_that_begins_reads_on_within_a_file(tmp_path):
    followed = Followed(tmp_path)
    followed.put("a.json.gz", gzip.compress("".join(f"{n}\n" for n in range(100)).encode()))
    followed.look()
    followed.read = 50
    followed.resume()
    assert followed.take(most=7) == [str(n) for n in range(50, 100)]


def test_few_files_are_registered_at_once(followed):
    for n in range(20):
        followed.put(f"{n:02}.json", "1\n2\n", at=n)
    assert len(followed.look(most=5)) == 3
    assert len(followed.take()) == 40


def test_a_torn_line_of_the_register_is_left_out_and_its_file_registered_again(followed, caplog):
    followed.put("a.json", "1\n", at=1)
    followed.put("b.json", "2\n", at=2)
    followed.look()
    note = layout.note(followed.settings, readings, "files.jsonl")
    note.write_bytes(note.read_bytes()[:-20])
    followed.resume()
    assert [known.path for known in followed.register.files] == ["a.json"]
    assert f"file={note}, line=2: it is torn" in caplog.text
    assert followed.take() == ["1", "2"]
    followed.resume()
    assert followed.take() == [] and followed.register.end == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0], '{"x": 1}', lines[2]],
    ],
)
def test_a_register_that_lost_a_line_is_not_gone_on_with(followed, spoil):
    for n in range(3):
        followed.put(f"{n}.json", "1\n", at=n)
    followed.look()
    note = layout.note(followed.settings, readings, "files.jsonl")
    note.write_text("\n".join(spoil(note.read_text().splitlines())) + "\n")
    with pytest.raises(
        CommitError,
        match=r"files.jsonl: it numbers the records that the table has read, and .*; put it back",
    ):
        followed.resume()


def test_a_folder_that_is_not_there_is_said(tmp_path, orders):
    followed = Followed(tmp_path)
    followed.folder.rmdir()
    with pytest.raises(
        foreign_files.Away, match=r"path=.*incoming: it must be there and be readable, and is not"
    ):
        followed.look()
    shutil.rmtree(orders.path)
    with pytest.raises(foreign_files.Away, match=r"path=.*orders: it must be there"):
        orders.look()


def test_files_of_texts_as_delta_rs_writes_them_are_read(tmp_path):
    """Arrow's views, also within other columns: Arrow itself takes no rows of them, and Spark has no such type."""
    followed = Followed(tmp_path, format="parquet")
    text = pa.string_view()
    row = {
        "texts": ["a"],
        "many": ["a", None],
        "about": {"raw": b"b"},
        "by_name": [("c", "d")],
        "e": None,
    }
    columns = {
        "texts": pa.list_(text),
        "many": pa.large_list(text),
        "about": pa.struct({"raw": pa.binary_view()}),
        "by_name": pa.map_(pa.string(), text),
        "e": text,
    }
    pq.write_table(pa.Table.from_pylist([row], pa.schema(columns)), followed.folder / "a.parquet")
    followed.look()
    assert followed.feed.refused == []
    (found,) = (
        RecordReader(files_of(followed.source, followed.register)).read(0, 1)["row"].to_pylist()
    )
    assert found == row


def test_rows_of_parquet_are_handed_out_with_their_places(tmp_path):
    followed = Followed(tmp_path, format="parquet")
    pq.write_table(
        pa.table({"n": range(20_000), "s": pa.array(["x"] * 20_000).dictionary_encode()}),
        followed.folder / "a.parquet",
    )
    pq.write_table(pa.table({"n": [1.5]}), followed.folder / "b.parquet")
    os.utime(followed.folder / "a.parquet", (1, 1))
    followed.look(most=50_000)
    assert followed.register.end == 20_001
    rows = followed.reader.read(9_999, 20_001)
    assert (
        rows["row"].to_pylist()[0] == {"n": 9_999, "s": "x"}
        and rows["key"][0].as_py() == b"a.parquet:10000"
    )
    assert rows.num_rows == 10_001, "a step ends where the columns change"
    assert followed.reader.read(20_000, 20_001)["row"].to_pylist() == [{"n": 1.5}]


N = {"name": "n", "type": "long", "nullable": True, "metadata": {}}


class OfDelta:
    """The log of a Delta table, written by hand."""

    def __init__(self, root: Path) -> None:
        self.path = root / "orders"
        (self.path / "_delta_log").mkdir(parents=True)
        self.settings = Settings(root=root / "root")
        self.source = delta_table(str(self.path), schema="n BIGINT")
        self.version = -1
        self.commit(
            {
                "metaData": {
                    "configuration": {},
                    "schemaString": json.dumps({"type": "struct", "fields": [N]}),
                }
            },
            self.add("first", 3),
        )

    def add(self, name: str, rows: int, **more) -> dict:
        stats = json.dumps({"numRecords": rows})
        return {
            "add": {
                "path": name,
                "size": 1,
                "modificationTime": 5,
                "dataChange": True,
                "stats": stats,
                "partitionValues": {},
            }
            | more
        }

    def remove(self, name: str, change: bool = True) -> dict:
        return {"remove": {"path": name, "dataChange": change}}

    def commit(self, *actions: dict, operation: str = "WRITE") -> None:
        self.version += 1
        lines = [{"commitInfo": {"operation": operation}}, *actions]
        file = self.path / "_delta_log" / f"{self.version:020}.json"
        file.write_text("\n".join(json.dumps(line) for line in lines))

    def feed(self, **types: str):
        register = Register(self.settings, readings)
        return files_of(self.source, register).feed(lambda known: False, types or {"n": "bigint"})

    def look(self, read: int = 10**9) -> list[tuple[str, int]]:
        feed = self.feed()
        feed.look(read, MOST)
        return [(known.path, known.first) for known in feed.register.files]


@pytest.fixture
def orders(tmp_path) -> OfDelta:
    return OfDelta(tmp_path)


def test_a_removed_file_has_the_partition_that_it_was_added_with(orders):
    """Of a table whose changes are read; a writer need not say it again, and where nothing says it, the version is refused."""
    orders.source = delta_table(str(orders.path), schema="n BIGINT", changes=True)
    orders.commit(orders.add("second", 2, partitionValues={"day": "2026-01-02"}))
    assert orders.look() == [("first", 0), ("second", 3)]
    orders.commit(orders.remove("second"), orders.add("third", 1), operation="UPDATE")
    feed = orders.feed()
    feed.look(10**9, MOST)
    found = [(f.path, f.change, f.count, f.values) for f in feed.register.files[2:]]
    assert found == [("second", "delete", 2, {"day": "2026-01-02"}), ("third", "insert", 1, {})]
    orders.commit(orders.remove("never there"), operation="DELETE")
    with pytest.raises(
        SourceError, match=r"version=3, file=never there: .*what the log said of it"
    ):
        orders.feed().look(10**9, MOST)


def test_a_log_that_does_not_say_what_the_table_is_is_refused(orders):
    """As one whose first commits are gone, and whose checkpoint is of several files."""
    orders.commit(orders.add("second", 2))
    (orders.path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(SourceError, match="oldest version=1: its log must name the columns"):
        orders.look()


def test_what_is_appended_to_a_table_is_read_and_compaction_passed_over(orders):
    assert orders.look() == [("first", 0)]
    orders.commit(orders.add("second", 2), orders.add("third", 1))
    compacted = orders.add("compacted", 5, dataChange=False)
    orders.commit(
        compacted,
        orders.remove("first", False),
        orders.remove("second", False),
        operation="OPTIMIZE",
    )
    orders.commit(orders.add("fourth", 4, deletionVector={"cardinality": 3}))
    assert orders.look() == [("first", 0), ("second", 3), ("third", 5), ("fourth", 6)]
    assert orders.feed().register.end == 7 and orders.feed().register.through == 3


def test_a_table_with_history_begins_with_the_rows_that_it_has(orders):
    orders.commit(orders.add("second", 2), orders.remove("first"), operation="DELETE")
    assert orders.look() == [("second", 0)]


@pytest.mark.parametrize("operation", ["DELETE", "MERGE"])
def test_a_version_that_removes_rows_stops_once_all_before_it_is_read(orders, operation):
    orders.look()
    orders.commit(orders.add("second", 2))
    orders.commit(orders.remove("first"), orders.add("rest", 1), operation=operation)
    assert orders.look(read=0) == [("first", 0), ("second", 3)]
    with pytest.raises(
        SourceError,
        match=rf"version=2, operation={operation}: it removes or changes rows.*accept-gap readings",
    ):
        orders.look(read=5)
    register = orders.feed().register
    assert files_of(orders.source, register).passed_over() == 2
    register.add([], 2)
    orders.commit(orders.add("later", 1))
    assert (
        orders.look()[-1] == ("later", 5)
        and files_of(orders.source, orders.feed().register).passed_over() is None
    )


def test_a_version_that_the_log_has_lost_stops(orders):
    orders.look()
    for name in ("second", "third", "fourth"):
        orders.commit(orders.add(name, 1))
    for version in (0, 1, 2):
        (orders.path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SourceError, match="version=1: its log does not have this version any more"):
        orders.look()
    register = orders.feed().register
    assert files_of(orders.source, register).passed_over() == 2
    register.add([], 2)
    assert orders.look() == [("first", 0), ("fourth", 3)]


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"n": "int"}, "column=n: the schema has it as int, and in the Delta table it is bigint;"),
        (
            {"n": "bigint", "m": "date"},
            "column=m: .* as date, and in the Delta .* not there, but n",
        ),
    ],
)
def test_columns_that_a_table_does_not_have_so_are_refused_before_a_row_is_read(
    orders, types, said
):
    feed = orders.feed(**types)
    with pytest.raises(SourceError, match=said):
        feed.look(0, MOST)
    assert not feed.register.files


def test_a_table_with_mapped_columns_is_refused(orders):
    orders.look()
    orders.commit(
        {"metaData": {"configuration": {"delta.columnMapping.mode": "name"}, "schemaString": "{}"}}
    )
    with pytest.raises(SourceError, match=r"mode=name: .* is not read"):
        orders.look()


def test_a_table_of_features_that_are_not_known_is_refused(orders):
    orders.commit(
        {"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors", "v2Checkpoint"]}}
    )
    with pytest.raises(SourceError, match=r"readerFeatures=v2Checkpoint: .* is not known here"):
        orders.look()


def test_versions_that_a_crash_left_half_registered_are_finished(orders):
    orders.look()
    orders.commit(orders.add("second", 2), orders.add("third", 1))
    note = layout.note(orders.settings, readings, "files.jsonl")
    orders.look()
    lines = note.read_text().splitlines()
    note.write_text(
        "\n".join(lines[:-2]) + "\n"
    )  # without the third file, and that the version is whole
    assert orders.look() == [("first", 0), ("second", 3), ("third", 5)]
    assert len(note.read_text().splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"format": "avro"}, "format='avro': one of json, csv, text, parquet"),
        ({"header": True}, "header=True, format='json': only CSV files have a header line"),
        ({"format": "text"}, "text is one column"),
        (
            {"format": "csv", "unknown_fields": "quarantine"},
            "format='csv': its values have no names",
        ),
        ({"settle": "soon"}, "settle"),
    ],
)
def test_what_a_folder_cannot_be_is_refused(declared, told):
    with pytest.raises(DeclarationError, match=told):
        folder("/data", **{"schema": "n BIGINT, at TIMESTAMP"} | declared)


def test_the_names_of_columns_are_read_without_spark():
    schema = (
        "a BIGINT NOT NULL, `b` DECIMAL(12,2), c STRUCT<x: INT, y: MAP<STRING, INT>>, d: STRING"
    )
    assert column_names(schema) == ["a", "b", "c", "d"]


def test_a_relative_folder_is_relative_to_the_module():
    assert folder("incoming", schema="n BIGINT").address == str(Path(__file__).parent / "incoming")


def test_files_that_were_read_and_are_gone_for_long_are_forgotten_and_the_numbers_of_the_others_stay(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(file_register, "_WORTH", 2)
    monkeypatch.setattr(file_register, "_FORGET", 0.0)
    followed = Followed(tmp_path, forget="1 day")
    for n in range(4):
        followed.put(f"{n}.json", f"{n}\n{n}\n", at=n)
    followed.take(most=1)
    assert followed.look() == ["0.json", "1.json", "2.json", "3.json"], "all of them are there"
    fresh = followed.put("new.json", "n\n")
    os.utime(fresh)
    followed.take()
    for name in ("0.json", "2.json", "new.json"):
        (followed.folder / name).unlink()
    assert followed.look() == ["1.json", "3.json", "new.json"], "the last is not gone for long"
    end = followed.register.end
    for known in (followed.register, Register(followed.settings, readings)):
        assert (known.end, [each.first for each in known.files]) == (end, [2, 6, 8])
        assert [known.of_record(n) is not None for n in (1, 2, 4, 6, 8, 9)] == [
            False,
            True,
            False,
            True,
            True,
            False,
        ]
        file = known.of_record(7)
        assert file is not None and file.path == "3.json"
    followed.resume()
    followed.put("4.json", "4\n", at=9)
    assert followed.take() == ["4"] and followed.register.end == end + 1
    followed.put("0.json", "0\n0\n", at=0)  # nobody knows it any more
    assert followed.take() == ["0", "0"]


def test_files_are_not_forgotten_before_they_are_read_nor_without_being_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(file_register, "_WORTH", 1)
    monkeypatch.setattr(file_register, "_FORGET", 0.0)
    for forget in ("0 seconds", "1 day"):
        root = tmp_path / forget
        root.mkdir()
        followed = Followed(root, forget=forget)
        path = followed.put("a.json", "1\n")
        followed.look()
        path.unlink()
        assert followed.look() == ["a.json"], "its records are yet to be read"
        followed.read = followed.register.end
        assert followed.look() == ([] if forget == "1 day" else ["a.json"])
        assert Register(followed.settings, readings).end == 1


def test_files_of_a_table_of_others_are_forgotten_with_the_version_that_was_read_last(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(file_register, "_WORTH", 1)
    monkeypatch.setattr(file_register, "_FORGET", 0.0)
    register = Register(Settings(root=tmp_path), readings)
    register.add([Registered(f"{n}.parquet", 1, 0, 10) for n in range(3)], through=7)
    register.add([Registered("begun.parquet", 1, 0, 10)])
    register.forget(20, lambda file: file.path not in register.since)
    for known in (register, Register(Settings(root=tmp_path), readings)):
        assert [each.path for each in known.files] == ["2.parquet", "begun.parquet"]
        assert (known.end, known.through, known.since) == (40, 7, {"begun.parquet"})
    register.add([], through=8)
    register.forget(40, lambda file: file.path not in register.since)
    for known in (register, Register(Settings(root=tmp_path), readings)):
        assert (known.files, known.end, known.through) == ([], 40, 8)
