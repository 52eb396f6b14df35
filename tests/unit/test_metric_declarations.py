"""Metrics as they are declared and documented."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from lakehouse import session, tumbling, window_table
from lakehouse.errors import DeclarationError
from lakehouse.reconcile.verdicts import Found, Outcomes
from streaming_jobs.exporters.metric_families import DECLARED
from support import ROOT


def test_of_a_range_that_differs_what_is_reconciled_piece_by_piece_is_taken_out():
    begin = datetime(2026, 1, 1, tzinfo=UTC)

    def at(hour: int) -> datetime:
        return begin + timedelta(hours=hour)

    outcomes = Outcomes()
    outcomes.add("DIFFERENT", (at(0), at(3)), at(10), "rows missing 1")
    outcomes.add("DIFFERENT", (at(0), at(4)), at(11), "rows missing 1")
    assert outcomes.different == {(at(0), at(4)): Found(at(10), "rows missing 1")}, (
        "found again, with an hour that is well"
    )
    outcomes.add("EQUAL", (at(1), at(2)), at(12))
    assert set(outcomes.different) == {(at(0), at(1)), (at(2), at(4))}
    outcomes.add("EQUAL", (at(2), at(5)), at(13))
    outcomes.add("EQUAL", (at(0), at(1)), at(14))
    assert not outcomes.different


def totals(orders): ...


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"window": session("1 minute"), "keys": ["shop"]}, "only windows of fixed size"),
        ({"window": tumbling("1 minute"), "keys": ["shop", "a shop"]}, "column='a shop'"),
    ],
)
def test_metrics_that_cannot_be_shown_are_refused(declared, said):
    with pytest.raises(DeclarationError, match=said):
        window_table(layer="gold", metrics=["cents"], **declared)(totals)


def test_metrics_decide_no_row():
    window = {"layer": "gold", "window": tumbling("1 minute"), "keys": ["shop"]}
    assert (
        window_table(**window, metrics=["cents"])(totals).code_version
        == window_table(**window)(totals).code_version
    )


def test_the_docs_list_every_metric_as_it_is():
    rows = re.findall(r"^\| `(lakehouse_\w+)` \| ([\w ]+) \| (.*?) \| (.*) \|$",
                      (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE)  # fmt: skip
    assert [(name, help) for name, _, _, help in rows] == [(d.name, d.help) for d in DECLARED]
    for (_, kind, labels, _), declared in zip(rows, DECLARED, strict=True):
        more = (
            [declared.name]
            if declared.states
            else [n for n in declared.labels if n not in ("pipeline", "table")]
        )
        assert re.findall(r"`(\w+)`", labels) == more
        assert all(state in labels for state in declared.states)
        assert kind == (
            "state set"
            if declared.states
            else "counter"
            if declared.name.endswith("_total")
            else "gauge"
        )
