"""Fraud alerts on the transfers of `bank`, sent as messages and as mail.

Beside `examples.bank.tables`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, kafka_topic, mail, row_table

_COLUMNS = ("transaction_id", "from_account", "amount", "event_time", "_arrival")


@row_table(
    layer="gold",
    owner="team:bank",
    expectations=[
        expect.column_values_to_be_in_set("reason", value_set=["after a small one", "unusual"])
    ],
    publish=[
        kafka_topic(
            "fraud-alerts",
            key=["from_account", "transaction_id", "reason"],
            order_by="from_account",
            partitions=5,
        ),
        mail(
            "fraud_mails",
            to="fraud@bank.example.org",
            sender="lakehouse@bank.example.org",
            key=["transaction_id", "reason"],
            subject="{from_account} paid {amount}: {reason}",
            text="At {event_time} {from_account} paid {amount} by transfer {transaction_id}.\n\nWhy it is looked at: {reason}.",
            server="smtp://${MAIL_SERVER}",
        ),
    ],
)
def fraud_alerts(small_then_large: DataFrame, fraud_features: DataFrame) -> DataFrame:
    """Payments that somebody is to look at: large after a small one, or ten times what the account paid on average that day."""
    tested = small_then_large.select(*_COLUMNS, F.lit("after a small one").alias("reason"))
    far = "payments_1d >= 3 AND amount * payments_1d >= 10 * paid_1d"
    unusual = fraud_features.where(far).select(*_COLUMNS, F.lit("unusual").alias("reason"))
    return tested.unionByName(unusual)
