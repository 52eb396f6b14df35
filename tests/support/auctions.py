"""An auction house: tables without windows that are kept up to date, over joins, ranks, and tables that are kept up to date."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import files, ingest_table, kafka, keyed_table, reference_table, sql

START = datetime(2026, 1, 1, tzinfo=UTC)

person_topic = kafka(
    "people", schema="id BIGINT NOT NULL, name STRING, state STRING, at TIMESTAMP NOT NULL"
)
auction_topic = kafka(
    "auctions",
    schema="id BIGINT NOT NULL, seller BIGINT NOT NULL, category BIGINT, expires TIMESTAMP NOT NULL, at TIMESTAMP NOT NULL",
)
bid_topic = kafka(
    "bids", schema="auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT NOT NULL, at TIMESTAMP NOT NULL"
)  # fmt: skip


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def people(person_topic: DataFrame) -> DataFrame:
    return person_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def auctions(auction_topic: DataFrame) -> DataFrame:
    return auction_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def bids(bid_topic: DataFrame) -> DataFrame:
    return bid_topic


@keyed_table(layer="silver", keys=["id"])
def residents(people: DataFrame) -> DataFrame:
    """People as they were seen last."""
    last = F.max_by(F.struct("name", "state"), F.struct("at", "state"))
    return people.groupBy("id").agg(last.alias("last")).select("id", "last.*")


@keyed_table(layer="gold", keys=["auction"])
def offers(auctions: DataFrame, residents: DataFrame) -> DataFrame:
    """Who sells what in some states: a join without a bound in time, by a column that is not the key."""
    sellers = residents.where("state IN ('OR', 'ID')").withColumnRenamed("id", "resident")
    offered = auctions.select(F.col("id").alias("auction"), "seller", "category")
    return offered.join(sellers, F.col("seller") == F.col("resident"))


@keyed_table(layer="gold", keys=["auction"])
def winning_bids(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """The highest bid of each auction in its time; the first of equal ones."""
    best = Window.partitionBy("auction").orderBy(F.desc("price"), "at", "bidder")
    sold = auctions.select(
        F.col("id").alias("auction"), "category", "seller", "expires", F.col("at").alias("begins")
    )
    within = sold.join(bids.drop("_arrival"), "auction").where("at BETWEEN begins AND expires")
    return within.withColumn("place", F.row_number().over(best)).where("place = 1").drop("place")


@keyed_table(layer="gold", keys=["category"])
def average_prices(winning_bids: DataFrame) -> DataFrame:
    """An average of maxima: a keyed table of a keyed table."""
    return winning_bids.groupBy("category").agg(
        F.avg(F.col("price").cast("decimal(18,0)")).alias("average"), F.count("*").alias("auctions")
    )


@keyed_table(layer="gold", keys=["auction"])
def bid_counts(bids: DataFrame) -> DataFrame:
    """A count, to which each step adds what is new."""
    return bids.groupBy("auction").agg(F.count("*").alias("bids"))


@keyed_table(layer="gold", keys=["auction"])
def popular(bids: DataFrame) -> DataFrame:
    """Distinct values, and a filter behind the aggregate."""
    counted = bids.groupBy("auction").agg(F.count_distinct("bidder").alias("bidders"))
    return counted.where("bidders % 2 = 1")


@keyed_table(layer="gold", keys=["auction"])
def most_bids(bid_counts: DataFrame) -> DataFrame:
    """The three of all: computed whole at each step."""
    return bid_counts.orderBy(F.desc("bids"), "auction").limit(3)


last_bids = keyed_table(layer="gold", keys=["bidder", "place"])(
    sql(
        "last_bids",
        "WITH ranked AS (SELECT auction, bidder, price, at, row_number() OVER (PARTITION BY bidder ORDER BY at DESC, price DESC, "
        "auction) AS place FROM {bids}) SELECT bidder, place, auction, price FROM ranked WHERE place <= 2",
    )
)
balances = keyed_table(layer="gold", keys=["id"])(
    sql(
        "balances",
        "SELECT coalesce(paid.id, received.id) AS id, coalesce(received.sum, 0) - coalesce(paid.sum, 0) AS balance FROM "
        "(SELECT bidder AS id, sum(price) AS sum FROM {bids} GROUP BY bidder) AS paid FULL OUTER JOIN "
        "(SELECT auction AS id, sum(price) AS sum FROM {bids} GROUP BY auction) AS received ON paid.id = received.id",
        description="Each bid is a transfer from the bidder to who has the auction's number: the sum of all balances is zero.",
    )
)
total = keyed_table(layer="gold", keys=["one"])(
    sql("total", "SELECT 1 AS one, sum(balance) AS total, count(*) AS people FROM {balances}")
)

dear_bids = keyed_table(layer="gold", keys=["auction"])(
    sql(
        "dear_bids",
        "SELECT auction, count(*) AS bids FROM {bids} WHERE price > (SELECT avg(price) FROM {bids}) GROUP BY auction",
        description="How many bids are above the average: each bid may change which others are.",
    )
)


@keyed_table(layer="gold", keys=["account"])
def debits(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.col("bidder").alias("account")).agg(F.sum("price").alias("paid"))


@keyed_table(layer="gold", keys=["account"])
def credits(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.col("auction").alias("account")).agg(F.sum("price").alias("received"))


@keyed_table(layer="gold", keys=["account"])
def net(debits: DataFrame, credits: DataFrame) -> DataFrame:
    """Two tables of one ingest table."""
    amounts = (F.coalesce(name, F.lit(0)) for name in ("received", "paid"))
    received, paid = amounts
    return debits.join(credits, "account", "full").select("account", (received - paid).alias("net"))


@keyed_table(layer="gold", keys=["one"])
def net_total(net: DataFrame) -> DataFrame:
    return net.agg(F.sum("net").alias("total"), F.count("*").alias("accounts")).withColumn(
        "one", F.lit(1)
    )


KEPT = [
    "residents",
    "offers",
    "winning_bids",
    "average_prices",
    "bid_counts",
    "popular",
    "most_bids",
    "last_bids",
    "balances",
    "total",
    "dear_bids",
]


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def person(id: int, state: str, seconds: float = 0) -> dict:
    return {"id": id, "name": f"person {id}", "state": state, "at": at(seconds)}


def auction(
    id: int, seller: int, category: int | None, seconds: float = 0, lasts: float = 100
) -> dict:
    return {"id": id, "seller": seller, "category": category, "at": at(seconds), "expires": at(seconds + lasts)}  # fmt: skip


def bid(auction: int, bidder: int, price: int, seconds: float) -> dict:
    return {"auction": auction, "bidder": bidder, "price": price, "at": at(seconds)}


def with_names(folder: Path, names: str) -> tuple[ModuleType, Path]:
    """A module of the auctions and a reference table `category_names`, and the file that it is made of."""
    module, file = ModuleType("named"), folder / "names.csv"
    module.__file__ = str(folder / "named.py")
    module.auction_topic, module.auctions = auction_topic, auctions
    file.write_text(names)
    module.name_file = files(str(file), schema="category BIGINT, name STRING")

    def category_names(name_file: DataFrame) -> DataFrame:
        return name_file

    category_names.__module__ = "named"
    module.category_names = reference_table(layer="silver")(category_names)
    return module, file
