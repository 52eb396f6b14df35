"""The cache of a table's commits may be deleted or cut at any moment: what is read is the same."""

import json
import random
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import settings as rounds
from hypothesis import strategies as st

from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, housekeeping, small_commits
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.log import commit_cache
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING, Commit, decoded, recorded
from lakehouse.storage.log.log_tables import flush
from support.sensors_log import TABLE, batch_run, micro_batch

SENSORS = ("lakehouse.examples.sensors.tables",)
DISTURBANCES = ("deleted", "emptied", "cut", "garbage", "two lines cut", "garbage first")
ACTIONS = ("commit", "crash", "units", "line", "flush", "compact", *DISTURBANCES)


@dataclass
class Told:
    """A table, its commits as they were made, and how often each disturbance came."""

    settings: Settings
    commits: list[Commit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = table_path(self.settings, TABLE)
        write_deltalake(str(self.path), pa.table({"x": [1]}))
        self.log = CommitLog(self.settings, TABLE)

    def next(self) -> Commit:
        made = DeltaTable(str(self.path)).metadata().created_time
        at = micro_batch(0).at.fromtimestamp(
            made / 1000 + len(self.commits) + 1, micro_batch(0).at.tzinfo
        )
        late = (len(self.commits) % 50, 0) if len(self.commits) % 3 == 0 else None
        return replace(micro_batch(len(self.commits), late), at=at, version=NOTHING)

    def commit(self, *, crash: bool = False) -> None:
        commit = self.next()
        mark = {"code_version": commit.code_version, "inputs": commit.inputs}
        text = json.dumps(
            {"app": "a", "batch": commit.batch, **recorded([commit], mark)}, default=str
        )
        version = small_commits.commit([], self.path, f"a:{commit.batch}", 0, text)
        commit = replace(commit, version=version)
        self.commits.append(commit)
        if crash:
            self.log.read_on()  # as the next start does
        else:
            self.log.append(commit, recorded=True)

    def units(self, lines: int) -> None:
        """Commits three units of a batch run in one version; a crash leaves so many lines of them."""
        made = [
            replace(batch_run(number, 0, True), at=self.next().at + timedelta(milliseconds=number))
            for number in range(3)
        ]
        text = json.dumps(recorded(made, {}), default=str)
        app = f"batch:{len(self.commits)}"
        version = small_commits.commit([], self.path, app, 0, text)
        made = [replace(commit, version=version) for commit in made]
        self.commits += made
        if lines:
            self.log.append(*made[:lines], recorded=True)

    def line(self) -> None:
        version = DeltaTable(str(self.path)).version()
        self.commits.append(replace(self.next(), version=version))
        self.log.append(self.commits[-1])

    def do(self, action: str) -> None:
        match action:
            case "commit":
                self.commit()
            case "crash":
                self.commit(crash=True)
            case "units":
                self.units(len(self.commits) % 4)
                self.log.read_on()
            case "line":
                self.line()
            case "flush":
                flush(self.settings, [TABLE])
            case "compact":
                small_commits.commit(
                    [], self.path, f"compaction:{delta_log.latest(self.path)}", 0, "{}"
                )
            case _:
                self.disturb(action)

    def disturb(self, action: str) -> None:
        cache = self.log.path
        text = cache.read_bytes() if cache.exists() else b""
        match action:
            case "deleted":
                cache.unlink(missing_ok=True)
            case "emptied" if text:
                cache.write_bytes(b"")
            case "cut" if text.count(b"\n") > 2:
                cache.write_bytes(text[:-40])
                flush(self.settings, [TABLE])
                self.log.read_on()
            case "two lines cut" if text.count(b"\n") > 3:
                cache.write_bytes(b"".join(text.splitlines(keepends=True)[:-2]))
                cache.unlink()
            case "garbage first" if text.startswith(b"#"):
                cache.write_bytes(b"#garbage" + text[8:])
                flush(self.settings, [TABLE])
            case "garbage" if text.count(b"\n") > 2:
                first, rest = text.split(b"\n", 1)
                cache.write_bytes(first + b'\n{"role":"batch"}\n' + rest)
                list(self.log.lines())  # who finds it has it read again


@rounds(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=25))
def test_commits_are_the_same_whatever_happens_to_their_cache(actions):
    with TemporaryDirectory() as folder:
        told = Told(Settings(root=Path(folder), tables=SENSORS))
        for action in actions:
            told.do(action)
            assert list(told.log) == told.commits[::-1], action
        flush(told.settings, [TABLE])
        assert flush(told.settings, [TABLE]) == 0
        stored = layout.log_table(told.settings, "_commits")
        if told.commits:
            instants = DeltaTable(str(stored)).to_pyarrow_table()["at"].to_pylist()
            assert sorted(instants) == [commit.at.isoformat() for commit in told.commits], (
                "each once"
            )
        told.log.path.unlink(missing_ok=True)
        assert list(told.log) == told.commits[::-1]


def test_each_disturbance_occurs_and_commits_outlive_the_logs_that_had_them(tmp_path):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    for action in ("commit", "line", "commit", "flush"):
        told.do(action)
    housekeeping.begin_with(told.path, DeltaTable(str(told.path)).version())
    for action in (*DISTURBANCES, "line", "commit"):
        told.do(action)
        assert list(told.log) == told.commits[::-1], action
    assert told.log.notes.path.exists(), "the line is in no other place"
    flush(told.settings, [TABLE])
    assert not told.log.notes.path.exists()


def test_a_line_of_a_batch_that_is_unfinished_is_left_out_while_it_is_the_last(tmp_path):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    told.commit()
    second = told.next()
    text = json.dumps({"app": "a", "batch": 1, **recorded([second], {}, whole=False)}, default=str)
    version = small_commits.commit([], told.path, "second", 0, text)
    told.log.path.unlink()
    assert list(told.log) == told.commits, "it is run again"
    told.commits.append(replace(second, version=version))
    told.commit()
    told.log.path.unlink()
    assert list(told.log) == told.commits[::-1]


def test_a_batch_run_that_crashed_is_found_behind_later_commits(tmp_path):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    told.commit()
    run = replace(batch_run(7, 0, True), at=told.next().at)
    text = json.dumps(recorded([run], {}), default=str)
    version = small_commits.commit([], told.path, "batch", 0, text)
    told.commit()
    assert [line.version for line in told.log.rewriting() if line.role == "batch"] == [version]


@pytest.mark.parametrize("lines", range(4))
def test_units_that_a_crash_kept_from_the_cache_are_found_behind_later_commits(tmp_path, lines):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    told.commit()
    told.units(lines)
    told.commit()
    assert list(told.log) == told.commits[::-1]


def test_runs_of_batch_runs_of_earlier_versions_are_known(tmp_path):
    line = json.loads(encoded(replace(batch_run(0, 0, True), run=3, left=2)))
    older = {name: value for name, value in line.items() if name not in ("run", "left")}
    commit = decoded(json.dumps(older | {"generation": 3, "batch": 2}))
    assert (commit.run, commit.left, commit.generation, commit.batch) == (3, 2, 0, 0)


def test_commits_of_earlier_versions_whose_lines_are_gone_are_said(tmp_path, capfd):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    older = json.dumps({"app": f"{TABLE.name}:stream:1", "batch": 0, "inputs": {}})
    told.commits.append(
        replace(told.next(), version=small_commits.commit([], told.path, "older", 0, older))
    )
    told.log.append(told.commits[0])
    told.log.path.unlink()
    assert list(told.log) == told.commits and not capfd.readouterr().err
    told.log.path.unlink()
    told.log.notes.path.unlink()
    assert not list(told.log)
    assert "1 commits of the stream were made by an earlier version" in capfd.readouterr().err


def test_a_cache_whose_last_line_is_torn_is_read_again_before_the_note_goes(tmp_path):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    for action in ("commit", "line"):
        told.do(action)
    told.log.path.write_bytes(told.log.path.read_bytes()[:-40])
    assert flush(told.settings, [TABLE]) == 2 and not told.log.notes.path.exists()
    assert list(told.log) == told.commits[::-1]


def test_who_looks_at_a_table_without_a_commit_makes_no_file(tmp_path):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    assert not list(told.log)
    assert not layout.commit_logs(told.settings).exists()


def test_a_cache_of_a_long_history_is_read_again_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_cache, "_MANY", 5)
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    for _ in range(20):
        told.commit()
    flush(told.settings, [TABLE])
    told.commit()
    told.log.path.unlink()
    found = list(told.log)
    assert found[:6] == told.commits[:-7:-1]
    assert {c.batch for c in found} >= {c.batch for c in told.commits if c.late}
    assert flush(told.settings, [TABLE]) == 1


def test_a_flush_copies_all_though_the_cache_is_deleted_meanwhile(tmp_path, monkeypatch):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    for action in ("commit", "line", "commit"):
        told.do(action)
    behind, deletions = commit_cache.behind, iter((True, True))

    def deleted(*given):
        if next(deletions, False):
            told.log.path.unlink()
        return behind(*given)

    monkeypatch.setattr(commit_cache, "behind", deleted)
    assert flush(told.settings, [TABLE]) == 3 and not told.log.notes.path.exists()
    assert list(told.log) == told.commits[::-1]


def test_commits_keep_their_order_if_the_clocks_of_hosts_differ(tmp_path):
    told = Told(Settings(root=tmp_path, tables=SENSORS))
    for action in ("commit", "line", "commit"):
        told.do(action)
    hasty = told.next
    told.next = lambda: replace(hasty(), at=hasty().at - timedelta(seconds=2, milliseconds=1))
    told.do("commit")
    for action in ("deleted", "flush", "deleted"):
        told.do(action)
        assert list(told.log) == told.commits[::-1], action


def test_random_deletions_while_others_read(tmp_path):
    told, chance = Told(Settings(root=tmp_path, tables=SENSORS)), random.Random(5)
    for _ in range(60):
        told.do(chance.choice(("commit", "line", "crash", "flush", "deleted")))
        assert list(CommitLog(told.settings, TABLE)) == told.commits[::-1]
    assert told.commits[-1].at - told.commits[0].at > timedelta(0)
