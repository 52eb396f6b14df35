"""Patterns with repetition: a password that was guessed, a price that fell and rose again."""

from datetime import timedelta

from pyspark.sql import DataFrame

from lakehouse import (
    Pattern,
    Row,
    around,
    begin,
    directly_followed_by,
    followed_by,
    ingest_table,
    kafka,
    process,
    row_table,
)

_OWNER = "team:patterns"

login_topic = kafka(
    "logins",
    schema="user_id STRING NOT NULL, login_time TIMESTAMP NOT NULL, succeeded BOOLEAN NOT NULL",
)
trade_topic = kafka(
    "trades",
    schema="symbol STRING NOT NULL, trade_time TIMESTAMP NOT NULL, price DECIMAL(10,2) NOT NULL",
)


@ingest_table(layer="bronze", event_time="login_time", delay="5 seconds", owner=_OWNER)
def logins(login_topic: DataFrame) -> DataFrame:
    """Every attempt to log in."""
    return login_topic


@ingest_table(layer="bronze", event_time="trade_time", delay="5 seconds", owner=_OWNER)
def trades(trade_topic: DataFrame) -> DataFrame:
    """Every trade."""
    return trade_topic


def _guess(failures: tuple[Row, ...], success: Row) -> Row:
    return {
        "user_id": success["user_id"],
        "failures": len(failures),
        "first_failure": failures[0]["login_time"],
    }


GUESS = Pattern(
    begin("failures", lambda row: not row["succeeded"]).times_or_more(3).consecutive().greedy(),
    followed_by("success", lambda row: row["succeeded"]),
    within=timedelta(minutes=5),
    output="user_id STRING, login_time TIMESTAMP, failures INT, first_failure TIMESTAMP",
    select=_guess,
    at="login_time",
    after_match="skip_past_last",
    skip_span=timedelta(minutes=1),  # matches that compete end at the same row
)


@row_table(layer="gold", context=around(before=GUESS.reach), owner=_OWNER)
def guessed_passwords(logins: DataFrame) -> DataFrame:
    """Three failed logins or more, and then a successful one, all within five minutes."""
    return process(logins, by=["user_id"], function=GUESS, within=GUESS.reach, at="login_time")


def _falls(row: Row, start: Row, down: tuple[Row, ...]) -> bool:
    return row["price"] < (down[-1] if down else start)["price"]


def _rises(row: Row, down: tuple[Row, ...], up: tuple[Row, ...]) -> bool:
    return row["price"] > (up[-1] if up else down[-1])["price"]


def _dip(start: Row, down: tuple[Row, ...], up: tuple[Row, ...]) -> Row:
    return {
        "symbol": start["symbol"],
        "start_time": start["trade_time"],
        "start_price": start["price"],
        "bottom_time": down[-1]["trade_time"],
        "bottom_price": down[-1]["price"],
        "end_time": up[-1]["trade_time"],
        "end_price": up[-1]["price"],
        "trades": 1 + len(down) + len(up),
    }


DIP = Pattern(
    begin("start", lambda row: True),
    directly_followed_by("down", _falls).one_or_more().consecutive().greedy(),
    directly_followed_by("up", _rises).one_or_more().consecutive().greedy(),
    within=timedelta(minutes=10),
    output="""
        symbol STRING, trade_time TIMESTAMP, start_time TIMESTAMP, start_price DECIMAL(10,2), bottom_time TIMESTAMP,
        bottom_price DECIMAL(10,2), end_time TIMESTAMP, end_price DECIMAL(10,2), trades INT
    """,
    select=_dip,
    at="trade_time",
    after_match="skip_past_last",
    skip_span=timedelta(hours=1),
)


@row_table(layer="gold", context=around(before=DIP.reach), owner=_OWNER)
def price_dips(trades: DataFrame) -> DataFrame:
    """Prices that fell from trade to trade, and then rose from trade to trade, within ten minutes."""
    return process(trades, by=["symbol"], function=DIP, within=DIP.reach, at="trade_time")
