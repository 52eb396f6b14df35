"""Process functions: state, and timers between rows in event time."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from lakehouse.declare.code_version import dumped
from lakehouse.declare.columns import ARRIVAL
from lakehouse.errors import DeclarationError
from lakehouse.examples.alerts import tables as alerts
from lakehouse.transform.patterns import (
    Pattern,
    begin,
    directly_followed_by,
    followed_by,
    not_followed_by,
)
from lakehouse.transform.process import outputs
from support.calls import MINUTE, START, Told, at, row


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


def seconds(moment: datetime) -> float:
    return (moment.astimezone(UTC) - START).total_seconds()


# --- patterns ---------------------------------------------------------------------------------------------------------


def event(second: float, kind: str, offset: int = 0) -> dict:
    return row(second, offset, kind=kind) | {"event_time": at(second)}


def kind(wanted: str):
    return lambda row: row["kind"] == wanted


def matched(*steps, rows: list[dict], within: timedelta = MINUTE) -> list[tuple]:
    """Of each match its event time and those of its rows."""

    def select(**rows):
        return {"rows": tuple(seconds(each["event_time"]) for each in rows.values())}

    pattern = Pattern(
        *steps, within=within, output="event_time TIMESTAMP, rows STRING", select=select
    )
    return [
        (seconds(made["event_time"]), *made["rows"])
        for made in outputs(pattern, rows, within, "event_time")
    ]


A, B, C = (begin("a", kind("a")), followed_by("b", kind("b")), followed_by("c", kind("c")))


def test_one_row_is_followed_by_another_within_a_time():
    rows = [event(0, "a"), event(10, "a"), event(20, "x"), event(65, "b"), event(70, "b")]
    assert matched(A, B, rows=rows) == [(65, 10, 65)], "each first row once, and not after its time"
    assert matched(A, B, rows=[event(0, "a"), event(60, "b")]) == [(60, 0, 60)], (
        "the end of the time belongs to it"
    )
    assert matched(
        A, B, C, rows=[event(0, "a"), event(1, "c"), event(2, "b"), event(3, "a"), event(4, "c")]
    ) == [(4, 0, 2, 4)]


def test_the_very_next_row_is_asked_for():
    at_once = directly_followed_by("b", kind("b"))
    assert matched(A, at_once, rows=[event(0, "a"), event(1, "b")]) == [(1, 0, 1)]
    assert matched(A, at_once, rows=[event(0, "a"), event(1, "x"), event(2, "b")]) == []


def test_a_row_that_must_not_come_ends_a_match():
    without = (A, not_followed_by(kind("x")), B)
    assert matched(*without, rows=[event(0, "a"), event(1, "y"), event(2, "b")]) == [(2, 0, 2)]
    assert matched(*without, rows=[event(0, "a"), event(1, "x"), event(2, "b")]) == []


def test_what_did_not_come_is_certain_when_the_time_is_over():
    alone = (A, not_followed_by(kind("x")))
    assert matched(*alone, rows=[event(0, "a"), event(30, "y")]) == [(60, 0)]
    assert matched(*alone, rows=[event(0, "a"), event(30, "x"), event(31, "a")]) == [(91, 31)]
    assert matched(
        A, B, not_followed_by(kind("x")), rows=[event(0, "a"), event(5, "b"), event(70, "x")]
    ) == [(60, 0, 5)]
    assert (
        matched(
            A, B, not_followed_by(kind("x")), rows=[event(0, "a"), event(5, "b"), event(60, "x")]
        )
        == []
    ), "at the very end"


_X = not_followed_by(kind("x"))


@pytest.mark.parametrize(
    "steps", [(), (A,), (B, A), (A, A), (A, _X, _X), (A, _X, directly_followed_by("b", kind("b")))]
)
def test_steps_that_make_no_pattern_are_refused(steps):
    with pytest.raises(DeclarationError, match="pattern="):
        matched(*steps, rows=[])


def test_a_small_payment_then_a_large_one_is_what_an_oracle_says():
    rng, rows = Random(3), []
    for n in range(400):
        rows.append(event(n * 7, rng.choice("sslxx"), n))
    small, large = begin("small", kind("s")), followed_by("large", kind("l"))
    expected = []
    for each in rows:
        after = [
            r
            for r in rows
            if r["kind"] == "l" and timedelta(0) < r["event_time"] - each["event_time"] <= MINUTE
        ]
        if each["kind"] == "s" and after:
            expected.append(
                (
                    seconds(after[0]["event_time"]),
                    seconds(each["event_time"]),
                    seconds(after[0]["event_time"]),
                )
            )
    assert matched(small, large, rows=rows) == sorted(expected) and len(expected) > 50


def test_the_code_of_a_process_function_is_in_the_code_version_of_its_table():
    used = [text.split("'")[1] for text in dumped(alerts.silent_sensors.transformation)]
    assert used == ["silent_sensors", "Silence"]
