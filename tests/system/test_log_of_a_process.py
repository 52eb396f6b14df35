"""What a process that failed leaves in its log."""

import json
import os
import subprocess
import sys

import pytest

from lakehouse.settings import Settings, to_environment
from streaming_jobs.supervision import job_logs
from streaming_jobs.supervision.job_logs import log_path


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_last_word_of_a_process_that_failed_is_found_in_either_form(tmp_path, form):
    settings = Settings(root=tmp_path, tables=("no_such_module",), log_format=form)
    log = log_path(settings, "sensors")
    log.parent.mkdir(parents=True)
    with log.open("w") as out:
        command = [sys.executable, "-m", "streaming_jobs.driver", "sensors"]
        code = subprocess.run(command, env=os.environ | to_environment(settings), stderr=out)
    assert code.returncode != 0
    assert job_logs.last_error(settings, "sensors").startswith(
        "tables='no_such_module': cannot be imported"
    )
    if form == "json":
        assert json.loads(log.read_text().splitlines()[-1])["logger"].endswith("driver")


FAILING = """
import sys
import time
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment

def fails(batch, number):
    raise ValueError("of the function")

spark = spark_session.create(Settings(jars=from_environment().jars, shuffle_partitions=1), "failing")
query = spark.readStream.format("rate").load().writeStream.foreachBatch(fails).option("checkpointLocation", sys.argv[1]).start()
while query.isActive:
    time.sleep(0.1)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parallel
def test_the_log_of_a_process_has_a_line_and_no_trace_of_a_query_that_fails(tmp_path):
    command = [sys.executable, "-c", FAILING, str(tmp_path / "checkpoint")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    [line] = [line for line in ended.stderr.splitlines() if "MicroBatchExecution" in line]
    assert line.endswith("terminated with error")
    assert (
        "FOREACH_BATCH_USER_FUNCTION_ERROR" not in ended.stderr and "Traceback" not in ended.stderr
    )
