"""Rows of a keyed table, written and read without Spark."""

from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import StructType

from lakehouse.storage.delta import delta_writer, table_creation
from lakehouse.storage.delta.row_keys import KEY, of_text
from lakehouse.storage.keyed import keyed_files

APP = "accounts:stream:1"
SCHEMA = "account string, region int, n bigint, at timestamp, price decimal(9,2), _key binary"
ARROW = pa.schema([
    ("account", pa.string()), ("region", pa.int32()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC")),
    ("price", pa.decimal128(9, 2)), (KEY, pa.binary()),
])  # fmt: skip
TYPES = {"account": "string", "region": "integer"}
AT = datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
Key = tuple[str | None, int | None]


def table(path: Path) -> Path:
    table_creation.create(path, StructType.fromDDL(SCHEMA), False, "", table_creation.KEYED)
    return path


def key_of(key: Key) -> bytes:
    return of_text("accounts", TYPES, [None if part is None else str(part) for part in key])


def rows(found: list[tuple[Key, int]]) -> pa.Table:
    """Rows of these keys with these numbers."""
    return pa.Table.from_pylist(
        [
            {
                "account": key[0],
                "region": key[1],
                "n": n,
                "at": AT,
                "price": Decimal(n),
                KEY: key_of(key),
            }
            for key, n in found
        ],
        ARROW,
    )


def keys(found: list[Key]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([key_of(key) for key in found], pa.binary())])


def upsert(
    path: Path, batch: int, found: list[tuple[Key, int]], touched: list[Key] | None = None
) -> int:
    metadata = delta_writer._text(APP, batch, {"inputs": {}})
    return keyed_files.upsert(
        rows(found), path, APP, batch, metadata, None if touched is None else keys(touched)
    )


def by_deltalake(path: Path, version: int | None = None) -> Counter:
    engine = QueryBuilder()
    engine.register("t", DeltaTable(str(path), version=version))
    found = pa.table(engine.execute("SELECT account, region, n FROM t").read_all()).to_pylist()
    return Counter((row["account"], row["region"], row["n"]) for row in found)
