"""A row table of the orders above a number, as the text of a module: another number is another declaration of it."""

SHOP = """
from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka, row_table

order_topic = kafka("orders", schema="id BIGINT NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@row_table(layer="silver")
def taken(orders: DataFrame) -> DataFrame:
    return orders.where("id > LEAST")
"""
