"""What an ingest table costs of Avro with a schema registry, against JSON of the same rows; every row exact."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread
from typing import Any

from benchmarks import measure, topic
from benchmarks.measure import Cost
from benchmarks.results import Series
from lakehouse.producers.sender import send
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.sinks.formats.avro import encoder

TOPICS = {"ours": "rows-avro", "JSON": "rows-json"}
TABLES = {"ours": "avro_rows", "JSON": "json_rows"}
PARTITIONS, BATCHES = 4, 10
LIMIT = 3_600.0  # seconds for all rounds
MISSING = (
    "avro: it writes Avro with fastavro, which is not installed (`pip install fastavro`, or the extra [avro] of this project); "
    "the part is left out"
)
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "n", "type": "long"},
        *({"name": name, "type": ["null", "string"]} for name in ("account", "shop", "note")),
        {"name": "cents", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
_ID = 1


def missing() -> str:
    """What is not installed, and how to get it; empty if all is there."""
    return "" if find_spec("fastavro") else MISSING


def row(n: int) -> dict[str, Any]:
    """A row by its number, as `avro_run.EXPECTED` has it in SQL."""
    return {
        "n": n,
        "account": f"account-{n % 1_000}",
        "shop": f"shop-{n % 37}",
        "cents": n * 7_919 % 100_000,
        "note": None if n % 10 == 0 else f"note {n}",
        "at": datetime.fromtimestamp((topic.START_MS + n) / 1_000, UTC),
    }


def run(base: Settings, rows: int, rounds: int) -> list[Series]:
    """So many rows by each table, `rounds` times in turn, in one warm process. Raises BenchmarkError."""
    with topic.brokers(base) as servers, _registry() as url:
        settings = replace(
            base,
            bootstrap_servers=servers,
            registry={"url": url},
            tables=("benchmarks.avro_tables",),
            max_offsets_per_trigger=max(rows // BATCHES, 1),
        )
        kafka_broker.ensure_topics(
            settings, dict.fromkeys(TOPICS.values(), PARTITIONS), topic.TOPIC
        )
        encoders = {"ours": encoder(SCHEMA, _ID), "JSON": _json}
        for name, encoded in encoders.items():
            send(_records(rows, encoded), TOPICS[name], client_config(settings))
        result = settings.root / "avro.json"
        command = [sys.executable, "-m", "benchmarks.avro_run", str(rows), str(rounds), str(result)]
        measure.run(command, to_environment(settings), settings.root / "avro.log", LIMIT)
        found = json.loads(result.read_text())
    series = [Series("avro", name, rows) for name in TOPICS]
    for each in series:
        for cost in found[each.name]:
            each.add(Cost(*cost))
    return series


def _records(rows: int, encoded: Callable[[Mapping[str, Any]], bytes]) -> Iterator[Record]:
    for n in range(rows):
        at = topic.START_MS + n
        yield Record(None, encoded(row(n)), n % PARTITIONS, at, at, ORDINARY)


def _json(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row | {"at": row["at"].isoformat()}).encode()


@contextmanager
def _registry() -> Iterator[str]:
    """The address of a server that answers for the one schema as a registry does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.endswith(f"/schemas/ids/{_ID}")
            self.send_response(200 if known else 404)
            self.end_headers()
            answer = {"schema": json.dumps(SCHEMA)} if known else {"error_code": 40403}
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
