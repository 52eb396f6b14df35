"""What the library reports: its level, text or JSON."""

import json
import logging
from dataclasses import replace

import pytest

from lakehouse import logs
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings


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
