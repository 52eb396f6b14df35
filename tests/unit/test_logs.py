"""What the library reports: its level, text or JSON."""

import json
import logging
from dataclasses import replace

import pytest

from lakehouse import logs
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings
from streaming_jobs import control_loop, desired, progress
from streaming_jobs.desired import Event
from streaming_jobs.job_logs import log_path


@pytest.fixture
def configured():
    yield logs.configure
    logs.configure(Settings())


def test_lines_of_text_name_a_level_from_warning_on_and_those_of_a_job_the_time(configured, capfd):
    log = logging.getLogger("lakehouse.storage")
    configured(Settings())
    log.debug("nobody asked")
    log.info("it began")
    log.warning("a file is left out")
    assert capfd.readouterr().err == "it began\nwarning: a file is left out\n"
    configured(Settings(log_level="error"), timed=True)
    log.warning("a file is left out")
    log.error("it ended")
    at, _, rest = capfd.readouterr().err.partition(" ")
    assert rest == "error: it ended\n" and at.startswith("20") and at.endswith("Z")


def test_lines_of_json_are_objects_and_a_failure_has_its_traceback(configured, capfd):
    configured(Settings(log_format="json"))
    try:
        raise ValueError("torn")
    except ValueError:
        logging.getLogger("streaming_jobs.driver").exception("it ended")
    (line,) = capfd.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == (
        "error",
        "streaming_jobs.driver",
        "it ended",
    )
    assert found["traceback"].splitlines()[-1] == "ValueError: torn"


@pytest.mark.parametrize("name", ["log_level", "log_format"])
def test_another_level_or_format_is_refused(name):
    with pytest.raises(SettingsError, match=f"{name}='loud': one of "):
        replace(Settings(), **{name: "loud"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"orders": 3}', '{"orders": 3}'),
        ('{"message": ""}', '{"message": ""}'),
        ('{"message": 3}', '{"message": 3}'),
        ('{"message": "it ended", "traceback": "File\\nValueError: torn"}', "ValueError: torn"),
        ("2026-01-01T00:00:00.000+00:00 error: it ended", "it ended"),
        ("it ended\n2026-01-01T00:00:00.000Z progress: table=clicks: running", "it ended"),
    ],
)
def test_whatever_a_process_printed_last_is_why_it_ended(tmp_path, line, said):
    settings = Settings(root=tmp_path)
    log_path(settings, "sensors").parent.mkdir(parents=True)
    log_path(settings, "sensors").write_text(f"before\n{line}\n\n")
    desired.note(settings, "sensors", Event(progress.now(), "started", "a test", 1, 1.0))
    seen = control_loop.observe(settings, "sensors")
    assert (seen.state, seen.error) == ("failed", said)
