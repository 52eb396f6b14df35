"""A process function that reports each call, and rows for it."""

from datetime import UTC, datetime, timedelta

from lakehouse.declare.columns import ARRIVAL
from lakehouse.transform.functions.process import KeyedProcess

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def row(second: float, offset: int = 0, **columns) -> dict:
    arrival = {"watermark": START, "topic": "t", "partition": 0, "offset": offset, "time": START}
    return {"at": at(second), ARRIVAL: arrival, **columns}


class Told(KeyedProcess):
    """Tells each call, and how many rows there were before."""

    output = "at TIMESTAMP, what STRING"

    def on_row(self, state, row, timers):
        state["rows"] = state.get("rows", 0) + 1
        for seconds in row.get("set", ()):
            timers.set(row["at"] + timedelta(seconds=seconds))
        if row.get("clear"):
            timers.clear()
        yield {"what": f"row {state['rows']}"}

    def on_timer(self, state, at, timers):
        yield {"what": f"timer after {state['rows']}"}


class Before(KeyedProcess):
    """Gives each row with the number of the row before it."""

    output = "id STRING, at TIMESTAMP, n BIGINT, before BIGINT"

    def on_row(self, state, row, timers):
        yield {"id": row["id"], "at": row["at"], "n": row["n"], "before": state.get("n")}
        state["n"] = row["n"]
