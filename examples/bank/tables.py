"""A bank: transfers between accounts, enriched with who owned them then, and balances that always add up to nothing."""

from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    around,
    as_of_join,
    expect,
    ingest_table,
    kafka,
    kafka_topic,
    keyed_table,
    row_table,
    session,
    tumbling,
    versioned_table,
    window_table,
)

_OWNER = "team:bank"
_QUIET = "5 seconds"  # changes are few: a topic of them is silent most of the time, and holds nothing back

transaction_topic = kafka(
    "transactions",
    schema="""
        transaction_id STRING NOT NULL, from_account STRING NOT NULL, to_account STRING NOT NULL,
        amount DECIMAL(18,2) NOT NULL, event_time TIMESTAMP NOT NULL
    """,
    require_key=True,
)
customer_topic = kafka(
    "customers",
    schema="customer_id STRING NOT NULL, country STRING NOT NULL, segment STRING NOT NULL, event_time TIMESTAMP NOT NULL",
    key="customer_id",
    idle_timeout=_QUIET,
)
account_topic = kafka(
    "accounts",
    schema="account_id STRING NOT NULL, customer_id STRING NOT NULL, event_time TIMESTAMP NOT NULL",
    key="account_id",
    idle_timeout=_QUIET,
)


@ingest_table(
    layer="bronze",
    event_time="event_time",
    delay="5 seconds",
    owner=_OWNER,
    expectations=[expect.column_values_to_be_between("amount", min_value=0, strict_min=True)],
)
def bank_events(
    transaction_topic: DataFrame, customer_topic: DataFrame, account_topic: DataFrame
) -> DataFrame:
    """All that happens in the bank, as it was sent: transfers, and what changes of customers and accounts."""
    # of a deletion only Kafka has the time
    changed = {"event_time": F.coalesce("event_time", "sent")}
    customers = customer_topic.withColumns(changed | {"kind": F.lit("customer")}).drop("sent")
    accounts = account_topic.withColumns(changed | {"kind": F.lit("account")}).drop("sent")
    transfers = transaction_topic.withColumn("kind", F.lit("transfer"))
    united = transfers.unionByName(customers, allowMissingColumns=True)
    return united.unionByName(accounts, allowMissingColumns=True)


@versioned_table(layer="silver", keys=["customer_id"], owner=_OWNER)
def customer_history(bank_events: DataFrame) -> DataFrame:
    """Each customer over time: country and segment, valid from, valid to.

    `deleted` once the customer has left.
    """
    changes = bank_events.where("kind = 'customer'")
    return changes.select("customer_id", "country", "segment", "deleted", "event_time", "_arrival")


@versioned_table(layer="silver", keys=["account_id"], owner=_OWNER)
def account_history(bank_events: DataFrame) -> DataFrame:
    """Each account over time: whose it was."""
    return bank_events.where("kind = 'account'").select(
        "account_id", "customer_id", "deleted", "event_time", "_arrival"
    )


@row_table(
    layer="silver",
    owner=_OWNER,
    publish=[
        kafka_topic(
            "transactions.debits",
            key=["from_account", "transaction_id"],
            order_by="from_account",
            partitions=5,
        ),
        kafka_topic(
            "transactions.credits",
            key=["to_account", "transaction_id"],
            order_by="to_account",
            partitions=5,
        ),
    ],
)
def transfers(bank_events: DataFrame) -> DataFrame:
    """Transfers from account to account."""
    columns = ("transaction_id", "from_account", "to_account", "amount", "event_time", "_arrival")
    return bank_events.where("kind = 'transfer'").select(*columns)


@row_table(layer="silver", owner=_OWNER)
def enriched_transfers(
    transfers: DataFrame, account_history: DataFrame, customer_history: DataFrame
) -> DataFrame:
    """Transfers with the customer who owned the paying account at that time, and with what that customer was then."""
    owned = as_of_join(
        transfers, account_history, {"from_account": "account_id"}, "event_time", ["customer_id"]
    )
    return as_of_join(owned, customer_history, "customer_id", "event_time", ["country", "segment"])


@keyed_table(
    layer="gold",
    keys=["account_id"],
    owner=_OWNER,
    expectations=[expect.column_sum_to_be_between("balance", min_value=0, max_value=0)],
)
def account_totals(bank_events: DataFrame) -> DataFrame:
    """What each account paid and was paid, and the balance: both sides of a transfer come from one row, so all add up to zero."""
    none = F.lit(0).cast("decimal(18,2)")
    paid = F.struct(
        F.col("from_account").alias("account_id"),
        F.col("amount").alias("debit"),
        none.alias("credit"),
    )
    received = F.struct(
        F.col("to_account").alias("account_id"),
        none.alias("debit"),
        F.col("amount").alias("credit"),
    )
    legs = (
        bank_events.where("kind = 'transfer'")
        .select(F.explode(F.array(paid, received)).alias("leg"))
        .select("leg.*")
    )
    return legs.groupBy("account_id").agg(
        F.sum("debit").alias("debits"),
        F.sum("credit").alias("credits"),
        F.sum(F.col("credit") - F.col("debit")).alias("balance"),
        F.count("*").alias("transfers"),
    )


@keyed_table(layer="silver", keys=["account_id"], owner=_OWNER)
def account_debits(bank_events: DataFrame) -> DataFrame:
    """What each account paid."""
    return (
        bank_events.where("kind = 'transfer'")
        .groupBy(F.col("from_account").alias("account_id"))
        .agg(F.sum("amount").alias("debits"))
    )


@keyed_table(layer="silver", keys=["account_id"], owner=_OWNER)
def account_credits(bank_events: DataFrame) -> DataFrame:
    """What each account was paid."""
    return (
        bank_events.where("kind = 'transfer'")
        .groupBy(F.col("to_account").alias("account_id"))
        .agg(F.sum("amount").alias("credits"))
    )


@keyed_table(layer="gold", keys=["account_id"], owner=_OWNER)
def account_balances(account_debits: DataFrame, account_credits: DataFrame) -> DataFrame:
    """The balance of each account, from two tables that are joined at versions which know of the same transfers."""
    both = account_debits.join(account_credits, "account_id", "full")
    received, paid = (
        F.coalesce(name, F.lit(0).cast("decimal(28,2)")) for name in ("credits", "debits")
    )
    return both.select("account_id", (received - paid).alias("balance"))


@keyed_table(
    layer="gold",
    keys=["bank"],
    owner=_OWNER,
    expectations=[expect.column_values_to_be_between("balance", min_value=0, max_value=0)],
)
def bank_balance(account_balances: DataFrame) -> DataFrame:
    """The sum of all balances, which is zero at each version, and how many accounts there are."""
    total = account_balances.agg(F.sum("balance").alias("balance"), F.count("*").alias("accounts"))
    return total.withColumn("bank", F.lit("all"))


@window_table(
    layer="gold",
    window=tumbling("1 day"),
    partition_by="day",
    keys=["customer_id", "country"],
    owner=_OWNER,
)
def customer_days(enriched_transfers: DataFrame) -> DataFrame:
    """What each customer paid a day (UTC), by the country the customer lived in then.

    No customer: nobody owned the account.
    """
    by_day = enriched_transfers.groupBy("window", "customer_id", "country")
    return by_day.agg(F.count("*").alias("transfers"), F.sum("amount").alias("paid"))


@window_table(layer="gold", window=session("2 minutes"), keys=["from_account"], owner=_OWNER)
def account_sessions(transfers: DataFrame) -> DataFrame:
    """Payments of an account at most two minutes apart."""
    return transfers.groupBy("window", "from_account").agg(
        F.count("*").alias("transfers"), F.sum("amount").alias("paid")
    )


@row_table(layer="gold", context=around(before="1 minute"), owner=_OWNER)
def small_then_large(transfers: DataFrame) -> DataFrame:
    """Large payments (500 and more) of an account that paid a small one (at most 1) within the minute before."""
    small = transfers.where("amount <= 1").select(
        F.col("from_account").alias("payer"), F.col("event_time").alias("small_at")
    )
    soon = F.expr(
        "payer = from_account AND small_at < event_time AND small_at >= event_time - interval 1 minute"
    )
    return transfers.where("amount >= 500").join(small, soon, "left_semi")


@row_table(layer="gold", context=around(before="1 day"), owner=_OWNER)
def fraud_features(transfers: DataFrame) -> DataFrame:
    """Each transfer with what was known of its account then: the payments of the hour and of the day before, and their sums."""
    of_account = Window.partitionBy("from_account").orderBy(F.unix_micros("event_time"))

    def total(measure: Column, since: timedelta) -> Column:
        # of two running totals the difference: each is one pass, where a frame of a day is added up
        # again for every row
        ends = (-1, -1 - since // timedelta(microseconds=1))
        until, before = (
            measure.over(of_account.rangeBetween(Window.unboundedPreceding, end)) for end in ends
        )
        return F.coalesce(until, F.lit(0)) - F.coalesce(before, F.lit(0))

    spans = {"1h": timedelta(hours=1), "1d": timedelta(days=1)}
    payments = {f"payments_{name}": total(F.count("amount"), span) for name, span in spans.items()}
    paid = {
        f"paid_{name}": total(F.sum("amount"), span).cast("decimal(28,2)")
        for name, span in spans.items()
    }
    columns = ("transaction_id", "from_account", "amount", "event_time", "_arrival")
    return transfers.select(
        *columns, *(column.alias(name) for name, column in (payments | paid).items())
    )
