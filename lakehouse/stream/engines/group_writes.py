"""The writes of a keyed table's step: the job itself writes a few computed rows, Spark writes many."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import quoted
from lakehouse.errors import JobError
from lakehouse.storage.delta import log_state, python_years
from lakehouse.storage.delta.arrow import in_memory, in_spark
from lakehouse.storage.delta.delta_writer import Metadata
from lakehouse.storage.delta.row_keys import KEY
from lakehouse.storage.keyed import keyed_files
from lakehouse.stream.engines.keyed import different, few_at_once, is_short, swap, upsert
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.transform import plan
from lakehouse.transform.checks import years

ROW = "_row"
"""The column that stands for a row, as `_key` does for its group."""
_COMPARED = 20_000  # rows up to which unchanged ones are found, and not written again

Write = Callable[[Path, str, Metadata], int]


class GroupWrites:
    """The writer of groups: their rows take the place of those that the table has of them. `keys`: what a group has in common."""

    def __init__(self, run: StreamRun, keys: Sequence[str]) -> None:
        self.run, self.keys = run, keys

    def few(self, rows: DataFrame | pa.Table, groups: pa.Table | None) -> pa.Table | None:
        """Returns the rows in memory, if the job itself can write them; else None."""
        path, most = self.run.session.path(self.run.table), few_at_once(self.run)
        if (groups is None and log_state.rows(path) > most) or not is_short(self.run, path, 0):
            return None
        few = rows if isinstance(rows, pa.Table) else in_memory(rows.limit(most + 1))
        return few if few is not None and few.num_rows <= most else None

    def upserting(
        self, few: pa.Table, groups: pa.Table | None, batch_id: int
    ) -> tuple[int, Write | None]:
        session, table = self.run.session, self.run.table
        self._check_keys(few)
        few = few.select(plan.plan_of(session, table).schema.names)
        if groups is None:
            stored = in_memory(session.read(table))
        else:
            stored = keyed_files.rows_of(session.path(table), groups[KEY])
        others = different(few, stored, _COMPARED)
        if not len(others):
            return 0, None
        new, keys = (
            few.filter(pc.is_in(few[KEY], value_set=others)),
            pa.chunked_array([others]),
        )

        def write(path: Path, app: str, metadata: Metadata) -> int:
            return upsert(self.run, new, path, app, batch_id, metadata, keys)

        return new.num_rows, write

    def replacing(
        self, rows: DataFrame, groups: pa.Table | None, batch_id: int
    ) -> tuple[int, Write]:
        session, table, count = self.run.session, self.run.table, rows.count()
        row = _row_column(rows.columns)
        if rows.select(row).distinct().count() < count:
            twice = rows.groupBy(row).count().where("count > 1").limit(1).drop("count")
            self._check_keys(rows.join(F.broadcast(twice), row, "left_semi").toArrow())
        rows = rows.select(*map(quoted, plan.plan_of(session, table).schema.names))

        def write(path: Path, app: str, metadata: Metadata) -> int:
            others = rows
            if groups is not None:
                gone = in_spark(session.spark, groups.select([KEY]))
                others = session.read(table).join(F.broadcast(gone), KEY, "left_anti")
                others = others.unionByName(rows)
            return swap(self.run, others, count, path, app, batch_id, metadata, self.keys)

        return count, write

    def _check_keys(self, rows: pa.Table) -> None:
        """Raises JobError for two rows of one key."""
        names, row = self.run.table.keys, _row_column(rows.column_names)
        if pc.count_distinct(rows[row]).as_py() == rows.num_rows:
            return
        where = f"table={self.run.table.name}"
        python_years.check(rows, where, JobError, years.REMEDY, names)
        several = max(rows[row].value_counts().to_pylist(), key=lambda each: each["counts"])
        example = rows.filter(pc.equal(rows[row], several["values"])).slice(0, 1).to_pylist()[0]
        shown = ", ".join(f"{name}={example[name]}" for name in names)
        raise JobError(
            f"table={self.run.table.name}, {shown}: its function returned {several['counts']} rows of this key, and "
            "a keyed table keeps one; group by the keys, or name in keys= all columns by which its rows differ"
        )


def _row_column(columns: Sequence[str]) -> str:
    return ROW if ROW in columns else KEY
