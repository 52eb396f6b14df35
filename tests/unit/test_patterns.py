"""Patterns: what steps match, what is refused, and the automaton against an oracle that tries everything."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from lakehouse.errors import DeclarationError
from lakehouse.transform.pattern_steps import (
    begin,
    directly_followed_by,
    followed_by,
    not_followed_by,
)
from lakehouse.transform.patterns import Pattern
from lakehouse.transform.process import outputs
from support.calls import MINUTE, START, at, row
from support.pattern_oracle import Oracle


def seconds(moment: datetime) -> float:
    return (moment.astimezone(UTC) - START).total_seconds()


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


# --- the oracle -------------------------------------------------------------------------------------------------------


def last(rows):
    return rows[-1] if isinstance(rows, tuple) and rows else rows or None


def rising(row, a):
    return not a or row["value"] > last(a)["value"]


def falling(row, b):
    return not b or row["value"] < last(b)["value"]


def small_sum(row, a, b):
    parts = [
        *(a if isinstance(a, tuple) else [a] if a else ()),
        *(b if isinstance(b, tuple) else ()),
    ]
    return sum(each["value"] for each in parts) + row["value"] < 6


ROW_ONLY = [
    kind("a"),
    kind("b"),
    lambda row: row["kind"] in "ab",
    lambda row: row["kind"] in "bc",
    lambda row: row["value"] >= 1,
    lambda row: True,
]
OF_STEP = {"a": [rising], "b": [rising, falling, small_sum], "c": [rising, falling, small_sum]}


def random_step(rng: Random, name: str):
    make = begin if name == "a" else rng.choice([followed_by, followed_by, directly_followed_by])
    step = make(name, rng.choice([*ROW_ONLY, *ROW_ONLY, *OF_STEP[name]]))
    least = rng.choice([1, 1, 2])
    step = rng.choice(
        [step, step, step.one_or_more(), step.times(2), step.times(1, 2), step.times_or_more(least)]
    )
    if rng.random() < 0.25:
        step = step.optional()
    if (step.most != step.least or step.is_optional) and rng.random() < 0.4:
        step = step.greedy()
    if step.repeats and rng.random() < 0.25:
        step = step.consecutive()
    if step.repeats and rng.random() < 0.25:
        step = step.until(kind("c"))
    return step


def random_steps(rng: Random):
    steps = []
    for name in "abc"[: rng.choice([1, 2, 2, 3, 3])]:
        step = random_step(rng, name)
        if steps and step.kind == "followed_by" and rng.random() < 0.2:
            steps.append(not_followed_by(rng.choice([kind("c"), kind("x"), rising])))
        steps.append(step)
    if rng.random() < 0.2:
        steps.append(not_followed_by(rng.choice([kind("c"), kind("x"), rising])))
    return tuple(steps)


def random_pattern(rng: Random) -> tuple:
    within = timedelta(seconds=rng.choice([2, 4, 8]))
    after_match = rng.choice(["no_skip", "no_skip", "skip_to_next", "skip_past_last"])
    span = timedelta(seconds=rng.choice([3, 10, 100])) if after_match == "skip_past_last" else None
    while True:
        steps = random_steps(rng)
        try:
            pattern = Pattern(
                *steps,
                within=within,
                output="event_time TIMESTAMP",
                select=lambda **rows: {"rows": rows},
                timed_out=lambda **rows: {"timed_out": rows},
                after_match=after_match,
                skip_span=span,
            )
        except DeclarationError:
            continue
        return pattern, steps


def random_rows(rng: Random) -> list[dict]:
    second, rows = 0, []
    for n in range(rng.randrange(8)):
        second += rng.choice([0, 1, 1, 1, 2, 5])
        rows.append(event(second, rng.choice("aabbcx"), n) | {"value": rng.randrange(4), "n": n})
    return rows


def numbers(rows: dict) -> tuple:
    """The rows of each step by their number."""
    return tuple(
        tuple(each["n"] for each in found) if isinstance(found, tuple) else found and found["n"]
        for found in rows.values()
    )


def given(pattern: Pattern, rows: list[dict]) -> list[tuple]:
    return [
        (made["event_time"], what, numbers(made[what]))
        for made in outputs(pattern, rows, pattern.reach, "event_time")
        for what in ("rows", "timed_out")
        if what in made
    ]


def expected(pattern: Pattern, steps: tuple, rows: list[dict]) -> list[tuple]:
    matches, time_outs = Oracle(steps, rows, pattern.within).results(
        pattern.after_match, pattern.skip_span
    )
    found = [(moment, "rows", numbers(shown)) for moment, shown in matches]
    return found + [(moment, "timed_out", numbers(shown)) for moment, shown in time_outs]


@pytest.mark.parametrize("seed", range(10))
def test_the_automaton_gives_what_trying_everything_gives(seed):
    rng = Random(seed)
    for _ in range(400):
        pattern, steps = random_pattern(rng)
        rows = random_rows(rng)
        there = [(r["n"], seconds(r["event_time"]), r["kind"], r["value"]) for r in rows]
        assert sorted(given(pattern, rows), key=repr) == sorted(
            expected(pattern, steps, rows), key=repr
        ), (pattern.within, pattern.after_match, pattern.skip_span, steps, there)
