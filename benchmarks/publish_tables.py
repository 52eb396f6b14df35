"""A table that is published to a topic and to a database, for `benchmarks.publishing`."""

from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka, kafka_topic, postgres, row_table

payment_topic = kafka("payments-in", schema="n BIGINT, account STRING, cents BIGINT, at TIMESTAMP")
TOPIC, DATABASE = "published-payments", "published_payments"


@ingest_table(layer="bronze", event_time="at")
def payment_events(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(
    layer="silver",
    publish=[kafka_topic(TOPIC, key="n"), postgres(DATABASE, key="n")],
)
def payments(payment_events: DataFrame) -> DataFrame:
    return payment_events
