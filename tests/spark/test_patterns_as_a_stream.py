"""Patterns with repetition: as a stream, however its rows were cut, and in batch the rows that are to be found."""

from datetime import UTC, datetime
from decimal import Decimal
from random import Random

import pytest

from examples.patterns import tables as patterns
from lakehouse.errors import DeclarationError
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.functions.process import process
from support.calls import MINUTE, START, at


def seconds(moment: datetime) -> float:
    return (moment.astimezone(UTC) - START).total_seconds()


def login(second: float, user: str, succeeded: bool) -> dict:
    return {"user_id": user, "login_time": at(second).isoformat(), "succeeded": succeeded}


def trade(second: float, symbol: str, price: int) -> dict:
    return {"symbol": symbol, "trade_time": at(second).isoformat(), "price": f"{price}.00"}


def guesses(rows: list[dict]) -> list[tuple]:
    """(user, failures, first failure, success) by counting: of failures in a row those of the five minutes before a success."""
    found, failed = [], {}
    for row in rows:
        user, second = row["user_id"], seconds(datetime.fromisoformat(row["login_time"]))
        if not row["succeeded"]:
            failed.setdefault(user, []).append(second)
            continue
        recent = [each for each in failed.pop(user, []) if second - each <= 300]
        if len(recent) >= 3:
            found.append((user, len(recent), recent[0], second))
    return found


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_patterns_as_a_stream_are_those_of_the_batch_and_of_plain_counting(spark, tmp_path):
    stage, rng = Stage(spark, tmp_path, patterns), Random(5)
    tables = ("guessed_passwords", "price_dips")
    logins = [
        login(n * 20, rng.choice("xyz"), rng.random() < 0.2) for n in range(270)
    ]  # an hour and a half
    prices = [100, 90, 80, 85, 95, 95, 70, 60, 65, 61, 60]
    trades = [trade(n * 60, "s", price) for n, price in enumerate(prices)]
    late = login(30, "x", True)  # it would end what had begun
    for n in range(3):
        part = logins[n * 90 : n * 90 + 90]
        stage.feed("logins", [*rng.sample(part, len(part)), *[late][: n > 0]])
        stage.feed("trades", trades[n * 4 : n * 4 + 4])
        stage.run(*tables, abort_at=("rows", "commit_log", None)[n])
    stage.advance("logins", login(9_500, "nobody", True))
    stage.advance("trades", trade(9_500, "none", 1))
    stage.run(*tables, files_per_batch=1)
    assert sum(stage.crashes.values()) == 4 and stage.resumed >= 4
    commits = stage.session.commit_log(stage.session.catalog.table("guessed_passwords")).by_stream()
    assert sum(commit.late for commit in commits) >= 1

    made = stage.rows("guessed_passwords").collect()
    found = [(r.user_id, r.failures, seconds(r.first_failure), seconds(r.login_time)) for r in made]
    assert sorted(found) == sorted(guesses(logins)) and len(found) > 10
    dips = stage.rows("price_dips").orderBy("trade_time").collect()
    assert [(seconds(r.start_time), seconds(r.end_time), r.trades) for r in dips] == [
        (0, 240, 5),
        (300, 480, 4),
    ]
    assert [(r.start_price, r.bottom_price, r.end_price) for r in dips] == [
        (Decimal(100), Decimal(80), Decimal(95)),
        (Decimal(95), Decimal(60), Decimal(65)),
    ]
    assert [seconds(r.trade_time) for r in dips] == [300, 540], "of the trade that rose no more"
    for name in tables:
        assert_stream_equals_batch(stage, name)


@pytest.mark.parametrize(
    ("within", "at", "words"),
    [
        (MINUTE, "login_time", "within=0:01:00: the pattern needs the rows of 0:06:00 before"),
        (patterns.GUESS.reach, "at", "at='at': the pattern has at='login_time'"),
    ],
)
def test_what_process_is_given_is_held_against_the_pattern(spark, within, at, words):
    with pytest.raises(DeclarationError, match=words):
        process(spark.range(1), by=["id"], function=patterns.GUESS, within=within, at=at)
