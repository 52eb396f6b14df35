"""Reports: batch runs compute each partition by itself once its inputs have closed, and draw a file of its rows."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median

import dagster as dg
import pytest
from typer.testing import CliRunner

from assets import definitions, reports
from assets.testing import materialize
from batch_jobs import maintain, repair
from lakehouse.batch import compute
from lakehouse.cli import main
from lakehouse.declare.reports import report
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.ranges import Range
from lakehouse.reconcile import coverage, diagnosis, reconciliation
from lakehouse.storage.log import report_files
from lakehouse.testing import Stage
from support import sales as pipeline

START = datetime(2026, 1, 1, 22, tzinfo=UTC)
HOURS = [Range(START + timedelta(hours=n), START + timedelta(hours=n + 1)) for n in range(4)]
KEYS = ["2026-01-01-22", "2026-01-01-23", "2026-01-02-00", "2026-01-02-01"]
SOLD = [(0, "a", 5), (4, "b", 7), (15, "a", 3), (30, "c", 2), (31, "b", -1), (59.9, "b", 4)]
NEXT = [(61, "c", 9), (70, "a", 1)]


def sale(minute: float, shop: str, cents: int) -> dict:
    at = (START + timedelta(minutes=minute)).isoformat()
    return {"shop": shop, "cents": cents, "at": at}


@pytest.fixture(scope="module")
def sold(spark, tmp_path_factory) -> Stage:
    """Two hours of sales, the third without any, and a fourth that is open; the stream was cut, and crashed."""
    stage = Stage(spark, tmp_path_factory.mktemp("sales"), pipeline)
    stage.feed("sales", [sale(*each) for each in SOLD])
    stage.run("paid", abort_at="rows", files_per_batch=1)
    stage.feed("sales", [sale(*each) for each in NEXT])
    stage.advance("sales", sale(181, "z", 1))
    stage.run("paid", "takings")
    return stage


@pytest.fixture
def stage(sold, tmp_path) -> Stage:
    return sold.copied(tmp_path / "root")


def of(stage: Stage, name: str = "best_shops") -> Table:
    return stage.session.catalog.table(name)


def expected(rows: list[tuple]) -> list[tuple]:
    """Of (minute, shop, cents) the two best shops of an hour: place, shop, cents, median, peak."""
    paid = [each for each in rows if each[2] > 0]
    found = []
    for shop in {shop for _, shop, _ in paid}:
        mine = [(minute, cents) for minute, of, cents in paid if of == shop]
        tens = {minute // 10 for minute, _ in mine}
        peak = max(sum(c for m, c in mine if m // 10 == ten) for ten in tens)
        cents = [c for _, c in mine]
        found.append((-sum(cents), shop, float(median(cents)), peak))
    ranked = enumerate(sorted(found), 1)
    return [(place, shop, -cents, half, peak) for place, (cents, shop, half, peak) in ranked][:2]


def rows(stage: Stage, key: str) -> list[tuple]:
    found = stage.rows("best_shops").where(f"_partition = '{key}'").orderBy("place").collect()
    return [(r["place"], r["shop"], r["cents"], r["median"], r["peak"]) for r in found]


def shown(stage: Stage, key: str) -> str:
    path = report_files.file(stage.session.settings, of(stage), key)
    assert path
    return path.read_text()


@pytest.fixture(scope="module")
def by_dagster(sold, tmp_path_factory) -> tuple[Stage, dict, list]:
    """The reports that the sensor asks for, computed; the events of that, and what it asks for then."""
    stage = sold.copied(tmp_path_factory.mktemp("reported") / "root")
    settings = stage.session.settings
    built = definitions.build(settings)
    (sensor,) = (each for each in built.sensors or () if each.name == "compute_reports")
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(
            instance=instance, repository_def=built.get_repository_def()
        )
        events = {}
        for request in sensor.evaluate_tick(context).run_requests:
            name = request.tags["report"]
            ends = (
                request.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")
            )
            result = materialize(settings, name, *ends, instance=instance)
            assert result.success
            made = result.asset_materializations_for_node(name)
            events |= {(name, event.partition): event.metadata for event in made}
        return stage, events, sensor.evaluate_tick(context).run_requests


@pytest.fixture
def computed(by_dagster, tmp_path) -> Stage:
    return by_dagster[0].copied(tmp_path / "root")


def test_dagster_computes_what_has_closed_and_links_the_files(sold, by_dagster):
    assert sold.frontier("best_shops") == HOURS[3].start
    assert sold.frontier("day_total") == HOURS[2].start  # a day ends there
    stage, events, again = by_dagster
    hours = [("best_shops", key) for key in KEYS[:3]]
    assert sorted(events) == [*hours, ("day_total", "2026-01-01")] and not again
    for name, key in hours:
        path = report_files.file(stage.session.settings, of(stage), key)
        assert events[name, key]["report"].value == str(path)
    assert "report" not in events["day_total", "2026-01-01"]


def test_each_partition_is_computed_by_itself_and_drawn(by_dagster):
    stage, _, _ = by_dagster
    assert [rows(stage, key) for key in KEYS] == [expected(SOLD), expected(NEXT), [], []]
    assert shown(stage, KEYS[0]) == "from 22:00\n1. b 11\n2. a 8"
    assert shown(stage, KEYS[2]) == "from 00:00"  # nothing was sold: the file says so
    stored = stage.rows("best_shops").select("window.*", "_origin").distinct().collect()
    assert {(r[0].astimezone(UTC), r[1].astimezone(UTC), r[2]) for r in stored} == {
        (hour.start, hour.end, "batch") for hour in HOURS[:2]
    }
    (total,) = stage.rows("day_total").collect()
    assert (total["sales"], total["cents"]) == (7, 31)


def test_it_is_reconciled_and_what_is_open_is_refused(stage):
    with pytest.raises(RangeError, match="complete up to 2026-01-02T01:00:00Z"):
        stage.backfill("best_shops", HOURS[3])
    with pytest.raises(RangeError, match="whole days"):
        stage.backfill("day_total", HOURS[0])
    assert reports.due(stage.session, of(stage)) == [Range(HOURS[0].start, HOURS[2].end)]
    stage.backfill("best_shops", HOURS[0])
    assert reports.due(stage.session, of(stage)) == [Range(HOURS[1].start, HOURS[2].end)]
    found = reconciliation.reconcile_parts(
        stage.session, of(stage), Range(HOURS[0].start, HOURS[3].end)
    )
    assert [c.verdict for c in found] == ["EQUAL", "PENDING", "PENDING", "OPEN"]
    assert found[0].rows_recomputed == 2 and found[2].detail == diagnosis.NOT_COMPUTED


@pytest.mark.slow
@pytest.mark.parallel
def test_late_rows_that_are_merged_make_a_report_stale_and_it_follows(computed):
    stage = computed
    stage.feed("sales", [sale(20, "c", 100)])
    stage.run("paid", "takings")
    stage.update("paid")
    stage.update("takings")
    assert reports.due(stage.session, of(stage)) == [HOURS[0]]
    assert reconciliation.reconcile(stage.session, of(stage), HOURS[0]).verdict == "PENDING"
    before = report_files.file(stage.session.settings, of(stage), KEYS[0])
    stage.backfill("best_shops", HOURS[0])
    assert rows(stage, KEYS[0]) == expected([*SOLD, (20, "c", 100)])
    after = report_files.file(stage.session.settings, of(stage), KEYS[0])
    assert shown(stage, KEYS[0]).startswith("from 22:00\n1. c 102") and before.exists()
    assert reconciliation.reconcile(stage.session, of(stage), HOURS[0]).verdict == "EQUAL"
    assert reports.due(stage.session, of(stage)) == []
    os.utime(before, (0, 0))
    list(maintain.run(stage.session, "best_shops"))
    assert after.exists() and not before.exists()


def test_a_file_that_is_gone_or_changed_is_seen_and_drawn_again(computed):
    stage = computed
    gone, changed = (
        report_files.file(stage.session.settings, of(stage), key) for key in (KEYS[0], KEYS[2])
    )
    gone.unlink()
    changed.write_text("nothing to see")
    found = reconciliation.reconcile_parts(stage.session, of(stage))
    assert [c.verdict for c in found] == ["DIFFERENT", "EQUAL", "DIFFERENT"]
    assert all(c.cause.startswith(diagnosis.REPORT) for c in (found[0], found[2]))
    assert [lost.partition for lost in coverage.coverage(stage.session, of(stage)).lost] == [
        KEYS[0]
    ]
    assert [each.verdict for each in repair.run(stage.session, "best_shops")] == ["EQUAL", "EQUAL"]
    assert changed.read_text() == "from 00:00" and gone.exists()


def test_a_function_that_fails_leaves_the_table_as_it_was(stage):
    def broken(rows, span):
        return 1 / 0

    def number(rows, span):
        return 5

    for draw, error in ((broken, ZeroDivisionError), (number, DeclarationError)):
        again = replace(of(stage), report=report("txt", draw))
        with pytest.raises(error):
            compute.backfill(stage.session, again, HOURS[0])
    assert rows(stage, KEYS[0]) == []
    assert report_files.kept(stage.session.settings, of(stage), KEYS[0]) is None


@pytest.mark.slow
@pytest.mark.parallel
def test_the_commands_work_as_of_other_tables(stage):
    environment = {
        "LAKEHOUSE_ROOT": str(stage.session.settings.root),
        "LAKEHOUSE_TABLES": pipeline.__name__,
    }

    def run(*arguments: str):
        return CliRunner().invoke(main.app(), list(arguments), env=environment)

    hours = ("--start", HOURS[0].start.isoformat(), "--end", HOURS[2].end.isoformat())
    assert run("backfill", "best_shops", *hours, "--dry-run").exit_code == 0
    assert "a file .txt of each partition" in run("table", "show", "best_shops").output
    refused = run("bootstrap", "best_shops")
    assert refused.exit_code == 2 and "a report has no stream" in refused.output
