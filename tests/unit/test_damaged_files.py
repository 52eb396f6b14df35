"""Each small file below the root, gone or damaged, and what its reader does: the table of docs/troubleshooting.md is this one.

Files of a checkpoint are in tests/spark/test_damaged_checkpoints.py.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from batch_jobs import repair
from lakehouse.declare import catalog
from lakehouse.errors import LakehouseError
from lakehouse.reconcile import invalidation
from lakehouse.runtime import kafka_address
from lakehouse.settings import Settings
from lakehouse.storage import (
    answers,
    attempts,
    begun_with,
    checkpoints,
    commit_log,
    commit_log_repair,
    comparisons,
    cut_off,
    files,
    forks,
    handovers,
    layout,
    published,
    savepoints,
    schemas,
    state_files,
)
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.stream import offsets
from streaming_jobs import desired, progress
from streaming_jobs.holders import holder
from support import ROOT

KNOWN = catalog.load(Settings(tables=("lakehouse.examples.sensors.tables",)))
TABLE = KNOWN.table("sensor_averages")
WHOLE = b'{"a": {"b": [1, 2, 3]}, "c": "0123456789"}'
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
        lambda s: list(commit_log_repair.readable(layout.commit_log(s, TABLE))),
    ),
    "_commit_log/<table>.asked_again.json": (
        note("asked_again.json"),
        lambda s: answers.asked_again(s, TABLE),
    ),
    "_commit_log/<table>.declared.json": (
        note("declared.json"),
        lambda s: begun_with.check(Lakehouse(s, KNOWN), [TABLE]),
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
        lambda s: attempts.failed(s, TABLE),
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
        lambda s: published.noted(s, "t"),
    ),
    "_savepoints/<name>/savepoint.json": (
        lambda s: layout.savepoint_file(s, "one", "savepoint.json"),
        lambda s: savepoints.savepoint(s, "one"),
    ),
    "_savepoints/restoring.json": (layout.restoring, cut_off.begun),
    "_savepoints/forked.json": (layout.forked, lambda s: forks.check(s, "t")),
    "_upgrades/<table>/upgrade.json": (
        lambda s: layout.upgrade(s, TABLE.name, "upgrade.json"),
        lambda s: cut_off.upgrade(s, TABLE.name),
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


def outcome(settings: Settings, path: Path, read: Callable[[Settings], object], capfd) -> str:
    """What a reader does about the file as it is."""
    capfd.readouterr()
    try:
        answer = read(settings)
    except LakehouseError as err:
        assert str(path) in str(err) or path.parent.name in str(err), err
        return "refused"
    told = f"{capfd.readouterr().err} {answer}"
    if files.moved_aside(path):
        assert f"file={path}: " in told
        return "moved aside"
    return "said" if path.name in told else "as gone"


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
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def test_the_table_of_the_docs_says_what_is_done(measured):
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    (shown,) = re.findall(
        r"\| file \| gone \| empty \| garbage \| cut off \|\n\|[-|]+\|\n(.*?)\n\n", page, re.DOTALL
    )
    assert shown == measured


def test_each_file_that_the_layout_names_is_in_a_table_or_holds_nothing_that_is_read():
    picture = re.findall(r"^<root>/(\S+)", layout.__doc__, re.MULTILINE)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    names = [f"_commit_log/<table>.{name}" for name in get_args(layout.Note)]
    names += [f"_jobs/<pipeline>/{name}" for name in get_args(layout.JobFile)]
    names += [name for name in picture if name.endswith((".json", ".jsonl"))]
    assert len(names) >= 31
    assert not [name for name in names if f"`{name}`" not in page]
