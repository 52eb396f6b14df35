"""The number of partitions of the state of a query of Spark's: Spark keeps it until a rescale divides the state again."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.disk.files import link_tree, remove_tree
from lakehouse.storage.disk.objects import for_spark
from lakehouse.storage.position import checkpoint_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "spark.sql.shuffle.partitions"


def wanted(settings: Settings, table: Table) -> int:
    """Returns the number of partitions in the settings of the table's pipeline."""
    own = settings.for_pipeline(table.pipeline)
    return int(own.spark_conf.get(_NAME, own.shuffle_partitions))


def divided(checkpoint: Path | None) -> int | None:
    """Returns the number of partitions that the last micro-batch of the checkpoint noted; None without state."""
    if checkpoint is None or not checkpoint_files.keeps_state(checkpoint):
        return None
    begun = checkpoint_files.begun(checkpoint)
    # the query itself reports a torn note
    with suppress(ValueError, IndexError, KeyError):
        return int(checkpoint_files.noted(checkpoint, begun[-1])["conf"][_NAME])
    return None


def divide(spark: "SparkSession", checkpoint: Path, partitions: int) -> Path:
    """Returns a copy of a checkpoint, with its state in so many partitions, beside it, where nothing looks for one.

    The query must not run. Spark divides the state by a micro-batch of its own, which reads no input. The files are
    linked, since Spark changes no existing file.
    """
    beside = checkpoint.with_name(f".{checkpoint.name}.divided")
    remove_tree(beside)  # left by a command that was killed
    link_tree(checkpoint, beside)
    spark.streams.active  # noqa: B018 - Spark's tool needs what this starts
    manager: Any = spark._jsparkSession.streamingCheckpointManager()
    manager.repartition(for_spark(beside), partitions, True)
    for operator in (beside / "state").iterdir():
        for partition in operator.iterdir():
            if partition.name.isdigit() and int(partition.name) >= partitions:
                remove_tree(partition)  # its keys are in other partitions now
    return beside
