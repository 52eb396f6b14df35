"""Into how many partitions the state of a query of Spark's is divided: Spark keeps to them as long as the checkpoint is there."""

from contextlib import suppress
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage import checkpoint_files

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
