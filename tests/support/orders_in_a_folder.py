"""Orders in files of a folder, and totals of each buyer, whose state Spark keeps: a pipeline without a broker."""

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa

from lakehouse.declare import catalog
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_tables
from lakehouse.storage.disk.layout import table_path

NAME = "orders_in_a_folder"
MODULE = """
from pyspark.sql import functions as F

from lakehouse import folder, ingest_table, keyed_table

order_files = folder("incoming", schema="buyer STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="1 hour")
def orders(order_files):
    return order_files


@keyed_table(layer="gold", keys=["buyer"])
def per_buyer(orders):
    return orders.groupBy("buyer").agg(F.count("*").alias("n"), F.max_by("at", "at").alias("last"))
"""


def put(incoming: Path, name: str, buyers: str) -> None:
    lines = [json.dumps({"buyer": buyer, "at": "2026-01-01T00:00:00Z"}) for buyer in buyers]
    path = incoming / f"{name}.json"
    path.write_text("\n".join(lines) + "\n")
    long_ago = time.time() - 3_600  # what was written just now may not be whole
    os.utime(path, (long_ago, long_ago))


def held(settings: Settings) -> dict[str, int]:
    path = table_path(settings, catalog.load(settings).table("per_buyer"))
    rows = pa.table(delta_tables.select("SELECT buyer, n FROM t", {"t": path}, {}).read_all())
    return {row["buyer"]: row["n"] for row in rows.to_pylist()}


def declared(folder: Path) -> Path:
    """Writes the module there, and makes the folder of the files, which it returns."""
    (folder / f"{NAME}.py").write_text(MODULE)
    sys.modules.pop(NAME, None)  # of another test of this process, in another folder
    incoming = folder / "incoming"
    incoming.mkdir()
    return incoming
