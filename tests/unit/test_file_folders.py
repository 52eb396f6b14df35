"""Tables published to folders of files: what the manifest names is one version, and what is damaged is found and repaired."""

import json
import re
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse import Position, RowChange, file_folder
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks.comparison import compare, repair
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.formats.encoding import key_of, value_of
from lakehouse.sinks.targets.files import _KEPT, _MANY, MANIFEST
from lakehouse.sinks.targets.files_folder import Folder, decoded, encoded
from lakehouse.storage.lakehouse import Lakehouse
from support import ROOT, published

PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
FORMATS = pytest.mark.parametrize("format", ["parquet", "csv", "json"])


@pytest.fixture
def lakehouse(tmp_path) -> Lakehouse:
    made = Lakehouse(Settings(root=tmp_path / "root"), catalog_of([published]))
    published.make_payments(made.path(made.catalog.table("payments")))
    return made


def follower(lakehouse, tmp_path, **how) -> Follower:
    target = file_folder(str(tmp_path / "out"), key=["account", "n"], **how)
    return Follower(lakehouse, lakehouse.catalog.table("payments"), target)


def caught_up(following: Follower) -> None:
    while following.step():
        pass


def manifest(tmp_path) -> dict:
    return json.loads((tmp_path / "out" / MANIFEST).read_text())


def test_a_long_text_of_csv_is_read_and_a_column_that_went_is_passed_over():
    columns = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.string())])
    rows = [{"a": 'x"\n' * 1_000_000, "b": 1, "c": None}, {"a": "", "b": None, "c": "é"}]
    content = encoded("csv", rows, columns)
    assert decoded("csv", content, {"a": "string", "b": "int64", "c": "string"}) == rows
    kept = decoded("csv", content, {"a": "string", "b": "int64"})
    assert [(each["a"], each["b"]) for each in kept] == [(each["a"], each["b"]) for each in rows]


@FORMATS
def test_maps_are_as_they_were_when_they_are_read_back(format):
    columns = pa.schema([("a", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])
    rows = [{"a": "1", "m": {"x": 1, "y": None}}, {"a": "2", "m": {}}, {"a": "3", "m": None}]
    types = {field.name: str(field.type) for field in columns}
    found = decoded(format, encoded(format, rows, columns), types)
    assert [value_of(each) for each in found] == [value_of(each) for each in rows]
    assert value_of(rows[0]) == '{"a":"1","m":{"x":1}}' and value_of(rows[1]) == '{"a":"2","m":{}}'


@FORMATS
def test_a_correction_writes_its_partition_again_and_leaves_the_others(lakehouse, tmp_path, format):
    path = lakehouse.path(lakehouse.catalog.table("payments"))
    following = follower(lakehouse, tmp_path, format=format, partition_by="account")
    following.begin()
    caught_up(following)
    published.append(path, 0, [("a/b", 0, "1.00"), ("c", 1, "1.00")])
    caught_up(following)
    published.append(path, 1, [("a/b", 2, "1.00")], "1")
    caught_up(following)
    before = manifest(tmp_path)
    assert [entry["partition"] for entry in before["files"]] == [
        "account=a%2Fb",
        "account=c",
        "account=a%2Fb",
    ]
    published.replace(path, [("a/b", 0, "7.00")], "0")  # one row changes, that of c goes
    caught_up(following)
    after = manifest(tmp_path)
    [only] = after["files"]
    assert (only["partition"], only["rows"]) == ("account=a%2Fb", 2) and after["version"] == 3
    assert after["left"].keys() == {entry["path"] for entry in before["files"]}
    assert all((tmp_path / "out" / name).exists() for name in after["left"]), "for who reads still"
    following.end()
    assert compare(lakehouse, following.table, following.target).verdict == "EQUAL"
    if format == "parquet":
        [read] = [
            code
            for code in PYTHON.findall((ROOT / "docs" / "how-to" / "publish.md").read_text())
            if "def read(" in code
        ]
        exec(read, of_docs := {})
        [rows] = of_docs["read"](tmp_path / "out")
        assert sorted(rows["n"].to_pylist()) == [0, 2]


@FORMATS
def test_what_is_missing_damaged_or_foreign_is_named_and_repaired(lakehouse, tmp_path, format):
    path = lakehouse.path(lakehouse.catalog.table("payments"))
    published.append(path, 0, [("a", 0, "1.00"), ("b", 1, "1.00"), ("c", 2, "1.00")])
    following = follower(lakehouse, tmp_path, format=format, partition_by="account")
    following.begin()
    caught_up(following)
    following.end()
    gone, torn, _ = (entry["path"] for entry in manifest(tmp_path)["files"])
    (tmp_path / "out" / gone).unlink()
    content = (tmp_path / "out" / torn).read_bytes()
    (tmp_path / "out" / torn).write_bytes(content[:-1])
    (tmp_path / "out" / "account=a" / "notes.txt").write_text("mine")
    found = compare(lakehouse, following.table, following.target)
    assert {(each.key, each.cause) for each in found.differences} == {
        (gone, "missing file"), (torn, "damaged file"), ("account=a/notes.txt", "foreign file"),
        ('{"account":"a","n":0}', "missing"), ('{"account":"b","n":1}', "missing"),
    }  # fmt: skip
    published.append(path, 1, [("a", 3, "1.00")], "1")
    heir = follower(lakehouse, tmp_path, format=format, partition_by="account")
    heir.begin()
    with pytest.raises(SinkError, match=r"is a missing file; .* --repair` sends what differs"):
        heir.step()
    assert repair(lakehouse, following.table, following.target) == 3
    assert compare(lakehouse, following.table, following.target).verdict == "EQUAL"
    assert (tmp_path / "out" / "_foreign" / "account=a" / "notes.txt").read_text() == "mine"


def test_a_manifest_that_is_gone_or_unreadable_is_refused_and_repaired(lakehouse, tmp_path):
    path = lakehouse.path(lakehouse.catalog.table("payments"))
    published.append(path, 0, [("a", 0, "1.00")])
    following = follower(lakehouse, tmp_path)
    following.begin()
    caught_up(following)
    following.end()
    for damage, said in (
        (lambda at: at.unlink(), "and no _manifest"),
        (lambda at: at.write_text("{"), "cannot be read"),
    ):
        damage(tmp_path / "out" / MANIFEST)
        with pytest.raises(SinkError, match=said):
            follower(lakehouse, tmp_path).begin()
        assert repair(lakehouse, following.table, following.target) == 1
        assert compare(lakehouse, following.table, following.target).verdict == "EQUAL"
    (tmp_path / "out" / "_epoch").unlink()  # no name of a file comes again
    other = follower(lakehouse, tmp_path, format="csv", partition_by="account")
    with pytest.raises(SinkError, match=r"the files in .* have format='parquet', not 'csv'"):
        other.begin()
    assert repair(lakehouse, following.table, other.target) == 1
    assert compare(lakehouse, following.table, other.target).verdict == "EQUAL"


def test_a_process_that_was_replaced_is_refused_and_what_it_wrote_goes(lakehouse, tmp_path):
    path = lakehouse.path(lakehouse.catalog.table("payments"))
    published.append(path, 0, [("a", 0, "1.00")])
    zombie, heir, last = (follower(lakehouse, tmp_path) for _ in range(3))
    zombie.begin()
    heir.begin()
    with pytest.raises(SinkError, match="another process has taken it over"):
        zombie.step()
    caught_up(heir)
    assert len(list((tmp_path / "out").glob("v*"))) == 2, "the zombie's file is in no manifest"
    assert compare(lakehouse, heir.table, heir.target).verdict == "EQUAL"
    last.begin()
    assert [each.name for each in (tmp_path / "out").glob("v*")] == [
        manifest(tmp_path)["files"][0]["path"]
    ]


@FORMATS
def test_values_of_every_type_come_back_as_they_are(tmp_path, format):
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("t", pa.string()), ("e", pa.string()), ("b", pa.bool_()),
            ("d", pa.float64()), ("nan", pa.float64()), ("day", pa.date32()), ("raw", pa.binary()), ("m", pa.decimal128(12, 3)),
            ("many", pa.list_(pa.int64())), ("part", pa.struct([("x", pa.decimal128(4, 1)), ("y", pa.string())])),
        ]
    )  # fmt: skip
    full = {
        "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "n": 1, "t": 'ü,\n"x"', "e": "", "b": True, "d": 0.1, "nan": float("nan"),
        "day": date(2026, 1, 2), "raw": b"\x00\xff", "m": Decimal("1.100"), "many": [1, 2], "part": {"x": Decimal("1.5")},
    }  # fmt: skip
    empty = dict.fromkeys(full) | {"at": datetime(2026, 1, 1, tzinfo=UTC)}
    target = file_folder(str(tmp_path / "out"), key="at", format=format)
    sink = target.sink(Settings(root=tmp_path / "root"), "t")
    sink.open()
    sink.columns(schema)
    sink.write(1, [RowChange("insert", full), RowChange("insert", empty)])
    sink.write(2, [RowChange("update", full | {"n": 2})])  # so that they are read and written again
    sink.commit(Position("id", 2))
    found = {
        key: value for key, value, _ in target.sink(Settings(root=tmp_path / "root"), "t").rows(2)
    }
    assert found == {key_of(row, ["at"]): value_of(row) for row in (full | {"n": 2}, empty)}


def test_files_of_a_partition_become_one_and_those_that_left_are_removed_after_an_hour(
    tmp_path, monkeypatch
):
    sink = file_folder(str(tmp_path / "out"), key="n").sink(Settings(root=tmp_path / "root"), "t")
    sink.open()
    sink.columns(pa.schema([("n", pa.int64())]))
    for version in range(_MANY + 1):
        sink.write(version, [RowChange("insert", {"n": version})])
        sink.commit(Position("id", version))
    assert [entry["rows"] for entry in manifest(tmp_path)["files"]] == [_MANY + 1]
    assert len(list((tmp_path / "out").glob("v*"))) == _MANY + 1
    monkeypatch.setattr("lakehouse.sinks.targets.files._KEPT", -_KEPT)
    sink.commit(Position("id", version + 1))
    assert len(list((tmp_path / "out").glob("v*"))) == 1 and not manifest(tmp_path)["left"]


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match="partition_by='day': a row stays in its partition"):
        file_folder("out", key="n", partition_by="day")
    with pytest.raises(DeclarationError, match="each row is a partition of its own"):
        file_folder("out", key="n", partition_by="n")
    with pytest.raises(DeclarationError, match="path='': a folder"):
        file_folder("", key="n")
    with pytest.raises(DeclarationError, match=r"target=out, key=\[\]: at least one column"):
        file_folder("out", key=[])
    for path, root in ((tmp_path / "x", tmp_path), (tmp_path, tmp_path / "x")):
        with pytest.raises(SinkError, match="it and the root of the lakehouse must lie apart"):
            file_folder(str(path), key="n").sink(Settings(root=root), "t")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(SinkError, match=r"it has files \(mine.txt\)"):
        file_folder(str(tmp_path / "out"), key="n").sink(Settings(root=tmp_path / "x"), "t").open()


def test_a_process_that_slept_before_it_renames_its_manifest_is_refused(lakehouse, tmp_path):
    path = lakehouse.path(lakehouse.catalog.table("payments"))
    published.append(path, 0, [("a", 0, "1.00")])
    asleep, heir = (follower(lakehouse, tmp_path) for _ in range(2))
    asleep.begin()

    @contextmanager
    def overtaken():
        """The lock, which reaches no other host: meanwhile another process has it, too."""
        with monkeypatched.context() as free:
            free.setattr(Folder, "lock", lambda folder: nullcontext())
            heir.begin()
            caught_up(heir)
        yield

    monkeypatched = pytest.MonkeyPatch()
    with monkeypatched.context() as sleep, pytest.raises(SinkError, match="has taken it over"):
        sleep.setattr(asleep.sink._folder, "lock", overtaken)
        asleep.step()
    assert manifest(tmp_path)["position"]["version"] == 1
    assert compare(lakehouse, heir.table, heir.target).verdict == "EQUAL"
