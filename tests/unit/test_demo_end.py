"""The end of the demo: all that it has started."""

import pytest
from rich.console import Console

from assets.demo import _Demo
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.stopping import Stop


def test_what_cannot_be_ended_leaves_nothing_behind_it_running(tmp_path):
    demo, ended = _Demo(Settings(root=tmp_path), Console(quiet=True), Stop()), []

    def fails() -> None:
        raise JobError("pipeline=sensors: it has not stopped")

    demo.running = {
        "jobs": [fails, lambda: ended.append("job")],
        "broker": [lambda: ended.append("broker")],
    }
    with pytest.raises(JobError, match="jobs: JobError: pipeline=sensors: it has not stopped"):
        demo.end("producers", "jobs", "broker")
    assert ended == ["job", "broker"] and not demo.running
