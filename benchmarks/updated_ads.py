"""The ads tables with late rows brought in, for `benchmarks.late_rows`."""

from pyspark.sql import DataFrame

from lakehouse import ingest_table, reference_table, tumbling, window_table
from lakehouse.examples.ads import tables as ads

ad_topic, ad_campaigns = ads.ad_topic, ads.ad_campaigns


@ingest_table(layer="bronze", event_time="event_time", delay="1 second")
def ad_events(ad_topic: DataFrame) -> DataFrame:
    return ads.ad_events(ad_topic)


@reference_table(layer="bronze", keys=["ad_id"], expectations=ads.campaigns.expectations)
def campaigns(ad_campaigns: DataFrame) -> DataFrame:
    return ads.campaigns(ad_campaigns)


@window_table(
    layer="gold",
    window=tumbling("10 seconds"),
    keys=["campaign_id"],
    late="update",
    expectations=ads.campaign_views.expectations,
)
def campaign_views(ad_events: DataFrame, campaigns: DataFrame) -> DataFrame:
    return ads.campaign_views(ad_events, campaigns)
