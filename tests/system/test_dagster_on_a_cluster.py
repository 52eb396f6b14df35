"""Batch runs that Dagster starts go where the streaming jobs of their tables go: on a cluster to the cluster."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from assets.resources import LakehouseResource
from lakehouse.settings import Settings, from_environment, to_environment

RUN = """
import dagster as dg
from assets import definitions
from assets.testing import materialize
from lakehouse.settings import from_environment

settings = from_environment()
materialized = materialize(settings, "sensor_averages", "2026-01-01-00")
assert materialized.success, [event.step_failure_data for event in materialized.get_step_failure_events()]
config = {"ops": {"reconcile_ranges": {"config": {"ranges": [{"table": "sensor_averages"}]}}}}
reconciled = definitions.build(settings).resolve_job_def("reconcile").execute_in_process(run_config=config)
assert reconciled.get_asset_check_evaluations()[0].passed
"""


def master(environment: dict[str, str], pipeline: str = "sensors") -> str:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(f"LAKEHOUSE_{name}", value)
        return LakehouseResource.of(from_environment()).master_of(pipeline)


def test_they_go_where_the_streaming_jobs_go_and_here_they_take_one_core():
    one, other = "spark://one:7077", "spark://two:7077"
    assert master({}) == "local[1]"
    assert master({"SPARK_MASTER": "local[8]"}) == "local[1]", "this machine is the streams' too"
    assert master({"SPARK_MASTER": one}) == one
    resources = {"RESOURCES__ADS__SPARK_MASTER": other}
    assert [master(resources, name) for name in ("sensors", "ads", "")] == [
        "local[1]",
        other,
        "local[1]",
    ]
    assert master({"SPARK_MASTER": one, "BATCH_MASTER": "local[4]"}) == "local[4]", "told otherwise"


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_backfill_and_a_reconciliation_of_dagster_run_on_the_cluster(
    cluster,
    filled,
    tmp_path,
    quick_jvm,
):
    root = shutil.copytree(filled, tmp_path / "root")
    quick = quick_jvm | {
        "spark.executor.defaultJavaOptions": quick_jvm["spark.driver.defaultJavaOptions"]
    }
    settings = Settings(
        root=root, jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",), spark_master=cluster.address,
        spark_conf=quick | {"spark.cores.max": "2"},
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    log = (tmp_path / "cluster.log").read_text()
    assert len(re.findall(r"Registered app batch with ID", log)) == 2, log[-2000:]
