"""Sensor averages: readings in Fahrenheit become valid readings in Celsius, then averages per sensor, over 5 s and sliding."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, ingest_table, kafka, row_table, sliding, tumbling, window_table

sensor_topic = kafka(
    "sensor-readings",
    schema="sensor_id STRING NOT NULL, event_time TIMESTAMP NOT NULL, temperature_f DECIMAL(6,2) NOT NULL",
    require_key=True,
)


@ingest_table(layer="bronze", event_time="event_time", delay="5 seconds", owner="team:sensors")
def sensor_readings(sensor_topic: DataFrame) -> DataFrame:
    """Every reading as it was sent: sensor, event time, temperature in degrees Fahrenheit."""
    return sensor_topic


@row_table(
    layer="silver",
    owner="team:sensors",
    expectations=[
        expect.column_values_to_match_regex("sensor_id", regex="^sensor-[0-9]+$"),
        # the range in which the instrument is calibrated
        expect.column_values_to_be_between("temperature_c", min_value=-60, max_value=60),
    ],
)
def valid_readings(sensor_readings: DataFrame) -> DataFrame:
    """Readings in degrees Celsius, to a hundredth.

    Readings outside of what the instrument can measure are quarantined.
    """
    celsius = ((F.col("temperature_f") - 32) * 5 / 9).cast("decimal(6,2)")
    return sensor_readings.withColumn("temperature_c", celsius).drop("temperature_f")


@window_table(
    layer="gold",
    window=tumbling("5 seconds"),
    keys=["sensor_id"],
    metrics=["average_c", "readings"],
    late="side_output",
    owner="team:sensors",
    expectations=[
        expect.column_values_to_be_between("readings", min_value=1),
        expect.column_pair_values_a_to_be_greater_than_b("max_c", "min_c", or_equal=True),
    ],
)
def sensor_averages(valid_readings: DataFrame) -> DataFrame:
    """Average, least and greatest temperature (degrees Celsius) per sensor and 5 seconds."""
    return valid_readings.groupBy("window", "sensor_id").agg(
        F.avg("temperature_c").alias("average_c"),
        F.count("*").alias("readings"),
        F.min("temperature_c").alias("min_c"),
        F.max("temperature_c").alias("max_c"),
    )


@window_table(
    layer="gold",
    window=sliding("1 minute", "10 seconds"),
    keys=["sensor_id"],
    metrics=["average_c"],
    late="side_output",
    owner="team:sensors",
    expectations=[expect.column_values_to_be_between("readings", min_value=1)],
)
def sensor_trends(valid_readings: DataFrame) -> DataFrame:
    """Average temperature (degrees Celsius) per sensor over the last minute, every 10 seconds."""
    return valid_readings.groupBy("window", "sensor_id").agg(
        F.avg("temperature_c").alias("average_c"), F.count("*").alias("readings")
    )
