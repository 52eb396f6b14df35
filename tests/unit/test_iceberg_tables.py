"""An Iceberg table of others: which files and rows come of it, and what is refused; real tables in a catalog on SQLite."""

from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lakehouse import iceberg_table, row_table
from lakehouse.errors import DeclarationError, SourceError
from lakehouse.settings import Settings
from lakehouse.storage.foreign.file_register import Register
from lakehouse.storage.foreign.foreign_files import Away, Gone
from lakehouse.storage.foreign.foreign_records import RecordReader
from lakehouse.storage.foreign.foreign_sources import files_of, lost, unread
from support.iceberg_shop import SCHEMA, START, Shop

TYPES = {"n": "bigint", "at": "timestamp", "cents": "decimal(12,2)"}
MOST = 10**9


@row_table(layer="bronze", event_time="at")
def readings(rows): ...


class Reading:
    """What an ingest table makes of the shop's table. Each time it is another process."""

    def __init__(self, shop: Shop, source=None, **types: str) -> None:
        self.settings = Settings(root=shop.root / "root")
        self.source = source or shop.source()
        self.types = types or TYPES

    @property
    def register(self) -> Register:
        return Register(self.settings, readings)

    def look(self, read: int = MOST, most: int = MOST) -> list[dict]:
        """The rows that are registered after a look."""
        files_of(self.source, self.register).feed(lambda known: False, self.types).look(read, most)
        return self.rows()

    def rows(self, step: int = MOST) -> list[dict]:
        register = self.register
        found, begin = [], 0
        with closing(RecordReader(files_of(self.source, register))) as reader:
            while begin < register.end:
                piece = reader.read(begin, min(begin + step, register.end))
                assert piece["offset"].to_pylist() == [*range(begin, begin + piece.num_rows)]
                found += piece["row"].to_pylist()
                begin += piece.num_rows
        return found

    def numbers(self, **how) -> list[int]:
        return [row["n"] for row in self.look(**how)]


@pytest.fixture
def shop(tmp_path) -> Shop:
    return Shop(tmp_path)


def test_what_is_appended_is_read_in_order_and_compaction_passed_over(shop):
    reading = Reading(shop)
    assert reading.numbers() == [], "it has no snapshot yet"
    shop.append(5, 6)
    shop.append(3)
    assert reading.numbers() == [5, 6, 3]
    shop.compact()
    shop.append(9)
    assert reading.numbers() == [5, 6, 3, 9]
    assert reading.rows(step=1) == reading.rows()
    assert reading.register.through == shop.last() and shop.numbers() == [3, 5, 6, 9]


def test_a_look_registers_about_as_many_records_as_are_asked_for(shop):
    reading = Reading(shop)
    reading.look()
    for n in range(5):
        shop.append(n)
    assert reading.numbers(read=0, most=2) == [0, 1]
    assert reading.numbers(read=2, most=2) == [0, 1, 2, 3]


def test_a_file_of_many_rows_is_read_in_pieces(shop):
    shop.append(*range(20_000))
    reading = Reading(shop)
    assert len(reading.look()) == 20_000
    assert [row["n"] for row in reading.rows(step=7_001)] == [*range(20_000)]


@pytest.mark.parametrize("how", ["by position", "by vector", "both"])
def test_rows_that_are_deleted_when_it_is_read_first_do_not_come(shop, how):
    shop.append(*range(6))
    (file,) = shop.data_files()
    if how != "by vector":
        shop.delete_by_position(file.file_path, [1, 4])
    if how != "by position":
        shop.delete_by_vector(file.file_path, [0, 4])
    shop.append(6)
    left = {"by position": [0, 2, 3, 5, 6], "by vector": [1, 2, 3, 5, 6], "both": [2, 3, 5, 6]}
    assert shop.numbers() == left[how], "its own scan"
    reading = Reading(shop)
    assert reading.numbers() == left[how] and reading.rows(step=1) == reading.rows()


def test_rows_that_are_deleted_by_equality_are_refused(shop):
    shop.append(0, 1)
    shop.delete_by_equality()
    with pytest.raises(
        SourceError, match=r"equal.parquet: it says by equality which rows are deleted"
    ):
        Reading(shop).look()


def overwrite(shop: Shop) -> None:
    shop.table.overwrite(shop.rows(7), overwrite_filter="n = 1")


def by_position(shop: Shop) -> None:
    shop.delete_by_position(shop.data_files()[0].file_path, [0])


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda shop: shop.table.delete("n = 1"), "overwrite"),
        (lambda shop: shop.table.delete("n >= 0"), "delete"),
        (overwrite, "overwrite"),
        (by_position, "delete"),
    ],
    ids=["rows", "files", "overwritten", "delete file"],
)
def test_a_snapshot_that_removes_rows_stops_once_all_before_it_is_read(shop, change, operation):
    reading = Reading(shop)
    shop.append(0, 1)
    reading.look()
    shop.append(2)
    known = {each.snapshot_id for each in shop.table.snapshots()}
    change(shop)
    assert reading.numbers(read=0) == [0, 1, 2]
    said = rf"operation={operation}: it removes or changes rows, .*accept-gap readings"
    with pytest.raises(SourceError, match=said):
        reading.look()
    register = reading.register
    first = next(s.snapshot_id for s in shop.table.snapshots() if s.snapshot_id not in known)
    assert files_of(reading.source, register).passed_over() == first
    register.add([], first)
    shop.append(9)
    added = [7] if change is overwrite else []
    assert (
        reading.numbers() == [0, 1, 2, *added, 9]
        and files_of(reading.source, register).passed_over() is None
    )


def test_an_overwrite_that_removes_nothing_adds_rows(shop):
    shop.append(0)
    reading = Reading(shop)
    reading.look()
    with pytest.warns(UserWarning, match="did not match any records"):
        shop.table.overwrite(shop.rows(1), overwrite_filter="n = 1")
    assert reading.numbers() == [0, 1]


def test_snapshots_that_are_expired_after_they_were_read_are_no_gap(shop):
    reading = Reading(shop)
    for n in range(3):
        shop.append(n)
    reading.look()
    shop.append(3)
    shop.expire(*[each.snapshot_id for each in shop.table.snapshots()][:-1])
    assert reading.numbers() == [0, 1, 2, 3]


def test_snapshots_that_are_expired_before_they_were_read_stop(shop):
    reading = Reading(shop)
    shop.append(0)
    reading.look()
    for n in range(1, 5):
        shop.append(n)
    first, *between, before, last = (each.snapshot_id for each in shop.table.snapshots())
    shop.expire(first, *between)
    with pytest.raises(
        SourceError,
        match=rf"snapshots between {first} and {before} are expired, or .*, and they were not read.*"
        "accept-gap readings.*keep them for longer",
    ):
        reading.look()
    register = reading.register
    assert files_of(reading.source, register).passed_over() == before
    register.add([], before)
    assert reading.numbers() == [0, 4], (
        "pyiceberg takes away what came before the first that is left"
    )
    assert reading.register.through == last


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_snapshots_of_an_empty_table_that_are_expired_before_they_were_read_stop(
    shop, version
):
    """The first version of the format numbers no commits."""
    shop.catalog.drop_table("shop.orders")
    shop.create(version=version)
    reading = Reading(shop)
    assert reading.look() == []
    shop.append(0)
    assert reading.numbers() == [0], "the first of all is no gap"
    shop.catalog.drop_table("shop.orders")
    shop.create(version=version)
    other = Reading(shop)
    other.settings = Settings(root=shop.root / "other")
    assert other.look() == []
    for n in range(3):
        shop.append(n)
    shop.expire(*[each.snapshot_id for each in shop.table.snapshots()][:-1])
    with pytest.raises(SourceError, match=r"are expired, or .*, and they were not read"):
        other.look()


def test_what_was_present_is_read_though_more_has_come_since(shop):
    reading = Reading(shop)
    feed = files_of(reading.source, reading.register).feed(lambda known: False, reading.types)
    shop.append(0)
    present = feed.present()
    assert not feed.has_read(present, 0)
    for n in range(1, 6):
        feed.look(n - 1, MOST)
        assert feed.has_read(present, n) and not feed.has_read(present, 0)
        shop.append(n)
    feed.look(5, MOST)
    assert feed.has_read(present, 5) and len(feed._ends) < 5, "those that are read are forgotten"


def test_a_table_that_was_rolled_back_stops(shop):
    reading = Reading(shop)
    shop.append(0)
    back = shop.last()
    shop.append(1)
    reading.look()
    shop.table.manage_snapshots().set_current_snapshot(snapshot_id=back).commit()
    shop.append(2)
    with pytest.raises(SourceError, match="does not go back to the one that was read last"):
        reading.look()
    register = reading.register
    assert files_of(reading.source, register).passed_over() == shop.last()
    register.add([], shop.last())
    shop.append(3)
    assert reading.numbers() == [0, 1, 3]


def test_another_table_under_the_name_stops(shop):
    reading = Reading(shop)
    shop.append(0)
    reading.look()
    shop.catalog.drop_table("shop.orders")
    shop.create()
    with pytest.raises(
        SourceError, match=r"uuid=.*: it is another table than the one that was read"
    ):
        reading.look()


EVERY = Schema(
    NestedField(1, "n", IntegerType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "local", TimestampType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "share", FloatType()),
    NestedField(6, "tags", ListType(7, StringType(), element_required=False)),
    NestedField(
        8,
        "who",
        StructType(NestedField(9, "name", StringType()), NestedField(10, "age", IntegerType())),
    ),
    NestedField(11, "counts", MapType(12, StringType(), 13, LongType(), value_required=False)),
    NestedField(14, "id", UUIDType()),
    NestedField(15, "code", FixedType(2)),
)
SPARK = {
    "n": "int",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "share": "float",
    "tags": "array<string>",
    "who": "struct<name:string,age:int>",
    "counts": "map<string,bigint>",
    "id": "string",
    "code": "binary",
}
ID = UUID(int=5)


def every(n: int, **more) -> dict:
    return {
        "n": n,
        "at": START,
        "local": datetime(2026, 1, 1, 12),
        "day": date(2026, 1, 1 + n % 3),
        "share": 0.1,
        "tags": ["a", None],
        "who": {"name": "Ann", "age": n},
        "counts": {"x": n},
        "id": ID.bytes,
        "code": b"ab",
        **more,
    }


def put(shop: Shop, *rows: dict) -> None:
    shop.table.append(pa.Table.from_pylist([*rows], schema=shop.table.schema().as_arrow()))


@pytest.mark.parametrize(
    "spec",
    [
        PartitionSpec(),
        PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "day")),
    ],
    ids=["whole", "by day"],
)
def test_types_partitions_and_columns_that_are_added_renamed_and_widened(tmp_path, spec):
    shop = Shop(tmp_path, EVERY, spec)
    put(shop, *(every(n) for n in range(4)))
    reading = Reading(shop, shop.source("n INT"), **SPARK)
    rows = reading.look()
    first = next(row for row in rows if row["n"] == 3)
    assert first.pop("share") == pytest.approx(0.1)
    assert first == {
        **{k: v for k, v in every(3).items() if k != "share"},
        "counts": [("x", 3)],
        "id": str(ID),
    }
    with shop.table.update_schema() as update:
        update.rename_column("n", "number")
        update.rename_column(("who", "name"), "called")
        update.update_column("n", LongType())
        update.update_column("share", DoubleType())
        update.add_column("extra", StringType())
    with shop.table.update_schema() as update:
        update.add_column("n", StringType())
    put(shop, {"number": 2**40, "who": {"called": "Bob"}, "share": 0.1, "n": "none", "extra": "e"})
    assert len(reading.look()) == 5
    widened = [row for row in reading.rows() if row["n"] == 2**40]
    assert [(row["who"], row["share"], row["id"]) for row in widened] == [
        ({"name": "Bob", "age": None}, 0.1, None)
    ]
    assert {row["n"] for row in reading.rows()} == {0, 1, 2, 3, 2**40}
    by_scan = shop.table.scan().to_arrow().sort_by("number")
    ours = sorted(reading.rows(), key=lambda row: row["n"])
    assert [row["share"] for row in ours] == by_scan["share"].to_pylist()
    more = Reading(shop, reading.source, **SPARK, extra="string")
    assert [row["extra"] for row in sorted(more.look(), key=lambda row: row["n"])] == [None] * 4 + [
        "e"
    ]


def test_all_columns_are_read_where_unknown_ones_are_quarantined(shop):
    shop.append(0)
    source = shop.source("n BIGINT", unknown_fields="quarantine")
    assert set(Reading(shop, source, n="bigint").look()[0]) == {"n", "at", "cents"}
    plain = Reading(Shop(shop.root / "b"), shop.source("n BIGINT"), n="bigint")
    assert plain.look() == [{"n": 0}]


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (
            {"n": "int"},
            "column=n: the schema has it as int, and in the Iceberg table it is bigint;",
        ),
        (
            {"m": "date"},
            "column=m: .* as date, and in the Iceberg table it is not there, but n, at, cents",
        ),
    ],
)
def test_a_column_that_is_not_there_or_has_another_type_is_refused(shop, types, said):
    shop.append(0)
    with pytest.raises(SourceError, match=said):
        Reading(shop, **types).look()


def test_a_column_that_is_dropped_stops_once_all_before_is_read(shop):
    shop.append(0)
    reading = Reading(shop)
    reading.look()
    with shop.table.update_schema() as update:
        update.delete_column("cents")
    shop.table.append(
        pa.Table.from_pylist([{"n": 1, "at": START}], schema=shop.table.schema().as_arrow())
    )
    assert len(reading.look(read=0)) == 1
    with pytest.raises(SourceError, match="column=cents: its owner has dropped it"):
        reading.look()
    without = Reading(shop, n="bigint", at="timestamp")
    assert [row["n"] for row in without.look()] == [0, 1]


def test_a_type_that_spark_has_not_is_refused(tmp_path):
    shop = Shop(tmp_path, Schema(NestedField(1, "n", LongType()), NestedField(2, "t", TimeType())))
    shop.table.append(pa.table({"n": [1]}))
    assert Reading(shop, n="bigint").look() == [{"n": 1}]
    with pytest.raises(
        SourceError, match=r"column=t: the schema has it as string, and .* it is time"
    ):
        Reading(Shop(tmp_path / "b"), shop.source(), t="string").look()
    whole = Reading(shop, shop.source("n BIGINT", unknown_fields="quarantine"), n="bigint")
    with pytest.raises(SourceError, match="column=t, type=time: Spark has no such type"):
        whole.look()


def test_files_that_were_added_without_ids_are_read_by_the_name_mapping(shop):
    file = shop.root / "plain.parquet"
    rows = {
        "n": [4],
        "at": pa.array([START], pa.timestamp("us", "UTC")),
        "cents": [Decimal("1.00")],
    }
    pq.write_table(
        pa.table(rows).cast(
            pa.schema(
                {**{f.name: f.type for f in pa.table(rows).schema}, "cents": pa.decimal128(12, 2)}
            )
        ),
        file,
    )
    shop.table.add_files([str(file)])
    assert Reading(shop).look() == [{"n": 4, "at": START, "cents": Decimal("1.00")}]


def test_a_table_without_a_catalog_is_read_by_its_path(shop):
    shop.append(0, 1)
    metadata = shop.table.metadata_location
    fixed = Reading(shop, iceberg_table(metadata, schema=SCHEMA))
    assert fixed.numbers() == [0, 1]
    folder = shop.root / "warehouse" / "shop" / "orders"
    hint = folder / "metadata" / "version-hint.text"
    hint.write_text(metadata.rpartition("/")[2])
    other = Shop(shop.root / "other")
    followed = Reading(other, iceberg_table(str(folder), schema=SCHEMA))
    assert followed.numbers() == [0, 1]
    shop.append(2)
    assert followed.numbers() == [0, 1] and fixed.numbers() == [0, 1]
    hint.write_text(shop.table.metadata_location.rpartition("/")[2])
    assert followed.numbers() == [0, 1, 2]


def test_what_is_not_there_is_waited_for_and_a_file_that_is_gone_is_named(shop):
    nowhere = iceberg_table("shop.none", catalog={"type": "sql", "uri": shop.uri}, schema=SCHEMA)
    with pytest.raises(
        Away, match=r"iceberg_table=shop.none: its catalog and its files must be there"
    ):
        Reading(shop, nowhere).look()
    shop.append(0, 1)
    shop.append(2)
    reading = Reading(shop)
    reading.look()
    (shop.root / "warehouse" / "shop" / "orders" / "data").rename(shop.root / "away")
    with pytest.raises(Gone, match=r"parquet, records=0 to 1: it is gone before it was read"):
        reading.rows()
    assert lost(files_of(reading.source, reading.register), 0) == [(0, 3)]
    assert unread(files_of(reading.source, reading.register), 2) == [
        f"{reading.register.files[1].path} is yet to be read"
    ]


def test_a_variable_of_the_environment_is_filled_in(shop, monkeypatch):
    shop.append(0)
    source = iceberg_table("shop.orders", catalog={"type": "sql", "uri": "${SHOP}"}, schema=SCHEMA)
    with pytest.raises(
        SourceError, match=r"iceberg_table=shop.orders, variable=SHOP: .*set it there"
    ):
        Reading(shop, source).look()
    monkeypatch.setenv("SHOP", shop.uri)
    assert Reading(shop, source).numbers() == [0] and "sqlite" not in repr(source)


def test_a_package_that_is_not_installed_is_named(shop, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyiceberg.catalog", None)
    with pytest.raises(SourceError, match=r"pip install 'unified-lakehouse\[iceberg\]'"):
        Reading(shop).look()


def test_what_a_history_was_given_after_it_was_read_is_said(shop):
    shop.append(0)
    reading = Reading(shop)
    reading.look()
    after = files_of(reading.source, reading.register)
    shop.compact()
    assert after.look() == ""
    shop.append(1)
    first = shop.last()
    shop.table.delete("n = 0")
    assert f"snapshot {first} (rows were added), and 1 more; it was read to its end" in after.look()


def test_all_of_the_present_is_read_when_its_last_record_is(shop):
    shop.append(0, 1)
    reading = Reading(shop)
    register = reading.register
    feed = files_of(reading.source, register).feed(lambda known: False, TYPES)
    present = feed.present()
    assert not feed.has_read(present, MOST), "nothing is registered"
    feed.look(0, MOST)
    assert not feed.has_read(present, 1) and feed.has_read(present, 2)


def test_files_that_were_read_are_forgotten_and_the_columns_stay(shop, monkeypatch):
    monkeypatch.setattr("lakehouse.storage.foreign.file_register._WORTH", 1)
    shop.append(0)
    reading = Reading(shop)
    reading.look(read=0)
    shape = reading.register.shape
    files_of(reading.source, reading.register).feed(lambda known: False, TYPES).look(1, MOST)
    again = reading.register
    assert (again.files, again.end, again.through) == ([], 1, shop.last())
    assert shape and again.shape == shape
    shop.append(1)
    files_of(reading.source, again).feed(lambda known: False, TYPES).look(1, MOST)
    assert [file.first for file in reading.register.files] == [1]


def test_what_is_used_of_pyiceberg_is_there():
    """Two functions that it does not promise: `iceberg_rows` and `iceberg_tables` stand on them."""
    import inspect

    from pyiceberg.io import pyarrow

    assert [*inspect.signature(pyarrow._read_deletes).parameters] == ["io", "data_file"]
    projected = inspect.signature(pyarrow._to_requested_schema).parameters
    assert {
        "requested_schema",
        "file_schema",
        "batch",
        "projected_missing_fields",
        "allow_timestamp_tz_mismatch",
    } <= projected.keys()


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("shop.orders", {}, "without a catalog it is a path"),
        ("orders", {"catalog": {"type": "sql"}}, "write 'namespace.table'"),
        ("shop.orders", {"catalog": {"warehouse": "w"}}, "is known by its type or uri"),
        ("shop.orders", {"catalog": {"type": "sql", "echo": True}}, "echo=True: .* are texts"),
        ("/data/orders", {"schema": "n INT DEFAULT 5"}, "DEFAULT"),
    ],
)
def test_what_cannot_be_declared(name, how, said):
    with pytest.raises(DeclarationError, match=said):
        iceberg_table(name, **{"schema": SCHEMA, **how})
