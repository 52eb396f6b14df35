"""What Debezium sends for changes of a table in PostgreSQL, recorded in `change_events.jsonl.gz`: a line for each message.

    PYTHONPATH=.:tests .venv/bin/python -m support.change_events    # records it again

The connector is Debezium's 3.5.0.Final for PostgreSQL in Kafka Connect 4.2.0, on PostgreSQL 15 with the
plug-in pgoutput. Each configuration of `CONFIGURED` sends the same changes.
"""

import gzip
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer

from benchmarks import debezium, postgres
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment

FILE = Path(__file__).with_suffix(".jsonl.gz")
# the last value of `long` is stored outside of its row, and is not sent when something else changes
CREATED = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE letters (id int PRIMARY KEY, title text, pages int NOT NULL, long text);
ALTER TABLE letters ALTER COLUMN long SET STORAGE EXTERNAL;
CREATE TABLE notes (LIKE letters INCLUDING ALL);
ALTER TABLE notes REPLICA IDENTITY FULL;
CREATE TABLE customers (
    id bigint PRIMARY KEY, n int, small smallint, open boolean, name text, short varchar(20), padded char(4),
    balance numeric(12, 2), rate numeric, share double precision, ratio real, born date, at_noon time,
    seen timestamp, seen_ms timestamp(3), seen_at timestamptz, code uuid, doc json, docb jsonb, picture bytea,
    tags text[], numbers int[], feeling mood, span interval, address inet, cash money
)
"""
ROWS = """
INSERT INTO customers VALUES
  (1, -7, 3, true, 'Ann "é" €', 'short', 'ab', 1234567890.12, 3.14159265358979, 0.1, 0.5, '2024-02-29', '12:34:56.789',
   '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012+02',
   '0e37df36-f698-11e6-8dd4-cb9ced3df976', '{"a": [1, null]}', '{"b": 2}', '\\x00ff10', '{a,NULL,"c d"}', '{1,2}',
   'sad', '1 month 2 days', '127.0.0.1', '12.50'),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (3, 0, 0, false, '', '', '', -0.01, -1e-20, 'NaN', '-Infinity', '0044-03-15 BC', '00:00', '1900-01-01',
   '1969-12-31 23:59:59.999',
   'infinity', NULL, 'null', '[]', '\\x', '{}', '{}', 'ok', '0', '::1', '0')
"""
CHANGES = (
    "INSERT INTO customers (id, name, balance) VALUES (4, 'Dan', 4.00)",
    "UPDATE customers SET name = 'Anna', balance = 0.99 WHERE id = 1",
    "UPDATE customers SET id = 5 WHERE id = 4",
    "DELETE FROM customers WHERE id = 2",
    # two of one key in one transaction, a message, and one of a transaction that is taken back
    """BEGIN; UPDATE customers SET name = 'B1' WHERE id = 5; UPDATE customers SET name = 'B2' WHERE id = 5;
       SELECT pg_logical_emit_message(true, 'note', 'hello'); COMMIT""",
    "BEGIN; UPDATE customers SET name = 'never' WHERE id = 5; ROLLBACK",
    "TRUNCATE customers",
    "INSERT INTO customers (id, name, balance) VALUES (1, 'Again', 1.00)",
    *(
        change.format(table)
        for table in ("letters", "notes")
        for change in (
            "INSERT INTO {} VALUES (1, 'first', 9, repeat('long ', 500))",
            "UPDATE {} SET title = 'second' WHERE id = 1",
            "DELETE FROM {} WHERE id = 1",
        )
    ),
)
CONFIGURED: dict[str, dict[str, object]] = {
    "default": {"provide_transaction_metadata": "true"},
    "plain": {
        "value_converter": "org.apache.kafka.connect.json.JsonConverter",
        "value_converter_schemas_enable": "false",
        "decimal_handling_mode": "string",
        "time_precision_mode": "connect",
        "binary_handling_mode": "base64",
    },
    "doubles": {
        "value_converter": "org.apache.kafka.connect.json.JsonConverter",
        "value_converter_schemas_enable": "false",
        "decimal_handling_mode": "double",
    },
    "untyped": {  # numbers without their scale, instants in microseconds
        "value_converter": "org.apache.kafka.connect.json.JsonConverter",
        "value_converter_schemas_enable": "false",
        "time_precision_mode": "adaptive_time_microseconds",
    },
}


def events(configured: str) -> list[dict[str, Any]]:
    """The messages of a configuration, in their order: `topic`, `key` and `value` (text or null)."""
    lines = map(json.loads, gzip.decompress(FILE.read_bytes()).splitlines())
    return [line for line in lines if line.pop("configured") == configured]


def record(configured: str, home: Path, folder: Path) -> list[dict[str, Any]]:
    settings = Settings(root=folder)
    broker = kafka_broker.start(settings, jars.resolve(from_environment().jars))
    try:
        with postgres.running(debezium.LOGICAL) as server:
            tables = "public.customers,public.letters,public.notes"
            properties = debezium.connector(server.dsn, tables, **CONFIGURED[configured])
            worker = debezium.Worker(folder / "connect", home, broker.bootstrap_servers, properties)
            with psycopg.connect(server.dsn, autocommit=True) as database:
                database.execute(CREATED)
                database.execute(ROWS)
                worker.start()
                awaited(broker.bootstrap_servers, 3)
                for change in CHANGES:
                    database.execute(change)
            found = awaited(broker.bootstrap_servers, 3, quiet=6)
            worker.stop()
            return found
    finally:
        kafka_broker.stop(settings)


def awaited(servers: str, least: int, quiet: float = 0.0) -> list[dict[str, Any]]:
    """All messages of the connector's topics, once there are so many and no more have come for so many seconds."""
    config = {"bootstrap.servers": servers, "group.id": f"recorder-{time.time()}"}
    config |= {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500}
    consumer = Consumer(config)
    consumer.subscribe(["^shop.*"])
    found, last, deadline = [], time.monotonic(), time.monotonic() + 90
    while len(found) < least or time.monotonic() - last < quiet:
        assert time.monotonic() < deadline, f"{len(found)} messages within 90 s"
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        last = time.monotonic()
        key, value = message.key(), message.value()
        found.append(
            {
                "topic": message.topic(),
                "sent": message.timestamp()[1],
                "key": key and key.decode(),
                "value": value and value.decode(),
            }
        )
    consumer.close()
    return found


def main() -> None:
    home = debezium.fetched(from_environment().jars.parent / "debezium")
    lines = []
    for configured in CONFIGURED:
        with tempfile.TemporaryDirectory() as folder:
            found = record(configured, home, Path(folder))
        print(configured, len(found))
        lines += [
            json.dumps({"configured": configured, **each}, ensure_ascii=False) for each in found
        ]
    fresh = FILE.with_suffix(".new")
    fresh.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    os.replace(fresh, FILE)


if __name__ == "__main__":
    main()
