"""The live run of a state or a history: one row for each key, or for each version of it, one commit a micro-batch.

The first micro-batch of a generation reads all of the record; those that follow add what they touch to what there is. The table
is written whole each time: keys come in any order, so that a merge would touch nearly every file, and be slower. A state is
Spark's own aggregate, in update mode; a history is computed from the versions there are and the new changes.
"""

from collections.abc import Callable
from datetime import datetime

from pyspark.sql import DataFrame, Observation

from lakehouse import histories, plan, sinks
from lakehouse.lake import Lake
from lakehouse.live_run import BatchLog, LiveRun
from lakehouse.stream.advance import Step
from lakehouse.table import Table

Batches = Callable[[DataFrame, int], None]


def state(run: LiveRun) -> tuple[DataFrame, Batches]:
    """A query whose micro-batches hold the rows of the keys that they touched, as they are now."""
    rows = run.plan.kept(run.stream(), run.snapshots(), f"gate_{run.table.name}")

    def batches(batch: DataFrame, batch_id: int) -> None:
        inputs = _inputs(run, run.log(batch_id))
        batch = run.held(batch)
        try:
            written = batch.count()
            seen = run.gate_counts()
            rows = batch
            if batch_id:
                rows = histories.of_keys(_there(run), batch, run.table.keys, others=True).unionByName(batch)
            run.keep(rows, batch_id, inputs=inputs, written=written, **_reached(run, batch_id, seen))
        finally:
            batch.unpersist()

    return rows, batches


def history(run: LiveRun) -> Step:
    """Steps over the record's rows, which add to the versions of the keys in them."""
    snapshots = run.snapshots()

    def step(batch: DataFrame, batch_id: int, log: BatchLog) -> None:
        inputs, gate = _inputs(run, log), Observation()
        new = run.plan.kept(batch, snapshots, gate).persist()
        try:
            written = new.count()
            if batch_id == 0:
                rows = histories.versions(new, run.table.keys)
            else:
                rows = histories.changed(_there(run), new, run.table.keys)
            run.keep(rows, batch_id, inputs=inputs, written=written, **_reached(run, batch_id, run.plan.gate_counts(gate, batch)))
        finally:
            new.unpersist()

    return Step(step)


def recomputed(lake: Lake, table: Table, rows: DataFrame, snapshots: dict[str, int]) -> DataFrame:
    """What a state or history is, computed in batch from `rows`, all that the record has, and snapshots at these versions."""
    kept = plan.plan_of(lake, table, judged=False).kept(rows, lake.snapshots(snapshots))
    return histories.versions(kept, table.keys) if table.keeps == "history" else kept


def _there(run: LiveRun) -> DataFrame:
    return sinks.whole(run.lake.spark, run.lake.path(run.table), plan.stored_schema(run.lake, run.table))


def _inputs(run: LiveRun, log: BatchLog) -> dict[str, object]:
    return {"tables": {run.plan.driving: log.inputs}, "snapshots": run.pinned}


def _reached(run: LiveRun, batch_id: int, seen: dict[str, object]) -> dict[str, object]:
    before = run.lake.journal(run.table).before(run.generation, batch_id)
    start: datetime = (before and before.frontier) or run.start
    ahead = plan.utc(seen["watermark"]) if seen["watermark"] else start
    return {"arrived": seen["arrived"], "late": seen["late"], "watermark": ahead, "frontier": max(start, ahead)}
