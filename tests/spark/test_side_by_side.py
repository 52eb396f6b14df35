"""Two versions of a table side by side: both are queried by name, and compared partition by partition as these close."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from deltalake import DeltaTable

from batch_jobs import upgrade
from lakehouse.batch import late_merge
from lakehouse.cli import query, table_status
from lakehouse.errors import JobError, SavepointError, UnknownTable
from lakehouse.ranges import Range
from lakehouse.storage.disk import layout
from lakehouse.storage.log import commit_log, comparisons
from lakehouse.storage.log.comparisons import Compared
from lakehouse.storage.versions import read_holds, restoring, savepoints, upgrades
from lakehouse.stream import beside
from lakehouse.testing import Stage
from support import changing_tables
from support.changing_tables import START, at, changed, larger, more

HOURS = [f"2026-01-01-{hour:02}" for hour in range(9)]


def hour(stage: Stage, number: int, more_rows: int = 0) -> None:
    """Rows of that hour, with values from 0 to 9, and the one that closes it."""
    minutes = range(60 * number + 1, 60 * number + 11 + more_rows)
    stage.feed("clicks", [at(minute, value=minute % 10) for minute in minutes])
    stage.advance("clicks", at(60 * number + 61, value=0))


def round_of(stage: Stage, name: str, may_differ: Range | None = None):
    """What one round of `lakehouse upgrade follow` does; by partition what was read in it."""
    before = lines(stage, name)
    list(upgrade.fill(stage.session, name, upgrade.plan(stage.session, name)))
    noted, compared = upgrade.compare(stage.session, name, may_differ)
    read = [line["partition"] for line in lines(stage, name)[len(before) :]]
    return noted, {each.partition: each for each in compared}, read


def lines(stage: Stage, name: str) -> list[dict]:
    path = layout.upgrade(stage.session.settings, name, "compared.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def counts(compared: Compared) -> tuple[int, ...]:
    return tuple(compared.counts.values())[1:]


def values(stage: Stage, name: str, as_of: str = "", engine: str = "") -> list[int]:
    sql = f"SELECT value FROM {name} ORDER BY value"
    select = query.select_in_spark if engine else query.select
    return [row[0] for row in select(stage.session, sql, None, as_of, query.as_answer).rows]


@pytest.mark.slow
@pytest.mark.parallel
def test_partitions_are_compared_as_they_close_and_again_when_they_change(stage_of):
    stage = stage_of(changing_tables)
    former = stage.session
    present = replace(former, catalog=changed(former.catalog, "counted", transformation=more))
    counted = present.catalog.table("counted")
    hour(stage, 0)
    hour(stage, 1)
    stage.run("counted")
    with pytest.raises(UnknownTable, match="no version beside counted; `lakehouse upgrade fill"):
        values(stage, "counted__beside")

    stage.session = present
    assert table_status.beside(present, counted) is None
    noted, compared, read = round_of(stage, "counted")
    assert noted.state == "filled" and read == HOURS[:2]
    shown = table_status.beside(present, counted)
    assert (shown.table, shown.state, shown.rows) == ("counted__beside", "filled", 8)
    assert shown.frontier == commit_log.frontier(former.settings, counted)
    assert counts(compared[HOURS[0]]) == (9, 4, 5, 0, 0)  # values 1 to 9, and 6 to 9
    assert len(compared[HOURS[0]].examples) == 3 and "missing" in compared[HOURS[0]].examples[0]
    for engine in ("", "Spark"):
        assert values(stage, "counted", engine=engine) == sorted([*range(1, 10)] * 2)
        assert values(stage, "counted__beside", engine=engine) == sorted([6, 7, 8, 9] * 2)
    version = DeltaTable(str(layout.beside_path(present.settings, counted))).version()
    assert values(stage, "counted__beside", str(version)) == values(stage, "counted__beside")

    for number in (
        2,
        3,
    ):  # the table's job goes on under its own code, and the version beside follows
        stage.session = former
        hour(stage, number)
        stage.run("counted")
        stage.session = present
        noted, compared, read = round_of(stage, "counted")
        assert read == [HOURS[number]], "the others are not read again"
        assert list(compared) == HOURS[: number + 1] and noted.compared["differing"] == number + 1
    assert round_of(stage, "counted")[2] == [], "nothing came"
    assert (now := table_status.beside(present, counted)).since == shown.since
    assert now.frontier > shown.frontier and now.rows == 16
    assert read_holds.began(present.settings) is None, "between two rounds nothing is held"

    DeltaTable(str(present.path(counted))).delete("_partition = '2026-01-01-01' AND value > 6")
    within = Range(START, START + timedelta(hours=1))
    noted, compared, read = round_of(stage, "counted", within)
    assert read == [HOURS[1]] and counts(compared[HOURS[1]]) == (6, 4, 5, 3, 0)
    assert "rows differ in 2026-01-01-01" in noted.refused and noted.within == within
    path = layout.upgrade(present.settings, "counted", "compared.jsonl")
    with path.open("a") as file:
        file.write('{"partition": "2026-01-01-02", "rows_b')  # killed while it wrote
    assert comparisons.noted(present.settings, counted)[HOURS[2]] == compared[HOURS[2]]
    path.unlink()
    assert round_of(stage, "counted")[2] == HOURS[:4]


@pytest.mark.slow
@pytest.mark.parallel
def test_late_rows_and_what_a_batch_run_rewrote_are_followed_and_so_is_a_promoted_table(stage_of):
    stage = stage_of(changing_tables)
    updated = changed(stage.session.catalog, "sums", late="update")
    former = replace(stage.session, catalog=updated)
    present = replace(former, catalog=changed(updated, "sums", transformation=larger))
    stage.session, sums = former, updated.table("sums")
    hour(stage, 0)
    hour(stage, 1)
    stage.run("sums")
    stage.session = present
    assert round_of(stage, "sums")[2] == HOURS[:2]

    stage.session = former
    stage.feed("clicks", [at(30, value=100)])
    hour(stage, 2)
    stage.run("sums")
    late_merge.update(former, sums)
    stage.session = present
    _, compared, read = round_of(stage, "sums")
    assert read == [HOURS[0], HOURS[2]], "late rows are merged into both"
    assert counts(compared[HOURS[0]]) == (1, 1, 0, 0, 1)
    assert "value=145" in (example := compared[HOURS[0]].examples[0]) and "290" in example

    new = table_status.beside(present, sums)
    exchange(stage, "sums", "promote")
    kept = table_status.beside(present, sums)
    assert kept.since > new.since and "the former version" in str(kept)
    assert lines(stage, "sums") == [], "of what the two are now nothing was compared"
    hour(stage, 3)
    stage.run("sums")
    with pytest.raises(JobError, match="the version beside it was filled with"):
        upgrade.plan(present, "sums")
    stage.session = former  # the code of the version that is beside now
    noted, compared, read = round_of(stage, "sums", Range(START, START + timedelta(hours=1)))
    assert noted.state == "promoted" and noted.refused and read == HOURS[:4]
    assert "value=290" in compared[HOURS[0]].examples[0].split("after")[0]
    exchange(stage, "sums", "roll-back")  # a difference does not stand in its way
    assert upgrades.of_all(former)["sums"].state == "rolled back"
    stage.session = present
    noted, compared, _ = round_of(stage, "sums")
    assert noted.state == "rolled back" and not noted.refused and len(compared) == 4


def exchange(stage: Stage, name: str, command: upgrades.Command) -> None:
    session, of = stage.session, stage.session.catalog.table(name)
    if not upgrades.check(session, of, command):
        beside.catch_up(session, of)
    upgrades.exchange(session, of, command)


def test_an_exchange_that_was_cut_off_is_not_forgotten_by_a_filling(stage_of):
    stage = stage_of(changing_tables)
    settings, counted = stage.session.settings, stage.session.catalog.table("counted")
    upgrades.note(settings, counted, "filled", command="promote")
    with pytest.raises(JobError, match="`lakehouse upgrade promote counted` was cut off"):
        upgrade.plan(stage.session, "counted")
    assert upgrades.upgrade(settings, counted).command == "promote"


def test_no_savepoint_is_restored_under_a_version_that_has_read_beyond_it(stage_of):
    stage = stage_of(changing_tables)
    settings, counted = stage.session.settings, stage.session.catalog.table("counted")
    savepoints.create(stage.session, "before")
    upgrades.note(settings, counted, "filled")
    with pytest.raises(SavepointError, match=r"table=counted: .* `lakehouse upgrade drop counted`"):
        restoring.restore(stage.session, "before")
