"""Process functions: state, timers between rows in event time; the same however the rows were cut."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

import pytest
from pyspark.sql import functions as F

from lakehouse.declare.code_version import dumped
from lakehouse.declare.columns import ARRIVAL
from lakehouse.errors import DeclarationError
from lakehouse.examples.alerts import tables as alerts
from lakehouse.examples.sensors import tables as sensors
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.patterns import (
    Pattern,
    begin,
    directly_followed_by,
    followed_by,
    not_followed_by,
)
from lakehouse.transform.process import KeyedProcess, outputs, process

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def row(second: float, offset: int = 0, **columns) -> dict:
    arrival = {"watermark": START, "topic": "t", "partition": 0, "offset": offset, "time": START}
    return {"at": at(second), ARRIVAL: arrival, **columns}


class Told(KeyedProcess):
    """Tells each call, and how many rows there were before."""

    output = "at TIMESTAMP, what STRING"

    def on_row(self, state, row, timers):
        state["rows"] = state.get("rows", 0) + 1
        for seconds in row.get("set", ()):
            timers.set(row["at"] + timedelta(seconds=seconds))
        if row.get("clear"):
            timers.clear()
        yield {"what": f"row {state['rows']}"}

    def on_timer(self, state, at, timers):
        yield {"what": f"timer after {state['rows']}"}


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


def test_an_output_without_event_time_is_refused(spark):
    with pytest.raises(
        DeclarationError, match="its rows have an event time, too; add then TIMESTAMP"
    ):
        process(spark.range(1), by=["id"], function=Told(), within=MINUTE, at="then")


def reading(sensor: str, second: float, celsius: str) -> dict:
    fahrenheit = Decimal(celsius) * 9 / 5 + 32
    return {
        "sensor_id": sensor,
        "event_time": at(second).isoformat(),
        "temperature_f": f"{fahrenheit:.2f}",
    }


def seconds(moment: datetime) -> float:
    return (moment.astimezone(UTC) - START).total_seconds()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_alerts_live_are_those_of_the_batch_however_the_rows_were_cut(spark, tmp_path):
    stage = Stage(spark, tmp_path, sensors, alerts)
    rows = [reading("sensor-1", n, "20.00") for n in range(0, 200, 5)]
    rows += [reading("sensor-2", n, "10.00") for n in (*range(0, 100, 2), 150, 240)]
    rows += [reading("sensor-1", 131, "25.00"), reading("sensor-2", 241, "10.50")]
    rows.sort(key=lambda each: each["event_time"])
    for n in range(0, len(rows), 30):
        stage.feed("sensor_readings", rows[n : n + 30])
        stage.run(
            "valid_readings",
            "silent_sensors",
            "unusual_readings",
            abort_at="rows" if n == 30 else None,
        )
    for second in (400, 4_000):
        stage.advance("sensor_readings", reading("sensor-3", second, "1.00"))
    stage.run("valid_readings", "silent_sensors", "unusual_readings")
    silent = stage.rows("silent_sensors").orderBy("event_time", "sensor_id").collect()
    alerts_of = [(r.sensor_id, seconds(r.silent_since), seconds(r.event_time)) for r in silent]
    assert alerts_of == [
        ("sensor-2", 150, 210),
        ("sensor-1", 195, 255),
        ("sensor-2", 241, 301),
        ("sensor-3", 400, 460),
    ]
    [unusual] = stage.rows("unusual_readings").collect()
    assert (unusual.sensor_id, unusual.temperature_c, unusual.mean_c) == (
        "sensor-1",
        Decimal("25.00"),
        Decimal("20.0000"),
    )
    assert (
        stage.rows("silent_sensors")
        .where(F.col("_arrival.watermark") >= F.col("event_time"))
        .isEmpty()
    ), "never late"
    for name in ("silent_sensors", "unusual_readings"):
        assert_stream_equals_batch(stage, name)


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
