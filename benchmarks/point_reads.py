"""How long a read by key over HTTP takes, beside a writer: `lakehouse serve`, a keyed table of so many keys.

    python -m benchmarks.point_reads [--keys 1000000] [--clients 4] [--seconds 30] [--changed 1000]

Clients with a connection each ask for keys by chance, one after the other, while each second a step replaces some keys of the
table. Void if an answer is not the row that was asked for, or is of an older version than one before it.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from benchmarks import keyed_step_tables
from benchmarks.measure import BenchmarkError
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_writer, row_keys
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.keyed import keyed_files
from lakehouse.testing import Stage

APP = "balances:stream:1"


def filled(settings: Settings, keys: int) -> tuple[Settings, Path]:
    """A lakehouse whose table `balances` has so many keys, with the least number of files."""
    with spark_session.opened(settings, "point_reads") as spark:
        session = Stage(spark, settings.root, keyed_step_tables).session
        path = table_path(session.settings, session.catalog.table("balances"))
        rows = spark.range(keys).select(
            F.format_string("account-%09d", "id").alias("account"),
            F.col("id").cast("decimal(19,2)").alias("balance"),
            F.lit(1).cast("bigint").alias("movements"),
        )
        made = row_keys.keyed(rows, ["account"])
        files = max(1, keys // keyed_files.LARGE)
        delta_writer.swap(made, path, APP, 0, {"inputs": {}}, files, ["account"])
        return session.settings, path


def step(path: Path, ids: np.ndarray, batch: int) -> None:
    """Replaces the rows of these keys by the same, as a step of the stream does."""
    schema = pa.schema(
        [("account", pa.string()), ("balance", pa.decimal128(19, 2)), ("movements", pa.int64())]
    )
    accounts = pa.array([f"account-{n:09}" for n in ids])
    balances = pa.array(ids).cast(pa.decimal128(19, 0)).cast(pa.decimal128(19, 2))
    rows = pa.table([accounts, balances, pa.array([1] * len(ids))], schema)
    keys = pa.chunked_array(
        [[row_keys.of_text("balances", {"account": "string"}, [a]) for a in accounts.to_pylist()]]
    )
    rows = rows.append_column(row_keys.KEY, keys)
    delta_writer.upsert(rows, path, APP, batch, {"inputs": {}}, rows[row_keys.KEY])


@contextmanager
def served(settings: Settings) -> Iterator[int]:
    """The port of `lakehouse serve`, a process of its own."""
    command = [sys.executable, "-m", "lakehouse", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=os.environ | to_environment(settings), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline().rsplit(":", 1)[1].partition("/")[0])
        finally:
            server.send_signal(signal.SIGTERM)


def read(port: int, keys: int, seed: int, done: Event) -> list[float]:
    """Seconds of each read of one client."""
    chance, seconds, version = np.random.default_rng(seed), [], -1
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while not done.is_set():
        key = int(chance.integers(keys))
        began = time.monotonic()
        connection.request("GET", f"/tables/balances?account=account-{key:09}")
        found = json.loads(connection.getresponse().read())
        seconds.append(time.monotonic() - began)
        if [float(row["balance"]) for row in found["rows"]] != [key] or found["version"] < version:
            raise BenchmarkError(f"key={key}: {found} after version {version}; the run is void")
        version = found["version"]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--changed", type=int, default=1_000, help="keys in a step, one a second")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="point_reads"))
    try:
        settings, path = filled(
            Settings(root=root, jars=from_environment().jars, tables=(keyed_step_tables.__name__,)),
            given.keys,
        )
        chance, done, batch = np.random.default_rng(1), Event(), 0
        with served(settings) as port, ThreadPoolExecutor(given.clients) as clients:
            reading = [
                clients.submit(read, port, given.keys, n, done) for n in range(given.clients)
            ]
            end = time.monotonic() + given.seconds
            while time.monotonic() < end:
                batch += 1
                step(path, chance.choice(given.keys, given.changed, replace=False), batch)
                time.sleep(1)
            done.set()
            found = np.sort(np.concatenate([each.result() for each in reading])) * 1000
        p50, p95, p99 = (found[int(len(found) * part)] for part in (0.5, 0.95, 0.99))
        print(
            f"{len(found):,} reads of {given.keys:,} keys by {given.clients} clients in {given.seconds} s beside {batch} steps "
            f"of {given.changed:,}: {p50:.1f} ms median, {p95:.1f} ms 95 %, {p99:.1f} ms 99 %, {found[-1]:.0f} ms greatest"
        )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
