"""Ingestion time: the recorded time of arrival as event time; nothing can be late, and a batch run agrees all the same."""

import sys
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, tumbling, window_table
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]

message_topic = kafka("messages", schema="text STRING NOT NULL")


@ingest_table(layer="bronze", event_time="ingestion_time")
def messages(message_topic: DataFrame) -> DataFrame:
    return message_topic


@window_table(layer="gold", window=tumbling("2 seconds"))
def message_counts(messages: DataFrame) -> DataFrame:
    return messages.groupBy("window").agg(F.count("*").alias("messages"))


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_are_in_the_window_of_their_arrival(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)  # a batch a second; two are in each window
    for partition in (0, 1, 0, 0, 0, 0, 0):
        stage.feed("messages", [(partition, {"text": "a"}), "not JSON", (partition, {"text": "b"})])
    stage.run("message_counts", files_per_batch=3)
    rows = stage.rows("messages").collect()
    assert len(rows) == 14 and all(r.ingestion_time == r._arrival.time for r in rows)
    counted = {
        r.window.start.astimezone(UTC): r.messages for r in stage.rows("message_counts").collect()
    }
    first = datetime(2030, 1, 1, tzinfo=UTC)
    assert counted == {first: 2, first.replace(second=2): 4, first.replace(second=4): 4}, (
        "the last one is open"
    )
    assert stage.rows("messages", "quarantine").count() == 7
    assert_stream_equals_batch(stage, "message_counts")
