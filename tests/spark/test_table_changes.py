"""Changes of a Delta table of others: keyed and versioned tables follow it row for row, version by version."""

import json
import random
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import delta_table, ingest_table, keyed_table, versioned_table
from lakehouse.declare.inputs.delta import DeltaSource
from lakehouse.reconcile import reconciliation
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading.registry import check
from lakehouse.testing import COMMIT_POINTS, Stage
from streaming_jobs.command_groups import topic_commands

SCHEMA = "id BIGINT NOT NULL, owner STRING, day DATE"
Rows = list[tuple[Any, ...]]


def account_log(source: DataFrame) -> DataFrame:
    return source


def accounts(account_log: DataFrame) -> DataFrame:
    newest = F.max_by(F.struct("owner", "day", "deleted"), "position").alias("row")
    rows = account_log.groupBy("id").agg(newest).select("id", "row.*")
    return rows.where("NOT deleted").drop("deleted")


def account_versions(account_log: DataFrame) -> DataFrame:
    return account_log


def stage_of(spark, root: Path, source: DeltaSource) -> Stage:
    module: Any = ModuleType(__name__)
    module.source = source
    module.account_log = ingest_table(layer="bronze", event_time="sent", delay="100 milliseconds")(
        account_log
    )
    module.accounts = keyed_table(layer="silver", keys=["id"])(accounts)
    module.account_versions = versioned_table(layer="silver", keys=["id"])(account_versions)
    return Stage(spark, root, module, max_offsets_per_trigger=3)


class Accounts:
    """A Delta table that somebody writes with Spark, and its rows at each version."""

    def __init__(self, spark, there: Path, **properties: str) -> None:
        self.spark, self.there, self.name = spark, there, f"delta.`{there}`"
        said = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"CREATE TABLE {self.name} ({SCHEMA}) USING delta PARTITIONED BY (day)")
        spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({said})")
        self.insert(*range(5))

    def insert(self, *ids: int) -> None:
        values = ", ".join(f"({id}, 'new', DATE'2026-01-0{1 + id % 2}')" for id in ids)
        self.spark.sql(f"INSERT INTO {self.name} VALUES {values}")

    def do(self, what: str) -> None:
        self.spark.sql(what.format(self.name))

    @property
    def version(self) -> int:
        return delta_log.latest(self.there)

    def rows(self, version: int | None = None) -> Rows:
        as_of = "" if version is None else f"VERSION AS OF {version}"
        return sorted(map(tuple, self.spark.sql(f"SELECT * FROM {self.name} {as_of}").collect()))


MERGE = """
    MERGE INTO {0} t
    USING (SELECT * FROM VALUES (1, 'merged'), (2, 'merged'), (20, 'merged') AS v (id, owner)) s ON t.id = s.id
    WHEN MATCHED AND t.id = 1 THEN DELETE
    WHEN MATCHED THEN UPDATE SET t.owner = s.owner
    WHEN NOT MATCHED THEN INSERT (id, owner, day) VALUES (s.id, s.owner, DATE'2026-01-03')
"""
COMMANDS = (
    "UPDATE {0} SET owner = 'updated' WHERE id IN (0, 3)",
    "DELETE FROM {0} WHERE id = 4",
    "UPDATE {0} SET id = id + 10 WHERE id = 3",  # another key
    "UPDATE {0} SET day = DATE'2026-01-03' WHERE id = 0",  # another partition
    MERGE,
    "OPTIMIZE {0}",
    "INSERT INTO {0} VALUES (4, 'again', DATE'2026-01-01')",
    "INSERT OVERWRITE {0} SELECT id, concat(owner, '!'), day FROM {0} WHERE id <> 0",
    "DELETE FROM {0}",
    "INSERT INTO {0} VALUES (1, 'back', DATE'2026-01-02'), (0, 'back', NULL)",
)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize(
    "seed, properties",
    [
        pytest.param(
            *(1, {"enableChangeDataFeed": "true", "enableDeletionVectors": "true"}),
            marks=pytest.mark.turn(2),
        ),
        pytest.param(
            *(2, {"enableChangeDataFeed": "false", "enableDeletionVectors": "true"}),
            marks=pytest.mark.turn(0),
        ),
        pytest.param(
            *(3, {"enableChangeDataFeed": "false", "enableDeletionVectors": "false"}),
            marks=pytest.mark.turn(1),
        ),
    ],
)
def test_tables_follow_it_row_for_row(spark, tmp_path, seed, properties):
    """Steps are cut anywhere and crash, also within a version; rows that were never changed may come twice in one."""
    choose = random.Random(seed)
    theirs = Accounts(spark, tmp_path / "accounts", **properties)
    source = delta_table(
        str(theirs.there), schema=SCHEMA, changes=True, unknown_fields="quarantine"
    )
    stage = stage_of(spark, tmp_path / "root", source)
    first = theirs.version
    stage.run("account_log", abort_at=choose.choice(COMMIT_POINTS))
    for command in COMMANDS:
        theirs.do(command)
        if choose.random() < 0.5:
            stage.run("account_log", abort_at=choose.choice(COMMIT_POINTS))
            stage.run(
                "accounts", "account_versions", abort_at=choose.choice(("rows", "commit_log"))
            )
            assert followed(stage) == theirs.rows()
    stage.run("account_log", "accounts", "account_versions")
    assert followed(stage) == theirs.rows()
    assert len(stage.crashes) > 3 and stage.resumed

    committed = times(stage)
    assert set(committed) == {v for v in range(first, theirs.version + 1) if changes(theirs, v)}
    for version, at in committed.items():
        if version < theirs.version:  # behind the frontier
            assert valid(stage, at) == theirs.rows(version), version
    for name in ("accounts", "account_versions"):
        verdict = reconciliation.reconcile(stage.session, stage.session.catalog.table(name))
        assert verdict.verdict == "EQUAL", verdict
    (found,) = check(stage.session, stage.session.catalog.table("account_log"))
    assert (found.missing, found.doubled) == (0, 0)
    assert stage.rows("account_log", side="quarantine").count() == 0


def followed(stage: Stage) -> Rows:
    return sorted(map(tuple, stage.rows("accounts").select("id", "owner", "day").collect()))


def times(stage: Stage) -> dict[int, datetime]:
    """When each version was committed, as its changes say."""
    rows = stage.rows("account_log").select("transaction", "sent").distinct().collect()
    assert len({each.transaction for each in rows}) == len(rows), "one time for each version"
    return {int(each.transaction): each.sent for each in rows}


def changes(theirs: Accounts, version: int) -> bool:
    return bool(delta_log.moved(theirs.there, version))


def valid(stage: Stage, at: datetime) -> Rows:
    now = F.lit(at)
    rows = stage.rows("account_versions").where(
        (F.col("valid_from") <= now) & (F.col("valid_to").isNull() | (F.col("valid_to") > now))
    )
    return sorted(map(tuple, rows.where("NOT deleted").select("id", "owner", "day").collect()))


def test_each_change_is_a_row(spark, tmp_path):
    theirs = Accounts(spark, tmp_path / "accounts", enableChangeDataFeed="true")
    begin = theirs.version
    stage = stage_of(
        spark, tmp_path / "root", delta_table(str(theirs.there), schema=SCHEMA, changes=True)
    )
    stage.run("account_log")
    theirs.do("UPDATE {0} SET owner = 'updated', id = 9 WHERE id = 3")
    theirs.do("DELETE FROM {0} WHERE id = 4")
    theirs.insert(7)
    stage.run("account_log")
    rows = stage.rows("account_log").where(f"transaction > {begin}").orderBy("position").collect()
    assert [(r.op, r.id, r.owner, r.deleted, int(r.transaction) - begin) for r in rows] == [
        ("b", 3, "new", True, 1),
        ("u", 9, "updated", False, 1),
        ("d", 4, "new", True, 2),
        ("c", 7, "new", False, 3),
    ]
    first = stage.rows("account_log").where("op = 'r'").collect()
    assert sorted(r.id for r in first) == [0, 1, 2, 3, 4]
    assert max(r.position for r in first) < rows[0].position
    assert timedelta(0) < rows[-1].sent - rows[0].sent < timedelta(minutes=5)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_that_is_empty_at_first_and_once_more(spark, tmp_path):
    theirs = Accounts(spark, tmp_path / "accounts", enableChangeDataFeed="true")
    theirs.do("DELETE FROM {0}")
    stage = stage_of(
        spark, tmp_path / "root", delta_table(str(theirs.there), schema=SCHEMA, changes=True)
    )
    stage.run("account_log")
    for command in ("INSERT INTO {0} VALUES (1, 'new', NULL)", "DELETE FROM {0}"):
        theirs.do(command)
        stage.run("account_log", "accounts")
        assert followed(stage) == theirs.rows(), command
    rows = stage.rows("account_log").orderBy("position").collect()
    # the first version that has rows is read whole
    assert [(row.op, row.id, row.deleted) for row in rows] == [("r", 1, False), ("d", 1, True)]


def test_changes_that_were_vacuumed_before_they_were_read_are_said_and_may_be_passed_over(
    spark, tmp_path
):
    theirs = Accounts(spark, tmp_path / "accounts", enableChangeDataFeed="true")
    stage = stage_of(
        spark, tmp_path / "root", delta_table(str(theirs.there), schema=SCHEMA, changes=True)
    )
    stage.run("account_log")
    theirs.do("UPDATE {0} SET owner = 'updated' WHERE id = 3")
    lost = theirs.version
    theirs.insert(7)
    for file in (theirs.there / "_change_data").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(
        StepFailed, match=rf"version={lost}, file=\S+: the file, .* was removed before it was"
    ):
        stage.run("account_log")
    catalog, settings = stage.session.catalog, stage.session.settings
    log = catalog.table("account_log")
    last = next(stage.session.commit_log(log).by_stream())
    topic_commands._accept_files(Lakehouse(settings, catalog), log, last, yes=True)
    stage.run("account_log")
    ids = [each.id for each in stage.rows("account_log").orderBy("position").collect()]
    assert sorted(ids) == [0, 1, 2, 3, 4, 7]
    noted = (settings.root / "_commit_log" / "account_log.files.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("through") == lost for line in noted)
