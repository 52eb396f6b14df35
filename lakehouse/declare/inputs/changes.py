"""A topic of change events: the database's log of one table, as Debezium sends it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakehouse.declare.columns import column_names
from lakehouse.declare.inputs.kafka import KafkaSource, kafka
from lakehouse.declare.inputs.sources import Isolation, UnknownFields
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
    unknown_fields: UnknownFields = "ignore",
    max_bytes: int = 1 << 20,
    max_future_skew: str | timedelta = "5 minutes",
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC),
    idle_timeout: str | timedelta = "30 seconds",
    quiet_timeout: str | timedelta = "0 seconds",
    isolation: Isolation = "",
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
    :param unknown_fields: "quarantine" quarantines changes of rows with columns that the schema does not name.
    :param max_bytes: the largest message that is parsed; a larger one is quarantined.
    :param max_future_skew: how far `sent` may be ahead of the message's own timestamp.
    :param min_event_time: the earliest `sent`, with its time zone.
    :param idle_timeout: a partition that is silent this long, while another is not, no longer holds back the watermark.
    :param quiet_timeout: once all partitions have been silent this long, event time goes on with the clock.
    :param isolation: "read_committed" for a connector with exactly-once delivery. By default as the settings say.
    :raises DeclarationError: for an impossible schema or key.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or len(set(keys)) < len(keys) or not set(keys) <= set(column_names(schema)):
        raise DeclarationError(
            f"key={key!r}, schema={schema!r}: a change belongs to the row of a key; name the columns of the messages' key, all "
            "of them in the schema"
        )
    source = kafka(
        topic,
        schema=schema,
        unknown_fields=unknown_fields,
        max_bytes=max_bytes,
        max_future_skew=max_future_skew,
        min_event_time=min_event_time,
        idle_timeout=idle_timeout,
        quiet_timeout=quiet_timeout,
        isolation=isolation,
    )
    return replace(source, format="debezium", keys=keys)
