"""Two topics, and a process function over both: orders, and what was paid for them."""

from datetime import timedelta

from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka, row_table
from lakehouse.transform.functions.process import KeyedCoProcess, process

WAIT = timedelta(minutes=10)

order_topic = kafka("orders", schema="id BIGINT, at TIMESTAMP, price BIGINT")
payment_topic = kafka("payments", schema="order BIGINT, paid_at TIMESTAMP, amount BIGINT")


class Settled(KeyedCoProcess):
    """What is open of an order with each payment, and ten minutes after the order; payments may come before it."""

    output = "id BIGINT, at TIMESTAMP, open BIGINT, what STRING"

    def on_row1(self, state, row, timers):
        state.update(id=row["id"], open=state.get("open", 0) + row["price"])
        timers.set(row["at"] + WAIT)
        return [dict(state) | {"what": "ordered"}]

    def on_row2(self, state, row, timers):
        state.update(id=row["id"], open=state.get("open", 0) - row["amount"])
        return [dict(state) | {"what": "paid"}]

    def on_timer(self, state, at, timers):
        return [dict(state) | {"what": "waited"}]


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@ingest_table(layer="bronze", event_time="paid_at", delay="20 seconds")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(layer="gold", ttl="30 minutes")
def settled(orders: DataFrame, payments: DataFrame) -> DataFrame:
    paid = payments.withColumnsRenamed({"order": "id", "paid_at": "at"})
    return process((orders, paid), by=["id"], function=Settled(), at="at")
