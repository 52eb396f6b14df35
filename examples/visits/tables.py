"""Visits of a web site: access-log lines become requests, then visitors by country, their sessions, page views, a report."""

import re
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    expect,
    ingest_table,
    kafka,
    report_table,
    row_table,
    session,
    sliding,
    tumbling,
    window_table,
)

_COUNTRY = re.compile("[A-Z]{2}")

# web servers limit a line to about that, and from_csv a row to 20,480 fields
access_log = kafka(
    "access-log",
    format="text",
    schema="line STRING NOT NULL",
    max_bytes=20_000,
)


@ingest_table(
    layer="bronze",
    event_time="event_time",
    delay="10 seconds",
    owner="team:web",
    expectations=[
        expect.column_values_to_not_be_null("ip"),
        expect.column_values_to_be_between("status", min_value=100, max_value=599),
    ],
)
def requests(access_log: DataFrame) -> DataFrame:
    """Every request as the server logged it: who (address, user, agent), when, what, and how it was answered.

    `event_time` is null, and the row quarantined, unless the whole value is one line of the
    combined log format.
    """
    # possessive (*+), since Java's stack would not bear a group repeated over a line full of
    # escapes
    quoted = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    form = rf"^\S+ \S+ \S+ \[[^\]]+\] {quoted} \d{{3}} (?:\d+|-) {quoted} {quoted}$"
    # read as CSV, which takes a line apart in half the time of as many regular expressions, and
    # quotes off with it
    fields = """ip STRING, identity STRING, user STRING, time STRING, zone STRING, request STRING, status INT, bytes BIGINT,
                referrer STRING, agent STRING, malformed STRING"""
    options = {"sep": " ", "nullValue": "-", "columnNameOfCorruptRecord": "malformed"}
    parsed = access_log.withColumn("parsed", F.from_csv("line", fields, options))
    whole = F.col("line").rlike(form) & F.col("parsed.malformed").isNull()
    kept = {
        name: F.col(f"parsed.{name}")
        for name in ("ip", "user", "status", "bytes", "referrer", "agent")
    }
    written = F.concat_ws(" ", "parsed.time", "parsed.zone")
    moment = F.try_to_timestamp(written, F.lit("'['dd/MMM/yyyy:HH:mm:ss Z']'"))
    words = F.split("parsed.request", " ")
    target = F.split(F.get(words, 1), r"\?", 2)
    return parsed.withColumns(
        kept
        | {
            "event_time": F.when(whole, moment),
            "method": F.get(words, 0),
            "protocol": F.get(words, 2),
        }
        | {"path": F.get(target, 0), "query": F.get(target, 1)}
    ).drop("line", "parsed")


@row_table(
    layer="silver",
    owner="team:web",
    expectations=[expect.column_values_to_match_regex("country", regex="^[A-Z]{2}$")],
)
def visits(requests: DataFrame) -> DataFrame:
    """Requests with the visitor instead of the address: a pseudonym, the country, whether it is a bot; and with `is_page`.

    `country` is an ISO 3166 code, ZZ where it is not known; `visitor` stands for one agent at one
    address.
    """
    # pyspark's types ask for an argument that has a default
    country, is_bot = F.arrow_udf(_countries, "string"), F.arrow_udf(_are_bots, "boolean")  # type: ignore[call-overload]
    asset = F.col("path").rlike(
        r"(?i)\.(css|js|map|json|xml|txt|png|jpe?g|gif|svg|webp|ico|woff2?|ttf)$"
    )
    page = (F.col("method") == "GET") & (F.col("status") < 400) & ~asset
    return requests.withColumns(
        {
            "visitor": F.left(F.sha2(F.concat_ws(" ", "ip", "agent"), 256), F.lit(16)),
            "country": country("ip"),
            "is_bot": F.coalesce(is_bot("agent"), F.lit(False)),
            "is_page": F.coalesce(page, F.lit(False)),
        }
    ).drop("ip", "user")


@window_table(
    layer="gold",
    window=sliding("5 minutes", "1 minute"),
    keys=["country"],
    metrics=["visits", "visitors"],
    owner="team:web",
    expectations=[
        expect.column_values_to_be_between("visitors", min_value=1),
        expect.column_pair_values_a_to_be_greater_than_b("visits", "visitors", or_equal=True),
    ],
)
def visitors_by_country(visits: DataFrame) -> DataFrame:
    """Requests and distinct visitors per country in the last five minutes, every minute.

    Bots left out.
    """
    people = visits.where("NOT is_bot")
    return people.groupBy("window", "country").agg(
        F.count("*").alias("visits"), _distinct("visitor").alias("visitors")
    )


@window_table(
    layer="gold",
    window=session("30 minutes"),
    keys=["visitor"],
    owner="team:web",
    expectations=[
        expect.column_values_to_be_between("pages", min_value=1),
        expect.column_pair_values_a_to_be_greater_than_b("ended", "started", or_equal=True),
    ],
)
def visitor_sessions(visits: DataFrame) -> DataFrame:
    """Sessions: a visitor's pages at most half an hour apart; the first, the last and how many.

    Bots left out.
    """
    sessions = _page_views(visits).groupBy("window", "visitor")
    return sessions.agg(
        F.count("*").alias("pages"),
        F.min("event_time").alias("started"),
        F.max("event_time").alias("ended"),
        F.max("country").alias("country"),  # a visitor has one address, so one country
    )


@window_table(
    layer="gold",
    window=tumbling("5 minutes"),
    keys=["path"],
    metrics=["views", "visitors"],
    owner="team:web",
    expectations=[
        expect.column_values_to_be_between("visitors", min_value=1),
        expect.column_pair_values_a_to_be_greater_than_b("views", "visitors", or_equal=True),
    ],
)
def page_views(visits: DataFrame) -> DataFrame:
    """Views and distinct visitors per page and five minutes; bots left out."""
    pages = _page_views(visits).groupBy("window", "path")
    return pages.agg(F.count("*").alias("views"), _distinct("visitor").alias("visitors"))


@window_table(
    layer="gold",
    window=tumbling("5 minutes"),
    keys=["rank"],
    owner="team:web",
    expectations=[expect.column_values_to_be_between("rank", min_value=1, max_value=10)],
)
def top_pages(visits: DataFrame) -> DataFrame:
    """The ten pages most viewed in each five minutes, of as many views by name; bots left out."""
    views = _page_views(visits).groupBy("window", "path").agg(F.count("*").alias("views"))
    most = Window.partitionBy("window").orderBy(F.desc("views"), "path")
    return views.withColumn("rank", F.row_number().over(most)).where("rank <= 10")


def _page(rows: pa.Table, day: Any) -> str:
    """A day as a page: a bar for each path, as long as it was viewed often."""
    bars = [
        f'<text x="0" y="{at + 14}">{escape(row["path"])}</text>'
        f'<rect x="320" y="{at}" width="{300 * row["views"] / row["most_views"]:.0f}" height="18" fill="#4c78a8"/>'
        f'<text x="640" y="{at + 14}">{row["views"]} views, {row["visitors"]} visitors, {row["share"]} %</text>'
        for at, row in zip(range(0, 24 * rows.num_rows, 24), rows.to_pylist(), strict=True)
    ]
    title = f"Most viewed pages of {day.start:%Y-%m-%d}"
    return "\n".join(
        [
            f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>",
            f'<svg width="960" height="{24 * rows.num_rows}" font-family="sans-serif" font-size="13">',
            *bars,
            "</svg>",
        ]
    )


@report_table(
    layer="gold",
    partition_by="day",
    keys=["rank"],
    owner="team:web",
    suffix="html",
    draw=_page,
    expectations=[expect.column_values_to_be_between("rank", min_value=1, max_value=20)],
)
def pages_of_a_day(visits: DataFrame) -> DataFrame:
    """The twenty pages most viewed in a day: views, distinct visitors, the share of all views; bots left out."""
    pages = _page_views(visits).groupBy("path")
    views = pages.agg(F.count("*").alias("views"), _distinct("visitor").alias("visitors"))
    all_pages, most = Window.partitionBy(), Window.orderBy(F.desc("views"), "path")
    share = F.col("views") * 100 / F.sum("views").over(all_pages)
    ranked = views.withColumns(
        {
            "rank": F.row_number().over(most),
            "share": share.cast("decimal(5, 2)"),
            "most_views": F.max("views").over(all_pages),
        }
    )
    return ranked.orderBy("rank").limit(20)


def _page_views(visits: DataFrame) -> DataFrame:
    return visits.where("is_page AND NOT is_bot")


def _distinct(column: str) -> Column:
    """How many different values: exact, and the same in whatever order rows come."""
    return F.size(F.collect_set(column))


def _countries(addresses: pa.Array) -> pa.Array:
    """The country of each IPv4 or IPv6 address.

    ZZ, as CLDR has it, for private, unknown and unreadable ones.
    """

    def country(address: str) -> str:
        code = _geoip().lookup(address.removeprefix("::ffff:")).country_code
        # of some addresses it knows the continent alone: ASIA
        return code if _COUNTRY.fullmatch(code) else "ZZ"

    return _each(country, addresses, pa.string())


def _are_bots(agents: pa.Array) -> pa.Array:
    """Whether each agent names itself a crawler, a script or a monitor."""
    # the time its patterns take grows with the square of the length: 40 s for 20,000 characters
    return _each(lambda agent: _crawlers().is_crawler(agent[:512]), agents, pa.bool_())


def _each(function: Callable[[str], object], values: pa.Array, returned: pa.DataType) -> pa.Array:
    """`function` of each value, called once for equal ones; null stays null."""
    distinct = values.dictionary_encode()
    return pa.array([function(value) for value in distinct.dictionary.to_pylist()], returned).take(
        distinct.indices
    )


@cache
def _geoip():
    """The country data, read once by each Python worker: a tenth of a second, some 60 MB."""
    import geoip2fast

    # by its path: of a mere name it would take the file of whatever folder the worker runs in
    return geoip2fast.GeoIP2Fast(
        geoip2fast_data_file=str(Path(geoip2fast.__file__).with_name("geoip2fast-ipv6.dat.gz"))
    )


@cache
def _crawlers():
    from crawlerdetect import CrawlerDetect

    return CrawlerDetect()
