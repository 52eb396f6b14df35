"""Rows of data files are found by the values of some columns, whatever their type, and none is missed."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from lakehouse.storage.keyed.row_index import RowIndex, Truncated, can_index

VALUES = {
    "int64": (pa.int64(), lambda n: n - 5),
    "int32": (pa.int32(), lambda n: n),
    "text": (pa.string(), lambda n: f"key-{n}"),
    "bytes": (pa.binary(), lambda n: bytes([n])),
    "decimal": (pa.decimal128(9, 2), lambda n: Decimal(n) / 4),
    "instant": (
        pa.timestamp("us", "UTC"),
        lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n),
    ),
    "date": (pa.date32(), lambda n: datetime(2026, 1, 1 + n, tzinfo=UTC).date()),
    "truth": (pa.bool_(), lambda n: n % 2 == 0),
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_rows_of_some_values_are_found_in_all_files(tmp_path, kind):
    random, (type_, value) = Random(kind), VALUES[kind]
    rows = [
        {"n": n, "key": None if random.random() < 0.1 else value(random.randrange(20)), "b": n % 3}
        for n in range(400)
    ]
    files = []
    for number in range(4):
        files.append(tmp_path / f"{number}.parquet")
        part = pa.Table.from_pylist(
            rows[number * 100 :][:100], pa.schema({"n": pa.int64(), "key": type_, "b": pa.int64()})
        )
        # as Spark may have them: of another precision, and in several row groups
        if kind == "instant":
            part = part.set_column(1, "key", part["key"].cast(pa.timestamp("ns", "UTC")))
        pq.write_table(part, files[-1], row_group_size=30)
    index = RowIndex([["key", "b"]])
    few = [(value(3), 1), (value(7), 0), (None, 2), (value(19), 2)]
    wanted = pa.table(
        {
            "group": pa.array([key for key, _ in few], type_),
            "other": pa.array([b for _, b in few], pa.int64()),
        }
    )
    for chosen in (files, files[1:3], files):
        there = [row["n"] for row in rows if (row["key"], row["b"]) in few]
        there = [n for n in there if files[n // 100] in chosen]
        found = index.rows_of(dict.fromkeys(chosen, BitMap()), wanted, 400)
        assert found is not None and sorted(found["n"].to_pylist()) == there
        assert there, "else nothing was looked for"
    gone = there[::2]
    living = {file: BitMap(n % 100 for n in gone if files[n // 100] == file) for file in files}
    found = index.rows_of(living, wanted, len(there) - len(gone))
    assert found is not None and sorted(found["n"].to_pylist()) == there[1::2], "deleted rows"
    none = dict.fromkeys(files, BitMap())
    assert index.rows_of(none, wanted, len(there) - 1) is None, "they are too many"


def test_what_has_no_hash_of_its_own_is_not_looked_for():
    assert can_index([pa.int64(), pa.string(), pa.timestamp("us", "UTC")])
    assert not can_index([pa.int64(), pa.float64()])
    assert not can_index([pa.struct({"start": pa.timestamp("us")})])


def test_a_row_that_is_found_by_two_sets_of_columns_is_there_once(tmp_path):
    file = tmp_path / "0.parquet"
    pq.write_table(pa.table({"payer": [1, 2, 3, 1], "payee": [2, 1, 4, 1]}), file)
    found = RowIndex([["payer"], ["payee"]]).rows_of({file: BitMap()}, pa.table({"who": [1]}), 10)
    assert found is not None and found.to_pylist() == [
        {"payer": 1, "payee": 2},
        {"payer": 2, "payee": 1},
        {"payer": 1, "payee": 1},
    ]


def test_the_rows_of_a_day_or_hour_are_found_by_it(tmp_path):
    kind, start = pa.timestamp("us", "UTC"), datetime(1969, 12, 31, 22, 30, tzinfo=UTC)
    at = [start + timedelta(hours=n) for n in range(60)] + [None]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"at": pa.array(at, kind), "n": list(range(61))}), file)
    wanted = {
        "date": (pa.array([date(1970, 1, 1)]), range(2, 26)),
        "day": (pa.array([datetime(1969, 12, 31, tzinfo=UTC)], kind), range(2)),
        "hour": (pa.array([datetime(1970, 1, 1, 5, tzinfo=UTC), None], kind), [7, 60]),
        "week": (pa.array([datetime(1969, 12, 29, tzinfo=UTC)], kind), range(60)),
    }
    for unit, (values, places) in wanted.items():
        index = RowIndex([[Truncated("at", unit)]])
        rows = index.rows_of({file: BitMap()}, pa.table({"by": values}), 100)
        assert rows and sorted(rows["n"].to_pylist()) == list(places), unit
