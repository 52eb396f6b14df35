"""A run of many random stories fails if something that it is to show never came up, and names it; a small run only says so."""

from stories import machine, tally
from stories.__main__ import _SHARES, lacking
from stories.hostile_tables import FORMATS, HOSTILE
from stories.suites import SUITES

EVERYTHING = [
    {
        "suite": suite,
        "occurred": dict.fromkeys(
            (
                *SUITES[suite].shown,
                *tally.DISTURBANCES,
                *tally.ENGINES,
                tally.DELETED,
                tally.COMPARED,
                tally.EARLY,
            ),
            1,
        ),
    }
    for suite in _SHARES
] + [
    {"suite": "machine", "occurred": dict.fromkeys(machine.RULES, 1)},
    {
        "suite": HOSTILE,
        "occurred": {
            f"{format} of {kind}": 1 for format, (_, kinds) in FORMATS.items() for kind in kinds
        },
    },
]


def without(name: str, suite: str = "") -> list[dict]:
    return [
        line
        | {
            "occurred": {
                each: times
                for each, times in line["occurred"].items()
                if each != name or suite not in ("", line["suite"])
            }
        }
        for line in EVERYTHING
    ]


def test_of_a_run_in_which_all_came_up_nothing_is_lacking():
    assert lacking(EVERYTHING, 500, 10) == ([], [])


def test_each_kind_that_never_came_up_is_named_and_fails_a_run_of_many():
    for suite in _SHARES:
        for name in SUITES[suite].shown:
            lines = without(name, suite)
            assert lacking(lines, 500, 10) == ([f"{name} ({suite})"], [])
            assert lacking(lines, 100, 10) == ([], [f"{name} ({suite})"])
    for engine in (*tally.ENGINES, tally.EARLY):
        assert lacking(without(engine), 500, 0)[0] == [f"{engine} (any suite)"]
    for format, (_, kinds) in FORMATS.items():
        lines = without(f"{format} of {kinds[-1]}", HOSTILE)
        assert lacking(lines, 500, 0)[0] == [f"{kinds[-1]} (hostile {format})"]
    assert lacking(without("is_merged"), 0, 10)[0] == ["is_merged (machine)"]
    assert lacking(without("is_merged"), 500, 5) == ([], ["is_merged (machine)"])


def test_a_disturbance_that_never_occurred_fails_a_run_of_any_size():
    assert lacking(without("late rows"), 10, 0)[0] == ["late rows"]
    assert lacking(EVERYTHING, 0, 0) == ([], [])
