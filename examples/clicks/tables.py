"""Click-through rates of the ad events: views joined with the clicks that followed.

Beside `lakehouse.examples.ads.tables`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import around, expect, row_table, tumbling, window_table

_NEAR = "clicker = user_id AND clicked = ad_id AND clicked_at BETWEEN event_time AND event_time + interval 10 seconds"


@row_table(layer="silver", context=around(after="10 seconds"), owner="team:ads")
def views_with_clicks(ad_events: DataFrame) -> DataFrame:
    """Each view of an ad, with how many clicks of its user on that ad followed within ten seconds."""
    clicks = ad_events.where("event_type = 'click'").select(
        F.col("user_id").alias("clicker"),
        F.col("ad_id").alias("clicked"),
        F.col("event_time").alias("clicked_at"),
    )
    views = ad_events.where("event_type = 'view'").join(clicks, F.expr(_NEAR), "left")
    return views.groupBy("_arrival", "event_time", "user_id", "ad_id").agg(
        F.count("clicked_at").alias("clicks")
    )


@window_table(
    layer="gold",
    window=tumbling("1 minute"),
    keys=["campaign_id"],
    owner="team:ads",
    expectations=[expect.column_values_to_be_between("rate", min_value=0, max_value=1)],
)
def click_rates(views_with_clicks: DataFrame, campaigns: DataFrame) -> DataFrame:
    """The share of a campaign's views that led to a click, per minute of the view."""
    of_campaigns = views_with_clicks.join(F.broadcast(campaigns), "ad_id")
    clicked = F.count_if(F.col("clicks") > 0)
    return of_campaigns.groupBy("window", "campaign_id").agg(
        F.count("*").alias("views"),
        clicked.alias("clicked"),
        (clicked / F.count("*")).alias("rate"),
    )
