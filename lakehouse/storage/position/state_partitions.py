"""Into how many partitions the state of a query of Spark's is divided: Spark keeps to them until it is to divide it again."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.disk.files import link
from lakehouse.storage.position import checkpoint_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "spark.sql.shuffle.partitions"


def wanted(settings: Settings, table: Table) -> int:
    """As the settings of the table's pipeline say."""
    own = settings.for_pipeline(table.pipeline)
    return int(own.spark_conf.get(_NAME, own.shuffle_partitions))


def divided(checkpoint: Path | None) -> int | None:
    """As the last micro-batch of the checkpoint noted; None without state."""
    if checkpoint is None or not checkpoint_files.keeps_state(checkpoint):
        return None
    begun = checkpoint_files.begun(checkpoint)
    # a torn note is for the query to report
    with suppress(ValueError, IndexError, KeyError):
        return int(checkpoint_files.noted(checkpoint, begun[-1])["conf"][_NAME])
    return None


def divide(spark: "SparkSession", checkpoint: Path, partitions: int) -> Path:
    """The checkpoint of a query that does not run, with its state in so many partitions: beside it, where nothing looks for one.

    Spark does so by a micro-batch of its own, which reads no input. The files of the checkpoint are linked, since Spark
    changes none that is there.
    """
    beside = checkpoint.with_name(f".{checkpoint.name}.divided")
    shutil.rmtree(beside, ignore_errors=True)  # of a command that was killed
    for path in sorted(checkpoint.rglob("*")):
        to = beside / path.relative_to(checkpoint)
        if path.is_dir():
            to.mkdir(parents=True)
        else:
            link(path, to)
    spark.streams.active  # noqa: B018 - Spark's tool needs what this starts
    manager: Any = spark._jsparkSession.streamingCheckpointManager()
    manager.repartition(str(beside), partitions, True)
    for operator in (beside / "state").iterdir():
        for partition in operator.iterdir():
            if partition.name.isdigit() and int(partition.name) >= partitions:
                shutil.rmtree(partition)  # its keys are in others
    return beside
