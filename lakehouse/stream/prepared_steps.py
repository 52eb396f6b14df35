"""Small steps by a plan that is made once (`runtime.prepared_plans`): the rows of the ordinary way, at a fraction of its CPU.

The first steps of a query go the ordinary way, because a query that ends soon would never get back what making a plan costs.
So do steps that are not small, and all steps of a function whose plan cannot be made once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql.types import StructType

from lakehouse.declare.table import Table
from lakehouse.runtime.prepared_plans import (
    Moment,
    NotPreparedError,
    PreparedPlan,
    is_in_one_process,
    reason_of,
)
from lakehouse.storage.delta import small_commits
from lakehouse.storage.delta.arrow import in_memory
from lakehouse.storage.session import Session
from lakehouse.transform import observing

_log = logging.getLogger(__name__)

ORDINARY_FIRST = 3  # steps of a function
_SEEN = "step"  # the name of a prepared plan's observation
_MOST_PLANS = 8  # of one table: a topic whose partitions come one by one has one plan after another


# by the inputs' rows, the instants that differ between steps, and the name or the object of its observation, if it has one
Function = Callable[
    [Mapping[str, DataFrame], Sequence[datetime | Moment], str | Observation], DataFrame
]


@dataclass(frozen=True, slots=True)
class Few:
    """The judged rows of a small step, in memory, and what was observed of them."""

    rows: pa.Table
    observed: Mapping[str, Any]


class PreparedSteps:
    """The plans of one table's streaming query."""

    def __init__(self, session: Session, table: Table) -> None:
        self._session, self._table = session, table
        self._plans: dict[tuple[str, Hashable], PreparedPlan] = {}
        self._ordinary: Counter[tuple[str, Hashable]] = Counter()
        self._refusals: dict[str, str] = {}  # by the name of the function
        self._interrupted = False
        self._local = is_in_one_process(str(session.spark.sparkContext.master))

    def few(
        self,
        function: Function,
        rows: Callable[[], Mapping[str, pa.Table | None]],
        columns: Mapping[str, StructType],
        instants: Sequence[datetime] = (),
        *,
        name: str = "rows",
        variant: Hashable = None,
    ) -> Few | None:
        """Returns the function's rows; None if the step is to go the ordinary way.

        :param rows: returns those of each input, None if they are not in memory. It is called for a prepared plan only.
        :param name: that of the function, among those of the query.
        :param variant: differs where the same function gives another plan.
        """
        key = name, variant
        if self.refusal(name):
            return None
        if key not in self._plans:
            self._ordinary[key] += 1
            if self._ordinary[key] <= ORDINARY_FIRST:
                return None
        given = rows()
        in_memory = {input_: table for input_, table in given.items() if table is not None}
        count = sum(map(len, in_memory.values()))
        if len(in_memory) < len(given) or count > self._session.settings.step_rows:
            return None
        if key not in self._plans and not self._prepared(function, columns, len(instants), key):
            return None
        plan = self._plans[key]
        try:
            made = plan.run(in_memory, instants)
            observed = plan.observed().get(_SEEN, {})
        except (PySparkException, Py4JError, pa.ArrowException) as err:
            if self._interrupted:
                raise
            # the ordinary way reports what is wrong with the step
            self.refuse(name, f"a run failed: {reason_of(err)}")
            return None
        if not small_commits.can_hold(made.schema):
            self.refuse(name, "only Spark writes the columns")
            return None
        return Few(made, observed)

    def refusal(self, name: str) -> str:
        """Returns why a function can have no prepared plan; empty if no reason is known so far."""
        return self._refusals.get(name, "") if self._local else "the executors are other processes"

    @property
    def ways(self) -> dict[str, str]:
        """Returns the query's functions, each with why Spark plans its steps; empty if they have a prepared plan."""
        return {name: "" for name, _ in list(self._plans)} | dict(self._refusals)

    def interrupt(self) -> None:
        """Interrupts a running step, which is then not repeated the ordinary way."""
        self._interrupted = True
        for plan in list(self._plans.values()):
            plan.interrupt()

    def close(self) -> None:
        while self._plans:
            self._plans.popitem()[1].close()

    def _prepared(
        self,
        function: Function,
        columns: Mapping[str, StructType],
        instants: int,
        key: tuple[str, Hashable],
    ) -> bool:
        if len(self._plans) == _MOST_PLANS:
            self.close()
        moments = [Moment(self._session.spark) for _ in range(instants)]
        try:
            self._plans[key] = PreparedPlan(
                self._session.spark,
                lambda inputs: function(inputs, moments, _SEEN),
                columns,
                moments,
            )
        except NotPreparedError as err:
            self.refuse(key[0], str(err))
        return key in self._plans

    def refuse(self, name: str, why: str) -> None:
        """Has all variants of a function planned by Spark from now on."""
        self._refusals[name] = why
        _log.info(f"table={self._table.name}, steps={name}: Spark plans each of them: {why}")
        for key in [key for key in self._plans if key[0] == name]:
            self._plans.pop(key).close()


def computed_here(
    judged: DataFrame, observed: Sequence[Column], completed: Callable[[DataFrame], DataFrame]
) -> Few | None:
    """Returns the completed rows, by the ordinary way, and what is observed of them.

    None if they are too many for memory, or have columns that only Spark writes.
    """
    outcome = Observation()
    rows = in_memory(completed(judged.observe(outcome, *observed) if observed else judged))
    if rows is None:
        return None
    if not observed:
        return Few(rows, {})
    seen = observing.observed(outcome) or observing.only(judged.agg(*observed)).asDict()
    return Few(rows, seen)
