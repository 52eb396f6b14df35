"""Alerts on the valid readings: a sensor gone silent, a reading far from its mean.

Beside `lakehouse.examples.sensors.tables`.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from pyspark.sql import DataFrame

from lakehouse import KeyedProcess, Row, State, Timers, around, process, row_table

_MINUTE = timedelta(minutes=1)
_TEN_MINUTES = timedelta(minutes=10)
_FAR = 2  # degrees Celsius
_ENOUGH = 20  # readings, before a mean says something


class Silence(KeyedProcess):
    """A sensor that sends nothing for a minute is silent, once, until it sends again."""

    output = "sensor_id STRING, event_time TIMESTAMP, silent_since TIMESTAMP"

    def on_row(self, state: State, row: Row, timers: Timers) -> tuple[Row, ...]:
        timers.clear()
        timers.set(row["event_time"] + _MINUTE)
        state.update(sensor_id=row["sensor_id"], silent_since=row["event_time"])
        return ()

    def on_timer(self, state: State, at: datetime, timers: Timers) -> Iterator[Row]:
        yield dict(state)


class Anomaly(KeyedProcess):
    """A reading far from the mean of the readings of its sensor in the ten minutes before."""

    output = (
        "sensor_id STRING, event_time TIMESTAMP, temperature_c DECIMAL(6,2), mean_c DECIMAL(10,4)"
    )

    def on_row(self, state: State, row: Row, timers: Timers) -> Iterator[Row]:
        at, warmth = row["event_time"], row["temperature_c"]
        before = [
            (then, each) for then, each in state.get("readings", []) if then >= at - _TEN_MINUTES
        ]
        earlier = [each for then, each in before if then < at]
        if len(earlier) >= _ENOUGH:
            mean = round(sum(earlier) / len(earlier), 4)
            if abs(warmth - mean) > _FAR:
                yield {"sensor_id": row["sensor_id"], "temperature_c": warmth, "mean_c": mean}
        state["readings"] = [*before, (at, warmth)]


@row_table(layer="gold", context=around(before=_MINUTE), owner="team:sensors")
def silent_sensors(valid_readings: DataFrame) -> DataFrame:
    """Sensors that had sent nothing for a minute, at the instant when that was so."""
    return process(
        valid_readings, by=["sensor_id"], function=Silence(), within=_MINUTE, at="event_time"
    )


@row_table(layer="gold", context=around(before=_TEN_MINUTES), owner="team:sensors")
def unusual_readings(valid_readings: DataFrame) -> DataFrame:
    """Readings more than two degrees away from the mean of their sensor's last ten minutes."""
    return process(
        valid_readings, by=["sensor_id"], function=Anomaly(), within=_TEN_MINUTES, at="event_time"
    )
