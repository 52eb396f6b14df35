"""Sums and counts over a keyed table: what came is added, what went is taken away, and nothing else is read."""

from decimal import Decimal
from random import Random
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, sql
from lakehouse.batch import reference_tables
from lakehouse.stream.engines import groups, sums
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from lakehouse.transform import keeping, plan
from support.auctions import at
from support.kept import equal_at_every_version

account_topic = kafka(
    "accounts",
    schema="id BIGINT NOT NULL, country STRING, balance DECIMAL(38,2), at TIMESTAMP NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def account_log(account_topic: DataFrame) -> DataFrame:
    return account_topic


@keyed_table(layer="silver", keys=["id"])
def accounts(account_log: DataFrame) -> DataFrame:
    """The last row of each; an account without a country is closed."""
    last = F.max_by(F.struct("country", "balance"), "at").alias("last")
    return account_log.groupBy("id").agg(last).select("id", "last.*").where("country IS NOT NULL")


@keyed_table(layer="gold", keys=["country"])
def by_country(accounts: DataFrame) -> DataFrame:
    rich = F.count_if(F.col("balance") > 50).alias("rich")
    filled = F.count("balance").alias("filled")
    return accounts.groupBy("country").agg(
        F.sum("balance").alias("balance"), rich, filled, F.count("*").alias("accounts")
    )


@keyed_table(layer="gold", keys=["first"])
def by_letter(accounts: DataFrame) -> DataFrame:
    """By an expression, which no column of an input is equal to."""
    grouped = accounts.where("balance > 0").groupBy(F.substring("country", 1, 1).alias("first"))
    return grouped.agg(F.sum("balance").alias("balance"))


of_all = keyed_table(layer="gold", keys=["one"])(
    sql("of_all", "SELECT 1 AS one, sum(balance) AS balance, count(*) AS accounts FROM {accounts}")
)


ADDED = ("by_country", "by_letter", "of_all")


def module_of(*more: Any) -> ModuleType:
    module: Any = ModuleType(__name__)
    module.account_topic = account_topic
    for each in (account_log, accounts, by_country, by_letter, of_all, *more):
        setattr(module, each.name, each)
    return module


@pytest.fixture
def stage(spark, tmp_path) -> Stage:
    return Stage(spark, tmp_path, module_of())


def account(id: int, country: str | None, balance: int | None, seconds: float) -> dict:
    return {"id": id, "country": country, "balance": balance, "at": at(seconds)}


def rows(stage: Stage, name: str) -> set[tuple]:
    return set(map(tuple, stage.rows(name).select(*names(stage, name)).collect()))


def names(stage: Stage, name: str) -> list[str]:
    return [each for each in stage.rows(name).columns if not each.startswith("_")]


@pytest.mark.slow
@pytest.mark.parallel
def test_which_functions_are_sums_is_found_in_the_plan(spark, tmp_path):
    def of(what: str) -> Any:
        return keyed_table(layer="gold", keys=["country"], tolerance=0.01)(
            sql("t", f"SELECT {what}")
        )

    for what, added in {
        "country, sum(balance) s, count(*) n FROM {accounts} GROUP BY country": ["s", "n"],
        "country, count(balance) n FROM {accounts} WHERE id > 1 GROUP BY country": ["n"],
        "country, count(DISTINCT balance) n FROM {accounts} GROUP BY country": None,
        "country, max(balance) m FROM {accounts} GROUP BY country": None,
        "country, sum(CAST(balance AS DOUBLE)) s FROM {accounts} GROUP BY country": None,
        "country, count(*) n FROM {accounts} GROUP BY country HAVING count(*) > 1": None,
        "country, count(*) n FROM {accounts} a JOIN {accounts} b USING (country) GROUP BY country": None,
        "country, count(*) n FROM (SELECT DISTINCT country, balance FROM {accounts}) GROUP BY country": None,
        "country, count(*) n FROM {accounts} WHERE id = (SELECT max(id) FROM {accounts}) GROUP BY country": None,
        "country, count(*) n FROM {account_log} GROUP BY country": None,
    }.items():
        stage = Stage(spark, tmp_path, module_of(of(what)))
        declared = stage.session.catalog.table("t")
        found = keeping.adding(plan.plan_of(stage.session, declared))
        assert found == added, what
    spark.conf.set("spark.sql.ansi.enabled", "false")  # what is too large is null, as no value is
    try:
        for what, added in (("sum(balance)", None), ("sum(id)", ["s"])):
            query = f"country, {what} s FROM {{accounts}} GROUP BY country"
            stage = Stage(spark, tmp_path, module_of(of(query)))
            declared = stage.session.catalog.table("t")
            step = plan.plan_of(stage.session, declared)
            assert keeping.adding(step) == added, what
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
def test_groups_that_end_and_sums_without_a_value_are_computed_again(stage, monkeypatch):
    looked_at, again, touched = [], groups._Groups._again, groups._Groups._touched

    def noted(self, moved, some):
        looked_at.append((self.run.table.name, some.num_rows))
        return again(self, moved, some)

    def asked(self, *given):
        assert self.run.table.name == "accounts", "rows of the others are not looked for"
        return touched(self, *given)

    monkeypatch.setattr(groups._Groups, "_again", noted)
    monkeypatch.setattr(groups._Groups, "_touched", asked)
    stage.feed(
        "account_log",
        [account(1, "DK", 60, 1), account(2, "DK", 40, 1), account(3, "SE", 5, 1)],
    )
    stage.run("accounts", *ADDED)
    assert rows(stage, "by_country") == {("DK", 100, 1, 2, 2), ("SE", 5, 0, 1, 1)}
    stage.feed("account_log", [account(1, "DK", 70, 2), account(4, "SK", 1, 2)])
    stage.run("accounts", *ADDED)
    assert rows(stage, "by_country") == {
        ("DK", 110, 1, 2, 2),
        ("SE", 5, 0, 1, 1),
        ("SK", 1, 0, 1, 1),
    }
    assert rows(stage, "by_letter") == {("D", 110), ("S", 6)}
    assert rows(stage, "of_all") == {(1, 116, 4)}
    assert not looked_at, "only what came and went is read"
    stage.feed("account_log", [account(3, "DK", None, 3), account(2, "DK", None, 3)])
    stage.run("accounts", *ADDED)  # SE has no row any more
    assert looked_at == [("by_country", 2), ("by_letter", 2), ("of_all", 1)]
    assert rows(stage, "by_country") == {("DK", 70, 1, 1, 3), ("SK", 1, 0, 1, 1)}
    assert rows(stage, "by_letter") == {("D", 70), ("S", 1)}
    stage.feed("account_log", [account(1, "DK", None, 4), account(4, None, None, 4)])
    stage.run("accounts", *ADDED)
    assert rows(stage, "by_country") == {("DK", None, 0, 0, 3)}
    assert rows(stage, "by_letter") == set()
    assert rows(stage, "of_all") == {(1, None, 3)}
    for name in ADDED:
        assert equal_at_every_version(stage, name) == 4


@pytest.mark.slow
@pytest.mark.parallel
def test_an_input_that_has_another_column_since_is_followed(stage, spark, tmp_path):
    """The rows that went have not got it."""
    stage.feed("account_log", [account(1, "DK", 60, 1), account(2, "SE", 40, 1)])
    stage.run("accounts", "by_country")

    @keyed_table(layer="silver", keys=["id"])
    def accounts(account_log: DataFrame) -> DataFrame:
        last = F.max_by(F.struct("country", "balance", "at"), "at").alias("last")
        return account_log.groupBy("id").agg(last).select("id", "last.*").where("country > ''")

    changed: Any = module_of()
    changed.accounts = accounts
    later = Stage(spark, tmp_path, changed)
    reference_tables.renew(later.session, later.session.catalog.table("accounts"))
    stage.feed("account_log", [account(2, "DK", 41, 2)])
    later.run("accounts", "by_country")
    found = {row["id"]: row["country"] for row in later.rows("accounts").collect()}
    assert found == {1: "DK", 2: "DK"} and "at" in later.rows("accounts").columns
    assert rows(later, "by_country") == {("DK", 101, 1, 2, 2)}


@pytest.mark.slow
@pytest.mark.parallel
def test_sums_have_more_digits_than_a_decimal_of_python_by_default(stage):
    large = 10**33 + 1
    for step in range(3):
        stage.feed("account_log", [account(n, "DK", large + n + step, step) for n in range(3)])
        stage.run("accounts", "by_country")
    ((_, balance, *_),) = rows(stage, "by_country")
    assert balance == Decimal(sum(large + n + 2 for n in range(3)))


@pytest.mark.slow
@pytest.mark.parallel
def test_sums_that_are_too_large_of_the_rows_of_a_step_alone_are_computed_again(stage):
    large = 9 * 10**35  # of which a DECIMAL(38,2) does not hold two
    for n, balance in ((1, large), (2, -large)):
        stage.feed("account_log", [account(n, "DK", balance, n)])
    for n in (3, 4):
        stage.run("accounts", "by_country")
        stage.feed("account_log", [account(n, "DK", large if n == 3 else 1, n)])
    stage.run("accounts", "by_country")
    stage.feed("account_log", [account(n, None, None, 5) for n in (1, 3)])
    stage.run("accounts", "by_country")
    assert rows(stage, "by_country") == {("DK", 1 - large, 0, 2, 2)}


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
@pytest.mark.turn(2)
def test_whatever_comes_and_goes_each_version_is_what_the_function_makes_of_its_input(
    stage, monkeypatch
):
    """Random rows, crashes, and steps that are too much for this."""
    random, taken, whole = Random(7), [], []
    step, touched = sums.Sums.step, groups._Groups._touched

    def counted(self, *given):
        found = step(self, *given)
        taken.append(found is not None)
        return found

    def looked(self, *given):
        whole.append(self.run.table.name)
        return touched(self, *given)

    monkeypatch.setattr(sums.Sums, "step", counted)
    monkeypatch.setattr(groups._Groups, "_touched", looked)
    for turn in range(7):
        many = 12 if turn == 5 else random.randint(1, 4)
        stage.feed(
            "account_log",
            [
                account(
                    random.randint(1, 9),
                    random.choice(("DK", "SE", "SK", None)),
                    random.choice((None, 0, 7, 80)),
                    turn + n / 100,
                )
                for n in range(many)
            ],
        )
        stage.run("accounts")
        if turn == 5:
            monkeypatch.setattr(sums, "is_short", lambda run, path, rows: rows < 4)
        stage.run(*ADDED, abort_at=(*COMMIT_POINTS, None)[turn % 5])
        if turn == 5:
            monkeypatch.undo()
            monkeypatch.setattr(sums.Sums, "step", counted)
            monkeypatch.setattr(groups._Groups, "_touched", looked)
    assert taken.count(True) > 10 and taken.count(False) >= 3, taken
    assert set(whole) == {*ADDED, "accounts"}
    assert {point for _, point in stage.crashes} == set(COMMIT_POINTS)
    for name in ADDED:
        assert equal_at_every_version(stage, name) > 4
        assert_stream_equals_batch(stage, name)
