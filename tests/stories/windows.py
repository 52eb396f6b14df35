"""Windows of every kind over one ingest table of clicks."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, session, sliding, sql, tumbling, window_table

click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="gold", window=sliding("20 seconds", "5 seconds"), keys=["user"])
def sliding_sums(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > -50").groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=session("10 seconds"), keys=["user"])
def user_sessions(clicks: DataFrame) -> DataFrame:
    seen = clicks.where("value > -50")
    return seen.groupBy("window", "user").agg(
        F.count("*").alias("clicks"), F.sum("value").alias("value")
    )


@window_table(layer="gold", window=tumbling("1 minute", offset="15 seconds"), keys=["user"])
def shifted(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(
    layer="gold", window=tumbling("1 day", zone="Europe/Berlin"), keys=["user"], partition_by="day"
)
def local_days(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


sessions_in_sql = window_table(layer="gold", window=session("10 seconds"), keys=["user"])(
    sql(
        "sessions_in_sql",
        "SELECT window, user, count(*) AS clicks, sum(value) AS value FROM {clicks} WHERE value > -50 GROUP BY window, user",
    )
)
