"""The state that a streaming query keeps between two micro-batches: key by key, while it runs or is
stopped, by Spark's own reader."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import quoted_column
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.storage.delta.digest import EMPTY, Digest, digest
from lakehouse.storage.delta.row_keys import KEY
from lakehouse.storage.disk.objects import for_spark
from lakehouse.storage.position import checkpoint_files, checkpoints
from lakehouse.storage.session import Session
from lakehouse.stream.strategy import strategy


def state(session: Session, table: Table, key: Mapping[str, str] | None = None) -> DataFrame:
    """Returns the state after the last committed micro-batch: the columns of the key, then what Spark keeps for it.

    For a window, say, these are its partial aggregates, by their names in Spark. A keyed or versioned table that
    is filled by steps is its own state. `key`: values of columns of the key, as text; only rows with these count.
    Raises RangeError for a table whose streaming query has no state, or has not run, and for other columns in `key`.
    """
    if table.kind.is_upserted and strategy(session, table) != "state":
        return _of_key(table, session.read(table).drop(KEY), table.keys, key)
    settings, checkpoint = session.settings, None
    if session.catalog.driving_input(table):
        generation = checkpoints.standing(settings, table).generation
        checkpoint = checkpoint_files.folder_of(settings, table, generation)
    if not checkpoint or not checkpoint_files.keeps_state(checkpoint):
        raise RangeError(
            f"table={table.name}: its streaming query keeps no state, or has not run yet; sessions, windows of ten minutes or "
            "more, keyed and versioned tables have one; where the range that closes is computed whole (shorter windows, joins) "
            "there is none"
        )
    session.spark.streams.active  # noqa: B018 - the reader needs what this starts
    store = session.spark.read.format("statestore").load(for_spark(checkpoint))
    columns = [*_columns(store, "key"), *_columns(store, "value")]
    rows = store.select(*(column.alias(name) for name, column in _unique_names(columns)))
    return _of_key(table, rows, [name for name, _ in _columns(store, "key")], key)


def checksum(spark: SparkSession, checkpoint: Path) -> Digest:
    """Returns the checksum of all that Spark keeps in a checkpoint after its last micro-batch, in whatever partitions."""
    spark.streams.active  # noqa: B018 - the reader needs what this starts
    stores = spark.read.format("state-metadata").load(for_spark(checkpoint))
    held = EMPTY
    for each in stores.select("operatorId", "stateStoreName").distinct().collect():
        store = (
            spark.read.format("statestore")
            .option("operatorId", each["operatorId"])
            .option("storeName", each["stateStoreName"])
            .load(for_spark(checkpoint))
        )
        columns = [*_columns(store, "key"), *_columns(store, "value")]
        held += digest(
            store.select(*(column.alias(f"c{n}") for n, (_, column) in enumerate(columns)))
        )
    return held


def _of_key(
    table: Table, rows: DataFrame, names: Sequence[str], key: Mapping[str, str] | None
) -> DataFrame:
    try:
        for name, value in (key or {}).items():
            rows = rows.where(F.col(quoted_column(name, rows.columns)).cast("string") == value)
    except AnalysisException as err:
        raise RangeError(
            f"table={table.name}, key={name}: the columns of its key are {', '.join(names)}; name one of them"
        ) from err
    return rows


def _columns(found: DataFrame, side: str) -> list[tuple[str, Column]]:
    """Returns the fields of the key or value, by their place: two aggregates may have one name."""
    fields = cast(StructType, found.schema[side].dataType).fields
    placed = StructType([StructField(f"_{n}", each.dataType) for n, each in enumerate(fields)])
    return [
        (each.name, F.col(side).cast(placed).getField(f"_{n}")) for n, each in enumerate(fields)
    ]


def _unique_names(columns: list[tuple[str, Column]]) -> list[tuple[str, Column]]:
    seen: Counter[str] = Counter()
    named = []
    for name, column in columns:
        seen[name] += 1
        named.append((name if seen[name] == 1 else f"{name}_{seen[name]}", column))
    return named
