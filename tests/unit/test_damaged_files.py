"""Each small file below the root, gone or damaged, and what its reader does.

The table of docs/operate/troubleshooting.md is the one measured here.

Files of a checkpoint are in tests/spark/test_damaged_checkpoints.py.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from batch_jobs import repair
from lakehouse.declare import catalog
from lakehouse.declare.targets import Position
from lakehouse.errors import LakehouseError
from lakehouse.reconcile import invalidation
from lakehouse.runtime import kafka_address
from lakehouse.settings import Settings
from lakehouse.storage.disk import files, layout
from lakehouse.storage.disk.files import append_line, replace_file
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.keyed import lookup_answers, state_files
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import (
    commit_log,
    comparisons,
    published_position,
    reconcile_attempts,
    table_content,
)
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import (
    checkpoints,
    declared_state,
    handovers,
    schemas,
    table_state,
)
from lakehouse.storage.versions import fork_guard, interruptions, savepoints
from lakehouse.stream import handover
from lakehouse.stream.reading import offsets
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, desired, lease
from streaming_jobs.supervision.holders import Holder, holder
from support import ROOT
from support.observed import status_of

KNOWN = catalog.load(Settings(tables=("lakehouse.examples.sensors.tables",)))
TABLE = KNOWN.table("sensor_averages")
WHOLE = b'{"a": {"b": [1, 2, 3]}, "c": "0123456789"}'
SENSORS = ("lakehouse.examples.sensors.tables",)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT = NOON.isoformat()
COMMIT = Commit(TABLE.name, "stream", 1, 0, 0, NOON, "v")
Older = Callable[[Settings, Path], None]
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda content: None,
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x07garbage\n" * 40,
    "cut off": lambda content: content[: len(content) // 2],
}


def note(name: str) -> Callable[[Settings], Path]:
    return lambda settings: layout.note(settings, TABLE, name)


def job(name: str) -> Callable[[Settings], Path]:
    return lambda settings: layout.job_file(settings, "sensors", name)


READERS: dict[str, tuple[Callable[[Settings], Path], Callable[[Settings], object]]] = {
    "_commit_log/<table>.jsonl": (
        lambda s: layout.commit_log(s, TABLE),
        lambda s: list(CommitLog(s, TABLE).lines()),
    ),
    "_commit_log/<table>.asked_again.json": (
        note("asked_again.json"),
        lambda s: lookup_answers.asked_again(s, TABLE),
    ),
    "_commit_log/<table>.content.json": (
        note("content.json"),
        lambda s: table_content.content(s, TABLE),
    ),
    "_commit_log/<table>.declared.json": (
        note("declared.json"),
        lambda s: declared_state.check(Lakehouse(s, KNOWN), [TABLE]),
    ),
    "_commit_log/<table>.dropped.jsonl": (
        note("dropped.jsonl"),
        lambda s: commit_log.dropped_by_spark(s, TABLE, None),
    ),
    "_commit_log/<table>.generations.jsonl": (
        note("generations.jsonl"),
        lambda s: checkpoints.beginning(s, TABLE),
    ),
    "_commit_log/<table>.handover.json": (
        note("handover.json"),
        lambda s: handovers.handover_of(s, TABLE),
    ),
    "_commit_log/<table>.reconciliation.json": (
        note("reconciliation.json"),
        lambda s: invalidation.looked_at(s, TABLE),
    ),
    "_commit_log/<table>.reconciling.json": (
        note("reconciling.json"),
        lambda s: reconcile_attempts.failed(s, TABLE),
    ),
    "_commit_log/<table>.repairs.jsonl": (
        note("repairs.jsonl"),
        lambda s: list(repair.repairs(s, TABLE)),
    ),
    "_commit_log/<table>.schemas.jsonl": (note("schemas.jsonl"), lambda s: schemas.kept(s, TABLE)),
    "_commit_log/<table>.topics.json": (note("topics.json"), lambda s: offsets.known(s, TABLE)),
    "_jobs/<pipeline>/desired.json": (job("desired.json"), lambda s: desired.read(s, "sensors")),
    "_jobs/<pipeline>/history.json": (job("history.json"), lambda s: desired.history(s, "sensors")),
    "_jobs/<pipeline>/epoch.json": (job("epoch.json"), lambda s: holder(job("epoch.json")(s))),
    "_jobs/<pipeline>/status.json": (job("status.json"), lambda s: progress.read(s, "sensors")),
    "_published/<target>.json": (
        lambda s: layout.published(s, "t"),
        lambda s: published_position.noted(s, "t"),
    ),
    "_savepoints/<name>/savepoint.json": (
        lambda s: layout.savepoint_file(s, "one", "savepoint.json"),
        lambda s: savepoints.savepoint(s, "one"),
    ),
    "_savepoints/restoring.json": (layout.restoring, interruptions.begun),
    "_savepoints/forked.json": (layout.forked, lambda s: fork_guard.check(s, "t")),
    "_upgrades/<table>/upgrade.json": (
        lambda s: layout.upgrade(s, TABLE.name, "upgrade.json"),
        lambda s: interruptions.upgrade(s, TABLE.name),
    ),
    "_upgrades/<table>/compared.jsonl": (
        lambda s: layout.upgrade(s, TABLE.name, "compared.jsonl"),
        lambda s: comparisons.noted(s, TABLE),
    ),
    "_broker/broker.json": (lambda s: layout.broker(s) / "broker.json", kafka_address.running),
    "<layer>/<table>__state/<instant>.json": (
        lambda s: layout.table_path(s, TABLE, "state") / "20260101T000000.000000.json",
        lambda s: state_files.kept(s, TABLE),
    ),
}


SUMMARY = asdict(table_content._Summary("3 5", {"_delta_log": "5 5"}, table_content.Content(3, {})))


def older_note(value: object) -> Older:
    """Has the file hold what it held before; its reader is asked."""

    def restore(settings: Settings, path: Path) -> None:
        replace_file(path, value)

    return restore


def older_lines(value: Mapping[str, Any]) -> Older:
    """Has the file lack its last line."""

    def restore(settings: Settings, path: Path) -> None:
        append_line(path, json.dumps(value))

    return restore


def older_declaration(settings: Settings, path: Path) -> None:
    """The table has read, by another declaration than the one it had then."""
    begin_table(settings)
    then = declared_state.declaration(KNOWN, TABLE) | {"delay": "1:00:00"}
    replace_file(path, asdict(table_state.BegunWith(AT, then)))


def older_handover(settings: Settings, path: Path) -> None:
    begin_table(settings)
    kept = asdict(handovers.Handover(NOON, "t", 2, 3, {}, "v", NOON))
    now = kept | {"frontier": AT, "at": AT}
    declared = table_state.BegunWith(AT, declared_state.declaration(KNOWN, TABLE), now)
    replace_file(layout.note(settings, TABLE, "declared.json"), asdict(declared))
    replace_file(path, now | {"frontier": "2025-12-31T00:00:00+00:00"})


def begin_table(settings: Settings) -> None:
    """The table has a commit of its stream."""
    mark = {"app": f"{TABLE.name}:stream:1", "batch": 0, "inputs": {}}
    write_deltalake(
        str(layout.table_path(settings, TABLE)), pa.table({"x": [1]}), mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(mark)}),
    )  # fmt: skip


def older_ids(settings: Settings, path: Path) -> None:
    """The table has read the topic that was created again, whose id its last commit has."""
    inputs = {"t": {"0": 5}}
    mark = {"app": f"{TABLE.name}:stream:1", "batch": 0, "inputs": inputs, "topics": {"t": "new"}}
    write_deltalake(
        str(layout.table_path(settings, TABLE)), pa.table({"x": [1]}), mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(mark)}),
    )  # fmt: skip
    offsets.note(settings, TABLE, offsets.Topics({"t": "old"}))


def older_wish(settings: Settings, path: Path) -> None:
    """The job was stopped after it was asked for."""
    first = desired.wish(settings, "sensors", "running", "a test")
    before = path.read_bytes()
    while progress.now() == first.since:  # wishes of one millisecond have no order
        pass
    desired.wish(settings, "sensors", "stopped", "a test")
    desired.note(settings, "sensors", desired.Event(progress.now(), "stopping", "a test"))
    path.write_bytes(before)


def older_holder(settings: Settings, path: Path) -> None:
    """The epoch goes on behind that of the last status."""
    progress.write(settings, status_of(1, 1.0, state="stopped", epoch=7))
    replace_file(path, asdict(Holder(3, 1, 1.0, AT)))


def next_epoch(settings: Settings) -> str:
    with lease.acquire(settings, "sensors") as held:
        assert held.epoch == 8, "no epoch comes again"
    return ""


def older_savepoint(settings: Settings, path: Path) -> None:
    """The savepoint was dropped, and made again when the table had another row."""
    lakehouse = Lakehouse(replace(settings, tables=SENSORS), KNOWN)
    begin_table(settings)
    path.parent.rmdir()
    savepoints.create(lakehouse, "one")
    before = path.read_bytes()
    savepoints.drop(settings, "one")
    begin_table(settings)
    savepoints.create(lakehouse, "one")
    path.write_bytes(before)


OLDER: dict[str, tuple[Older, Callable[[Settings], object] | None]] = {
    "_commit_log/<table>.jsonl": (
        lambda s, path: append_line(path, encoded(COMMIT)),
        None,
    ),
    "_commit_log/<table>.asked_again.json": (older_note([]), None),
    "_commit_log/<table>.content.json": (older_note(SUMMARY), None),
    "_commit_log/<table>.declared.json": (older_declaration, None),
    "_commit_log/<table>.dropped.jsonl": (older_lines({"rows": 1, "at": AT}), None),
    "_commit_log/<table>.generations.jsonl": (
        older_lines(asdict(checkpoints.Beginning(2, (1, 5), "why", AT))),
        None,
    ),
    "_commit_log/<table>.handover.json": (
        older_handover,
        lambda s: handover.check(
            Lakehouse(s, KNOWN), table_state.read(Lakehouse(s, KNOWN), TABLE)
        ),
    ),
    "_commit_log/<table>.reconciliation.json": (
        older_note(asdict(invalidation.Looks({"t": 1}))),
        None,
    ),
    "_commit_log/<table>.reconciling.json": (older_note(asdict(reconcile_attempts.Attempt(AT, "", "x"))), None),
    "_commit_log/<table>.repairs.jsonl": (
        older_lines({"table": "t", "partition": "p", "version": 1, "cause": "c", "rows": 3, "verdict": "EQUAL", "at": AT}),
        None,
    ),
    "_commit_log/<table>.schemas.jsonl": (older_lines(asdict(schemas.Schema(1, "AVRO", "{}"))), None),
    "_commit_log/<table>.topics.json": (
        older_ids,
        lambda s: offsets.check_ids(s, TABLE, {"t": "new"}),
    ),
    "_jobs/<pipeline>/desired.json": (older_wish, lambda s: desired.lost(s, "sensors")),
    "_jobs/<pipeline>/history.json": (older_note([]), None),
    "_jobs/<pipeline>/epoch.json": (older_holder, next_epoch),
    "_jobs/<pipeline>/status.json": (older_note(asdict(status_of(1, 1.0))), None),
    "_published/<target>.json": (older_note(asdict(Position("id", 1))), None),
    "_savepoints/<name>/savepoint.json": (older_savepoint, lambda s: savepoints.verify(s, "one")),
    "_savepoints/restoring.json": (
        older_note(asdict(interruptions.Restoring("one", ""))),
        interruptions.check,
    ),
    "_savepoints/forked.json": (older_note(asdict(fork_guard.Fork("root", ()))), None),
    "_upgrades/<table>/upgrade.json": (older_note(asdict(interruptions.Upgrade("filled", AT, "v"))), None),
    "_upgrades/<table>/compared.jsonl": (older_lines(asdict(comparisons.Compared("p"))), None),
    "_broker/broker.json": (
        older_note(asdict(kafka_address.Broker(1, 1.0, "a:1", "", "another boot"))),
        None,
    ),
    "<layer>/<table>__state/<instant>.json": (
        older_note({"at": AT, "folder": "gone", "keys": 1, "covers": {}, "code_version": "v", "schema": "{}"}),
        None,
    ),
}  # fmt: skip
"""How each file comes to be an older copy, whole, and who is asked then, if not its reader."""


def outcome(
    settings: Settings, path: Path, read: Callable[[Settings], object], capfd, *names: str
) -> str:
    """Returns what a reader does about the file as it is. `names`: by which a refusal may speak of it besides its path."""
    capfd.readouterr()
    try:
        answer = read(settings)
    except LakehouseError as err:
        assert any(name in str(err) for name in (str(path), path.parent.name, *names)), err
        return "refused"
    told = f"{capfd.readouterr().err} {answer}"
    if files.moved_aside(path):
        assert f"file={path}: " in told
        return "moved aside"
    return "said" if any(name in told for name in (path.name, *names)) else "as gone"


@pytest.fixture
def measured(tmp_path, capfd) -> str:
    """The rows of the table."""
    rows = []
    for number, (name, (place, read)) in enumerate(READERS.items()):
        cells = []
        for damage, damaged in DAMAGES.items():
            settings = Settings(root=tmp_path / f"{number} {damage}")
            path, content = place(settings), damaged(WHOLE)
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content)
            cells.append(outcome(settings, path, read, capfd))
        restore, asked = OLDER[name]
        settings = Settings(root=tmp_path / f"{number} older")
        path = place(settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        restore(settings, path)
        # it can be read: what is noticed is noticed of its table, of a file beside it, or of what has it made again
        of_content = (f"table={TABLE.name}, ", f"{path.parent}/", "`lakehouse savepoint")
        noticed = outcome(settings, path, asked or read, capfd, *of_content)
        cells.append("harmless" if noticed == "as gone" else noticed)
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def test_the_table_of_the_docs_says_what_is_done(measured):
    page = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    (shown,) = re.findall(
        r"\| file \| gone \| empty \| garbage \| cut off \| older \|\n\|[-|]+\|\n(.*?)\n\n",
        page,
        re.DOTALL,
    )
    assert shown == measured, measured


def test_each_file_of_which_an_older_copy_is_harmless_has_its_reason(measured):
    page = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    (reasons,) = re.findall(r"\| an older copy of \|.*?\n\n", page, re.DOTALL)
    named = set(re.findall(r"`([^`]+)`", reasons))
    harmless = {line.split("`")[1] for line in measured.splitlines() if line.endswith("harmless |")}
    assert harmless <= named


def test_each_file_that_the_layout_names_is_in_a_table_or_holds_nothing_that_is_read():
    picture = re.findall(r"^<root>/(\S+)", layout.__doc__, re.MULTILINE)
    page = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    names = [f"_commit_log/<table>.{name}" for name in get_args(layout.Note)]
    names += [f"_jobs/<pipeline>/{name}" for name in get_args(layout.JobFile)]
    names += [name for name in picture if name.endswith((".json", ".jsonl"))]
    assert len(names) >= 31
    assert not [name for name in names if f"`{name}`" not in page]


def test_a_wish_older_than_what_was_done_starts_nothing_until_it_is_renewed(tmp_path):
    settings = Settings(root=tmp_path, tables=SENSORS)
    older_wish(settings, job("desired.json")(settings))
    decision = control_loop.step(settings, "sensors")
    assert decision.action == "nothing" and "older than what was done" in decision.why
    desired.wish(settings, "sensors", "stopped", "a test")
    assert desired.lost(settings, "sensors") == ""


def test_a_clock_that_is_set_back_makes_no_wish_older(tmp_path):
    settings = Settings(root=tmp_path, tables=SENSORS)
    ahead = replace(
        desired.wish(settings, "sensors", "running", "a test"), since="2999-01-01T00:00:00+00:00"
    )
    replace_file(job("desired.json")(settings), asdict(ahead))
    desired.note(settings, "sensors", desired.Event(progress.now(), "started", "a test"))
    desired.wish(settings, "sensors", "stopped", "a test")
    assert desired.lost(settings, "sensors") == ""
