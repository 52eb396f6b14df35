"""The queries of Nexmark in plain SQL, as DuckDB computes them over all events at once: an oracle without streams."""

from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa

import benchmarks.nexmark

SIDE_INPUT = Path(benchmarks.nexmark.__file__).with_name("side_input.csv")
_CLASSES = "sum(1) AS total_bids, " + ", ".join(
    f"count(*) FILTER (WHERE {where}) AS rank{n}_bids"
    for n, where in enumerate(
        ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"), 1
    )
)
_DISTINCT = ", ".join(
    f"count(DISTINCT {what}) AS total_{what}s, "
    f"count(DISTINCT {what}) FILTER (WHERE price < 10000) AS rank1_{what}s, "
    f"count(DISTINCT {what}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{what}s, "
    f"count(DISTINCT {what}) FILTER (WHERE price >= 1000000) AS rank3_{what}s"
    for what in ("bidder", "auction")
)
_AUCTION = "a.item_name, a.description, a.initial_bid, a.reserve"
_IN_URL = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_SESSIONS = """
WITH gaps AS (
  SELECT bidder, date_time, CASE WHEN date_time - lag(date_time) OVER one <= INTERVAL '10 seconds' THEN 0 ELSE 1 END AS new
  FROM bid WINDOW one AS (PARTITION BY bidder ORDER BY date_time)
), numbered AS (
  SELECT *, sum(new) OVER (PARTITION BY bidder ORDER BY date_time, new DESC ROWS UNBOUNDED PRECEDING) AS number FROM gaps
)
SELECT min(date_time) AS "start", max(date_time) + INTERVAL '10 seconds' AS "end", bidder, count(*) AS bid_count
FROM numbered GROUP BY bidder, number HAVING "end" <= $closed
"""
QUERIES = {
    "q0_bids": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1_bids_in_euros": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2_bids_on_some_auctions": "SELECT auction, price, date_time FROM bid WHERE auction % 123 = 0",
    "q3_local_items": """
        SELECT name, city, state, a.id, seller FROM auction a JOIN person p ON seller = p.id
        WHERE category = 10 AND (state = 'OR' OR state = 'ID' OR state = 'CA')""",
    "q4_average_prices": """
        SELECT category AS id, sum(final) // count(*) AS final FROM (
          SELECT max(price) AS final, category FROM auction a, bid b
          WHERE a.id = auction AND b.date_time BETWEEN a.date_time AND expires GROUP BY a.id, category
        ) GROUP BY category""",
    "q5_hot_items": """
        WITH counted AS (
          SELECT time_bucket(INTERVAL '2 seconds', date_time) - back * INTERVAL '2 seconds' AS "start", auction, count(*) AS num
          FROM bid, range(5) AS backs(back) GROUP BY ALL
        )
        SELECT "start", "start" + INTERVAL '10 seconds' AS "end", auction, num
        FROM counted JOIN (SELECT "start", max(num) AS most FROM counted GROUP BY "start") USING ("start")
        WHERE num >= most AND "end" <= $closed""",
    "q6_average_selling_prices": """
        WITH won AS (
          SELECT a.id, seller, price, b.date_time FROM auction a, bid b
          WHERE a.id = auction AND b.date_time BETWEEN a.date_time AND expires
          QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY price DESC, b.date_time) = 1
        ), last_ten AS (
          SELECT * FROM won QUALIFY row_number() OVER (PARTITION BY seller ORDER BY date_time DESC, id DESC) <= 10
        )
        SELECT seller, sum(price) // count(*) AS avg_price FROM last_ten GROUP BY seller""",
    "q7_highest_bids": """
        SELECT "start", "end", auction, bidder, price, date_time, extra, "partition", "offset" FROM bid JOIN (
          SELECT max(price) AS price, time_bucket(INTERVAL '10 seconds', date_time) AS "start",
                 "start" + INTERVAL '10 seconds' AS "end" FROM bid GROUP BY "start"
        ) USING (price) WHERE date_time >= "start" AND date_time < "end" AND "end" <= $closed""",
    "q8_new_sellers": """
        SELECT DISTINCT time_bucket(INTERVAL '10 seconds', p.date_time) AS "start",
               "start" + INTERVAL '10 seconds' AS "end", p.id, name
        FROM person p JOIN auction a ON p.id = seller
        WHERE time_bucket(INTERVAL '10 seconds', a.date_time) = "start" AND "end" <= $closed""",
    "q9_winning_bids": f"""
        SELECT a.id, {_AUCTION}, a.date_time, expires, seller, category, a.extra, auction, bidder, price,
               b.date_time AS bid_date_time, b.extra AS bid_extra
        FROM auction a, bid b WHERE a.id = auction AND b.date_time BETWEEN a.date_time AND expires
        QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY price DESC, b.date_time, "partition", "offset") = 1""",
    "q10_logged_bids": """
        SELECT auction, bidder, price, date_time, extra,
               strftime(date_time, '%Y-%m-%d') AS dt, strftime(date_time, '%H:%M') AS hm FROM bid""",
    "q11_bidder_sessions": _SESSIONS,
    "q12_bids_by_arrival": """
        SELECT time_bucket(INTERVAL '10 seconds', arrived) AS "start", "start" + INTERVAL '10 seconds' AS "end",
               bidder, count(*) AS bid_count
        FROM arrived_bid GROUP BY ALL HAVING "end" <= (SELECT max(arrived) FROM bid)""",
    "q13_bids_with_side_input": """
        SELECT auction, bidder, price, date_time, "value" FROM bid JOIN side_input ON auction % 1000 = "key" """,
    "q14_large_bids": """
        SELECT auction, bidder, 0.908 * price AS price, date_time, extra,
               CASE WHEN hour(date_time) >= 8 AND hour(date_time) <= 18 THEN 'dayTime'
                    WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,
               length(regexp_replace(extra, '[^c]', '', 'g')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15_bids_by_day": f'SELECT date_time::DATE AS "day", {_CLASSES}, {_DISTINCT} FROM bid GROUP BY "day"',
    "q16_bids_by_channel": f"""
        SELECT channel, date_time::DATE AS "day", max(strftime(date_time, '%H:%M')) AS "minute", {_CLASSES}, {_DISTINCT}
        FROM bid GROUP BY channel, "day" """,
    "q17_bids_by_auction": f"""
        SELECT auction, date_time::DATE AS "day", {_CLASSES}, min(price) AS min_price, max(price) AS max_price,
               sum(price) // count(*) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, "day" """,
    "q18_last_bids": """
        SELECT auction, bidder, price, channel, url, date_time, extra FROM bid
        QUALIFY row_number() OVER (
          PARTITION BY bidder, auction ORDER BY date_time DESC, "partition" DESC, "offset" DESC) = 1""",
    "q19_top_bids": """
        SELECT auction, bidder, price, channel, url, date_time, extra,
               row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, "partition", "offset") AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
    "q20_bids_with_auctions": f"""
        SELECT "partition", "offset", auction, bidder, price, channel, url, b.date_time AS bid_date_time, b.extra AS bid_extra,
               {_AUCTION}, a.date_time AS auction_date_time, expires, seller, category, a.extra AS auction_extra
        FROM bid b JOIN auction a ON auction = a.id WHERE category = 10""",
    "q21_channel_ids": f"""
        SELECT auction, bidder, price, channel, date_time, CASE
          WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
          WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3' ELSE {_IN_URL} END AS channel_id
        FROM bid WHERE {_IN_URL} != '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22_url_folders": """
        SELECT auction, bidder, price, channel, date_time, string_split(url, '/')[4] AS dir1,
               string_split(url, '/')[5] AS dir2, string_split(url, '/')[6] AS dir3 FROM bid""",
    "q23_bids_of_sellers": f"""
        SELECT "partition", "offset", bidder, price, channel, url, b.extra AS bid_extra, p.id AS person_id, name, email_address,
               credit_card, city, state, p.extra AS person_extra, a.id AS auction_id, {_AUCTION},
               a.date_time AS auction_date_time, expires, seller, category, a.extra AS auction_extra
        FROM bid b JOIN person p ON p.id = bidder JOIN auction a ON seller = bidder""",
}  # fmt: skip


class Oracle:
    """The events that were sent and are good, in DuckDB: each person and auction once, and each bid as often as it came.

    `bids` has those with a wrong clock too, which are not `good`; only arrival counts them.
    """

    def __init__(
        self, people: list[dict], auctions: list[dict], bids: list[dict], closed: datetime
    ) -> None:
        self._closed = closed
        self._duck = duckdb.connect()
        sent = {"person": people, "auction": auctions, "arrived_bid": bids}
        for name, rows in sent.items():
            once = "" if rows is bids else "DISTINCT"
            self._duck.register("sent", pa.Table.from_pylist(rows))
            self._duck.execute(f"CREATE TABLE {name} AS SELECT {once} * FROM sent")
            self._duck.unregister("sent")
        self._duck.execute("CREATE TABLE bid AS SELECT * FROM arrived_bid WHERE good")
        self._duck.execute(
            f"CREATE TABLE side_input AS FROM read_csv('{SIDE_INPUT}', types = {{'value': 'VARCHAR'}})"
        )

    def rows(self, query: str) -> tuple[list[str], list[tuple]]:
        """The names of the columns, and the rows."""
        sql = QUERIES[query]
        found = self._duck.execute(sql, {"closed": self._closed} if "$closed" in sql else {})
        return [each[0] for each in found.description], found.fetchall()
