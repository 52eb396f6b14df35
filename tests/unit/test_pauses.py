"""For how long a stream may rest, by the configurations of its topics."""

import re
from datetime import UTC, datetime

import pytest

from lakehouse.declare import catalog
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.stream import pauses

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
DEFAULT = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "messages that come from now on until 2026-01-12 09:30+00:00, and earlier ones less long: start"),
        ({"retention.ms": "-1"}, "it keeps all messages"),
        ({"retention.ms": "-1", "retention.bytes": "1000000"}, "it keeps 1,000,000 bytes of each partition: start"),
        ({"retention.bytes": "5"}, "less long; it keeps 5 bytes of each partition: start"),
        ({"cleanup.policy": "compact"}, "the newest message of each key, and earlier ones may go"),
        ({"cleanup.policy": "compact,delete"}, "2026-01-12 09:30+00:00, .* newest message of each key alone: start"),
    ],
)  # fmt: skip
def test_a_remark_says_what_a_topic_keeps(changed, said):
    assert re.search(re.escape(said).replace(r"\.\*", ".*"), pauses.remark(DEFAULT | changed, NOW))


def test_a_broker_that_does_not_answer_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(pauses, "_WITHIN", 0.5)
    settings = Settings(
        root=tmp_path,
        tables=("lakehouse.examples.sensors.tables",),
        bootstrap_servers="127.0.0.1:1",
    )
    (line,) = pauses.remarks(Lakehouse(settings, catalog.load(settings)), "sensors", NOW)
    assert line.startswith("sensor-readings: it is not known for how long it keeps what")
