"""Windows of `windows` over an ingest table whose watermark each user holds back."""

from pyspark.sql import DataFrame

from lakehouse import ingest_table
from stories.windows import click_topic as click_topic
from stories.windows import shifted as shifted
from stories.windows import sliding_sums as sliding_sums
from stories.windows import user_sessions as user_sessions


@ingest_table(layer="bronze", event_time="at", delay="5 seconds", watermark_by="user")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic
