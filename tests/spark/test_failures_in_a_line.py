"""How a streaming query that failed is reported: its cause in a line; all that Spark said of it in a file."""

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
