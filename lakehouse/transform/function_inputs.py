"""The inputs of a table as its function sees them, and the columns of an input that a function of single rows left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import ORIGIN, PARTITION, WINDOW, WINDOW_TIME
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING
from lakehouse.runtime.prepared_plans import Moment
from lakehouse.storage.delta import row_keys
from lakehouse.transform import lateness
from lakehouse.transform.analysis.plan_tree import analyzed, columns_read, id_of, ids, seq
from lakehouse.transform.analysis.shapes import ROW_BY_ROW, of_one_side, reads
from lakehouse.transform.lookups import Answers


@dataclass(frozen=True, slots=True)
class VersionsSeen:
    """Refreshed reference tables as rows arriving `since` saw them. `rows` is the condition on these rows, None for all."""

    versions: Mapping[str, int]
    references: Mapping[str, DataFrame]
    since: datetime
    rows: Column | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows that a table with event time is computed from."""

    driving: DataFrame  # with `_arrival`
    references: Mapping[str, DataFrame]
    others: Mapping[str, DataFrame] = field(default_factory=dict)  # with event time, too
    # of the driving input: the rows among which duplicates are looked for
    near: DataFrame | None = None
    answers: Answers | None = None  # to the table's lookup
    versions_seen: Sequence[VersionsSeen] = ()
    complete_until: datetime | Moment = (
        BEGINNING  # count windows that have ended by then are complete
    )


@dataclass(frozen=True, slots=True)
class TimedInput:
    """An input with event time of a table that reads it."""

    reader: Table
    event_time: str  # its column
    of_windows: bool  # True if its rows are the results of windows

    def placed(self, rows: DataFrame) -> DataFrame:
        """Returns its rows with event time and arrival, which results of windows get here.

        Their windows are left out for a table that has windows of its own.
        """
        if not self.of_windows or WINDOW_TIME in rows.columns:
            return rows
        timed = lateness.of_windows(rows)
        return timed.drop(WINDOW) if self.reader.window else timed

    def flagged(self, rows: DataFrame) -> DataFrame:
        """Returns its rows with the mark of late ones (`lateness.flagged`)."""
        rows = self.placed(rows).drop(PARTITION, ORIGIN)
        return lateness.flagged(rows, self.reader, self.event_time)

    def counts(self, rows: DataFrame) -> DataFrame:
        """Returns one row: how many rows arrived, how many of them late (`lateness.counts`)."""
        return self.flagged(rows).agg(*lateness.counts(self.reader, self.event_time))


def plain(rows: DataFrame) -> DataFrame:
    """Returns an input as functions see it: without technical columns."""
    return rows.drop(*(name for name in rows.columns if name.startswith("_")))


def are_of_one_topic(catalog: Catalog, name: str) -> bool:
    """Returns True if all rows of an input come from one topic (folder, table of others), whose offsets order them."""
    return len({source.address for source in catalog.origins_of(catalog.tables[name])}) == 1


def as_read(table: Table, rows: DataFrame) -> DataFrame:
    """Returns rows of a table as a reference table reads them: a keyed one without the column that finds its rows."""
    return rows.drop(row_keys.KEY) if table.kind.is_upserted else rows


def called(
    function: Callable[[Mapping[str, DataFrame]], DataFrame],
    inputs: Mapping[str, DataFrame],
    driving: str,
    versions_seen: Sequence[VersionsSeen],
) -> DataFrame:
    """Returns the result of a function, called once for each set of versions that rows of the driving input saw."""

    def result(seen: VersionsSeen) -> DataFrame:
        rows = inputs[driving] if seen.rows is None else inputs[driving].where(seen.rows)
        references = {name: plain(reference) for name, reference in seen.references.items()}
        return function({**inputs, driving: rows, **references})

    return (
        reduce(DataFrame.union, map(result, versions_seen)) if versions_seen else function(inputs)
    )


def carried(rows: DataFrame, source: DataFrame, names: Sequence[str]) -> DataFrame:
    """Returns `rows` with the missing columns of `names`, if each row is made of one row of the source; else unchanged."""
    missing = [name for name in names if name not in rows.columns]
    if not missing or set(names) - set(source.columns):
        return rows
    read: Any = source._jdf.queryExecution().analyzed()
    columns = {a.name(): a for a in seq(read.output()) if a.name() in names}
    leaves = set(map(id_of, columns_read(read)))
    plan = _Carrying(columns, missing, leaves, read).plan(analyzed(rows))
    if plan is None:
        return rows
    session: Any = rows.sparkSession
    dataset = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(dataset, session)


@dataclass(frozen=True, slots=True)
class _Carrying:
    columns: Mapping[str, Any]  # of the source
    missing: Sequence[str]
    leaves: set[int]  # columns of what the source reads, by id
    read: Any  # the plan of the source

    def plan(self, plan) -> Any:
        """Returns the plan with the missing columns; None unless each row is made of one row of the source."""
        output, kind = ids(plan), plan.nodeName()
        below = seq(plan.children())
        reading = [self._reads(side) for side in below]
        if plan.equals(self.read):
            return plan
        if reading.count(True) != 1 or any(map(reads, seq(plan.subqueries()))):
            return None
        if kind not in ROW_BY_ROW and not (kind == "Join" and of_one_side(plan, reading)):
            return None
        place = reading.index(True)
        side = self.plan(below[place])
        if side is None:
            return None
        rebuilt = plan.withNewChildren(plan.children().updated(place, side))
        if kind != "Project":
            return rebuilt
        chosen = rebuilt.projectList()
        for name in self.missing:
            if id_of(self.columns[name]) not in output:
                chosen = chosen.appended(self.columns[name])
        return rebuilt.copy(chosen, side)

    def _reads(self, side) -> bool:
        return reads(side) or any(id_of(column) in self.leaves for column in columns_read(side))
