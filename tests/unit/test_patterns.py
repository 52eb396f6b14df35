"""Patterns: what steps match, what is refused, and the automaton against an oracle that tries everything."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import get_args

import pytest
from pyspark.sql import DataFrame

import lakehouse
from examples.patterns import tables
from lakehouse.declare import code_version
from lakehouse.errors import DeclarationError
from lakehouse.transform.functions import pattern_steps
from lakehouse.transform.functions.patterns import (
    AfterMatch,
    Pattern,
    begin,
    directly_followed_by,
    followed_by,
    not_followed_by,
)
from lakehouse.transform.functions.process import Timers, outputs
from support import ROOT
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


def letter_is(letter: str):
    return lambda row: row["letter"] == letter


NAMES = {
    "begin": begin,
    "followed_by": followed_by,
    "directly_followed_by": directly_followed_by,
    "not_followed_by": not_followed_by,
    "timedelta": timedelta,
} | {f"is_{letter}": letter_is(letter) for letter in "abcdx"}


def of_letters(code: str, letters: str) -> list[str]:
    """The matches of a pattern that is written in Python, in rows like `a1 b1`, a second apart."""
    pattern = eval(
        f"""Pattern({code}, within=timedelta(minutes=1), output="event_time TIMESTAMP, rows STRING", select=select)""",
        NAMES | {"Pattern": Pattern, "select": in_letters},
    )
    rows = [
        event(n, "", n) | {"letter": each[0], "value": int(each[1:])}
        for n, each in enumerate(letters.split())
    ]
    return [made["rows"] for made in outputs(pattern, rows, pattern.reach, "event_time")]


def in_letters(**steps) -> dict:
    rows = [
        each
        for of_step in steps.values()
        for each in (of_step if isinstance(of_step, tuple) else [of_step])
        if each
    ]
    return {"rows": " ".join(f"{row['letter']}{row['value']}" for row in rows)}


PAGE = (ROOT / "docs" / "how-to" / "patterns.md").read_text()
SHOWN = re.findall(r"^\| `(begin\(.+?)` \| `([a-z0-9 ]+)` \| (.+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("code", "letters", "matches"), SHOWN)
def test_what_the_page_says_matches_does(code, letters, matches):
    assert sorted(of_letters(code, letters)) == sorted(re.findall(r"`(.+?)`", matches))


def test_the_page_shows_each_operator_and_the_code_of_the_example():
    assert len(SHOWN) > 15
    shown = " ".join(code for code, _, _ in SHOWN)
    steps = pattern_steps.Step
    operators = [n for n, f in vars(steps).items() if callable(f) and f"`.{n}(" in PAGE]
    assert len(operators) == 7 and all(f".{name}(" in PAGE for name in operators)
    assert all(f'"{each}"' in shown for each in get_args(AfterMatch))
    example = (ROOT / "examples" / "patterns" / "tables.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4 and all(block.strip() in example for block in blocks[1:])
    declared = {name: getattr(lakehouse, name) for name in lakehouse.__all__}
    exec(blocks[0], declared | {"DataFrame": DataFrame, "timedelta": timedelta, "__name__": "docs"})


@pytest.mark.parametrize(
    ("code", "letters", "matches"),
    [  # the examples of Flink's page about CEP
        (
            'begin("a", is_a).one_or_more().until(is_b)',
            "a1 c1 a2 b1 a3",
            ["a1", "a1 a2", "a2", "a3"],
        ),
        (
            'begin("c", is_c), followed_by("a", is_a).one_or_more(), followed_by("b", is_b)',
            "c1 d1 a1 a2 a3 d2 a4 b1",
            ["c1 a1 b1", "c1 a1 a2 b1", "c1 a1 a2 a3 b1", "c1 a1 a2 a3 a4 b1"],
        ),
        (
            'begin("c", is_c), followed_by("a", is_a).one_or_more().consecutive(), followed_by("b", is_b)',
            "c1 d1 a1 a2 a3 d2 a4 b1",
            ["c1 a1 b1", "c1 a1 a2 b1", "c1 a1 a2 a3 b1"],
        ),
        (
            'begin("b", is_b).one_or_more(), directly_followed_by("c", is_c)',
            "b1 b2 b3 c1",
            ["b1 b2 b3 c1", "b2 b3 c1", "b3 c1"],
        ),
        (
            'begin("b", is_b).one_or_more(), directly_followed_by("c", is_c), after_match="skip_to_next"',
            "b1 b2 b3 c1",
            ["b1 b2 b3 c1", "b2 b3 c1", "b3 c1"],
        ),
        (
            'begin("b", is_b).one_or_more(), directly_followed_by("c", is_c), after_match="skip_past_last", '
            "skip_span=timedelta(hours=1)",
            "b1 b2 b3 c1",
            ["b1 b2 b3 c1"],
        ),
        (
            'begin("x", lambda r: r["letter"] in "abc"), directly_followed_by("y", lambda r: r["letter"] in "bc"), '
            'directly_followed_by("c", is_c).one_or_more().greedy(), directly_followed_by("d", is_d)',
            "a1 b1 c1 c2 c3 d1",
            ["a1 b1 c1 c2 c3 d1", "b1 c1 c2 c3 d1", "c1 c2 c3 d1"],
        ),
        (
            'begin("a", is_a), followed_by("b", is_b).one_or_more()',
            "a1 b1 b2 b3",
            ["a1 b1", "a1 b1 b2", "a1 b1 b2 b3"],
        ),
        (
            'begin("a", is_a), followed_by("b", is_b).one_or_more(), after_match="skip_to_next"',
            "a1 b1 b2 b3",
            ["a1 b1"],
        ),
    ],
)
def test_the_meaning_is_that_of_flink(code, letters, matches):
    assert sorted(of_letters(code, letters)) == sorted(matches)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('begin("a", is_a)', r"a single row is found by where\(\)"),
        (
            'begin("a", is_a).optional(), followed_by("b", is_b).optional()',
            "a match could begin with no row",
        ),
        (
            'begin("a", is_a).optional(), not_followed_by(is_x), followed_by("b", is_b)',
            "could begin with no row",
        ),
        ('begin("a", is_a), followed_by("a", is_b)', "step='a': a name is one step's"),
        (
            'begin("a b", is_a), followed_by("b", is_b)',
            "step='a b': a name is one step's and a Python identifier",
        ),
        (
            'begin("a", lambda row, b: 1), followed_by("b", is_b)',
            r"step='a', parameters=\['b'\]: .* by name \(a\)",
        ),
        (
            'begin("a", is_a), not_followed_by(lambda row, b: 1)',
            r"step='not_followed_by', parameters=\['b'\]",
        ),
        ('begin("a", is_a).one_or_more().until(lambda row, z: 1)', r"parameters=\['z'\]"),
        ('begin("a", is_a), not_followed_by(is_b).optional()', "no row of it is taken"),
        ('begin("a", is_a).times(3, 2)', "times=3 to 2"),
        ('begin("a", is_a).times(0, 2)', "times=0 to 2: .*; for none at all write optional"),
        ('begin("a", is_a), followed_by("b", is_b).consecutive()', "are for a step that repeats"),
        ('begin("a", is_a).until(is_b), followed_by("b", is_b)', "are for a step that repeats"),
        ('begin("a", is_a).times(2).greedy()', "takes exactly 2; leave it out"),
        (
            'begin("a", is_a).times(2), after_match="skip"',
            "after_match='skip': it is one of no_skip, ",
        ),
        (
            'begin("a", is_a).times(2), after_match="skip_past_last"',
            "skip_span=None: .*give for example",
        ),
        (
            'begin("a", is_a).times(2), skip_span=timedelta(hours=1)',
            "after_match='no_skip', skip_span=1:00:00",
        ),
        (
            'begin("a", is_a).times(2), after_match="skip_past_last", skip_span=timedelta(0)',
            "skip_span=0:00:00: a span is longer than zero",
        ),
        (
            'begin("a", is_a).times(2), timed_out=lambda b: {}',
            r"timed_out=.*the names of the steps \(a\)",
        ),
    ],
)
def test_a_pattern_that_cannot_be_is_refused_with_the_rule(code, words):
    with pytest.raises(DeclarationError, match=words):
        of_letters(code, "a1")


def test_a_parameter_with_a_default_is_no_step_and_the_time_of_a_match_is_some():
    assert of_letters(
        'begin("a", lambda row, least=2: row["value"] >= least).times(2)', "a1 a2 a3"
    ) == ["a2 a3"]
    with pytest.raises(
        DeclarationError, match="within=0:00:00: the time of a match is longer than zero"
    ):
        matched(A, B, rows=[], within=timedelta(0))


def test_skipping_begins_again_with_each_span():
    steps = (begin("a", kind("a")).times(2),)
    rows = [event(second, "a", second) for second in range(7)]

    def found(**skipping):
        pattern = Pattern(
            *steps,
            within=MINUTE,
            output="event_time TIMESTAMP, rows STRING",
            select=lambda a: {"rows": [seconds(each["event_time"]) for each in a]},
            **skipping,
        )
        return [made["rows"] for made in outputs(pattern, rows, pattern.reach, "event_time")]

    hour, three = timedelta(hours=1), timedelta(seconds=3)
    assert found(after_match="skip_past_last", skip_span=hour) == [[0, 1], [2, 3], [4, 5]]
    assert found(after_match="skip_past_last", skip_span=three) == [[0, 1], [2, 3], [4, 5], [5, 6]]
    later = rows[3:]  # as a range is read that begins at second 6: from the reach before it on
    assert [made for made in found(after_match="skip_past_last", skip_span=three) if made[1] >= 6]
    rows = later
    assert found(after_match="skip_past_last", skip_span=three)[-1] == [5, 6], "whatever was before"


PLAIN = (dict, list, tuple, str, int, bool, type(None), datetime)


def values(state) -> list:
    """Every value in a state, the state among them."""
    inner = state.values() if isinstance(state, dict) else state
    nested = isinstance(state, dict | list | tuple)
    return [state, *(value for each in inner for value in values(each))] if nested else [state]


@pytest.mark.parametrize(
    ("code", "most"),  # partial matches that are held, with 21 rows within the time
    [
        ('begin("a", is_a), followed_by("b", is_b)', 21),
        ('begin("a", is_a).one_or_more().greedy(), followed_by("b", is_b)', 21),
        ('begin("a", is_a).one_or_more(), followed_by("b", is_b)', 21 * 21 / 2 + 21),
        (
            'begin("a", is_a), followed_by("b", is_a).one_or_more(), followed_by("c", is_b)',
            21 * 21 / 2,
        ),
        (
            'begin("a", is_a).one_or_more(), followed_by("b", is_b), after_match="skip_past_last", '
            "skip_span=timedelta(seconds=50)",
            21 * 21 / 2 + 21,
        ),
    ],
)
def test_partial_matches_are_held_for_the_time_of_a_match_as_plain_values(code, most):
    pattern = eval(
        f"""Pattern({code}, within=timedelta(seconds=20), output="event_time TIMESTAMP", select=lambda **rows: {{}})""",
        NAMES | {"Pattern": Pattern},
    )
    state, held = {}, []
    for n in range(200):
        row = event(n, "", n) | {"letter": "a", "value": n}
        list(pattern.on_row(state, row, Timers()))
        held.append(sum(len(each["partials"]) for each in state["begun"]))
    assert max(held) <= most and held[-1] == held[-2] > 0, "no more with time"
    assert {type(value) for value in values(state)} <= set(PLAIN), "so a state can be kept"


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


def random_rows(rng: Random, most: int = 7) -> list[dict]:
    second, rows = 0, []
    for n in range(rng.randrange(most + 1)):
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
    rng, occurred = Random(seed), Counter()
    for _ in range(250):
        pattern, steps = random_pattern(rng)
        rows = random_rows(rng)
        there = [(r["n"], seconds(r["event_time"]), r["kind"], r["value"]) for r in rows]
        found = sorted(given(pattern, rows), key=repr)
        assert found == sorted(expected(pattern, steps, rows), key=repr), (
            pattern.within,
            pattern.after_match,
            pattern.skip_span,
            steps,
            there,
        )
        matches = sum(what == "rows" for _, what, _ in found)
        everything, _ = Oracle(steps, rows, pattern.within).results("no_skip", None)
        occurred.update(
            matched=matches > 0,
            timed_out=len(found) > matches,
            skipped=len(everything) > matches,
            greedy=matches > 0 and any(step.is_greedy for step in steps),
            until=matches > 0 and any(step.stop for step in steps),
            absent=matches > 0 and any(step.kind == "not_followed_by" for step in steps),
        )
    assert min(occurred[what] for what in ("matched", "timed_out")) > 60, occurred
    assert min(occurred.values()) > 3, occurred


def test_a_range_is_decided_by_the_rows_of_its_reach():
    rng, decided = Random(0), Counter()
    for _ in range(500):
        pattern, _ = random_pattern(rng)
        rows = random_rows(rng, most=30)
        whole = given(pattern, rows)
        start, end = at(rng.randrange(20)), at(rng.randrange(20, 40))
        near = [row for row in rows if start - pattern.reach <= row["event_time"] < end]
        inside = [made for made in whole if start <= made[0] < end]
        assert [made for made in given(pattern, near) if start <= made[0] < end] == inside
        decided.update({pattern.after_match: len(inside)} if len(near) < len(rows) else {})
    assert min(decided[each] for each in get_args(AfterMatch)) > 50, decided


def test_the_steps_of_a_pattern_are_in_the_code_version_of_its_table():
    dips, guesses = (
        code_version.written(t.transformation)
        for t in (tables.price_dips, tables.guessed_passwords)
    )
    assert set(dips) == {
        "function",
        "constant DIP",
        "function _falls",
        "function _rises",
        "function _dip",
    }
    assert "begin('start', lambda row: True)" in dips["constant DIP"]
    assert set(guesses) == {"function", "constant GUESS", "function _guess"}
    constants = code_version.code_of(tables.guessed_passwords.transformation).constants
    assert any("times_or_more(3)" in text for text in constants.values())
