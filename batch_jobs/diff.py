"""The what-if: a comparison of a closed range with the rows that another version of the code computes."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batch_jobs import other_code, side
from batch_jobs.side import Side, pairing
from lakehouse.batch import batch_state
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.ranges import Range
from lakehouse.runtime import spark_session
from lakehouse.storage.delta.digest import EMPTY, NONE, differences, digests_by
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.comparisons import Compared
from lakehouse.storage.session import Session

_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences that the other code makes in a table's past; the first of each pair is the present code's."""

    table: str
    code: str
    start: datetime
    end: datetime
    inputs: Mapping[str, Mapping[str, int]]  # versions, the same for both
    declaration: Mapping[str, tuple[object, object]]  # the parts that differ
    # types of the columns that are not the same in both; the other columns are compared
    columns: Mapping[str, tuple[str | None, str | None]]
    # inputs that the other code computes differently, too: both sides read them as stored
    upstream: tuple[str, ...]
    quarantined: tuple[int, int]
    partitions: tuple[Compared, ...]
    examples: tuple[str, ...]
    pending: tuple[str, ...]  # tables that would have to follow after a backfill by the other code

    @property
    def differs(self) -> bool:
        return bool(self.columns) or any(p.differs for p in self.partitions)


def run(lakehouse: Lakehouse, table_name: str, span: Range, code: str) -> Diff:
    """Computes `span` by the present code and by the code that `code` names, over the same input, and compares the rows.

    Nothing in the lakehouse is written. Raises UnknownTable, RangeError, DeclarationError, JobError.
    """
    table = lakehouse.catalog.table(table_name)
    batch_state.check_range(table, span, batch_state.closed_until(lakehouse, table))
    with tempfile.TemporaryDirectory(prefix="lakehouse-diff-") as folder:
        place = Path(folder)
        # before this process has a JVM as well
        after = other_code.compute(lakehouse.settings, table, span, code, place)
        with spark_session.opened(lakehouse.settings, f"diff {table.name}") as spark:
            session = Session.on(lakehouse, spark)
            place_before, length = place / "before", table.partition_by
            before = side.write(session, table.name, span, length, place_before, after.inputs)
            return _diff(spark, lakehouse.catalog, table, span, code, (before, after), place)


def _diff(
    spark: SparkSession,
    catalog: Catalog,
    table: Table,
    span: Range,
    code: str,
    sides: tuple[Side, Side],
    place: Path,
) -> Diff:
    before, after = sides
    columns = _changed(before.columns, after.columns)
    ours, theirs = (spark.read.parquet(str(place / name)) for name in ("before", "after"))
    common = [name for name in ours.columns if name in theirs.columns and name not in columns]
    compared = by_partition(
        ours.select(*common), theirs.select(*common), pairing(table), table.tolerance, _EXAMPLES
    )
    differs = columns or any(partition.differs for partition in compared.values())
    return Diff(
        table=table.name,
        code=code,
        start=span.start,
        end=span.end,
        inputs=before.inputs,
        declaration=_changed(before.declared, after.declared),
        columns=columns,
        upstream=_upstream(catalog, table, sides),
        quarantined=(before.quarantined, after.quarantined),
        partitions=tuple(compared.values()),
        examples=tuple(chain.from_iterable(p.examples for p in compared.values()))[:_EXAMPLES],
        pending=catalog.downstream(table) if differs else (),
    )


def _changed(before: Mapping, after: Mapping) -> dict:
    names = [*before, *(name for name in after if name not in before)]
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def by_partition(
    before: DataFrame, after: DataFrame, keys: Sequence[str], tolerance: float, most: int
) -> dict[str, Compared]:
    """Compares each partition of either side by checksum, and row by row if that differs; at most `most` examples of each."""
    ours, theirs = digests_by((before, F.col(PARTITION)), (after, F.col(PARTITION)))
    unequal = [key for key in ours | theirs if ours.get(key, EMPTY) != theirs.get(key, EMPTY)]
    differing = {}
    if unequal:
        before, after = (rows.where(F.col(PARTITION).isin(unequal)) for rows in (before, after))
        names = ("before", "after")
        differing = differences(before, after, keys, PARTITION, tolerance, most, names)
    compared = {}
    for key in sorted(ours | theirs):
        rows = ours.get(key, EMPTY).rows, theirs.get(key, EMPTY).rows
        counts = differing.get(key, NONE)
        compared[key] = Compared(
            key, *rows, counts.missing, counts.extra, counts.changed, counts.examples
        )
    return compared


def _upstream(catalog: Catalog, table: Table, sides: tuple[Side, Side]) -> tuple[str, ...]:
    before, after = (version.code_versions for version in sides)
    upstream = (t.name for t in catalog if table.name in catalog.downstream(t))
    return tuple(name for name in upstream if before[name] != after.get(name))
