"""Two ingest tables of the same rows, as JSON and as Avro, for `benchmarks.avro`."""

from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka

ROW = "n BIGINT NOT NULL, account STRING, shop STRING, cents BIGINT, note STRING, at TIMESTAMP NOT NULL"
json_topic = kafka("rows-json", schema=ROW)
avro_topic = kafka("rows-avro", schema=ROW, format="avro")


@ingest_table(layer="bronze", event_time="at")
def json_rows(json_topic: DataFrame) -> DataFrame:
    return json_topic


@ingest_table(layer="bronze", event_time="at")
def avro_rows(avro_topic: DataFrame) -> DataFrame:
    return avro_topic
