"""The end of the demo: all that it has started, and the verdicts of its reconciliation."""

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from assets.demo import _verdict
from assets.parts import Parts
from lakehouse.cli.console import print_columns
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from lakehouse.storage.log.certificates import Certificate


def test_what_cannot_be_ended_leaves_nothing_behind_it_running(tmp_path):
    parts, ended = Parts(Settings(root=tmp_path), Console(quiet=True), Stop(), dict), []

    def fails() -> None:
        raise JobError("pipeline=sensors: it has not stopped")

    parts.running = {
        "jobs": [fails, lambda: ended.append("job")],
        "broker": [lambda: ended.append("broker")],
    }
    with pytest.raises(JobError, match="jobs: JobError: pipeline=sensors: it has not stopped"):
        parts.end("producers", "jobs", "broker")
    assert ended == ["job", "broker"] and not parts.running


@pytest.mark.parametrize(
    ("verdict", "rows", "shown", "colour"),
    [
        ("EQUAL", 3, "EQUAL", "32"),
        ("EQUAL", 0, "EQUAL, no row compared", "31"),
        ("DIFFERENT", 0, "DIFFERENT", "31"),
    ],
)
def test_a_verdict_of_no_rows_is_shown_as_no_success(
    monkeypatch, capsys, verdict, rows, shown, colour
):
    at: Any = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = Certificate("t", at, at, verdict, rows, rows, 0, "", "", at, 1, {}, "", at, 0.1)
    monkeypatch.setattr(
        "lakehouse.cli.console.out", lambda: Console(force_terminal=True, color_system="standard")
    )
    print_columns([certificate], {"verdict": _verdict})
    assert f"{colour}m{shown}" in capsys.readouterr().out
