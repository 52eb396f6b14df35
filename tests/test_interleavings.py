"""Live batches, late rows, backfills, updates, repairs, hands, compactions and kills, in any order: in the end all is EQUAL.

And it is what was sent: an oracle that knows nothing of micro-batches counts the same.
"""

import shutil
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, Phase, note
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import repair
from lakehouse import coverage, proof, publication, updates
from lakehouse.ranges import partition_range
from lakehouse.table import kafka, sliding, table, tumbling
from lakehouse.testing import COMMIT_POINTS, Stage

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = ("plain", "sums", "slid")
ABORTS = st.sampled_from([None, None, *COMMIT_POINTS])

press_topic = kafka("presses", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL")


@table(layer="bronze", event_time="at", delay="5 seconds")
def presses(press_topic: DataFrame) -> DataFrame:
    return press_topic


@table(layer="silver")
def plain(presses: DataFrame) -> DataFrame:
    return presses.withColumn("double", F.col("value") * 2)


@table(layer="gold", window=tumbling("10 minutes"), keys=["user"], late="update")
def sums(presses: DataFrame) -> DataFrame:
    return presses.groupBy("window", "user").agg(F.sum("value").alias("value"))


@table(layer="gold", window=sliding("20 minutes", "10 minutes"), keys=["user"])
def slid(plain: DataFrame) -> DataFrame:
    return plain.groupBy("window", "user").agg(F.sum("double").alias("value"))


class Killed(Exception):
    pass


class Lakehouse(RuleBasedStateMachine):
    spark = None

    @initialize()
    def begins(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.stage = Stage(self.spark, self.folder / "root", HERE)
        self.minute = 0
        self.sent: Counter[tuple[datetime, str]] = Counter()
        self.arrive([5, 15, 40], [], None)

    @rule(
        minutes=st.lists(st.integers(0, 59), min_size=1, max_size=6), late=st.lists(st.integers(1, 150), max_size=2), abort=ABORTS
    )
    def arrives(self, minutes: list[int], late: list[int], abort: str | None) -> None:
        self.arrive([self.minute + m for m in minutes], [max(self.minute - m, 0) for m in late], abort)

    @rule(minutes=st.integers(30, 90))
    def time_passes(self, minutes: int) -> None:
        self.minute += minutes
        self.advance()

    @rule(files=st.integers(1, 3), abort=ABORTS)
    def live_runs(self, files: int, abort: str | None) -> None:
        self.stage.run(*TABLES, files_per_batch=files, abort_at=abort)

    @precondition(lambda self: self.closed("sums"))
    @rule(data=st.data(), name=st.sampled_from(TABLES), killed=st.booleans())
    def is_backfilled(self, data: st.DataObject, name: str, killed: bool) -> None:
        span = partition_range(data.draw(st.sampled_from(self.closed(name) or self.closed("sums"))), "hour")
        if span.end > (self.stage.frontier(name) or START):
            return
        note(f"{name} {span}")
        if killed:
            self.killed(lambda: self.stage.backfill(name, span))
        self.stage.backfill(name, span)

    @rule(killed=st.booleans())
    def is_updated(self, killed: bool) -> None:
        if killed:
            self.killed(lambda: self.stage.update("sums"))
        self.stage.update("sums")

    @precondition(lambda self: self.closed("sums"))
    @rule(name=st.sampled_from(TABLES), planted=st.booleans())
    def somebody_edits(self, name: str, planted: bool) -> None:
        if not (keys := self.closed(name)):
            return
        path = str(self.stage.lake.path(self.stage.lake.catalog.table(name)))
        if not planted or name == "plain":  # a row that looks as if it had come live is one to the stream that reads it
            DeltaTable(path).delete(f"_partition = '{keys[-1]}'")
        elif (rows := DeltaTable(path).to_pyarrow_table(partitions=[("_partition", "=", keys[0])])).num_rows:
            write_deltalake(path, rows.slice(0, 1), mode="append")

    @rule()
    def is_compacted(self) -> None:
        for each in self.stage.lake.catalog:
            DeltaTable(str(self.stage.lake.path(each))).optimize.compact()

    @rule()
    def is_proven_and_repaired(self) -> None:
        for name in TABLES:
            known = self.stage.lake.catalog.table(name)
            due = coverage.due(self.stage.lake.settings, self.stage.lake.catalog, known)
            for span in coverage.ranges(due, known):
                proof.prove(self.stage.lake, known, span)
            assert all(done.verdict in ("EQUAL", "PENDING") for done in repair.run(self.stage.lake, name))

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        try:
            self.minute += 240
            self.advance()
            self.stage.run(*TABLES)
            self.is_proven_and_repaired()
            self.stage.update("sums")
            lake = self.stage.lake
            for name in TABLES:
                for key in updates.outdated(lake.settings, lake.catalog, lake.catalog.table(name)):
                    if (span := partition_range(key, "hour")).end <= self.stage.frontier(name):
                        self.stage.backfill(name, span)
            for name in TABLES:
                found = proof.prove(lake, lake.catalog.table(name))
                assert {c.verdict for c in found} <= {"EQUAL", "NOT_YET"}, (name, found)
                assert sum(c.rows_live for c in found)
            ahead = self.stage.frontier("sums")
            rows = self.stage.rows("sums").select("window.end", "user", "value").collect()
            held = {(row.end.astimezone(UTC), row.user): row.value for row in rows}
            assert held == {key: value for key, value in self.sent.items() if key[0] <= ahead}
        finally:
            shutil.rmtree(self.folder)

    def arrive(self, minutes: list[int], late: list[int], abort: str | None) -> None:
        rows = [(m, user) for m in (*minutes, *late) for user in ("ab"[m % 2],)]
        self.stage.feed("presses", [self.press(*row) for row in rows], abort_at=abort)

    def advance(self) -> None:
        for _ in range(2):  # as `Stage.advance`, and counted
            self.stage.feed("presses", [self.press(self.minute, "probe")])

    def press(self, minute: int, user: str) -> dict:
        at = START + timedelta(minutes=minute)
        self.sent[START + timedelta(minutes=minute // 10 * 10 + 10), user] += minute + 1
        return {"user": user, "at": at.isoformat(), "value": minute + 1}

    def closed(self, name: str) -> list[str]:
        span = coverage.closed(self.stage.lake.settings, self.stage.lake.catalog.table(name))
        return list(span.partitions("hour")) if span else []

    def killed(self, does) -> None:
        """It ends between the Delta commit and the journal's line."""
        replace = publication.sinks.replace

        def killed(*given: object) -> int:
            replace(*given)
            raise Killed

        with patch.object(publication.sinks, "replace", killed), suppress(Killed):
            does()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1200)
def test_whatever_happens_in_whatever_order_all_is_equal_in_the_end(spark):
    Lakehouse.spark = spark
    run_state_machine_as_test(
        Lakehouse,
        settings=hypothesis_settings(
            max_examples=1, stateful_step_count=9, deadline=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True,
        ),
    )  # fmt: skip
