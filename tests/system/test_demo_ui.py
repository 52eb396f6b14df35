"""The demo calls its UI up when it answers, and says so when it does not come up."""

import socket
import sys
import threading
from functools import partial

import pytest
from dagster import DagsterInstance
from rich.console import Console

from assets.parts import Parts, answers
from assets.ui import dagster_environment
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from lakehouse.storage.disk import layout

SLOW = """
import http.server, sys, time
time.sleep(2)
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


@pytest.fixture
def demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what the process serves
    (tmp_path / "server_info").write_text("{}")
    settings, console = Settings(root=tmp_path / "root"), Console(record=True, width=200)
    parts = Parts(settings, console, Stop(), lambda: dagster_environment(settings))
    yield parts
    parts.end("ui")


def start(demo: Parts, script: str) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", script, str(port)]
    demo.process(
        "ui", "the UI", command, "dagster.log", partial(demo.await_page, address, "dagster.log")
    )
    return f"{address}/server_info"


def test_it_is_up_when_it_answers(demo):
    assert answers(start(demo, SLOW))
    assert "✓ the UI" in demo.console.export_text()


def test_a_ui_that_ends_is_an_error_that_names_its_log(demo):
    with pytest.raises(
        JobError, match=r"its process ended while it started \(exit code 3\).*dagster\.log"
    ):
        start(demo, "raise SystemExit(3)")
    assert "✓" not in demo.console.export_text()


def test_who_stops_the_demo_does_not_wait_for_the_ui(demo):
    threading.Timer(1, demo.stopping.set).start()
    start(demo, "import time; time.sleep(600)")


def test_dagster_takes_the_settings_that_ship_and_keeps_those_of_the_user(tmp_path):
    settings = Settings(root=tmp_path / "root")
    environment = dagster_environment(settings)
    with DagsterInstance.from_config(environment["DAGSTER_HOME"]) as instance:
        queue = instance.get_concurrency_config().run_queue_config
        assert (queue.max_concurrent_runs, queue.max_user_code_failure_retries) == (4, 10)
        assert instance.run_monitoring_start_timeout_seconds == 600
        assert not instance.telemetry_enabled and not instance.nux_enabled
        assert instance.is_persistent
    written = layout.dagster_home(settings) / "dagster.yaml"
    written.write_text("telemetry: {enabled: false}\n")
    dagster_environment(settings)
    assert written.read_text() == "telemetry: {enabled: false}\n"
