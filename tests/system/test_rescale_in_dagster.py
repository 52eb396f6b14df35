"""Dagster's job that starts a pipeline on other settings, with the state that Spark keeps in as many partitions as these say."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from assets import definitions
from lakehouse.declare import catalog
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage import delta_tables
from lakehouse.storage.layout import table_path
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from streaming_jobs import supervisor
from support.sensors_job import awaited

NAME = "orders_in_a_folder"
MODULE = """
from pyspark.sql import functions as F

from lakehouse import folder, table

order_files = folder("incoming", schema="buyer STRING NOT NULL, at TIMESTAMP NOT NULL")


@table(layer="bronze", event_time="at", delay="1 hour")
def orders(order_files):
    return order_files


@table(layer="gold", keeps="latest", keys=["buyer"])
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


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_state_is_divided_again_and_the_job_counts_on(
    spark: SparkSession, tmp_path: Path, quick_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    settings = Settings(
        root=tmp_path / "root",
        tables=(NAME,),
        module_path=(tmp_path,),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
        shuffle_partitions=1,  # what the session of the tests has
    )
    put(incoming, "first", "aabc")
    session = Session(settings, catalog.load(settings), spark)
    tables = [session.catalog.table(name) for name in ("orders", "per_buyer")]
    queries.prepare(session, tables)
    for table in tables:
        queries.start(session, table, available_now=True).awaitTermination()
    assert held(settings) == {"a": 2, "b": 1, "c": 1}

    wider = replace(settings, shuffle_partitions=3)
    for name, value in to_environment(wider).items():
        monkeypatch.setenv(name, value)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    job = definitions.build(wider).resolve_job_def(f"rescale_{NAME}")
    try:
        with dg.DagsterInstance.ephemeral() as instance:
            result = job.execute_in_process(instance=instance)
        (output,) = [e.step_output_data for e in result.all_events if e.is_successful_output]
        (found,) = [record.data for record in output.metadata["divided"].records]
        assert (found["before"], found["now"], found["rows"]) == (1, 3, 3), found
        assert (found["table"], found["verdict"]) == ("per_buyer", "EQUAL")
        (shown,) = [e for e in result.all_events if e.is_asset_observation]
        assert shown.asset_key.path == ["streaming_job", NAME]
        put(incoming, "second", "acd")
        awaited(lambda: held(settings) == {"a": 3, "b": 1, "c": 2, "d": 1}, "it counts on", 240)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        supervisor.stop(wider, NAME, now=True)
