"""Nexmark: people, auctions and bids from three topics, and the 24 queries of the benchmark, each one table or a few."""

from decimal import Decimal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    files,
    ingest_table,
    kafka,
    keyed_table,
    reference_table,
    row_table,
    session,
    sliding,
    sql,
    tumbling,
    window_table,
)

_OWNER = "team:auctions"
_DELAY = "4 seconds"
_EUROS = Decimal("0.908")  # for a dollar
_SIDE_ROWS = 1_000

person_topic = kafka(
    "nexmark-people",
    schema="""
        id BIGINT NOT NULL, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING,
        dateTime TIMESTAMP NOT NULL, extra STRING
    """,
)
auction_topic = kafka(
    "nexmark-auctions",
    schema="""
        id BIGINT NOT NULL, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT,
        dateTime TIMESTAMP NOT NULL, expires TIMESTAMP NOT NULL, seller BIGINT NOT NULL, category BIGINT, extra STRING
    """,
)
bid_topic = kafka(
    "nexmark-bids",
    schema="""
        auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT NOT NULL, channel STRING, url STRING,
        dateTime TIMESTAMP NOT NULL, extra STRING
    """,
)
side_input_file = files("side_input.csv", schema="key BIGINT, value STRING")


# ---- what was sent


@ingest_table(layer="bronze", event_time="date_time", delay=_DELAY, owner=_OWNER)
def nexmark_people(person_topic: DataFrame) -> DataFrame:
    """People who registered, as they were sent."""
    names = {
        "emailAddress": "email_address",
        "creditCard": "credit_card",
        "dateTime": "date_time",
    }
    return person_topic.withColumnsRenamed(names)


@ingest_table(layer="bronze", event_time="date_time", delay=_DELAY, owner=_OWNER)
def nexmark_auctions(auction_topic: DataFrame) -> DataFrame:
    """Auctions that were opened, as they were sent."""
    names = {"itemName": "item_name", "initialBid": "initial_bid", "dateTime": "date_time"}
    return auction_topic.withColumnsRenamed(names)


@ingest_table(layer="bronze", event_time="date_time", delay=_DELAY, owner=_OWNER)
def nexmark_bids(bid_topic: DataFrame) -> DataFrame:
    """Bids, as they were sent."""
    return bid_topic.withColumnRenamed("dateTime", "date_time")


@ingest_table(layer="bronze", event_time="ingestion_time", owner=_OWNER)
def nexmark_bids_by_arrival(bid_topic: DataFrame) -> DataFrame:
    """The same bids, by the time at which they arrived: processing time, written down once."""
    return bid_topic.withColumnRenamed("dateTime", "date_time")


@reference_table(layer="bronze", keys=["key"], owner=_OWNER)
def side_input(side_input_file: DataFrame) -> DataFrame:
    """A thousand keys with a value each."""
    return side_input_file


@keyed_table(layer="silver", keys=["id"], owner=_OWNER)
def people(nexmark_people: DataFrame) -> DataFrame:
    """Each person once, however often that person was sent."""
    person = ("date_time", "name", "email_address", "credit_card", "city", "state", "extra")
    last = F.max(F.struct(*person)).alias("last")
    return nexmark_people.groupBy("id").agg(last).select("id", "last.*")


@keyed_table(layer="silver", keys=["id"], owner=_OWNER)
def auctions(nexmark_auctions: DataFrame) -> DataFrame:
    """Each auction once, however often it was sent."""
    auction = (
        *("date_time", "item_name", "description", "initial_bid", "reserve", "expires"),
        *("seller", "category", "extra"),
    )
    last = F.max(F.struct(*auction)).alias("last")
    return nexmark_auctions.groupBy("id").agg(last).select("id", "last.*")


# ---- of each bid by itself


@row_table(layer="silver", owner=_OWNER)
def q0_bids(nexmark_bids: DataFrame) -> DataFrame:
    """All bids, as they are."""
    return nexmark_bids.select("auction", "bidder", "price", "date_time", "extra", "_arrival")


@row_table(layer="silver", owner=_OWNER)
def q1_bids_in_euros(nexmark_bids: DataFrame) -> DataFrame:
    """All bids, with the price in euros instead of dollars."""
    return nexmark_bids.select(
        "auction", "bidder", _in_euros().alias("price"), "date_time", "extra", "_arrival"
    )


@row_table(layer="silver", owner=_OWNER)
def q2_bids_on_some_auctions(nexmark_bids: DataFrame) -> DataFrame:
    """The price of bids on every 123rd auction."""
    chosen = nexmark_bids.where("auction % 123 = 0")
    return chosen.select("auction", "price", "date_time", "_arrival")


@row_table(layer="silver", owner=_OWNER)
def q10_logged_bids(nexmark_bids: DataFrame) -> DataFrame:
    """All bids, with the day and the minute of each as text: the log of an hour is a partition of this table."""
    return nexmark_bids.select(
        *("auction", "bidder", "price", "date_time", "extra"),
        F.date_format("date_time", "yyyy-MM-dd").alias("dt"),
        F.date_format("date_time", "HH:mm").alias("hm"),
        "_arrival",
    )


@row_table(layer="silver", owner=_OWNER)
def q13_bids_with_side_input(nexmark_bids: DataFrame, side_input: DataFrame) -> DataFrame:
    """Bids with the value that a file of a thousand keys has for their auction."""
    bids = nexmark_bids.select("auction", "bidder", "price", "date_time", "_arrival")
    found = bids["auction"] % _SIDE_ROWS == side_input["key"]
    return bids.join(F.broadcast(side_input), found).drop("key")


@row_table(layer="silver", owner=_OWNER)
def q14_large_bids(nexmark_bids: DataFrame) -> DataFrame:
    """Bids above a million and below fifty million in euros: by day or by night, and how often `extra` has the letter c."""
    hour = F.hour("date_time")
    when = (
        F.when(hour.between(8, 18), "dayTime")
        .when((hour <= 6) | (hour >= 20), "nightTime")
        .otherwise("otherTime")
    )
    large = (_in_euros() > 1_000_000) & (_in_euros() < 50_000_000)
    letters = F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))
    return nexmark_bids.where(large).select(
        *("auction", "bidder", _in_euros().alias("price"), when.alias("bid_time_type")),
        *("date_time", "extra", letters.alias("c_counts"), "_arrival"),
    )


q21_channel_ids = row_table(layer="silver", owner=_OWNER)(
    sql(
        "q21_channel_ids",
        """
    WITH named AS (
      SELECT *, lower(channel) AS name, regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) AS in_url
      FROM {nexmark_bids}
    )
    SELECT auction, bidder, price, channel, date_time, _arrival,
           CASE name WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                     ELSE in_url END AS channel_id
    FROM named WHERE in_url <> '' OR name IN ('apple', 'google', 'facebook', 'baidu')
    """,
        description="Bids with the number of their channel: of four known ones, or as the address names it; others are left out.",
    )
)


@row_table(layer="silver", owner=_OWNER)
def q22_url_folders(nexmark_bids: DataFrame) -> DataFrame:
    """Bids with the first three folders of their address."""
    folders = [f"split_part(url, '/', {n + 3}) AS dir{n}" for n in (1, 2, 3)]
    kept = ("auction", "bidder", "price", "channel", "date_time", "_arrival")
    return nexmark_bids.selectExpr(*kept[:4], *folders, *kept[4:])


# ---- joins without a bound in time


@keyed_table(layer="gold", keys=["id"], owner=_OWNER)
def q3_local_items(auctions: DataFrame, people: DataFrame) -> DataFrame:
    """Who sells something of category 10 in Oregon, Idaho or California, and in which auctions."""
    sellers = people.where("state IN ('OR', 'ID', 'CA')").select(
        F.col("id").alias("seller"), "name", "city", "state"
    )
    offers = auctions.where("category = 10").select("id", "seller")
    return offers.join(sellers, "seller").select("name", "city", "state", "id", "seller")


@keyed_table(layer="gold", keys=["id"], owner=_OWNER)
def q9_winning_bids(auctions: DataFrame, nexmark_bids: DataFrame) -> DataFrame:
    """The best bid so far of each auction while it was open: the highest; of equal ones the earliest."""
    bids = nexmark_bids.select(
        *("auction", "bidder", "price", F.col("date_time").alias("bid_date_time")),
        *(F.col("extra").alias("bid_extra"), *_place_in_topic()),
    )
    within = auctions.join(bids, auctions["id"] == bids["auction"]).where(
        "bid_date_time BETWEEN date_time AND expires"
    )
    best = Window.partitionBy("id").orderBy(F.desc("price"), "bid_date_time", "partition", "offset")
    ranked = within.withColumn("place", F.row_number().over(best))
    return ranked.where("place = 1").drop("place", "partition", "offset")


@keyed_table(layer="gold", keys=["id"], owner=_OWNER)
def q4_average_prices(q9_winning_bids: DataFrame) -> DataFrame:
    """The average of the winning bids of each category."""
    of_category = q9_winning_bids.groupBy(F.col("category").alias("id"))
    return of_category.agg(F.expr("sum(price) DIV count(*)").alias("final"))


@keyed_table(layer="gold", keys=["seller"], owner=_OWNER)
def q6_average_selling_prices(q9_winning_bids: DataFrame) -> DataFrame:
    """The average of the winning bids of each seller's last ten auctions, the last by the time of that bid."""
    latest = Window.partitionBy("seller").orderBy(F.desc("bid_date_time"), F.desc("id"))
    sold = q9_winning_bids.withColumn("place", F.row_number().over(latest)).where("place <= 10")
    return sold.groupBy("seller").agg(F.expr("sum(price) DIV count(*)").alias("avg_price"))


@keyed_table(layer="gold", keys=["partition", "offset"], owner=_OWNER)
def q20_bids_with_auctions(nexmark_bids: DataFrame, auctions: DataFrame) -> DataFrame:
    """Bids on auctions of category 10, with what there is to know of the auction."""
    bids = nexmark_bids.withColumnsRenamed({"date_time": "bid_date_time", "extra": "bid_extra"})
    offers = auctions.where("category = 10").withColumnsRenamed(
        {"id": "auction", "date_time": "auction_date_time", "extra": "auction_extra"}
    )
    return bids.withColumns(_named_place()).drop("_arrival").join(offers, "auction")


@keyed_table(layer="gold", keys=["partition", "offset", "auction_id"], owner=_OWNER)
def q23_bids_of_sellers(
    nexmark_bids: DataFrame, people: DataFrame, auctions: DataFrame
) -> DataFrame:
    """Bids by people who sell something too, once for each of their auctions, with the person and the auction."""
    bids = nexmark_bids.select(
        *("bidder", "price", "channel", "url", F.col("extra").alias("bid_extra")),
        *_place_in_topic(),
    )
    bidders = people.drop("date_time").withColumnsRenamed(
        {"id": "person_id", "extra": "person_extra"}
    )
    offers = auctions.withColumnsRenamed(
        {"id": "auction_id", "date_time": "auction_date_time", "extra": "auction_extra"}
    )
    of_people = bids.join(bidders, bids["bidder"] == bidders["person_id"])
    return of_people.join(offers, of_people["bidder"] == offers["seller"])


# ---- aggregates without a window, and ranks


@keyed_table(layer="gold", keys=["day"], owner=_OWNER)
def q15_bids_by_day(nexmark_bids: DataFrame) -> DataFrame:
    """Bids, bidders and auctions of each day: all, and those of three classes of price."""
    days = nexmark_bids.withColumn("day", F.to_date("date_time"))
    return days.groupBy("day").agg(*_bids(), *_distinct("bidder"), *_distinct("auction"))


@keyed_table(layer="gold", keys=["channel", "day"], owner=_OWNER)
def q16_bids_by_channel(nexmark_bids: DataFrame) -> DataFrame:
    """The same of each channel and day, with the minute of the last bid."""
    days = nexmark_bids.withColumn("day", F.to_date("date_time"))
    last = F.max(F.date_format("date_time", "HH:mm")).alias("minute")
    return days.groupBy("channel", "day").agg(
        last, *_bids(), *_distinct("bidder"), *_distinct("auction")
    )


@keyed_table(layer="gold", keys=["auction", "day"], owner=_OWNER)
def q17_bids_by_auction(nexmark_bids: DataFrame) -> DataFrame:
    """Bids on each auction and day: how many, of three classes of price, and the least, highest, average and summed price."""
    days = nexmark_bids.withColumn("day", F.to_date("date_time"))
    return days.groupBy("auction", "day").agg(
        *_bids(),
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        F.expr("sum(price) DIV count(*)").alias("avg_price"),
        F.sum("price").alias("sum_price"),
    )


@keyed_table(layer="gold", keys=["bidder", "auction"], owner=_OWNER)
def q18_last_bids(nexmark_bids: DataFrame) -> DataFrame:
    """The last bid of each bidder on each auction."""
    order = [F.desc("date_time"), F.desc("_arrival.partition"), F.desc("_arrival.offset")]
    latest = Window.partitionBy("bidder", "auction").orderBy(*order)
    placed = nexmark_bids.withColumn("place", F.row_number().over(latest)).drop("_arrival")
    return placed.where("place = 1").drop("place")


@keyed_table(layer="gold", keys=["auction", "rank_number"], owner=_OWNER)
def q19_top_bids(nexmark_bids: DataFrame) -> DataFrame:
    """The ten highest bids on each auction; of equal ones the earliest come first."""
    highest = Window.partitionBy("auction").orderBy(
        F.desc("price"), "date_time", *_place_in_topic()
    )
    ranked = nexmark_bids.withColumn("rank_number", F.row_number().over(highest))
    return ranked.where("rank_number <= 10").drop("_arrival")


# ---- windows


@window_table(
    layer="gold", window=sliding("10 seconds", "2 seconds"), keys=["auction"], owner=_OWNER
)
def q5_hot_items(nexmark_bids: DataFrame) -> DataFrame:
    """The auctions with the most bids of the last ten seconds, every two seconds."""
    counted = nexmark_bids.groupBy("window", "auction").agg(F.count("*").alias("num"))
    most = F.max("num").over(Window.partitionBy("window"))
    return counted.withColumn("most", most).where("num = most").drop("most")


@window_table(
    layer="gold", window=tumbling("10 seconds"), keys=["partition", "offset"], owner=_OWNER
)
def q7_highest_bids(nexmark_bids: DataFrame) -> DataFrame:
    """The highest bid of each ten seconds; all of them, if some are equal."""
    highest = F.max("price").over(Window.partitionBy("window"))
    bids = nexmark_bids.withColumn("highest", highest).where("price = highest")
    return bids.select(
        "window", "auction", "bidder", "price", "date_time", "extra", *_place_in_topic()
    )


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["id", "name"], owner=_OWNER)
def q8_new_sellers(nexmark_people: DataFrame, nexmark_auctions: DataFrame) -> DataFrame:
    """People who registered and opened an auction in the same ten seconds."""
    new = nexmark_people.groupBy("window", "id", "name").agg(F.lit(1).alias("one")).drop("one")
    sellers = nexmark_auctions.select("window", F.col("seller").alias("id")).distinct()
    return new.join(sellers, ["window", "id"])


@window_table(layer="gold", window=session("10 seconds"), keys=["bidder"], owner=_OWNER)
def q11_bidder_sessions(nexmark_bids: DataFrame) -> DataFrame:
    """How many bids a bidder made in each session; a session ends after ten seconds without a bid."""
    return nexmark_bids.groupBy("window", "bidder").agg(F.count("*").alias("bid_count"))


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["bidder"], owner=_OWNER)
def q12_bids_by_arrival(nexmark_bids_by_arrival: DataFrame) -> DataFrame:
    """How many bids of each bidder arrived in each ten seconds."""
    return nexmark_bids_by_arrival.groupBy("window", "bidder").agg(F.count("*").alias("bid_count"))


def _in_euros() -> Column:
    return (F.col("price") * F.lit(_EUROS)).cast("decimal(23,3)")


def _named_place() -> dict[str, Column]:
    """Where a bid is in its topic: bids have no number of their own."""
    return {name: F.col(f"_arrival.{name}") for name in ("partition", "offset")}


def _place_in_topic() -> list[Column]:
    return [column.alias(name) for name, column in _named_place().items()]


def _classes() -> dict[str, Column]:
    price = F.col("price")
    return {
        "total": F.lit(True),
        "rank1": price < 10_000,
        "rank2": (price >= 10_000) & (price < 1_000_000),
        "rank3": price >= 1_000_000,
    }


def _bids() -> list[Column]:
    """How many bids, of all and of each class of price."""
    return [F.count_if(is_of).alias(f"{name}_bids") for name, is_of in _classes().items()]


def _distinct(what: str) -> list[Column]:
    """How many bidders or auctions, of all and of each class of price."""
    return [
        F.count_distinct(F.when(is_of, F.col(what))).alias(f"{name}_{what}s")
        for name, is_of in _classes().items()
    ]
