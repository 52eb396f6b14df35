"""Dagster's job that starts a pipeline on other settings, with the state that Spark keeps in as many partitions as these say."""

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from assets import definitions
from lakehouse.declare import catalog
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from streaming_jobs.supervision import supervisor
from support.orders_in_a_folder import NAME, declared, held, put
from support.sensors_job import awaited


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_state_is_divided_again_and_the_job_counts_on(
    spark: SparkSession, tmp_path: Path, quick_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    incoming = declared(tmp_path)
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
