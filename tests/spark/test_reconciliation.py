"""The reconciliation by partition: what is recomputed and what is not, what a difference comes from, and its repair."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from batch_jobs import commands, repair
from lakehouse import ingest_table, kafka, tumbling, window_table
from lakehouse.ranges import Range
from lakehouse.reconcile import coverage, diagnosis, reconciliation
from lakehouse.reconcile.invalidation import looked_at
from lakehouse.settings import Repair
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.delta.digest import Digest, digest
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import certify
from lakehouse.storage.log.commit_log import note_dropped
from lakehouse.testing import Stage

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = ["2026-01-01-00", "2026-01-01-01", "2026-01-01-02", "2026-01-01-03"]

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"], late="side_output")
def sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


def larger(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum(F.col("value") * 2).alias("value"))


def unsteady(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(
        (F.sum("value") + F.floor(F.rand() * 1e9)).alias("value")
    )


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


@pytest.fixture(scope="module")
def filled_once(spark, tmp_path_factory):
    """Four closed hours, in the third of which nothing happened, and a fifth, open."""
    stage = Stage(spark, tmp_path_factory.mktemp("proof") / "root", HERE)
    for hour in (0, 1, 3, 4):
        stage.feed(
            "clicks", [at(60 * hour + minute, user) for minute in range(0, 60, 7) for user in "ab"]
        )
    stage.advance("clicks", at(4 * 60 + 30))
    stage.run("sums")
    return stage


@pytest.fixture
def stage(filled_once, tmp_path):
    """A copy, to be changed."""
    root = shutil.copytree(filled_once.session.settings.root, tmp_path / "root")
    copy = Stage.__new__(Stage)
    copy.__dict__.update(filled_once.__dict__)
    copy.session = replace(
        filled_once.session, settings=replace(filled_once.session.settings, root=root)
    )
    return copy


def sums_of(stage: Stage):
    return stage.session.catalog.table("sums")


def path_of(stage: Stage, name: str = "sums") -> str:
    return str(stage.session.path(stage.session.catalog.table(name)))


def due(stage: Stage) -> dict[str, str]:
    found = coverage.due(stage.session, sums_of(stage))
    return {each.partition: each.why for each in found}


def reconcile_due(stage: Stage, *partitions: str) -> list:
    """The certificates of what is due, or of those partitions."""
    found = [coverage.Due(key, "") for key in partitions or due(stage)]
    return [
        c
        for span in coverage.ranges(found, sums_of(stage))
        for c in reconciliation.reconcile_parts(stage.session, sums_of(stage), span)
    ]


def command(stage: Stage, *arguments: str):
    settings = stage.session.settings
    environment = {
        "LAKEHOUSE_ROOT": str(settings.root),
        "LAKEHOUSE_TABLES": ",".join(settings.tables),
    }
    return CliRunner().invoke(commands.app, list(arguments), env=environment)


def declared(stage: Stage, **changes: object):
    """From now on the table is declared so."""
    other = replace(sums_of(stage), **changes)
    catalog = replace(stage.session.catalog, tables=stage.session.catalog.tables | {"sums": other})
    stage.session = replace(stage.session, catalog=catalog)
    return other


def test_each_partition_has_its_certificate_and_is_reconciled_once(stage):
    assert due(stage) == dict.fromkeys(HOURS, "new")
    found = reconcile_due(stage)
    assert [(c.start.hour, c.end.hour, c.verdict, c.rows_in_table) for c in found] == [
        (0, 1, "EQUAL", 12), (1, 2, "EQUAL", 12), (2, 3, "EQUAL", 0), (3, 4, "EQUAL", 12),
    ]  # fmt: skip
    assert due(stage) == {}, "nothing was changed"
    whole = reconciliation.summed(found)
    assert (whole.rows_in_table, whole.verdict, whole.checksum_in_table) == (
        36,
        "EQUAL",
        whole.checksum_recomputed,
    )
    assert whole.checksum_in_table == str(Digest.parsed(whole.checksum_in_table))
    reconciled = coverage.coverage(stage.session, sums_of(stage))
    assert (
        reconciled.partitions,
        reconciled.reconciled,
        reconciled.reconciled_now,
        reconciled.share,
        reconciled.oldest_unreconciled,
    ) == (4, 4, 4, 1.0, None)
    assert (
        reconciled.seconds == pytest.approx(sum(c.seconds for c in found))
        and reconciled.seconds > 0
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_what_the_stream_goes_on_to_write_is_not_asked_for_before_it_closes(stage):
    reconcile_due(stage)
    stage.feed("clicks", [at(4 * 60 + minute) for minute in (31, 42, 53)])
    stage.feed("clicks", [at(30, value=100)])  # late: it stays out
    stage.run("sums")
    assert due(stage) == {}
    stage.advance("clicks", at(5 * 60 + 1))
    stage.run("sums")
    assert due(stage) == {"2026-01-01-04": "new"}
    assert [c.verdict for c in reconcile_due(stage)] == ["EQUAL"]


@pytest.mark.slow
@pytest.mark.parallel
def test_what_lies_ahead_of_the_frontier_is_not_yet(stage):
    found = reconciliation.reconcile_parts(
        stage.session, sums_of(stage), Range(START + timedelta(hours=3), START + timedelta(hours=6))
    )
    assert [c.verdict for c in found] == ["EQUAL", "EQUAL", "OPEN"]
    assert (
        found[1].end == found[2].start == stage.frontier("sums")
        and "ahead of the frontier" in found[2].detail
    )
    assert reconciliation.summed(found).verdict == "OPEN"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_compaction_is_no_change_and_a_hand_is(stage):
    reconcile_due(stage)
    assert due(stage) == {}
    DeltaTable(path_of(stage)).optimize.compact()
    assert due(stage) == {}
    DeltaTable(path_of(stage)).delete("user = 'b' AND _partition = '2026-01-01-01'")
    assert (
        due(stage).keys() == {"2026-01-01-01"}
        and "sums was changed by version" in due(stage)["2026-01-01-01"]
    )
    (found,) = reconcile_due(stage)
    assert (found.verdict, found.missing, found.extra, found.changed) == ("DIFFERENT", 6, 0, 0)
    assert found.cause.startswith(diagnosis.BY_HAND) and "(DELETE at" in found.cause
    assert due(stage) == {}, "known; it is not computed again before something is changed"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_log_that_was_cut_before_it_was_looked_at_has_all_reconciled_again(stage):
    reconcile_due(stage)
    due(stage)
    before = looked_at(stage.session.settings, sums_of(stage))["sums"]
    like = DeltaTable(path_of(stage)).to_pyarrow_table().slice(0, 1)
    for _ in range(2):
        write_deltalake(path_of(stage), like, mode="append")
    DeltaTable(path_of(stage)).create_checkpoint()
    log = stage.session.path(sums_of(stage)) / "_delta_log"
    for version in range(before + 2):
        (log / f"{version:020}.json").unlink(missing_ok=True)
    assert due(stage).keys() == set(HOURS) and all("was cut" in why for why in due(stage).values())


@pytest.mark.slow
@pytest.mark.parallel
def test_the_oldest_certificate_is_taken_again_one_a_time(stage):
    old = [replace(c, at=c.at - timedelta(days=3 - i)) for i, c in enumerate(reconcile_due(stage))]
    shutil.rmtree(stage.session.settings.root / "_commit_log" / "_certificates")
    certify(stage.session.settings, old)
    assert due(stage).keys() == {HOURS[0]} and "a sample" in due(stage)[HOURS[0]]
    reconcile_due(stage)
    assert due(stage).keys() == {HOURS[1]}


@pytest.mark.slow
@pytest.mark.parallel
def test_history_stays_reconciled_under_the_declaration_that_made_it(stage):
    reconcile_due(stage, *HOURS[:2])
    declared(stage, late="drop")
    assert due(stage).keys() == set(HOURS[2:])
    reconcile_due(stage)
    reconciled = coverage.coverage(stage.session, sums_of(stage))
    assert (reconciled.reconciled, reconciled.reconciled_now) == (4, 2)


def double(stage: Stage) -> None:
    """A commit that says to be of a batch that was written before."""
    log = stage.session.path(sums_of(stage)) / "_delta_log"
    commits = sorted(p for p in log.glob("*.json") if '"add"' in p.read_text())
    shutil.copy(
        commits[-1],
        log / f"{delta_writer.version(stage.session.path(sums_of(stage))) + 1:020}.json",
    )
    actions = [json.loads(line) for line in commits[-1].read_text().splitlines()]
    for action in actions:
        if "add" in action:
            file = action["add"]["path"]
            twin = file.replace("part-", "part-9")
            shutil.copy(
                stage.session.path(sums_of(stage)) / file, stage.session.path(sums_of(stage)) / twin
            )
            action["add"]["path"] = twin
    latest = max(log.glob("*.json"))
    latest.write_text("\n".join(json.dumps(action) for action in actions))


def erased(stage: Stage) -> None:
    DeltaTable(path_of(stage, "clicks")).delete("user = 'b' AND at < '2026-01-01T00:30:00Z'")


def planted(stage: Stage) -> None:
    DeltaTable(path_of(stage)).update(
        {"value": "7"}, predicate="user = 'a' AND _partition = '2026-01-01-03'"
    )
    like = DeltaTable(path_of(stage)).to_pyarrow_table().to_pylist()[0]
    schema = pa.schema(DeltaTable(path_of(stage)).schema().to_arrow())
    write_deltalake(
        path_of(stage), pa.Table.from_pylist([like | {"user": "nobody"}], schema), mode="append"
    )


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize(
    ("fault", "cause"),
    [(planted, diagnosis.BY_HAND), (double, diagnosis.TWICE), (erased, diagnosis.INPUT_BY_HAND)],
)
def test_a_planted_fault_is_found_explained_and_repaired(stage, fault, cause):
    reconcile_due(stage)
    due(stage)
    fault(stage)
    assert due(stage), "it is seen in the logs"
    different = [c for c in reconcile_due(stage) if c.verdict == "DIFFERENT"]
    assert different and all(c.cause.startswith(cause) for c in different)
    shown = command(stage, "reconcile", "status", "sums")
    assert shown.exit_code == 1 and cause in shown.stdout
    done = command(stage, "reconcile", "repair", "sums", "--json")
    assert done.exit_code == 0, done.stdout
    repaired = [json.loads(line) for line in done.stdout.splitlines()]
    assert {r["verdict"] for r in repaired} == {"EQUAL"} and len(repaired) == len(different)
    reconcile_due(stage)
    assert command(stage, "reconcile", "status", "sums").exit_code == 0
    assert due(stage) == {}
    assert {c.verdict for c in reconcile_due(stage, *HOURS)} == {"EQUAL"}


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_that_spark_dropped_are_named(stage):
    reconcile_due(stage)
    note_dropped(stage.session.settings, sums_of(stage), 3)
    made = {HOURS[0]: digest(stage.rows("sums"))}
    told = diagnosis.causes(stage.session, sums_of(stage), HOURS[:1], made, lambda: made, [])
    assert told[HOURS[0]].startswith(f"{diagnosis.DROPPED}: 3")
    (stage.session.settings.root / "_commit_log" / "sums.dropped.jsonl").unlink()
    assert diagnosis.causes(stage.session, sums_of(stage), HOURS[:1], made, lambda: made, [])[
        HOURS[0]
    ].startswith(diagnosis.UNKNOWN)


@pytest.mark.slow
@pytest.mark.parallel
def test_evidence_is_what_came_after_the_certificate_of_that_partition(stage):
    DeltaTable(path_of(stage)).update(
        {"value": "7"}, predicate=f"user = 'a' AND _partition = '{HOURS[0]}'"
    )
    backfilled = Range(START, START + timedelta(hours=1))
    stage.backfill("sums", backfilled)
    assert {c.verdict for c in reconcile_due(stage)} == {"EQUAL"}
    DeltaTable(path_of(stage)).delete(f"_partition = '{HOURS[1]}'")
    declared(stage, transformation=larger)
    found = {key: c.cause for key, c in zip(HOURS, reconcile_due(stage, *HOURS), strict=True)}
    assert found[HOURS[0]].startswith(diagnosis.CODE), (
        "what a hand did before the reconciliation, or elsewhere, is no cause"
    )
    assert found[HOURS[1]].startswith(diagnosis.BY_HAND)
    assert found[HOURS[3]].startswith(diagnosis.CODE)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_change_between_the_certificate_and_the_first_look_is_seen(stage):
    reconcile_due(stage, *HOURS)
    (stage.session.settings.root / "_commit_log" / "sums.reconciliation.json").unlink(
        missing_ok=True
    )
    DeltaTable(path_of(stage)).delete(f"user = 'b' AND _partition = '{HOURS[1]}'")
    assert due(stage).keys() == {HOURS[1]}


@pytest.mark.slow
@pytest.mark.parallel
def test_a_range_with_one_end_and_a_table_without_ranges_are_refused(stage):
    for asked, told in (
        (("reconcile", "repair", "sums", "--start", "2026-01-01"), "a range has two ends"),
        (("reconcile", "status", "clicks"), "only the stream writes an ingest table"),
        (("reconcile", "status", "sum"), "did you mean sums"),
    ):
        refused = command(stage, *asked)
        assert refused.exit_code == 2 and told in " ".join(refused.output.split()), refused.output


@pytest.mark.slow
@pytest.mark.parallel
def test_changed_code_is_named_and_a_person_has_it_followed(stage):
    reconcile_due(stage)
    before = sums_of(stage).code_version
    declared(stage, transformation=larger)
    assert due(stage) == {}, "what was reconciled stays reconciled"
    (found,) = reconcile_due(stage, HOURS[0])
    assert found.verdict == "DIFFERENT" and found.cause.startswith(
        f"{diagnosis.CODE}: written under declaration {before}"
    )
    allowed = replace(stage.session.settings, repair={"sums": Repair(9, 900)})
    (planned,) = repair.plan(replace(stage.session, settings=allowed), "sums", unasked=True)
    assert "asks for a decision" in planned.refused
    assert [r.verdict for r in repair.run(stage.session, "sums")] == ["EQUAL"]


@pytest.mark.slow
@pytest.mark.parallel
def test_without_being_asked_only_within_limits_and_never_twice_in_vain(stage):
    reconcile_due(stage)
    DeltaTable(path_of(stage)).delete("user = 'b'")
    reconcile_due(stage)
    settings, catalog = stage.session.settings, stage.session.catalog

    def allowed(**limits: Repair) -> list[str]:
        limited = replace(settings, repair=limits)
        return [
            p.partition
            for p in repair.plan(Lakehouse(limited, catalog), "sums", unasked=True)
            if not p.refused
        ]

    assert allowed() == [], "no table is repaired without being named"
    assert allowed(sums=Repair(2, 100)) == [HOURS[0], HOURS[1]]
    assert allowed(sums=Repair(9, 6)) == [HOURS[0]]
    stage.session = replace(
        stage.session, settings=replace(settings, repair={"sums": Repair(2, 100)})
    )
    assert [r.verdict for r in repair.run(stage.session, "sums", unasked=True)] == [
        "EQUAL",
        "EQUAL",
    ]
    assert allowed(sums=Repair(2, 100)) == [], "so many a day"
    assert [r.verdict for r in repair.run(stage.session, "sums")] == ["EQUAL"], "a person may"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_repair_that_does_not_help_stops_with_its_evidence(stage):
    declared(stage, transformation=unsteady)
    assert {c.cause.partition(":")[0] for c in reconcile_due(stage) if c.rows_in_table} == {
        diagnosis.NOT_DETERMINISTIC
    }
    (done,) = repair.run(stage.session, "sums")
    assert (done.partition, done.verdict) == (HOURS[0], "DIFFERENT"), "it ends there"
    kept = list(repair.repairs(stage.session.settings, sums_of(stage)))
    assert kept == [done]
    last = coverage.latest(stage.session.settings, sums_of(stage))[HOURS[0]]
    assert last.verdict == "DIFFERENT" and last.examples and last.rows_by_batch_runs == 12


@pytest.mark.slow
@pytest.mark.parallel
def test_input_that_is_not_kept_any_more_makes_it_unverifiable(stage):
    DeltaTable(path_of(stage, "clicks")).delete("at < '2026-01-01T03:00:00Z'")
    found = {c.start.hour: c for c in reconcile_due(stage)}
    assert {hour: c.verdict for hour, c in found.items()} == {
        0: "UNVERIFIABLE",
        1: "UNVERIFIABLE",
        2: "EQUAL",
        3: "EQUAL",
    }
    assert "its input is not kept" in found[0].detail
    assert due(stage) == {}


@pytest.mark.slow
@pytest.mark.parallel
def test_a_commit_file_of_the_checkpoint_that_was_lost_doubles_nothing(stage):
    commits = stage.session.settings.root / "_checkpoints" / "sums" / "1" / "commits"
    newest = max(int(p.name) for p in commits.iterdir() if p.name.isdigit())
    for file in (commits / str(newest), commits / f".{newest}.crc"):
        file.unlink(missing_ok=True)
    stage.advance("clicks", at(5 * 60 + 30))
    stage.run("sums")
    assert {c.verdict for c in reconcile_due(stage)} == {"EQUAL"} and len(due(stage)) == 0
