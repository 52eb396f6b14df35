"""Process functions: Python over the rows of a key in event time, with state and timers.

    class Silence(KeyedProcess):
        output = "sensor_id STRING, event_time TIMESTAMP, silent_since TIMESTAMP"

        def on_row(self, state, row, timers):
            timers.clear()
            timers.set(row["event_time"] + MINUTE)
            state.update(sensor_id=row["sensor_id"], silent_since=row["event_time"])
            return ()

        def on_timer(self, state, at, timers):
            yield dict(state)

    @row_table(layer="gold", ttl="90 days")
    def silences(valid_readings: DataFrame) -> DataFrame:
        return process(valid_readings, by=["sensor_id"], function=Silence(), at="event_time")

Rows come in the order of event time, then of the source, and timers between them. So the rows decide
the output, not their division into micro-batches. State and timers end the table's `ttl=` after a
key's last row. A range begins with the states that were kept before it (`lakehouse.batch.kept_states`).

A short memory needs no kept state: `within` says how long a key's state outlives its last row, and the
table's `context=`, how far back rows are read, is at least as long.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType, TimestampType

from lakehouse.declare.columns import ARRIVAL, ARRIVAL_TYPE, REACH
from lakehouse.declare.table import current_call
from lakehouse.errors import DeclarationError
from lakehouse.transform import arrival_fields
from lakehouse.transform.decoding.values import of_ddl
from lakehouse.transform.functions.process_state import (
    FIRST,
    MAIN,
    SECOND,
    KeyedCoProcess,
    KeyedProcess,
    OutputTag,
    Row,
    Rules,
    State,
    Timers,
    outputs,
)
from lakehouse.transform.functions.process_ttl import arrow, by_key, lasting, part

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "KeyedCoProcess",
    "KeyedProcess",
    "OutputTag",
    "Row",
    "State",
    "Timers",
    "main_output",
    "outputs",
    "process",
    "side_output",
]


def process(
    rows: DataFrame | tuple[DataFrame, DataFrame],
    *,
    by: Sequence[str],
    function: KeyedProcess,
    at: str,
    within: timedelta | None = None,
) -> DataFrame:
    """Returns the output of a process function over the rows of each key by itself.

    State and timers end the table's `ttl=` after a key's last row.

    :param rows: with the event time and `_arrival`; for a `KeyedCoProcess` those of two inputs.
    :param by: the columns of the key, of the same names and types in both inputs.
    :param function: the process function.
    :param at: the column of event time, in the rows (of both inputs) and in the output.
    :param within: in a table with `context=`, how long a key is remembered after its last row.
    :raises DeclarationError: if an output has no event time, if not exactly one of `within` and `ttl=` is
        given, if the function needs a longer memory, or if a column of the key is a struct, an array or a map.
    """
    call = current_call()
    ttl = call.table.state_ttl if call else timedelta(0)
    if call:
        call.processes += 1
    if (within is None) == (not ttl):
        raise DeclarationError(
            f"within={within}, ttl={ttl}: how long a key is remembered is said once; declare the table with ttl=, or with "
            "context= and give within= here"
        )
    function.check(ttl if within is None else within, at)
    schema = _columns(function, at)
    rows = _of_both(rows, [*by, at, ARRIVAL], function)
    if arrival_fields.has_place(rows):
        schema[ARRIVAL].dataType = rows.schema[ARRIVAL].dataType
    for name in by:
        if isinstance(kind := rows.schema[name].dataType, StructType | ArrayType | MapType):
            raise DeclarationError(
                f"by={name}, type={kind.simpleString()}: a key is a plain value; make its parts columns, and name these"
            )
    if within is None:
        return lasting(rows, by, Rules(function, at, ttl, lasting=True), schema)
    schema[ARRIVAL].metadata = {REACH: within // timedelta(microseconds=1)}

    def of_keys(group: "pa.Table") -> "pa.Table":
        keys = by_key(group, by).values()
        return arrow(
            [row for key_rows in keys for row in outputs(function, key_rows, within, at)], schema
        )

    return rows.groupBy(part(by)).applyInArrow(of_keys, schema)


def main_output(rows: DataFrame) -> DataFrame:
    """Returns the rows without a tag of a table whose process function has side outputs."""
    return _of(rows, MAIN)


def side_output(rows: DataFrame, tag: OutputTag) -> DataFrame:
    """Returns the rows of one tag of a table whose process function has side outputs.

        @row_table(layer="gold")
        def refused(checked_visits: DataFrame) -> DataFrame:
            return side_output(checked_visits, REFUSED)

    :param tag: one of the function's `side_outputs`.
    :raises DeclarationError: if the table has no such rows.
    """
    return _of(rows, tag.name)


def _of(rows: DataFrame, column: str) -> DataFrame:
    if column not in rows.columns:
        raise DeclarationError(
            f"output={column}, columns={rows.columns}: the table has no such rows; name a table whose process function has "
            "side_outputs=, and one of these"
        )
    return rows.where(F.col(column).isNotNull()).select(f"{column}.*", ARRIVAL)


def _of_both(
    rows: DataFrame | tuple[DataFrame, DataFrame], shared: list[str], function: KeyedProcess
) -> DataFrame:
    """Returns rows of one input unchanged, or two united: the shared columns, and the row itself in `_first` or `_second`."""
    inputs = rows if isinstance(rows, tuple) else (rows,)
    if len(inputs) != 1 + isinstance(function, KeyedCoProcess):
        raise DeclarationError(
            f"function={type(function).__name__}, inputs={len(inputs)}: a KeyedProcess has one input, and a KeyedCoProcess two; "
            "write process((left, right), ...) for the latter"
        )
    for frame in inputs:
        if missing := [name for name in shared if name not in frame.columns]:
            raise DeclarationError(
                f"by, at={', '.join(missing)}, columns={frame.columns}: each input has the key, the event time and {ARRIVAL} by "
                "these names; rename its own"
            )
    if len(inputs) == 1:
        return inputs[0]
    first, second = (
        frame.select(*shared, F.struct(*frame.columns).alias(name))
        for frame, name in zip(inputs, (FIRST, SECOND), strict=True)
    )
    return first.unionByName(second, allowMissingColumns=True)


def _columns(function: KeyedProcess, at: str) -> StructType:
    """Returns the columns of a process function's output; with side outputs the event time and a struct for each kind of row."""
    outputs = {MAIN: function.output} | {tag.name: tag.output for tag in function.side_outputs}
    kinds = {name: of_ddl(ddl) for name, ddl in outputs.items()}
    for name, kind in kinds.items():
        if at not in kind.names:
            raise DeclarationError(
                f"output={outputs[name]!r}: its rows have an event time, too; add {at} TIMESTAMP"
            )
    names = [tag.name for tag in function.side_outputs]
    if len(kinds) <= len(names) or set(names) & {at, *kinds[MAIN].names}:
        raise DeclarationError(
            f"side_outputs={names}: a tag is a column beside {MAIN} and {at}, and no column of the rows without a tag; rename it"
        )
    arrival = of_ddl(f"{ARRIVAL} {ARRIVAL_TYPE}").fields
    if not names:
        return StructType(kinds[MAIN].fields + arrival)
    sides = [StructField(name, kind) for name, kind in kinds.items()]
    return StructType([StructField(at, TimestampType()), *sides, *arrival])
