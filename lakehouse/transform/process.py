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

    @table(layer="gold", context=around(before="1 minute"))
    def silences(valid_readings: DataFrame) -> DataFrame:
        return process(valid_readings, by=["sensor_id"], function=Silence(), within=MINUTE, at="event_time")

Rows come in the order of event time, then of the source, and timers between them: so what a
function gives is decided by the rows, and not by how they were cut into micro-batches. A table's
`context=` says how far back its rows reach, and `within` how long a key's state outlives its last
row; the first is not less than the second, or the table is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.declare.columns import ARRIVAL, ARRIVAL_TYPE, REACH, SOURCE_ORDER
from lakehouse.errors import DeclarationError

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE = 256  # parts of the keys
Row = dict[str, Any]
State = dict[str, Any]


class Timers:
    """When a key's function is to be called next, in event time."""

    def __init__(self) -> None:
        self._instants: list[datetime] = []

    def set(self, at: datetime) -> None:
        """Calls `on_timer` at that instant, once however often it is set."""
        if at not in self._instants:
            heappush(self._instants, at)

    def clear(self) -> None:
        self._instants.clear()

    def due(self, until: datetime, before: datetime | None = None) -> datetime | None:
        """Takes out the earliest instant, if it is not later than `until`, and earlier than `before`; else None."""
        if (
            not self._instants
            or self._instants[0] > until
            or (before and self._instants[0] >= before)
        ):
            return None
        return heappop(self._instants)


class KeyedProcess:
    """What is done with the rows of one key.

    `output`: the columns of its rows, Spark DDL, the event time among them.

    `state` is a dict, empty at first, of values, lists and dicts as one likes. A row that is given
    without its event time has that of the row or timer that it was made of.
    """

    output: str

    def check(self, within: timedelta, at: str) -> None:
        """Raises DeclarationError if it cannot be used with these parameters of `process`."""

    def on_row(self, state: State, row: Row, timers: Timers) -> Iterable[Row]:
        """What comes of a row (by column; instants are aware, in UTC).

        Timers of the same instant come after it.
        """
        raise NotImplementedError

    def on_timer(self, state: State, at: datetime, timers: Timers) -> Iterable[Row]:
        """What comes of a timer."""
        return ()


def process(
    rows: DataFrame, *, by: Sequence[str], function: KeyedProcess, within: timedelta, at: str
) -> DataFrame:
    """The rows that a process function gives, over the rows of each key by itself.

    State and timers end `within` after a key's last row.

    :param rows: with the event time and `_arrival`.
    :param by: the columns of the key.
    :param function: what is done with the rows of one key.
    :param within: how long a key is remembered after its last row.
    :param at: the column of event time, in the rows and in the output.
    :raises DeclarationError: if the output has no event time, or the function needs to be remembered for longer.
    """
    function.check(within, at)
    columns = StructType.fromDDL(f"{function.output}, {ARRIVAL} {ARRIVAL_TYPE}")
    schema = cast(StructType, columns)
    schema[ARRIVAL].metadata = {REACH: within // timedelta(microseconds=1)}
    if at not in schema.names:
        raise DeclarationError(
            f"output={function.output!r}: its rows have an event time, too; add {at} TIMESTAMP"
        )

    def of_keys(group: "pa.Table") -> "pa.Table":
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        of_key: dict[tuple, list[Row]] = {}
        for row in group.to_pylist():
            of_key.setdefault(tuple(row[name] for name in by), []).append(row)
        made = [row for each in of_key.values() for row in outputs(function, each, within, at)]
        return pa.Table.from_pylist(made, to_arrow_schema(schema, timezone="UTC"))

    # many keys go to Python at once: a call for each would cost more than its rows
    return rows.groupBy(F.pmod(F.xxhash64(*by), F.lit(_AT_ONCE))).applyInArrow(of_keys, schema)


def outputs(
    function: KeyedProcess, rows: Iterable[Row], within: timedelta, at: str
) -> Iterator[Row]:
    """What a function gives of the rows of one key.

    The row of a timer has the arrival of the row before it, so is never late.
    """
    state: State = {}
    timers, last = Timers(), None
    for row in sorted(
        rows, key=lambda row: (row[at], *(row[ARRIVAL][name] for name in SOURCE_ORDER))
    ):
        if last:
            yield from _fired(function, state, timers, last, last[at] + within, at, row[at])
            if row[at] - last[at] > within:
                state, timers = {}, Timers()
        last = row
        yield from (
            {at: row[at], **made, ARRIVAL: row[ARRIVAL]}
            for made in function.on_row(state, row, timers)
        )
    if last:
        yield from _fired(function, state, timers, last, last[at] + within, at)


def _fired(
    function: KeyedProcess,
    state: State,
    timers: Timers,
    last: Row,
    until: datetime,
    at: str,
    before: datetime | None = None,
) -> Iterator[Row]:
    while instant := timers.due(until, before):
        yield from (
            {at: instant, **made, ARRIVAL: last[ARRIVAL]}
            for made in function.on_timer(state, instant, timers)
        )
