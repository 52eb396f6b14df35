"""Commit logs that are trimmed: what is asked of them stays, positions go on, logs of processes are limited too."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.batch import batch_state
from lakehouse.cli.query import run
from lakehouse.maintenance import retention
from lakehouse.settings import Settings
from lakehouse.storage.delta import housekeeping, small_commits
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import commit_cache
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.log.log_tables import flush
from streaming_jobs.supervision import job_logs
from support.sensors_log import CATALOG, TABLE, batch_run, micro_batch

lates = st.none() | st.tuples(st.integers(0, 300), st.integers(0, 90))
steps = st.one_of(lates, st.tuples(st.integers(0, 5), st.booleans(), st.just("batch")))


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=2, max_size=40))
def test_what_late_rows_made_dirty_is_found_in_a_trimmed_commit_log(story):
    commits = [
        batch_run(n, s[0], s[1]) if s and len(s) == 3 else micro_batch(n, s)
        for n, s in enumerate(story)
    ]
    with TemporaryDirectory() as folder:
        root = Settings(root=Path(folder), tables=("lakehouse.examples.sensors.tables",))
        commit_log = CommitLog(root, TABLE)
        for commit in [*commits, micro_batch(len(commits))]:
            commit_log.append(commit)
        before, last = (
            batch_state.read(Lakehouse(root, CATALOG), TABLE).dirty,
            next(commit_log.by_stream()),
        )
        commit_cache.trim(commit_log, 0, 1)
        after = batch_state.read(Lakehouse(root, CATALOG), TABLE).dirty
        assert [(d.partition, d.closed) for d in after] == [(d.partition, d.closed) for d in before]
        # more of a partition may be looked at again, never less
        assert all(
            a.since <= b.since and a.until >= b.until for a, b in zip(after, before, strict=True)
        )
        assert next(commit_log.by_stream()) == last and frontier(root, TABLE) == last.frontier


def test_the_log_table_has_each_commit_once_however_often_commit_logs_are_trimmed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        commit_cache, "trim", partial(commit_cache.trim, longest=4_000, recent=1_500)
    )
    root = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    commit_log, longest, copied = CommitLog(root, TABLE), 0, 0
    for batch in range(200):
        commit_log.append(micro_batch(batch, (batch % 50, 0) if batch % 3 == 0 else None))
        if batch % 7 == 0:
            copied += flush(root, [TABLE])
        longest = max(longest, commit_log.path.stat().st_size)
    assert copied + flush(root, [TABLE]) == 200
    # where commit logs are read up to outlives the commits that said so
    (log_table,) = retention.log_tables(root)
    stored = DeltaTable(str(log_table.path))
    housekeeping.begin_with(log_table.path, stored.version())
    assert flush(root, [TABLE]) == 0
    batches = run(Lakehouse(root, CATALOG), "SELECT batch FROM _commits ORDER BY 1").rows
    assert [batch for (batch,) in batches] == list(range(200))
    assert longest < 10_000, "200 lines are ten times that"
    assert sum(c.late for c in commit_log.rewriting()) == 67 * 3


def test_a_line_that_is_half_written_is_copied_once_it_is_whole(tmp_path, caplog):
    root = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    other, commit_log = CATALOG.table("valid_readings"), CommitLog(root, TABLE)
    CommitLog(root, other).append(replace(micro_batch(1), table=other.name))
    line = f"{encoded(micro_batch(2))}\n".encode()
    commit_log.path.write_bytes(line[:40])
    assert flush(root, [other, TABLE]) == 1
    commit_log.path.write_bytes(line)
    assert flush(root, [other, TABLE]) == 1 and flush(root, [other, TABLE]) == 0
    assert not caplog.text and not list(commit_log.path.parent.glob("*.unreadable-*"))
    stored = run(Lakehouse(root, CATALOG), 'SELECT "table", batch FROM _commits ORDER BY 2').rows
    assert stored == [(other.name, 1), (TABLE.name, 2)]


def test_the_log_of_a_running_process_is_put_aside_when_it_is_long(tmp_path):
    root = Settings(root=tmp_path)
    log = job_logs.log_path(root, "sensors")
    log.parent.mkdir(parents=True)
    with log.open("a") as output:  # as the process has it open
        for n in range(6):
            output.write(f"line {n}\n" * 100)
            output.flush()
            job_logs.shorten_log(root, "sensors", 500)
        output.write("last\n")
    assert log.read_text() == "last\n"
    kept = {path.name: path.read_text()[:6] for path in log.parent.glob("driver.log.*")}
    assert kept == {"driver.log.1": "line 5", "driver.log.2": "line 4", "driver.log.3": "line 3"}


def test_a_log_that_another_process_cut_is_read_anew_for_an_app_that_is_new(tmp_path):
    path = tmp_path / "table"
    write_deltalake(str(path), pa.table({"x": [1]}))
    for batch in range(3):
        small_commits.commit([], path, "before", batch, "")
    housekeeping.begin_with(path, 3)
    assert small_commits.commit([], path, "after", 0, "") == 4
