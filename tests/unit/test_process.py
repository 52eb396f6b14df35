"""Process functions: state, and timers between rows in event time."""

from datetime import timedelta
from random import Random

from examples.alerts import tables as alerts
from lakehouse.declare.code_version import code_of
from lakehouse.declare.columns import ARRIVAL
from lakehouse.transform.functions.process import outputs
from support.calls import MINUTE, START, Told, row


def told(*rows: dict, within: timedelta = MINUTE) -> list[tuple[float, str]]:
    return [
        ((made["at"] - START).total_seconds(), made["what"])
        for made in outputs(Told(), rows, within, "at")
    ]


def test_timers_come_between_rows_in_event_time():
    assert told(row(0, set=(5, 10)), row(7)) == [
        (0, "row 1"),
        (5, "timer after 1"),
        (7, "row 2"),
        (10, "timer after 2"),
    ]
    assert told(row(0, set=(5,)), row(5)) == [(0, "row 1"), (5, "row 2"), (5, "timer after 2")], (
        "rows of an instant come first"
    )
    assert told(row(0, set=(5, 5)), row(1, set=(4,))) == [
        (0, "row 1"),
        (1, "row 2"),
        (5, "timer after 2"),
    ], "once"
    assert told(row(0, set=(5,)), row(1, clear=True)) == [(0, "row 1"), (1, "row 2")]


def test_state_and_timers_end_within_the_declared_time_after_the_last_row():
    assert told(row(0, set=(60, 61)), row(60)) == [
        (0, "row 1"),
        (60, "row 2"),
        (60, "timer after 2"),
        (61, "timer after 2"),
    ]
    assert told(row(0, set=(60, 61)), row(90)) == [
        (0, "row 1"),
        (60, "timer after 1"),
        (90, "row 1"),
    ]


def test_the_order_is_that_of_event_time_then_of_the_source():
    rows = [row(n // 2, offset=n, set=(3,)) for n in range(20)]
    shuffled = Random(7).sample(rows, len(rows))
    assert list(outputs(Told(), shuffled, MINUTE, "at")) == list(
        outputs(Told(), rows, MINUTE, "at")
    )
    made = next(made for made in outputs(Told(), rows, MINUTE, "at") if "timer" in made["what"])
    assert made[ARRIVAL]["offset"] == 7, "of the row before it"


def test_the_code_of_a_process_function_is_in_the_code_version_of_its_table():
    used = [text.split("'")[1] for text in code_of(alerts.silent_sensors.transformation).trees]
    assert used == ["silent_sensors", "Silence"]
