"""Early results: what windows hold before they are complete, for people and dashboards.

`<table>__early` is replaced as a whole, again and again, by the batch function run over the open
range: from the table's frontier on. So it agrees with what the stream will write if nothing else
arrives. Downstream reads final rows only.
"""

from collections.abc import Mapping
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from lakehouse.batch import compute
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, OPEN_END, Range, text
from lakehouse.storage.delta import delta_stream, delta_writer
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.objects import for_spark
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.position import checkpoint_files, table_state
from lakehouse.storage.session import Session
from lakehouse.stream.micro_batch import stream_run
from lakehouse.transform.checks import judged_rows
from lakehouse.transform.plan import Plan

_BEHIND = timedelta(minutes=2)
_TIDY = 500  # refreshes between two removals of what earlier ones left


def refresh(
    session: Session, step: Plan, references: Mapping[str, DataFrame], number: int = 0
) -> int:
    """Replaces the early rows of a window table by what its input holds now.

    Returns the Delta version.
    """
    ahead, complete = (
        frontier(session.settings, t) or BEGINNING
        for t in (step.table, session.catalog.table(step.driving))
    )
    # in a catch-up the table lags far: rows that its input has completed come as final rows, not
    # each second as early ones
    ahead = max(ahead, complete - _BEHIND)
    rows = judged_rows.good(compute.preview(session, step, Range(ahead, OPEN_END), references))
    path = session.path(step.table, "early")
    version = delta_writer.overwrite(
        rows, path, {"run": f"early {number}", "frontier": text(ahead)}
    )
    if number % _TIDY == _TIDY - 1:
        delta_writer.tidy(path)
    return version


def settle(session: Session, table: Table) -> None:
    """Refreshes once after the stream has ended: else windows that it has finished since would still be shown as open."""
    run = stream_run(session, table_state.read(session, table))
    refresh(session, run.plan, run.references())


def start(session: Session, table: Table) -> StreamingQuery:
    """Starts the query that refreshes whenever the input has grown, at most every `table.early_results`.

    It keeps nothing: a new process begins with the input as it is.
    """
    run = stream_run(session, table_state.read(session, table))
    step, references = run.plan, run.references()
    checkpoint = layout.query_checkpoints(session.settings, f"{table.name}__early")
    checkpoint_files.remove(session.settings, checkpoint.name)
    grown = delta_stream.table_stream(
        session.spark,
        session.settings,
        session.path(session.catalog.table(step.driving)),
        since="latest",
    )
    session.spark.sparkContext.setLocalProperty("spark.scheduler.pool", checkpoint.name)
    writer = grown.writeStream.queryName(checkpoint.name).option(
        "checkpointLocation", for_spark(checkpoint)
    )
    trigger = f"{table.early_results.total_seconds()} seconds"

    def batches(_: DataFrame, number: int) -> None:
        refresh(session, step, references, number)

    return writer.foreachBatch(batches).trigger(processingTime=trigger).start()
