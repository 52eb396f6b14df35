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

    @table(layer="gold", ttl="90 days")
    def silences(valid_readings: DataFrame) -> DataFrame:
        return process(valid_readings, by=["sensor_id"], function=Silence(), at="event_time")

Rows come in the order of event time, then of the source, and timers between them: so what a
function gives is decided by the rows, and not by how they were cut into micro-batches. State and
timers end the table's `ttl=` after a key's last row. A range begins with the states that were kept
before it (`lakehouse.batch.kept_states`).

A short memory needs no kept state. The table's `context=` says how far back its rows reach, and
`within` how long a key's state outlives its last row; the first is not less than the second, or the
table is refused.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lakehouse.declare import calling
from lakehouse.declare.columns import ARRIVAL, ARRIVAL_TYPE, REACH
from lakehouse.errors import DeclarationError
from lakehouse.transform.lasting import arrow, by_key, lasting, part
from lakehouse.transform.lives import KeyedProcess, Row, Rules, State, Timers, outputs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyedProcess", "Row", "State", "Timers", "outputs", "process"]


def process(
    rows: DataFrame,
    *,
    by: Sequence[str],
    function: KeyedProcess,
    at: str,
    within: timedelta | None = None,
) -> DataFrame:
    """The rows that a process function gives, over the rows of each key by itself.

    State and timers end the table's `ttl=` after a key's last row.

    :param rows: with the event time and `_arrival`.
    :param by: the columns of the key.
    :param function: what is done with the rows of one key.
    :param at: the column of event time, in the rows and in the output.
    :param within: in a table with `context=`, how long a key is remembered after its last row.
    :raises DeclarationError: if the output has no event time, or if how long a key is remembered is
        not said, or said twice.
    """
    columns = StructType.fromDDL(f"{function.output}, {ARRIVAL} {ARRIVAL_TYPE}")
    schema = cast(StructType, columns)
    if at not in schema.names:
        raise DeclarationError(
            f"output={function.output!r}: its rows have an event time, too; add {at} TIMESTAMP"
        )
    call = calling.current()
    ttl = call.table.ttl if call else timedelta(0)
    if call:
        call.processes += 1
    if within is None and ttl:
        return lasting(rows, by, Rules(function, at, ttl, lasting=True), schema)
    if within is None or ttl:
        raise DeclarationError(
            f"within={within}, ttl={ttl}: how long a key is remembered is said once; declare the table with ttl=, or with "
            "context= and give within= here"
        )
    schema[ARRIVAL].metadata = {REACH: within // timedelta(microseconds=1)}

    def of_keys(group: "pa.Table") -> "pa.Table":
        keys = by_key(group, by).values()
        return arrow([row for each in keys for row in outputs(function, each, within, at)], schema)

    return rows.groupBy(part(by)).applyInArrow(of_keys, schema)
