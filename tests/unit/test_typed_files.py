"""A small file with a value of another type is named in one line, with the field, the value, the rule and what follows."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets import sensors
from batch_jobs import repair
from lakehouse.declare import catalog
from lakehouse.declare.targets import Position
from lakehouse.errors import LakehouseError
from lakehouse.reconcile import invalidation
from lakehouse.runtime import kafka_address
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.keyed import lookup_answers, state_files
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import (
    comparisons,
    published_position,
    reconcile_attempts,
    report_files,
    table_content,
)
from lakehouse.storage.position import checkpoints, declared_state, handovers, schemas, table_state
from lakehouse.storage.versions import fork_guard, interruptions
from lakehouse.stream.reading import offsets
from streaming_jobs import progress
from streaming_jobs.supervision import desired
from streaming_jobs.supervision.holders import Holder, holder
from support.observed import status_of

KNOWN = catalog.load(Settings(tables=("lakehouse.examples.sensors.tables",)))
TABLE = KNOWN.table("sensor_averages")
DAY = "2026-01-01"
AT = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
Reader = Callable[[Settings], object]
Place = Callable[[Settings], Path]


def note(name: Any) -> Place:
    return lambda settings: layout.note(settings, TABLE, name)


def job(name: Any) -> Place:
    return lambda settings: layout.job_file(settings, "sensors", name)


FILES: dict[str, tuple[Place, Reader, dict[str, Any], tuple[str, Any, str]]] = {
    "report": (
        lambda s: layout.report_path(s, TABLE, DAY) / "current.json",
        lambda s: report_files.kept(s, TABLE, DAY),
        asdict(report_files.Kept(1, "rows", "code")),
        ("version", "x", "is no whole number"),
    ),
    "upgrade": (
        lambda s: layout.upgrade(s, TABLE.name, "upgrade.json"),
        lambda s: interruptions.upgrade(s, TABLE.name),
        asdict(interruptions.Upgrade("filled", AT, "v")),
        ("generation", "x", "is no whole number"),
    ),
    "upgrade's state": (
        lambda s: layout.upgrade(s, TABLE.name, "upgrade.json"),
        lambda s: interruptions.upgrade(s, TABLE.name),
        asdict(interruptions.Upgrade("filled", AT, "v")),
        ("state", "half", "is no 'filling' or"),
    ),
    "schemas": (
        note("schemas.jsonl"),
        lambda s: schemas.kept(s, TABLE),
        asdict(schemas.Schema(1, "AVRO", "{}")),
        ("id", "x", "is no whole number"),
    ),
    "fork": (
        layout.forked,
        lambda s: fork_guard.check(s, "t"),
        asdict(fork_guard.Fork("root", ("u",))),
        ("targets", "abc", "is no list of text"),
    ),
    "restoring": (
        layout.restoring,
        interruptions.begun,
        asdict(interruptions.Restoring("one", "")),
        ("savepoint", 1, "is no text"),
    ),
    "published": (
        lambda s: layout.published(s, "t"),
        lambda s: published_position.noted(s, "t"),
        asdict(Position("id", 1)),
        ("version", 1.5, "is no whole number"),
    ),
    "states": (
        lambda s: layout.table_path(s, TABLE, "state") / "20260101T000000.000000.json",
        lambda s: state_files.kept(s, TABLE),
        {"at": AT, "folder": "f", "keys": 1, "covers": {}, "code_version": "v", "schema": "{}"},
        ("covers", {"t": "x"}, "is no object of whole number"),
    ),
    "compared": (
        lambda s: layout.upgrade(s, TABLE.name, "compared.jsonl"),
        lambda s: comparisons.noted(s, TABLE),
        asdict(comparisons.Compared(DAY)),
        ("examples", "abc", "is no list of text"),
    ),
    "handover": (
        note("handover.json"),
        lambda s: handovers.handover_of(s, TABLE),
        {"frontier": AT, "input": "t", "version": 1, "until": 2, "inputs": {}, "code_version": "v", "at": AT},
        ("frontier", 5, "is no instant"),
    ),
    "content": (
        note("content.json"),
        lambda s: table_content.content(s, TABLE),
        asdict(table_content._Summary("3 5", {}, table_content.Content(3, {}))),
        ("folders", {"_delta_log": 5}, "is no object of text"),
    ),
    "declared": (
        note("declared.json"),
        lambda s: declared_state.check(Lakehouse(s, KNOWN), [TABLE]),
        asdict(table_state.BegunWith(AT, {"layer": "gold"})),
        ("declaration", {"layer": 1}, "is no object of text"),
    ),
    "reconciling": (
        note("reconciling.json"),
        lambda s: reconcile_attempts.failed(s, TABLE),
        asdict(reconcile_attempts.Attempt(AT, "")),
        ("why", 1, "is no text"),
    ),
    "reconciliation": (
        note("reconciliation.json"),
        lambda s: invalidation.looked_at(s, TABLE),
        asdict(invalidation.Looks({"t": 1})),
        ("versions", {"t": "x"}, "is no object of whole number"),
    ),
    "topics": (
        note("topics.json"),
        lambda s: offsets.known(s, TABLE),
        asdict(offsets.Topics(gaps=(offsets.Gap("t", "0", 1, 2),))),
        ("ids", {"t": 5}, "is no object of text"),
    ),
    "a gap of topics": (
        note("topics.json"),
        lambda s: offsets.known(s, TABLE),
        asdict(offsets.Topics()),
        ("gaps", [{"topic": "t", "partition": 0, "since": 1, "until": 2}], "gaps.partition=0 is no text"),
    ),
    "generations": (
        note("generations.jsonl"),
        lambda s: checkpoints.beginning(s, TABLE),
        asdict(checkpoints.Beginning(1, (0, 3), "why", DAY)),
        ("after", [1], "is no list of whole number, whole number or null"),
    ),
    "repairs": (
        note("repairs.jsonl"),
        lambda s: list(repair.repairs(s, TABLE)),
        {"table": "t", "partition": DAY, "version": 1, "cause": "late rows", "rows": 3, "verdict": "EQUAL", "at": AT},
        ("at", 1, "is no instant"),
    ),
    "broker": (
        lambda s: layout.broker(s) / "broker.json",
        kafka_address.last,
        {"pid": 1, "start_time": 1.0, "bootstrap_servers": "a:1", "log": ""},
        ("pid", "1", "is no whole number"),
    ),
    "epoch": (
        job("epoch.json"),
        lambda s: holder(job("epoch.json")(s)),
        asdict(Holder(1, 2, 1.0, AT)),
        ("place", {"host": 5}, "place.host=5 is no text"),
    ),
    "status": (
        job("status.json"),
        lambda s: progress.last_word(s, "sensors"),
        asdict(status_of(1, 1.0)),
        ("heartbeat", 5, "is no text"),
    ),
    "desired": (
        job("desired.json"),
        lambda s: desired.read(s, "sensors"),
        asdict(desired.Desired("running", AT, "a test")),
        ("by", 5, "is no text"),
    ),
}  # fmt: skip


def put(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(value)}\n")


@pytest.mark.parametrize("name", FILES)
def test_a_value_of_another_type_is_named_with_its_file_and_the_rule(tmp_path, capfd, name):
    place, read, whole, (field, value, rule) = FILES[name]
    settings = Settings(root=tmp_path / "root", tables=("lakehouse.examples.sensors.tables",))
    path = place(settings)
    assert field in whole
    put(path, whole)
    read(settings)
    assert "is no" not in capfd.readouterr().err, "a whole one is read"
    put(path, whole | {field: value})
    try:
        told = str(read(settings))
    except LakehouseError as err:
        told = str(err)
    told += capfd.readouterr().err
    assert "Traceback" not in told
    shown = rule if rule.startswith(field) else f"{field}={value!r} {rule}"
    lines = [line for line in told.splitlines() if shown in line]
    assert len(lines) == 1, told
    assert str(path) in lines[0] or path.name in lines[0]


def test_a_list_of_another_type_counts_as_gone(tmp_path, capfd):
    settings = Settings(root=tmp_path)
    for value in ([1], "abc", {"a": 1}):
        put(note("asked_again.json")(settings), value)
        assert lookup_answers.asked_again(settings, TABLE) == []
        assert f"value={value!r} is no list of text" in capfd.readouterr().err


CURSORS = {
    "closed_partitions": '{"sensor_averages": 5}',
    "report_written_tables": '{"sensor_averages": "yesterday"}',
    "streaming_job_states": '{"what": {}, "when": {"sensors": 5}}',
}


@pytest.mark.parametrize("name", CURSORS)
@pytest.mark.parametrize("cursor", ["", "[]", "{", "7"])
def test_a_cursor_of_a_sensor_that_is_another_is_said_and_begins_again(
    tmp_path, capfd, name, cursor
):
    settings = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    (sensor,) = (each for each in sensors.sensors(settings, KNOWN) if each.name == name)
    given = cursor or CURSORS[name]
    tick = sensor.evaluate_tick(dg.build_sensor_context(cursor=given))
    assert json.loads(tick.cursor or "null") in ({}, {"what": {}, "when": {}})
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "cursor=" in line]
    assert (
        f"sensor={name}, cursor=" in line
        and "it is set again, and all is reported once more" in line
    )
