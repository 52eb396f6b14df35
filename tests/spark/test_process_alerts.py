"""Alerts by a process function: the same however the rows were cut."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from examples.alerts import tables as alerts
from lakehouse.errors import DeclarationError
from lakehouse.examples.sensors import tables as sensors
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.functions.process import KeyedCoProcess, OutputTag, process, side_output
from support.calls import MINUTE, START, Told, at


def test_an_output_without_event_time_is_refused(spark):
    with pytest.raises(
        DeclarationError, match="its rows have an event time, too; add then TIMESTAMP"
    ):
        process(spark.range(1), by=["id"], function=Told(), within=MINUTE, at="then")


def test_what_is_wrong_with_a_process_function_is_said_before_it_runs(spark):
    rows = spark.sql("SELECT 1 AS id, now() AS at, now() AS _arrival")
    nested = rows.withColumn("id", F.struct(F.col("id").alias("n")))
    tagged, clash = OutputTag("seen", "at TIMESTAMP"), OutputTag("what", "at TIMESTAMP")

    class Tagged(Told):
        side_outputs = (clash,)

    class Timeless(Told):
        side_outputs = (OutputTag("seen", "id INT"),)

    class Both(KeyedCoProcess):
        output = "at TIMESTAMP"

    given = {"by": ["id"], "at": "at", "within": MINUTE}
    for words, call in (
        ("a tag is a column beside main", lambda: process(rows, function=Tagged(), **given)),
        ("output='id INT': its rows have", lambda: process(rows, function=Timeless(), **given)),
        ("a KeyedCoProcess two", lambda: process(rows, function=Both(), **given)),
        ("a KeyedProcess has one", lambda: process((rows, rows), function=Told(), **given)),
        ("each input has the key", lambda: process(rows.drop("id"), function=Told(), **given)),
        (
            "is said once; declare the table with ttl=",
            lambda: process(rows, by=["id"], at="at", function=Told()),
        ),
        (
            "by=id, type=struct<n:int>: a key is a plain value",
            lambda: process(nested, function=Told(), **given),
        ),
        ("output=seen, columns=", lambda: side_output(rows, tagged)),
    ):
        with pytest.raises(DeclarationError, match=words):
            call()


def reading(sensor: str, second: float, celsius: str) -> dict:
    fahrenheit = Decimal(celsius) * 9 / 5 + 32
    return {
        "sensor_id": sensor,
        "event_time": at(second).isoformat(),
        "temperature_f": f"{fahrenheit:.2f}",
    }


def seconds(moment: datetime) -> float:
    return (moment.astimezone(UTC) - START).total_seconds()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_alerts_live_are_those_of_the_batch_however_the_rows_were_cut(spark, tmp_path):
    stage = Stage(spark, tmp_path, sensors, alerts)
    rows = [reading("sensor-1", n, "20.00") for n in range(0, 200, 5)]
    rows += [reading("sensor-2", n, "10.00") for n in (*range(0, 100, 2), 150, 240)]
    rows += [reading("sensor-1", 131, "25.00"), reading("sensor-2", 241, "10.50")]
    rows.sort(key=lambda each: each["event_time"])
    for n in range(0, len(rows), 30):
        stage.feed("sensor_readings", rows[n : n + 30])
        stage.run(
            "valid_readings",
            "silent_sensors",
            "unusual_readings",
            abort_at="rows" if n == 30 else None,
        )
    for second in (400, 4_000):
        stage.advance("sensor_readings", reading("sensor-3", second, "1.00"))
    stage.run("valid_readings", "silent_sensors", "unusual_readings")
    silent = stage.rows("silent_sensors").orderBy("event_time", "sensor_id").collect()
    alerts_of = [(r.sensor_id, seconds(r.silent_since), seconds(r.event_time)) for r in silent]
    assert alerts_of == [
        ("sensor-2", 150, 210),
        ("sensor-1", 195, 255),
        ("sensor-2", 241, 301),
        ("sensor-3", 400, 460),
    ]
    [unusual] = stage.rows("unusual_readings").collect()
    assert (unusual.sensor_id, unusual.temperature_c, unusual.mean_c) == (
        "sensor-1",
        Decimal("25.00"),
        Decimal("20.0000"),
    )
    assert (
        stage.rows("silent_sensors")
        .where(F.col("_arrival.watermark") >= F.col("event_time"))
        .isEmpty()
    ), "never late"
    for name in ("silent_sensors", "unusual_readings"):
        assert_stream_equals_batch(stage, name)
