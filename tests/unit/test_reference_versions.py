"""Which version of a refreshed reference table a row sees: what is noted, and where it cannot be said."""

from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest

from lakehouse import (
    around,
    files,
    ingest_table,
    kafka,
    reference_table,
    row_table,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.catalog import Catalog, catalog_of
from lakehouse.errors import CommitError, DeclarationError
from lakehouse.ranges import EPOCH
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.position import reference_versions
from lakehouse.storage.position.reference_versions import InForce, TakenUp, in_force

START = datetime(2026, 1, 1, tzinfo=UTC)
things_topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")
other_topic = kafka("others", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")
name_files = files("names.csv", schema="id STRING, name STRING")


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


# ---- what is in force


def test_what_is_in_force_goes_from_one_line_to_the_next():
    lines = [
        TakenUp("names", 1, EPOCH), TakenUp("names", 2, at(5)), TakenUp("prices", 7, EPOCH), TakenUp("prices", 8, at(9)),
        TakenUp("names", 3, at(12)),
    ]  # fmt: skip
    assert in_force(lines, ["names"]) == [
        InForce({"names": 1}, EPOCH, at(5)),
        InForce({"names": 2}, at(5), at(12)),
        InForce({"names": 3}, at(12)),
    ]
    assert in_force(lines, ["prices", "names"]) == [
        InForce({"names": 1, "prices": 7}, EPOCH, at(5)),
        InForce({"names": 2, "prices": 7}, at(5), at(9)),
        InForce({"names": 2, "prices": 8}, at(9), at(12)),
        InForce({"names": 3, "prices": 8}, at(12)),
    ]


def test_nothing_is_in_force_before_each_table_has_its_first_line():
    assert in_force([TakenUp("names", 1, EPOCH)], ["names", "prices"]) == []
    assert in_force([], ["names"]) == []


def test_of_two_lines_for_one_instant_the_second_holds():
    """A step that crashed before its rows were written is taken again, and may find another version."""
    lines = [TakenUp("names", 1, EPOCH), TakenUp("names", 2, at(5)), TakenUp("names", 3, at(5))]
    found = in_force(lines, ["names"])
    assert [(each.versions["names"], each.until) for each in found] == [(1, at(5)), (3, None)]


def test_a_line_of_a_step_that_wrote_nothing_may_be_later_than_the_next_one():
    """A clock that was set back after a crash: each row still sees one version, whoever asks."""
    lines = [TakenUp("names", 1, EPOCH), TakenUp("names", 2, at(9)), TakenUp("names", 3, at(5))]
    assert [(f.versions["names"], f.since) for f in in_force(lines, ["names"])] == [
        (1, EPOCH), (3, at(5)), (2, at(9)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "among"), [(0, 4, False), (0, 5, True), (8, 9, True), (9, 20, False)]
)
def test_rows_see_what_was_taken_up_by_then_and_not_what_came_later(first, last, among):
    assert InForce({"names": 2}, at(5), at(9)).among(at(first), at(last)) is among


# ---- what is noted


def test_lines_that_are_gone_are_reported(tmp_path):
    settings, ingest = Settings(root=tmp_path), things
    assert reference_versions.taken_up(settings, ingest) == ()
    path = layout.note(settings, ingest, "references.jsonl")
    for version in range(2):
        line = TakenUp("names", version, at(version))
        Notes(path, dict).append(line)
        assert reference_versions.taken_up(settings, ingest)[-1] == line
    path.unlink()
    with pytest.raises(CommitError, match=r"it had 2 lines, and has 0.*restore it from a copy"):
        reference_versions.taken_up(settings, ingest)


# ---- who may read one


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def things(things_topic):
    return things_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def others(other_topic):
    return other_topic


@reference_table(layer="bronze", keys=["id"], refresh="5 minutes")
def names(name_files):
    return name_files


def catalog(**declared) -> Catalog:
    module = ModuleType("my_tables")
    vars(module).update(
        {
            "things_topic": things_topic, "other_topic": other_topic, "name_files": name_files,
            "things": things, "others": others, "names": names,
        } | declared
    )  # fmt: skip
    for value in vars(module).values():
        if hasattr(value, "transformation"):
            value.transformation.__module__ = "my_tables"
    return catalog_of([module])


def row(*inputs: str, declare=row_table, **options):
    return declare(layer="silver", **options)(sql("named", f"SELECT {{{'}{'.join(inputs)}}}"))


def test_a_row_table_reads_one_and_its_ingest_table_knows():
    known = catalog(named=row("things", "names"), again=again("named", "names"))
    named, ingest = known.table("named"), known.table("things")
    assert [t.name for t in known.refreshed_inputs(named)] == ["names"]
    assert not known.pinned_inputs(named)
    assert list(known.refreshed_behind(ingest)) == ["names"]
    assert not known.refreshed_behind(known.table("others"))
    assert [t.name for t in known.refreshed_inputs(known.table("again"))] == ["names"]


def again(*inputs: str):
    return row_table(layer="silver")(sql("again", f"SELECT {{{'}{'.join(inputs)}}}"))


def test_how_often_it_is_refreshed_decides_no_row():
    assert (
        reference_table(layer="bronze", keys=["id"])(names.transformation).code_version
        == names.code_version
    )


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            row("things", "names", declare=window_table, window=tumbling("1 minute")),
            "this is a window table",
        ),
        (row("things", "names", declare=versioned_table, keys=["id"]), "this is a versioned table"),
        (row("things", "names", context=around(after="1 minute")), "made of several rows"),
        (row("things", "others", "names"), "made of several rows"),
    ],
)
def test_where_a_row_of_the_table_may_be_of_several_versions_it_is_refused(declared, said):
    with pytest.raises(
        DeclarationError, match=f"input=names, refresh=0:05:00.*{said}.*join names in a row table"
    ):
        catalog(named=declared)


def test_results_of_windows_have_no_arrival():
    counts = window_table(layer="gold", window=tumbling("1 minute"))(
        sql("counts", "SELECT window, count(*) n FROM {things} GROUP BY window")
    )
    with pytest.raises(
        DeclarationError,
        match="results of windows have no arrival; join names in a row table before",
    ):
        catalog(counts=counts, named=row("counts", "names"))


def test_a_refresh_is_at_least_a_second():
    with pytest.raises(DeclarationError, match=r"refresh=0:00:00.500000: at least 0:00:01"):
        catalog(
            names=reference_table(layer="bronze", refresh="500 milliseconds")(names.transformation)
        )
