"""Event time that goes on while topics are silent (`quiet_timeout`): the last windows close, by a commit that is a fact."""

from datetime import timedelta

import dagster as dg
import pytest

from assets import sensors
from lakehouse.declare.catalog import Catalog
from lakehouse.settings import Settings
from lakehouse.testing import Stage, assert_stream_equals_batch
from streaming_jobs.exporters.metrics import LakehouseCollector
from support import quiet
from support.quiet import TABLES, after, at


@pytest.fixture
def stage(stage_of) -> Stage:
    return stage_of(quiet)


@pytest.mark.slow
@pytest.mark.parallel
def test_the_last_windows_close_while_no_row_comes(stage):
    stage.feed("clicks", [at(1), at(2), at(14), at(3, "bob")])
    stage.run(*TABLES)
    assert stage.frontier("clicks") == after(9) and not stage.rows("by_ten_seconds").count()
    stage.quiet("clicks", timedelta(seconds=11))
    stage.run(*TABLES)
    assert {stage.frontier(name) for name in ("clicks", "of_ann", "by_ten_seconds")} == {after(20)}
    assert stage.rows("by_ten_seconds").count() == 3
    # on time are those that are not behind it; what comes later than it says is late
    stage.feed("clicks", [at(21), at(8)])
    stage.quiet("clicks", timedelta(hours=2))
    stage.run(*TABLES)
    assert stage.frontier("clicks") == after(20 + 7200)
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    lines = list(
        stage.session.commit_log(stage.session.catalog.table("by_ten_seconds")).by_stream()
    )
    assert sum(line.late for line in lines) == 1
    assert [row.clicks for row in stage.rows("by_hour").collect()] == [5]
    assert sorted(row.clicks for row in stage.rows("sessions").collect()) == [1, 4]


def test_a_silent_topic_does_not_make_a_table_look_fresh(stage):
    settings, catalog = stage.session.settings, stage.session.catalog
    stage.feed("clicks", [at(1), at(2)])
    stage.run("of_ann")
    before, cursor = seen(settings, catalog, None)
    assert before.keys() == {"clicks", "of_ann"} and cursor.asset_events
    stage.quiet("clicks", timedelta(minutes=10))
    stage.run("of_ann")
    after_silence, tick = seen(settings, catalog, cursor.cursor)
    assert stage.frontier("of_ann") > after(500), "its event time has gone on"
    assert after_silence == before and not tick.asset_events
    stage.feed("clicks", [at(700)])
    stage.run("of_ann")
    with_rows, tick = seen(settings, catalog, tick.cursor)
    assert all(with_rows[name] > before[name] for name in before)
    assert [event.asset_key.path for event in tick.asset_events] == [["clicks"]]


def seen(
    settings: Settings, catalog: Catalog, cursor: str | None
) -> tuple[dict[str, float], dg.SensorResult]:
    """When rows last came to each table, by its metric, and what Dagster is told of it."""
    name = "lakehouse_table_commit_timestamp_seconds"
    shown = (f for f in LakehouseCollector(settings, catalog).collect() if f.name == name)
    moments = {s.labels["table"]: s.value for family in shown for s in family.samples}
    sensor = sensors.report_written_tables(settings, catalog)
    context = dg.build_sensor_context(dg.DagsterInstance.ephemeral(), cursor=cursor)
    return moments, sensor.evaluate_tick(context)
