"""How a streaming query that failed is reported: its cause in a line; all that Spark said of it in a file."""

import subprocess
import sys

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.errors import CommitError
from streaming_jobs.queries import cause


def asserts(batch: DataFrame, number: int) -> None:
    raise AssertionError


def asserts_in_java(batch: DataFrame, number: int) -> None:
    batch.sparkSession._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.toPyRow(None)


def refuses(batch: DataFrame, number: int) -> None:
    raise CommitError(
        "table=x, batch=3: its log has no commit of x with that batch; restore the log"
    )


def asks_for_a_view(batch: DataFrame, number: int) -> None:
    batch.sparkSession.sql("SELECT * FROM nowhere")


def divides(batch: DataFrame, number: int) -> None:
    batch.select(F.expr("1 / (value - value)")).collect()


def calls_python(batch: DataFrame, number: int) -> None:
    def fails(value):
        raise ValueError("of the function")

    batch.select(F.udf(fails, "bigint")("value")).collect()


@pytest.mark.parametrize(
    "function, told",
    [
        (
            asserts,
            f"AssertionError in {__file__}, line {asserts.__code__.co_firstlineno + 1}, in asserts",
        ),
        (asserts_in_java, "java.lang."),
        (
            refuses,
            "lakehouse.errors.CommitError: table=x, batch=3: its log has no commit of x with that batch; restore the log",
        ),
        (
            asks_for_a_view,
            "pyspark.errors.exceptions.captured.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view",
        ),
        (
            divides,
            "pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero.",
        ),
        (calls_python, "ValueError: of the function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_cause_of_a_failure_is_one_line(spark, tmp_path, function, told):
    failing = spark.readStream.format("rate").load().writeStream.foreachBatch(function)
    query = failing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    found = cause(str(query.exception()))
    assert found.startswith(told)
    assert "\n" not in found


FAILING = """
import sys
import time
from lakehouse.runtime import session
from lakehouse.settings import Settings, from_environment

def fails(batch, number):
    raise ValueError("of the function")

spark = session.create(Settings(jars=from_environment().jars, shuffle_partitions=1), "failing")
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
