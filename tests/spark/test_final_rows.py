"""Keyed tables with `final_rows`: what their function makes of the rows behind their frontier, so of whole transactions."""

import time
from collections import Counter
from datetime import UTC, timedelta
from random import Random

import pytest
from pyspark.sql import functions as F

from lakehouse.batch.late_merge import late_rows
from lakehouse.storage.delta import delta_log
from lakehouse.stream import queries
from lakehouse.stream.strategy import strategy
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from support import transfers
from support.kept import equal_at_every_version
from support.transfers import START, Bank, changed, movement

INSTANT = timedelta(microseconds=1)


def sums_of_versions(stage: Stage, name: str, column: str) -> list[int]:
    """The sum over the table at each of its Delta versions that has rows."""
    table = stage.session.catalog.table(name)
    sums = []
    for version in delta_log.versions(stage.session.path(table)):
        (row,) = stage.session.read(table, version).agg(F.sum(column)).collect()
        sums += [] if row[0] is None else [int(row[0])]
    return sums


def balances(stage: Stage) -> dict[int, int]:
    return {row["id"]: int(row["balance"]) for row in stage.rows("accounts").collect()}


def valid_before(stage: Stage, name: str) -> dict[int, int]:
    """What the versioned table says was valid just before the frontier of the other one."""
    at = (stage.frontier(name) or START) - INSTANT
    rows = stage.rows("account_versions").where(
        (F.col("valid_from") <= F.lit(at)) & F.coalesce(F.col("valid_to") > F.lit(at), F.lit(True))
    )
    return {row["id"]: int(row["balance"]) for row in rows.collect()}


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
def test_each_version_has_whole_transfers_though_steps_end_within_them(stage_of):
    stage, random = stage_of(transfers), Random(5)
    session, bank = stage.session, Bank(random)
    table = session.catalog.table("accounts")
    assert strategy(session, table) == "groups", "Spark's aggregate would count a row at once"
    log = [change for transfer in bank.transfers(6) for change in transfer]
    newest = dict(map(changed, bank.reading()))
    stage.feed("account_log", bank.reading())
    sent = halves = 0
    for turn in range(len(log)):
        if sent == len(log):
            break
        again = max(0, sent - random.choice((0, 0, 3)))  # a connector that died sends again
        end = min(len(log), sent + random.randint(1, 3))
        newest |= dict(map(changed, log[sent:end]))
        halves += sum(newest.values()) != 150
        point = COMMIT_POINTS[turn % 4]
        stage.feed("account_log", log[again:end], abort_at=point)
        stage.run("accounts", abort_at=point)
        if turn % 3 == 2:
            stage.run("account_versions", "total", abort_at=point)
            assert balances(stage) == valid_before(stage, "accounts"), turn
        sent = end
    stage.quiet("account_log", timedelta(seconds=10))
    stage.run("accounts", "total", abort_at="rows")
    assert halves > 2, "steps have ended within transfers"
    assert balances(stage) == bank.balances, "time has gone on, and all of them count"
    for name, column in (("accounts", "balance"), ("total", "amount")):
        sums = sums_of_versions(stage, name, column)
        # the row of the total stays as it is, so nothing is written again
        assert set(sums) == {150} and (len(sums) > 1) == (name == "accounts"), (name, sums)
        assert equal_at_every_version(stage, name) > 2
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_ahead_of_the_frontier_write_nothing_and_late_ones_wait_together(stage_of):
    stage, bank = stage_of(transfers), Bank(Random(1))
    session, table = stage.session, stage.session.catalog.table("accounts")
    stage.feed("account_log", bank.reading())
    stage.run("accounts")
    assert balances(stage) == {}, "nothing is final yet"
    stage.quiet("account_log", timedelta(seconds=3))
    stage.run("accounts", "account_versions")
    assert balances(stage) == {1: 50, 2: 50, 3: 50}

    before, tracker = (
        delta_log.latest(session.path(table)),
        session.spark.sparkContext.statusTracker(),
    )
    bank.at += timedelta(seconds=2)
    (ahead,) = bank.transfers(1)
    stage.feed("account_log", ahead)
    jobs = set(tracker.getJobIdsForGroup())
    stage.run("accounts")
    assert set(tracker.getJobIdsForGroup()) == jobs, "nor does Spark look at it"
    assert delta_log.latest(session.path(table)) == before, "it is ahead of the frontier"
    stage.quiet("account_log", timedelta(seconds=10))
    stage.run("accounts")
    whole = balances(stage)
    assert whole == bank.balances and delta_log.latest(session.path(table)) == before + 1

    (late,) = bank.transfers(1)  # its time is behind the watermark now
    for half in late:
        stage.feed("account_log", [half])
        stage.run("accounts", "account_versions", abort_at="commit_log")
        assert balances(stage) == whole == valid_before(stage, "accounts")
    assert sum(line.late for line in session.commit_log(table).by_stream()) == 2
    assert late_rows(session, table).count() == 2
    stage.quiet("account_log", timedelta(seconds=1))
    stage.run("accounts", "account_versions", abort_at="begin")
    assert balances(stage) == bank.balances == valid_before(stage, "accounts")
    assert set(sums_of_versions(stage, "accounts", "balance")) == {150}
    equal_at_every_version(stage, "accounts")
    assert_stream_equals_batch(stage, "accounts")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_query_that_goes_on_takes_a_step_when_the_frontier_has(stage_of):
    """It keeps in memory where rows are, and reads those that waited from their files."""
    stage, bank = stage_of(transfers), Bank(Random(4))
    session, table = stage.session, stage.session.catalog.table("accounts")
    stage.feed("account_log", bank.reading())
    query = queries.start(session, table)
    try:
        for halves in bank.transfers(4, 3):
            for half in halves:
                stage.feed("account_log", [half])
            query.processAllAvailable()
            assert balances(stage) != bank.balances, "the last transfer is ahead of the frontier"
        stage.quiet("account_log", timedelta(seconds=10))
        deadline = time.monotonic() + 60
        while balances(stage) != bank.balances and time.monotonic() < deadline:
            time.sleep(0.1)
        assert balances(stage) == bank.balances, query.exception()
    finally:
        query.stop()
    assert set(sums_of_versions(stage, "accounts", "balance")) == {150}
    assert equal_at_every_version(stage, "accounts") > 2


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(2)
def test_two_tables_of_a_database_are_seen_as_of_one_instant(stage_of):
    """Debits and credits lag behind each other; the table is as far as the one that is behind."""
    stage, random = stage_of(transfers), Random(8)
    derived = ("movements", "recent", "large_debits", "debits_by_window", "largest")
    sides: dict[str, list] = {"debit_log": [], "credit_log": []}
    seconds, seen = 0.0, Counter[str]()
    for number in range(1, 13):
        seconds += random.choice((0.2, 1, 2.5))
        pair = random.sample((1, 2, 3), 2)
        for side, account in zip(sides, pair, strict=True):
            sides[side].append((movement(number, account, number % 5 + 1, seconds), seconds))
    fed = dict.fromkeys(sides, 0)
    for turn in range(40):
        if all(fed[side] == len(sides[side]) for side in sides):
            break
        for side in random.sample(sorted(sides), random.randint(1, 2)):
            end = fed[side] + random.randint(2, 5)
            new = [change for change, _ in sides[side][fed[side] : end]]
            if new:
                stage.feed(side, new, abort_at=COMMIT_POINTS[turn % 4])
                fed[side] += len(new)
        stage.run("net", abort_at=COMMIT_POINTS[turn % 4])
        if turn % 2:
            stage.run(*derived, abort_at=COMMIT_POINTS[turn // 2 % 4])
        ahead = [stage.frontier(side) for side in sides]
        reached = stage.frontier("net")
        if None not in ahead and reached and reached > START:
            assert reached == min(filter(None, ahead)), turn
            seen["lagging"] += ahead[0] != ahead[1]
        counted = expected(stage, sides)
        rows = {(int(r["amount"]), r["rows"]) for r in stage.rows("net").collect()}
        assert rows == ({(0, counted)} if counted else set()), turn
        seen["counted"] += bool(counted)
    for side in sides:
        stage.quiet(side, timedelta(seconds=10))
    stage.run("net", *derived)
    assert expected(stage, sides) == 24, "a topic without messages holds nobody back"
    assert {int(row["amount"]) for row in stage.rows("net").collect()} == {0}
    for name in ("movements", "net", "recent"):
        assert set(sums_of_versions(stage, name, "amount")) == {0}, name
    for name in ("movements", "net", "recent", "largest"):
        seen[name] = equal_at_every_version(stage, name)
        assert_stream_equals_batch(stage, name)
    assert min(seen.values()) > 1, seen


def expected(stage: Stage, sides: dict[str, list]) -> int:
    """How many rows of both topics count."""
    reached = stage.frontier("net") or START
    moments = (START + timedelta(seconds=s) for side in sides.values() for _, s in side)
    return sum(moment.astimezone(UTC) < reached for moment in moments)
