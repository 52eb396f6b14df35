"""Tables that are published, and versions of them written without Spark: what the stream appends, what a batch run replaces."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lakehouse import ingest_table, kafka, kafka_topic, keyed_table, row_table
from lakehouse.declare.columns import ARRIVAL, PARTITION
from lakehouse.storage.delta import delta_writer, small_commits, table_creation
from lakehouse.storage.delta.row_keys import KEY, of_text
from lakehouse.storage.keyed import keyed_files

payment_topic = kafka(
    "payments-in", schema="account STRING, n BIGINT, amount DECIMAL(9,2), at TIMESTAMP"
)


@ingest_table(layer="bronze", event_time="at")
def payment_events(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(
    layer="silver",
    publish=[kafka_topic("payments", key=["account", "n"], order_by="account", partitions=3)],
)
def payments(payment_events: DataFrame) -> DataFrame:
    return payment_events


@keyed_table(
    layer="gold",
    keys=["account"],
    publish=[kafka_topic("balances", key="account")],
)
def balances(payment_events: DataFrame) -> DataFrame:
    return payment_events.groupBy("account").agg({"amount": "sum"})


APP = "payments:stream:1"
START = datetime(2026, 1, 1, tzinfo=UTC)
_ARRIVED = pa.struct(
    [
        ("watermark", pa.timestamp("us", "UTC")),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
    ]
)
_PAYMENT = pa.schema(
    [
        ("account", pa.string()),
        ("n", pa.int64()),
        ("amount", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        (ARRIVAL, _ARRIVED),
        (PARTITION, pa.string()),
    ]
)
_PAYMENTS = T.StructType(
    [
        T.StructField("account", T.StringType()),
        T.StructField("n", T.LongType()),
        T.StructField("amount", T.DecimalType(9, 2)),
        T.StructField("at", T.TimestampType()),
        T.StructField(
            ARRIVAL,
            T.StructType(
                [
                    T.StructField("watermark", T.TimestampType()),
                    T.StructField("topic", T.StringType()),
                    T.StructField("partition", T.IntegerType()),
                    T.StructField("offset", T.LongType()),
                    T.StructField("time", T.TimestampType()),
                ]
            ),
        ),
        T.StructField(PARTITION, T.StringType()),
    ]
)
_BALANCES = T.StructType(
    [
        T.StructField("account", T.StringType()),
        T.StructField("balance", T.DecimalType(9, 2)),
        T.StructField(KEY, T.BinaryType()),
    ]
)
_BALANCE = pa.schema(
    [("account", pa.string()), ("balance", pa.decimal128(9, 2)), (KEY, pa.binary())]
)
Payment = tuple[str, int, str]  # account, number, amount


def make_payments(path: Path) -> None:
    table_creation.create(path, _PAYMENTS, True, "")


def append(path: Path, batch: int, found: list[Payment], partition: str = "0") -> int:
    """What the stream commits: the last of them first in the file, for a file has no order."""
    rows = _rows(found[::-1], partition)
    metadata = delta_writer._text(APP, batch, {"inputs": {}})
    return small_commits.commit(small_commits.files_of(rows, path), path, APP, batch, metadata)


def replace(path: Path, found: list[Payment], partition: str) -> None:
    """What a batch run does: the rows take the place of those of a partition."""
    write_deltalake(
        str(path),
        _rows(found, partition),
        mode="overwrite",
        predicate=f"{PARTITION} = '{partition}'",
    )


def _rows(found: list[Payment], partition: str) -> pa.Table:
    rows = [
        {
            "account": account,
            "n": n,
            "amount": Decimal(amount),
            "at": START,
            ARRIVAL: {"watermark": None, "topic": "in", "partition": 0, "offset": n, "time": START},
            PARTITION: partition,
        }
        for account, n, amount in found
    ]
    return pa.Table.from_pylist(rows, _PAYMENT)


def make_balances(path: Path) -> None:
    table_creation.create(path, _BALANCES, False, "", table_creation.found_by(["account"]))


def upsert(path: Path, batch: int, found: dict[str, str], gone: tuple[str, ...] = ()) -> int:
    """A step of the keyed table: the balances of these accounts, and accounts that are gone."""
    rows = [
        {"account": name, "balance": Decimal(amount), KEY: _key(name)}
        for name, amount in found.items()
    ]
    touched = pa.chunked_array([pa.array([_key(name) for name in (*found, *gone)], pa.binary())])
    app = "balances:stream:1"
    metadata = delta_writer._text(app, batch, {"inputs": {}})
    return keyed_files.upsert(
        pa.Table.from_pylist(rows, _BALANCE), path, app, batch, metadata, touched
    )


def _key(account: str) -> bytes:
    return of_text("balances", {"account": "string"}, [account])
