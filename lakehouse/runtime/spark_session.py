"""The Spark session: Delta, Kafka, UTC, RocksDB state; the same for streams and batch runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.runtime import cds_archive, jars, object_store, quiet_daemon
from lakehouse.runtime.prepared_plans import is_in_one_process
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.root import make as make_root
from lakehouse.storage.versions.read_holds import under_way

_LOGGING = Path(__file__).with_name("log4j2.properties")
# The second compiler of the JVM optimises code that ran 200 times as often as by default. By default it takes a third of the
# CPU of a start, for planning code that hardly runs again: 30 s of CPU to the first window, with this 21. A catch-up of two
# million events after its start took 54 s with both, and with the first compiler alone 69.
_SECOND_COMPILER = (
    "-XX:Tier4InvocationThreshold=1000000",
    "-XX:Tier4MinInvocationThreshold=120000",
    "-XX:Tier4CompileThreshold=3000000",
    "-XX:Tier4BackEdgeThreshold=8000000",
)


def create(settings: Settings, name: str, *, ui: bool = False) -> SparkSession:
    """Returns a session named `name`, with `ui` also Spark's own pages. Raises JarsError.

    `settings.spark_conf` overrides every choice made here.
    """
    builder = SparkSession.builder.appName(name).master(settings.spark_master)
    chosen = _chosen(settings, ui) | dict(settings.spark_conf)
    # Spark's pages listen where this says, on all interfaces if nothing does
    os.environ.setdefault("SPARK_LOCAL_IP", str(chosen["spark.driver.bindAddress"]))
    for key, value in chosen.items():
        builder = builder.config(key, str(value))
    spark = builder.getOrCreate()
    # of the property itself only spark-submit takes notice: workers would run on the first python3
    # of the PATH
    spark.sparkContext.pythonExec = str(chosen["spark.pyspark.python"])
    spark.sparkContext.setLogLevel("ERROR")
    # else files would be split by the parallelism of leaves
    if "spark.sql.files.minPartitionNum" not in settings.spark_conf:
        spark.conf.set(
            "spark.sql.files.minPartitionNum", str(spark.sparkContext.defaultParallelism)
        )
    # Hadoop's checksums on local disks: a second file for each, a process for its permissions, and
    # twice as many to list. (Delta's commits go another way: `fs.AbstractFileSystem.file.impl`.)
    jvm: Any = spark._jvm
    # PySpark asks the JVM for these classes and their methods at each column and list it makes, and
    # the JVM looks for a class under each of its imports
    for name in ("functions", "PythonUtils", "PythonSQLUtils"):
        setattr(jvm, name, getattr(jvm, name))
    setattr(jvm, "org.apache.spark.sql.functions", jvm.functions)
    for holder, method in (
        (jvm.functions, "col"),
        (jvm.functions, "lit"),
        (jvm.PythonUtils, "toSeq"),
    ):
        setattr(holder, method, getattr(holder, method))
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)
    return spark


def _chosen(settings: Settings, ui: bool) -> dict[str, object]:
    more = object_store.jars_of(settings)
    paths = [*map(str, (*jars.resolve(settings.jars).spark, *more)), str(jars.OWN)]
    in_one_process = is_in_one_process(settings.spark_master)
    chosen: dict[str, object] = {
        # Spark reads `spark.jars` with a class loader of its own, whose classes no archive holds
        # (`cds_archive`), and copies them, 23 MB, into a folder of each session: so they are for
        # executors elsewhere only
        "spark.driver.extraClassPath": ":".join(paths),
        "spark.jars": "" if in_one_process else ",".join(paths),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(
            (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *cds_archive.options("spark"))
        ),
        # a sixth less CPU than the JVM's own choice; pauses do not matter to micro-batches
        "spark.driver.defaultJavaOptions": " ".join(("-XX:+UseParallelGC", *_SECOND_COMPILER)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        # else a folder wherever one happens to be
        "spark.sql.warehouse.dir": str(layout.warehouse(settings).absolute()),
        "spark.sql.shuffle.partitions": settings.shuffle_partitions,
        "spark.sql.leafNodeDefaultParallelism": "1",  # rows of a step that are in memory are one task
        # 50 tasks for a log of a few files would take longer than the commit itself
        "spark.databricks.delta.snapshotPartitions": settings.shuffle_partitions,
        # what is on disk decides which versions can be read (`maintenance`), not how long the log names removed files
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
        # a writer per partition that is open at once, instead of sorting all rows by partition
        # first
        "spark.sql.maxConcurrentOutputFileWriters": "32",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96, the default, is larger and costs more to write
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # one budget for all state of the process; without it each partition of each query takes
        # what it likes
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": settings.state_memory_mb,
        # a process of six tables has more classes than the 100 that are kept by default, and would
        # compile all in each batch
        "spark.sql.codegen.cache.maxEntries": "1000",
        # through FileContext, the default, each rename on a local disk forks two processes
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
        ".checkpointing.FileSystemBasedCheckpointFileManager",
        # without kafka: a topic's records would become objects of rows, and rows again, a twentieth of a catch-up
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        # of more than 32 files that are read by name, the default, a job would be made to look
        # whether they are there
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # LocalFs writes checksums
        # a source is asked for news this often; 10 ms, the default, lists the Delta log without
        # pause
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.sql.streaming.stopTimeout": "60s",
        # else PySpark looks for the caller's line at each call that makes a column, for messages; a
        # tenth of a short micro-batch
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.port": "0",  # one that is free: from 4040 on, the default, there is none for a seventeenth session
        "spark.ui.killEnabled": "false",  # whoever supervises a job ends it, and says why
        # plans of so many past queries are kept in memory, shown or not; of a micro-batch there are
        # several
        "spark.sql.ui.retainedExecutions": "100",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONSAFEPATH": "1",  # Python workers import what the driver does: nothing from the current folder
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    chosen |= object_store.properties(settings)
    if settings.module_path:
        path = os.pathsep.join(map(str, settings.module_path))
        chosen["spark.executorEnv.PYTHONPATH"] = path
    if settings.scheduler_pools:
        chosen["spark.scheduler.allocation.file"] = Path(settings.scheduler_pools).as_uri()
    if in_one_process:
        # 119 to 74 ms of CPU for a step of 200 rows with an Arrow UDF; executors elsewhere may lack this package
        chosen["spark.python.daemon.module"] = quiet_daemon.__name__
    return chosen


@contextmanager
def opened(settings: Settings, name: str) -> Iterator[SparkSession]:
    """Yields a session for one piece of work, stopped after it; one that this process has already is left running.

    Files that are on disk when it begins can be read until it ends (`read_holds`).
    """
    make_root(settings)
    with under_way(settings), lasting(settings, name) as spark:
        yield spark


@contextmanager
def lasting(settings: Settings, name: str) -> Iterator[SparkSession]:
    """Yields a session as `opened` does, for endless work, each piece of which holds its files by itself."""
    running = SparkSession.getActiveSession()
    spark = running or create(settings, name)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()
