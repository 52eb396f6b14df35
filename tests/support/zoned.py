"""Windows of time zones over one topic: those whose state Spark keeps, and those that are computed as they close."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, sliding, tumbling, window_table

call_topic = kafka("calls", schema="line STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="6 hours")
def calls(call_topic: DataFrame) -> DataFrame:
    return call_topic


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("window", "line").agg(F.count("*").alias("calls"))


@window_table(layer="gold", window=tumbling("5 minutes", zone="Asia/Kathmandu"), keys=["line"])
def few_minutes(calls: DataFrame) -> DataFrame:
    return _counted(calls)


@window_table(layer="gold", window=tumbling("1 hour", zone="Australia/Lord_Howe"), keys=["line"])
def local_hours(calls: DataFrame) -> DataFrame:
    return _counted(calls)


@window_table(
    layer="gold",
    window=tumbling("8 hours", offset="6 hours", zone="Europe/Berlin"),
    keys=["line"],
    late="update",
)
def shifts(calls: DataFrame) -> DataFrame:
    return _counted(calls)


@window_table(
    layer="gold", window=tumbling("7 days", zone="Europe/Berlin"), keys=["line"], partition_by="day"
)
def weeks(calls: DataFrame) -> DataFrame:
    return _counted(calls)


@window_table(
    layer="gold", window=sliding("3 hours", "45 minutes", zone="Europe/Berlin"), keys=["line"]
)
def slides(calls: DataFrame) -> DataFrame:
    return _counted(calls)


@window_table(layer="gold", window=tumbling("1 hour", zone="America/St_Johns"), keys=["line"])
def busiest(calls: DataFrame) -> DataFrame:
    """Ranked within its window, which Spark's streams cannot: computed as it closes."""
    return _counted(calls).withColumn("most", F.expr("max(calls) OVER (PARTITION BY window)"))


TABLES = [few_minutes, local_hours, shifts, weeks, slides, busiest]
