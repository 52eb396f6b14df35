"""The private parts of Spark, Delta, Great Expectations and Dagster that the library stands on.

Each is named here with the signature that is called. After an upgrade a failure says in a second
what moved, and where it is called, instead of a query that fails later.
"""

import gc
import inspect
import os

import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from lakehouse.transform.checks import quality

DELTA = "org.apache.spark.sql.delta"
SPARK = "org.apache.spark.sql"
RUNTIME = f"{SPARK}.execution.streaming.runtime"
JVM = [  # class, method, types of its parameters, who calls it
    (f"{DELTA}.DeltaLog", "forTable", ("SparkSession", "String"), "delta_writer"),
    (f"{DELTA}.DeltaLog", "update", ("boolean", "Option", "Option"), "delta_writer._writer"),
    (f"{DELTA}.DeltaLog", "startTransaction", ("Option", "Option"), "delta_writer._writer"),
    (f"{DELTA}.OptimisticTransaction", "writeFiles", ("Dataset",), "delta_writer.files_of"),
    (f"{DELTA}.actions.AddFile", "json", (), "delta_writer.files_of"),
    (
        f"{SPARK}.execution.streaming.checkpointing.OffsetSeqMetadata",
        "apply",
        ("long", "long", "RuntimeConfig"),
        "checkpoint_files.write",
    ),
    (f"{RUNTIME}.MicroBatchExecution", "watermarkTracker", (), "input_frontier"),
    (f"{RUNTIME}.MicroBatchExecution", "lastExecution", (), "input_frontier"),
    (f"{RUNTIME}.MicroBatchExecution", "awaitProgressLock", (), "input_frontier"),
    (f"{RUNTIME}.WatermarkTracker", "currentWatermark", (), "input_frontier"),
    (f"{RUNTIME}.WatermarkTracker", "setWatermark", ("long",), "input_frontier"),
    (f"{RUNTIME}.IncrementalExecution", "currentBatchId", (), "input_frontier"),
    (f"{RUNTIME}.IncrementalExecution", "watermarkPropagator", (), "input_frontier"),
    (f"{RUNTIME}.WatermarkPropagator", "purge", ("long",), "input_frontier"),
    (f"{SPARK}.classic.Dataset", "queryExecution", (), "transform.analysis.determinism"),
    (f"{SPARK}.execution.QueryExecution", "analyzed", (), "transform.analysis.determinism"),
    (f"{SPARK}.catalyst.trees.TreeNode", "nodeName", (), "transform.analysis.determinism"),
    (f"{SPARK}.catalyst.trees.TreeNode", "children", (), "transform.analysis.determinism"),
    (f"{SPARK}.catalyst.trees.TreeNode", "collectLeaves", (), "transform.analysis.determinism"),
    (f"{SPARK}.catalyst.plans.QueryPlan", "expressions", (), "transform.analysis.determinism"),
    (f"{SPARK}.catalyst.plans.QueryPlan", "output", (), "transform.analysis.determinism"),
    (f"{SPARK}.catalyst.plans.QueryPlan", "subqueries", (), "transform.analysis.plan_tree"),
    (
        f"{SPARK}.catalyst.optimizer.InlineCTE",
        "apply",
        ("LogicalPlan",),
        "transform.analysis.plan_tree",
    ),
    (
        f"{SPARK}.catalyst.expressions.Expression",
        "deterministic",
        (),
        "transform.analysis.determinism",
    ),
    (
        f"{SPARK}.catalyst.expressions.Expression",
        "references",
        (),
        "transform.analysis.determinism",
    ),
    (f"{SPARK}.catalyst.expressions.Expression", "dataType", (), "transform.analysis.determinism"),
    (
        f"{SPARK}.catalyst.plans.logical.Window",
        "windowExpressions",
        (),
        "transform.analysis.determinism",
    ),
    (f"{SPARK}.catalyst.plans.logical.Join", "condition", (), "transform.analysis.determinism"),
    (
        "org.apache.hadoop.fs.LocalFileSystem",
        "setWriteChecksum",
        ("boolean",),
        "runtime.spark_session",
    ),
]


@pytest.mark.parametrize(
    ("name", "method", "parameters", "caller"), JVM, ids=[f"{c}.{m}" for c, m, *_ in JVM]
)
def test_a_private_method_of_the_jvm_has_the_signature_that_is_called(
    spark, name, method, parameters, caller
):
    loader = spark._jvm.Thread.currentThread().getContextClassLoader()
    found = [
        tuple(p.getSimpleName() for p in m.getParameterTypes())
        for m in loader.loadClass(name).getMethods()
        if m.getName() == method
    ]
    assert parameters in found, f"{caller} calls {name}.{method}{parameters}; there is {found}"


def test_the_observation_of_a_plan_says_whether_spark_removed_it(spark):
    from pyspark.sql import Observation

    outcome = Observation()
    spark.range(3).observe(outcome, F.count(F.lit(1)).alias("rows")).collect()
    assert outcome._jo.getRow().length() == 1


def test_great_expectations_has_what_conditions_are_taken_from():
    quality.great_expectations()  # as the library imports it: an import of its own ends a worker of pytest (SystemExit)
    from great_expectations.execution_engine import SparkDFExecutionEngine
    from great_expectations.expectations.registry import get_expectation_impl
    from great_expectations.validator.metric_configuration import MetricConfiguration
    from great_expectations.validator.validation_graph import ValidationGraph

    assert {"execution_engine"} <= set(inspect.signature(ValidationGraph).parameters)
    assert callable(SparkDFExecutionEngine.resolve_metrics)
    assert {"metric_name", "metric_domain_kwargs", "metric_value_kwargs"} <= set(
        inspect.signature(MetricConfiguration).parameters
    )
    found = get_expectation_impl("expect_column_values_to_not_be_null")
    assert found.map_metric == "column_values.nonnull"


def test_dagster_stores_events_where_maintenance_removes_them():
    from dagster._core.instance import RUNLESS_RUN_ID
    from dagster._core.storage.dagster_run import FINISHED_STATUSES
    from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
    from dagster._core.storage.event_log.schema import SqlEventLogStorageTable as Events

    assert RUNLESS_RUN_ID == "" and FINISHED_STATUSES
    assert issubclass(SqliteEventLogStorage, SqlEventLogStorage)
    assert {"run_id", "timestamp", "asset_key"} <= set(Events.c.keys())


def test_a_python_worker_collects_no_garbage_between_tasks(spark):
    """PySpark's daemon does, by a name that `runtime.quiet_daemon` replaces."""

    def collections(rows):
        full = gc.get_stats()[2]["collections"]
        return pc.add(pc.multiply(rows, 0), os.getpid() * 10_000 + full)

    udf = F.arrow_udf(collections, "long")
    seen = [divmod(spark.range(1).select(udf("id")).first()[0], 10_000) for _ in range(12)]
    by_worker = [[full for of, full in seen if of == worker] for worker, _ in seen]
    counts = max(by_worker, key=len)
    assert len(counts) > 4, "a worker is used again"
    assert counts[-1] - counts[0] < len(counts) - 1, "it made no full collection after each task"
