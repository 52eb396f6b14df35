"""The central test: however a table's input is cut, crashed, shuffled, repeated or delayed, stream and batch agree.

Hypothesis draws the stories (`stories`). Each time a table must equal its own batch run, every offset must be there once, the
counts must add up, and Spark itself may have dropped nothing. A run in which a disturbance never occurred fails.
"""

from collections import Counter
from dataclasses import replace
from datetime import UTC, timedelta
from random import Random

import pytest

from lakehouse.examples.sensors import tables as sensors
from lakehouse.testing import assert_stream_equals_batch
from stories import machine, tally
from stories.engine import tell
from stories.story import EXAMPLES, ONCE_FAILED, Story
from stories.suites import START, SUITES, Event, Suite, reading

# these two have every disturbance, and a crash at each commit point
ALL_AT_ONCE = tuple(EXAMPLES.values())[:2]


TURNS = {"windows": 0, "sensors": 1, "ads": 2}  # of the suites that take turns


def all_at_once(told: Suite, by_seed: int) -> list[Story]:
    """Both of them; a quarter of the operators plays in each, by the seed."""
    chosen = list(told.chosen)
    Random(by_seed).shuffle(chosen)
    return [
        replace(story, tables=tuple(chosen[number::4])) for number, story in enumerate(ALL_AT_ONCE)
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", ["sensors", "ads"])
def test_stream_and_batch_agree_in_five_stories(player, suite, say):
    told = SUITES[suite]
    occurred = tell(
        lambda story: player.play(told, story),
        told.stories,
        count=3,
        by_seed=1,
        examples=ALL_AT_ONCE,
    )
    say(suite, 1, occurred)
    assert occurred["stories"] == 5
    tally.assert_nothing_is_vacuous(occurred)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(2400)
# of markers `test_markers` has a story, and of sources each kind has one below
@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(name, marks=[pytest.mark.turn(TURNS[name])] if name in TURNS else [])
        for name in SUITES
        if name not in ("markers", "sources")
    ],
)
def test_stream_and_batch_agree_in_fifteen_stories(player, suite, say, fresh_seed):
    print(f"seed {fresh_seed}")
    told = SUITES[suite]
    occurred = tell(
        lambda story: player.play(told, story),
        told.stories,
        count=13,
        by_seed=fresh_seed,
        examples=[*all_at_once(told, fresh_seed), *ONCE_FAILED.get(suite, ())],
    )
    say(suite, fresh_seed, occurred)
    assert occurred["stories"] >= 15
    tally.assert_nothing_is_vacuous(occurred)


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1200)
def test_stream_and_batch_agree_from_each_kind_of_source(player, say, fresh_seed):
    print(f"seed {fresh_seed}")
    told, occurred = SUITES["sources"], Counter[str]()
    for number, ingest in enumerate(told.chosen, fresh_seed):
        story = replace(ALL_AT_ONCE[number % 2], tables=(ingest,))
        occurred += player.play(told, story) + Counter(stories=1)
    say("sources", fresh_seed, occurred)
    assert all(occurred[ingest] == 1 for ingest in told.chosen)
    tally.assert_nothing_is_vacuous(occurred)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1200)
# the first two, all of them at once, are among the fifteen stories of `ads`
@pytest.mark.parametrize("disturbance", list(EXAMPLES)[2:])
def test_stream_and_batch_agree_whatever_happens_alone(player, disturbance):
    occurred = player.play(SUITES["ads"], EXAMPLES[disturbance])
    assert occurred[tally.COMPARED]
    alone = "a crash at", "rows late by a little"
    names = {
        "cut file by file": "input cut into more micro-batches than it had commits",
        "messages that cannot be parsed": "quarantined rows",
    }
    if not disturbance.startswith(alone):
        assert occurred[names.get(disturbance, disturbance)] == 1, occurred


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(2400)
def test_whatever_happens_in_whatever_order_all_is_equal_in_the_end(player, say, fresh_seed):
    print(f"seed {fresh_seed}")
    runs = machine.runs(25)
    occurred = tell(
        lambda steps: machine.play(player.empty(machine), steps),
        runs,
        count=5,
        by_seed=fresh_seed,
        examples=machine.EXAMPLES,
    )
    say("state machine", fresh_seed, occurred)
    assert occurred["stories"] >= 5 and not [
        rule for rule in machine.RULES if not occurred[rule]
    ], occurred


def test_a_late_row_is_out_of_the_window_in_both_runs_and_in_the_late_view(stage_of):
    from lakehouse.batch import late_merge

    stage = stage_of(sensors)
    stage.feed("sensor_readings", [reading(Event(0, 1, 0, 70)), reading(Event(100, 1, 0, 70))])
    # watermark 95: one late
    stage.feed("sensor_readings", [reading(Event(2, 1, 0, 50)), reading(Event(96, 1, 0, 60))])
    stage.advance("sensor_readings", reading(Event(200, 1, 0, 70)))
    stage.run("valid_readings", "sensor_averages")
    certificate = assert_stream_equals_batch(stage, "sensor_averages")
    averages = {
        r.window.start.astimezone(UTC): r.readings for r in stage.rows("sensor_averages").collect()
    }
    assert averages[START] == 1 and certificate.rows_in_table == len(averages)
    late = late_merge.late_rows(
        stage.session, stage.session.catalog.table("sensor_averages")
    ).collect()
    assert [(r.event_time.astimezone(UTC) - START).total_seconds() for r in late] == [2.0]
    assert late[0].window.end.astimezone(UTC) == START + timedelta(seconds=5)
    assert stage.rows("valid_readings").count() == 6, (
        "mere disorder is not late in a row table whose hour is open"
    )


def test_a_partition_read_more_slowly_does_not_make_its_rows_late(stage_of):
    stage = stage_of(sensors)
    stage.feed(
        "sensor_readings", [(0, reading(Event(600, 1, 0, 70))), (1, reading(Event(10, 2, 1, 70)))]
    )
    stage.feed(
        "sensor_readings", [(0, reading(Event(700, 1, 0, 70))), (1, reading(Event(20, 2, 1, 70)))]
    )
    stage.advance("sensor_readings", reading(Event(900, 1, 0, 70)))
    stage.run("valid_readings", "sensor_averages")
    assert_stream_equals_batch(stage, "sensor_averages")
    table = stage.session.catalog.table("sensor_averages")
    assert sum(c.late for c in stage.session.commit_log(table).by_stream()) == 0
    assert stage.rows("sensor_averages").where("sensor_id = 'sensor-2'").count() == 2
