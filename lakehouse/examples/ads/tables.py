"""The Yahoo Streaming Benchmark: ad events from a topic, joined to campaigns, views counted per campaign and 10 seconds."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, files, ingest_table, kafka, reference_table, tumbling, window_table

ad_topic = kafka(
    "ad-events",
    schema="""user_id STRING, page_id STRING, ad_id STRING NOT NULL, ad_type STRING, event_type STRING NOT NULL,
              event_time STRING NOT NULL, ip_address STRING""",
)

ad_campaigns = files("ad_campaigns.csv", schema="ad_id STRING, campaign_id STRING")


@ingest_table(layer="bronze", event_time="event_time", delay="1 second", owner="team:ads")
def ad_events(ad_topic: DataFrame) -> DataFrame:
    """Every ad event as it was sent.

    Its event time, epoch milliseconds in a string, as a timestamp.
    """
    milliseconds = F.col("event_time").try_cast("bigint")
    # past the year 9999 timestamp_millis would fail the whole batch; as null it costs one row
    in_range = milliseconds.between(0, 253_402_300_799_999)
    return ad_topic.withColumn("event_time", F.when(in_range, F.timestamp_millis(milliseconds)))


@reference_table(
    layer="bronze",
    keys=["ad_id"],
    owner="team:ads",
    expectations=[
        expect.column_values_to_not_be_null("campaign_id"),
        expect.column_values_to_be_unique("ad_id"),
    ],
)
def campaigns(ad_campaigns: DataFrame) -> DataFrame:
    """The campaign of each ad."""
    return ad_campaigns


@window_table(
    layer="gold",
    window=tumbling("10 seconds"),
    keys=["campaign_id"],
    late="side_output",
    early_results="1 second",
    metrics=["views"],
    owner="team:ads",
    expectations=[expect.column_values_to_be_between("views", min_value=1)],
)
def campaign_views(ad_events: DataFrame, campaigns: DataFrame) -> DataFrame:
    """Views per campaign in 10-second windows."""
    views = ad_events.where("event_type = 'view'").join(F.broadcast(campaigns), "ad_id")
    return views.groupBy("window", "campaign_id").agg(F.count("*").alias("views"))
