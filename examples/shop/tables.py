"""A shop: products that follow a database, and for each product what others viewed together with it."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    changes,
    expect,
    ingest_table,
    kafka,
    kafka_topic,
    keyed_table,
    opensearch,
    postgres,
    redis_keys,
)

_OWNER = "team:shop"

product_changes = changes(
    "shop.public.products",
    key="product_id",
    schema="product_id BIGINT, name STRING, category STRING, price DECIMAL(10,2)",
)
click_topic = kafka(
    "shop-clicks",
    schema="""
        session_id STRING NOT NULL, customer_id STRING, product_id BIGINT NOT NULL, event_time TIMESTAMP NOT NULL
    """,
)


# ---- the products


@ingest_table(layer="bronze", event_time="sent", delay="2 seconds", owner=_OWNER)
def product_log(product_changes: DataFrame) -> DataFrame:
    """What the database's log says of products."""
    return product_changes


@keyed_table(
    layer="silver",
    keys=["product_id"],
    owner=_OWNER,
    expectations=[expect.column_values_to_be_between("price", min_value=0)],
    publish=[
        redis_keys("product", key="product_id", url="redis://${SHOP_REDIS}"),
        postgres("shop_products", key="product_id"),
        opensearch("product-search", key="product_id", url="http://${SHOP_OPENSEARCH}"),
    ],
)
def products(product_log: DataFrame) -> DataFrame:
    """The products on sale: the database's table, as it is."""
    row = F.struct("name", "category", "price", "deleted")
    newest = product_log.groupBy("product_id").agg(F.max_by(row, "position").alias("row"))
    return newest.select("product_id", "row.*").where("NOT deleted").drop("deleted")


# ---- what is viewed together


@ingest_table(layer="bronze", event_time="event_time", delay="5 seconds", owner=_OWNER)
def product_clicks(click_topic: DataFrame) -> DataFrame:
    """Every view of a product by a customer."""
    return click_topic


@keyed_table(layer="silver", keys=["session_id", "product_id", "other_id"], owner=_OWNER)
def session_pairs(product_clicks: DataFrame) -> DataFrame:
    """Two products that were viewed in one session, in both orders: of the first twenty, for a crawler views them all."""
    viewed = product_clicks.groupBy("session_id", "product_id")
    in_order = Window.partitionBy("session_id").orderBy("viewed_at", "product_id")
    places = viewed.agg(F.min("event_time").alias("viewed_at")).withColumn(
        "place", F.row_number().over(in_order)
    )
    product = places.where("place <= 20").select("session_id", "product_id")
    other = product.withColumnRenamed("product_id", "other_id")
    return product.join(other, "session_id").where("product_id <> other_id")


@keyed_table(layer="silver", keys=["product_id", "other_id"], owner=_OWNER)
def viewed_together(session_pairs: DataFrame) -> DataFrame:
    """In how many sessions two products were viewed."""
    return session_pairs.groupBy("product_id", "other_id").agg(F.count("*").alias("sessions"))


@keyed_table(layer="silver", keys=["product_id", "other_id"], owner=_OWNER)
def viewed_offers(viewed_together: DataFrame, products: DataFrame) -> DataFrame:
    """The same, of other products that are on sale, with their name and price now."""
    other = products.select(F.col("product_id").alias("other_id"), "name", "price")
    return viewed_together.join(other, "other_id")


@keyed_table(
    layer="gold",
    keys=["product_id"],
    owner=_OWNER,
    publish=[kafka_topic("shop.recommendations", key="product_id", partitions=3)],
)
def recommendations(viewed_offers: DataFrame) -> DataFrame:
    """The five products on sale that were viewed together with a product in most sessions."""
    most = Window.partitionBy("product_id").orderBy(F.desc("sessions"), "other_id")
    best = viewed_offers.withColumn("place", F.row_number().over(most)).where("place <= 5")
    other = F.struct("place", F.col("other_id").alias("product_id"), "name", "price", "sessions")
    return best.groupBy("product_id").agg(F.sort_array(F.collect_list(other)).alias("others"))
