"""Plans of Spark's that are made once and run many times over a few rows (`java/PreparedPlan.java`).

Of a step of a few hundred rows the ordinary way spends nine tenths of its time on preparation: the same plan is
analysed, optimised and planned again, and started as a job. 85 to 112 ms of CPU become 2 to 7.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.errors import LakehouseError
from lakehouse.ranges import EPOCH

_MICROSECOND = timedelta(microseconds=1)
_CAUSE = re.compile(r"Exception: (the function .*)")
_NUMBERS = re.compile(r"#\d+L?")  # of expressions: others in each plan


class NotPreparedError(LakehouseError):
    """A function whose plan cannot be made once; its message says why."""


def is_in_one_process(master: str) -> bool:
    """Returns True if the executor is the driver itself."""
    return master == "local" or master.startswith("local[")


def reason_of(err: Exception) -> str:
    """Returns what the JVM says of its failure, in a line."""
    said = str(err.java_exception) if isinstance(err, Py4JJavaError) else str(err)
    return "".join(_CAUSE.findall(str(err))[:1]) or said.splitlines()[0]


class Moment:
    """An instant that is another one in each run."""

    def __init__(self, spark: SparkSession) -> None:
        self._plans: Any = spark._jvm.lakehouse.plans  # type: ignore[union-attr]
        self.number: int = self._plans.PreparedPlan.newInput()

    def column(self, row: Column) -> Column:
        """The instant as a column of rows. `row`: a number that each row has."""
        return Column(self._plans.Moment.column(self.number, row.cast("bigint")._jc))


class PreparedPlan:
    """A function of DataFrames, planned once.

    :param function: is called with a DataFrame for each input, by its name, twice, and must give the same plan.
    :param inputs: the columns of each input.
    :raises NotPreparedError: if a run could give other rows than a new plan.
    """

    def __init__(
        self,
        spark: SparkSession,
        function: Callable[[Mapping[str, DataFrame]], DataFrame],
        inputs: Mapping[str, StructType],
        moments: Sequence[Moment] = (),
    ) -> None:
        java: Any = spark._jvm.lakehouse.plans.PreparedPlan  # type: ignore[union-attr]
        numbers = [java.newInput() for _ in inputs]
        frames = {
            name: DataFrame(java.frame(spark._jsparkSession, columns.json(), number), spark)
            for number, (name, columns) in zip(numbers, inputs.items(), strict=True)
        }
        try:
            self._columns = {
                name: to_arrow_schema(columns, timezone="UTC") for name, columns in inputs.items()
            }
            self._plan = java(function(frames)._jdf, numbers)
            again = java(function(frames)._jdf, numbers)
        except (PySparkException, Py4JError) as err:
            # an action within the function, or a column that Arrow has not
            raise NotPreparedError(reason_of(err)) from err
        refusals = list(self._plan.refusals())
        plans = [_NUMBERS.sub("#", each.analyzed()) for each in (self._plan, again)]
        again.close()
        if plans[0] != plans[1]:
            refusals.append("the function gives another plan each time")
        if refusals:
            self._plan.close()
            raise NotPreparedError("; ".join(dict.fromkeys(refusals)))
        self._moments = [moment.number for moment in moments]

    def run(self, rows: Mapping[str, pa.Table], instants: Sequence[datetime] = ()) -> pa.Table:
        """Returns the function's rows, for these rows of the inputs and at these instants of the moments."""
        given = [
            _stream(rows[name].select(of.names).cast(of)) for name, of in self._columns.items()
        ]
        micros = [(instant - EPOCH) // _MICROSECOND for instant in instants]
        with pa.ipc.open_stream(self._plan.run(given, self._moments, micros)) as made:
            return made.read_all()

    def observed(self) -> dict[str, dict[str, Any]]:
        """Returns what was observed in the last run, by the names of `DataFrame.observe`; instants are in UTC."""
        observed = json.loads(self._plan.observed())
        return {
            name: {measure: _instant(value) for measure, value in of.items()}
            for name, of in observed.items()
        }

    def interrupt(self) -> None:
        """Ends a run under way in another thread, where it waits for Python."""
        self._plan.interrupt()

    def close(self) -> None:
        self._plan.close()


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows.combine_chunks())
    return sink.getvalue().to_pybytes()


def _instant(value: Any) -> Any:
    return EPOCH + value["micros"] * _MICROSECOND if isinstance(value, dict) else value
