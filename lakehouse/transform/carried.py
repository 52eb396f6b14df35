"""Adds columns of an input that a function left out, if each row of its result is made of one row of the input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from lakehouse.transform.analysis.plan_tree import analyzed, columns_read, id_of, ids, seq
from lakehouse.transform.analysis.shapes import ROW_BY_ROW, of_one_side, reads


def carried(rows: DataFrame, source: DataFrame, names: Sequence[str]) -> DataFrame:
    """Returns `rows` with the missing columns of `names`, from the rows of the source that they are made of.

    Returns them unchanged unless each is made of one row of the source.
    """
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
