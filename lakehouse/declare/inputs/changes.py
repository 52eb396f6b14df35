"""A topic of change events: the database's log of one table, as Debezium sends it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from lakehouse.declare.columns import column_names
from lakehouse.declare.inputs.kafka import KafkaSource, kafka
from lakehouse.declare.inputs.sources import Isolation, RecordOptions
from lakehouse.errors import DeclarationError

ADDED = ("op", "deleted", "sent", "position", "transaction")
"""The columns of a change besides the declared ones."""
WHOLE = "0"
"""The beginning of the position of a row that Debezium read in its first pass, before it followed the log."""


def changes(
    topic: str,
    *,
    key: str | Sequence[str],
    schema: str,
    isolation: Isolation = "",
    **records: Unpack[RecordOptions],
) -> KafkaSource:
    """Declares the changes of one table of a database, in JSON as Debezium sends them.

        customer_changes = changes("shop.public.customers", key="id", schema="id BIGINT, name STRING, balance DECIMAL(12,2)")

    A row is a change: the columns of `schema` as they are after it, and `op` (r: read when Debezium began, c: created,
    u: updated, d: deleted), `deleted`, `sent` (TIMESTAMP: when the transaction was committed), `position` (STRING: the place
    in the database's log, which is greater for a later change of a key) and `transaction` (STRING). A deleted row has its
    key alone. Tombstones and messages (op m) give no row. A TRUNCATE is quarantined, and so is a value that cannot be
    read exactly.

    :param topic: its name at the broker: by default prefix, schema and table of the database.
    :param key: the columns of the messages' key: by default the table's primary key.
    :param schema: Spark DDL of the columns to read; a NOT NULL column is required, except in a deleted row. The declared
        type decides how a value is read.
    :param isolation: "read_committed" for a connector with exactly-once delivery. By default as the settings say.
    :param records: see `RecordOptions`.
    :raises DeclarationError: for an impossible schema or key.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or len(set(keys)) < len(keys) or not set(keys) <= set(column_names(schema)):
        raise DeclarationError(
            f"key={key!r}, schema={schema!r}: a change has a key; name the columns of the messages' key, all in the schema"
        )
    source = kafka(
        topic,
        schema=schema,
        isolation=isolation,
        **records,
    )
    return replace(source, format="debezium", keys=keys)
