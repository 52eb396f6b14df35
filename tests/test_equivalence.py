"""The central test: however a table's input is cut, crashed, shuffled, repeated or delayed, live and bounded agree.

The inputs are recorded rows. Hypothesis chooses them, and how the live queries are cut and where they crash; each time
the table must equal its own bounded run, and nothing may have been dropped by Spark itself.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from lakehouse.tables import ads, sensors
from lakehouse.testing import COMMIT_POINTS, Stage, assert_live_equals_bounded

START = datetime(2026, 1, 1, tzinfo=UTC)
FEW = settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1, derandomize=False, print_blob=True)

POINTS = st.sampled_from([None, *COMMIT_POINTS])


@dataclass(frozen=True)
class Event:
    """Seconds after START, and what it is about."""

    at: int
    key: int
    partition: int
    value: int


@dataclass(frozen=True)
class Story:
    """What happens to one table's input and to the queries that read it."""

    batches: list[list[Event]]
    crashes: list[str | None]  # of the record, batch by batch
    files: int  # how many files of its input a derived query reads at a time
    crash: str | None  # of each derived query
    early: int  # derived queries also run after that many batches


@st.composite
def stories(draw) -> Story:
    clock, batches = 0, []
    for _ in range(draw(st.integers(2, 3))):
        batch = []
        for _ in range(draw(st.integers(1, 12))):
            clock += draw(st.integers(0, 6))
            # mostly on time, some in disorder, a few an hour and more behind
            behind = draw(st.sampled_from([0, 0, 0, 1, 3, 4, 12, 40, 4000]))
            event = Event(
                clock - behind + 7200, draw(st.integers(1, 2)), draw(st.integers(0, 1)), draw(st.integers(-90, 200))
            )
            batch += [event] * draw(st.sampled_from([1, 1, 1, 2]))  # a duplicate now and then
        batches.append(draw(st.permutations(batch)))
    crashes = draw(st.lists(POINTS, min_size=len(batches), max_size=len(batches)))
    return Story(batches, crashes, draw(st.sampled_from([1, 2, 5])), draw(POINTS), draw(st.integers(0, len(batches))))


def play(stage: Stage, story: Story, record: str, derived: list[str], row) -> None:
    for number, (batch, crash) in enumerate(zip(story.batches, story.crashes, strict=True), 1):
        stage.feed(record, [(e.partition, row(e)) for e in batch], abort_at=crash)
        if number == story.early:
            stage.run(*derived, files_per_batch=story.files, abort_at=story.crash)
    last = max(e.at for batch in story.batches for e in batch)
    stage.advance(record, row(Event(last + 3600, 1, 0, 70)))
    stage.run(*derived, files_per_batch=story.files, abort_at=story.crash)


def assert_every_offset_is_there_once(stage: Stage, record: str) -> None:
    both = stage.rows(record).select("_arrival.*").union(stage.rows(record, "quarantine").select("_arrival.*"))
    found = both.groupBy("partition").agg(
        F.count("*").alias("n"), F.count_distinct("offset").alias("d"), F.max("offset").alias("last")
    )
    for partition in found.collect():
        assert partition.n == partition.d == partition.last + 1, partition


def reading(event: Event) -> dict:
    at = (START + timedelta(seconds=event.at)).isoformat()
    return {"sensor_id": f"sensor-{event.key}", "event_time": at, "temperature_f": event.value}


def ad_event(event: Event) -> dict:
    at = START + timedelta(seconds=event.at)
    ads_of = sorted(AD_IDS)
    kinds = ("view", "view", "click")
    return {
        "ad_id": ads_of[event.value % len(ads_of)],
        "event_type": kinds[event.key % 3],
        "event_time": str(int(at.timestamp() * 1000)),
    }


AD_IDS = [
    line.partition(",")[0] for line in (Path(ads.__file__).parent / "ad_campaigns.csv").read_text().splitlines()[1:30]
]


def check_sensors(stage_of, story: Story) -> None:
    stage = stage_of(sensors)
    play(stage, story, "sensor_readings", ["valid_readings", "sensor_averages"], reading)
    assert_every_offset_is_there_once(stage, "sensor_readings")
    for table in ("valid_readings", "sensor_averages"):
        assert_live_equals_bounded(stage, table)
        assert_counts_add_up(stage, table)


def check_ads(stage_of, story: Story) -> None:
    stage = stage_of(ads)
    play(stage, story, "ad_events", ["campaign_views"], ad_event)
    assert_every_offset_is_there_once(stage, "ad_events")
    certificate = assert_live_equals_bounded_or_nothing_to_compare(stage, "campaign_views")
    if certificate:
        assert_counts_add_up(stage, "campaign_views")


def assert_live_equals_bounded_or_nothing_to_compare(stage: Stage, table: str):
    """A story of clicks only has no views; both sides must agree on that too."""
    from lakehouse import proof

    certificate = proof.reconcile(stage.lake, stage.lake.catalog.table(table))
    assert certificate.verdict == "EQUAL", certificate.examples
    return certificate if certificate.rows_bounded else None


def assert_counts_add_up(stage: Stage, name: str) -> None:
    """Rows in = accepted + late, over all micro-batches, each counted once however often it was replayed."""
    table = stage.lake.catalog.table(name)
    driving = stage.lake.catalog.driving_input(table)
    commits = list(stage.lake.journal(table).live())
    assert sum(c.arrived for c in commits) == stage.rows(driving.name).count()
    assert sum(c.written for c in commits) == stage.rows(name).count()
    assert sum(c.quarantined for c in commits) == stage.rows(name, "quarantine").count()
    if stage.lake.catalog.kind(table) == "row":
        assert all(c.filtered == 0 for c in commits)


@given(story=stories())
@FEW
def test_sensors_live_equals_bounded(stage_of, story):
    check_sensors(stage_of, story)


@given(story=stories())
@FEW
def test_ads_live_equals_bounded(stage_of, story):
    check_ads(stage_of, story)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1200)
@given(story=stories())
@MANY
def test_sensors_live_equals_bounded_in_many_stories(stage_of, story):
    check_sensors(stage_of, story)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1200)
@given(story=stories())
@MANY
def test_ads_live_equals_bounded_in_many_stories(stage_of, story):
    check_ads(stage_of, story)


def test_a_late_row_is_out_of_the_window_in_both_runs_and_in_the_late_view(spark, tmp_path):
    from lakehouse import bounded

    stage = Stage(spark, tmp_path, sensors)
    stage.feed("sensor_readings", [reading(Event(0, 1, 0, 70)), reading(Event(100, 1, 0, 70))])
    stage.feed("sensor_readings", [reading(Event(2, 1, 0, 50)), reading(Event(96, 1, 0, 60))])  # watermark 95: one late
    stage.advance("sensor_readings", reading(Event(200, 1, 0, 70)))
    stage.run("valid_readings", "sensor_averages")
    certificate = assert_live_equals_bounded(stage, "sensor_averages")
    averages = {r.window.start.astimezone(UTC): r.readings for r in stage.rows("sensor_averages").collect()}
    assert averages[START] == 1 and certificate.rows_live == len(averages)
    late = bounded.late_rows(stage.lake, stage.lake.catalog.table("sensor_averages")).collect()
    assert [(r.event_time.astimezone(UTC) - START).total_seconds() for r in late] == [2.0]
    assert late[0].window.end.astimezone(UTC) == START + timedelta(seconds=5)
    assert stage.rows("valid_readings").count() == 6, "mere disorder is not late in a row table whose hour is open"


def test_a_partition_read_more_slowly_does_not_make_its_rows_late(spark, tmp_path):
    stage = Stage(spark, tmp_path, sensors)
    stage.feed("sensor_readings", [(0, reading(Event(600, 1, 0, 70))), (1, reading(Event(10, 2, 1, 70)))])
    stage.feed("sensor_readings", [(0, reading(Event(700, 1, 0, 70))), (1, reading(Event(20, 2, 1, 70)))])
    stage.advance("sensor_readings", reading(Event(900, 1, 0, 70)))
    stage.run("valid_readings", "sensor_averages")
    assert_live_equals_bounded(stage, "sensor_averages")
    table = stage.lake.catalog.table("sensor_averages")
    assert sum(c.late for c in stage.lake.journal(table).live()) == 0
    assert stage.rows("sensor_averages").where("sensor_id = 'sensor-2'").count() == 2
