"""A small file that is JSON with a value of another type is like any other that cannot be read."""

import json
from dataclasses import asdict, fields
from datetime import UTC, datetime

import pytest

from batch_jobs.repair import Repaired
from lakehouse.declare.targets import Action
from lakehouse.settings import Settings
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.foreign.file_register import Registered
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit, decoded
from lakehouse.storage.log.comparisons import Compared
from lakehouse.storage.position.checkpoints import Beginning
from lakehouse.storage.position.handovers import Handover
from lakehouse.storage.versions.savepoints import SavedTable, Savepoint
from support.sensors_log import TABLE

AT = datetime(2026, 1, 1, tzinfo=UTC)
COMMIT = Commit(
    "t", "stream", 0, 1, 2, AT, "v", watermark=AT, frontier=AT, late_from=AT, late_to=AT,
    inputs={"t": {"0": 1}}, heads={"0": (AT, AT)}, readings={"t": ("0", "1")}, start=AT, end=AT,
)  # fmt: skip
VALUES = [
    COMMIT,
    Repaired("t", "2026-01-01", 1, "late rows", 3, "EQUAL", AT),
    Action("0" * 32, "t", 1, "insert", "k", {"a": 1}),
    Beginning(1, (0, 3), "why", "2026-01-01"),
    Compared("2026-01-01", examples=("a",)),
    Registered("a.json", 1, 2, 3, values={"day": None}),
    Handover(AT, "t", 1, 2, {"t": 1}, "v", AT),
    SavedTable("gold", 1, 2, "", {}, "v", ("target",)),
    Savepoint("s", "2026-01-01", "", "0.1", {}, 1, 2, "0"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_field_of_another_type_is_named(value):
    kind, given = type(value), {f.name: getattr(value, f.name) for f in fields(value)}
    assert typed(kind, given) == value
    for name in given:
        another = b"of none of the types"
        with pytest.raises(TypeError, match=f"{name}={another!r} is no "):
            typed(kind, given | {name: another})
    for wrong in ([], 3, "x", None):
        with pytest.raises(TypeError, match="is no JSON object"):
            typed(kind, wrong)
    with pytest.raises(TypeError, match="other is no field of it"):
        typed(kind, given | {"other": 1})
    with pytest.raises(TypeError, match=f"{min(given)} is not there|is not there"):
        typed(kind, {})


def test_a_commit_log_with_a_value_of_another_type_is_said_and_read_again(tmp_path, capfd):
    whole = json.loads(encoded(COMMIT))
    assert decoded(encoded(COMMIT)) == COMMIT
    commit_log = CommitLog(Settings(root=tmp_path), TABLE)
    path = commit_log.path
    path.parent.mkdir()
    for name in whole:
        for other in ("x", {"x": "y"}, [1], 1.5, True, None):
            line = json.dumps(whole | {name: other})
            path.write_text(f"{encoded(COMMIT)}\n{line}\n")
            commits = list(commit_log.lines())  # raises nothing
            assert len(commits) == 1 + path.exists(), "a cache with a torn line is removed"
    path.write_text(f"{json.dumps(whole | {'version': 'x'})}\n{encoded(COMMIT)}\n")
    assert list(commit_log.lines()) == [COMMIT]
    assert (
        "a line holds one commit, and one is torn (version='x' is no whole number)"
        in capfd.readouterr().err
    )
    assert asdict(COMMIT)["version"] == 2
