"""A savepoint of a job with many keys in its state: for how long its stream pauses, and how soon it goes on once restored.

Each message is counted once in the end, whatever was taken back and read again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from benchmarks import commands, keyed_stream
from benchmarks.keyed_stream import PIPELINE, KeyedStream
from benchmarks.measure import BenchmarkError
from lakehouse.settings import Settings
from lakehouse.storage.delta import log_state
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.versions import savepoints

_ALONE, _AFTER = 30.0, 15.0  # seconds of the stream before and after a savepoint


@dataclass(frozen=True, slots=True)
class Saved:
    """Seconds of each round.

    :param usual: the longest between two commits of a table, before.
    :param paused: the same while the savepoint was created.
    :param created: of the command `savepoint create`.
    :param restored: of the command `savepoint restore`.
    :param first: from that command's beginning to the first commit of the ingest table, by the job that was started next.
    :param all_tables: until each table had one.
    """

    keys: int
    usual: tuple[float, ...]
    paused: tuple[float, ...]
    created: tuple[float, ...]
    restored: tuple[float, ...]
    first: tuple[float, ...]
    all_tables: tuple[float, ...]


def run(settings: Settings, keys: int, rounds: int) -> Saved:
    """Creates and restores a savepoint with so many keys in the state, that often. Raises BenchmarkError."""
    with keyed_stream.running(settings, keys) as stream:
        found = [_round(stream, f"round-{number}") for number in range(rounds)]
    return Saved(keys, *(tuple(each) for each in zip(*found, strict=True)))


def _round(stream: KeyedStream, name: str) -> tuple[float, ...]:
    since = datetime.now(UTC)
    time.sleep(_ALONE)
    began = datetime.now(UTC)
    created = commands.run(stream.settings, "savepoint", "create", name).seconds
    ended = datetime.now(UTC)
    time.sleep(_AFTER)
    commits = [
        [c.at for c in CommitLog(stream.settings, table).by_stream() if c.at > since]
        for table in stream.tables.values()
    ]
    usual = max(longest_gap([at for at in each if at <= began], since, began) for each in commits)
    paused = max(longest_gap(each, began, ended) for each in commits)
    commands.run(stream.settings, "stream", "stop", PIPELINE)
    restoring = datetime.now(UTC)
    restored = commands.run(stream.settings, "savepoint", "restore", name, "--yes").seconds
    _check(stream, name)
    commands.run(stream.settings, "stream", "start", PIPELINE)
    return usual, paused, created, restored, *stream.first_commits(restoring)


def longest_gap(instants: Sequence[datetime], began: datetime, ended: datetime) -> float:
    """Seconds of the longest pause between two instants that lasted, at least in part, from `began` to `ended`.

    Raises BenchmarkError if there was no commit before the end, or none after the beginning.
    """
    gaps = [
        (b - a).total_seconds() for a, b in pairwise(sorted(instants)) if b > began and a < ended
    ]
    if not gaps:
        raise BenchmarkError(
            f"savepoint: no two commits of a table around {began} to {ended}; the run is void"
        )
    return max(gaps)


def _check(stream: KeyedStream, name: str) -> None:
    saved = savepoints.savepoint(stream.settings, name)
    for table in stream.tables.values():
        rows = log_state.rows(table_path(stream.settings, table))
        if rows != saved.tables[table.name].rows:
            raise BenchmarkError(
                f"savepoint, {table.name}: {rows:,} rows once restored, {saved.tables[table.name].rows:,} when it was created; "
                "the run is void"
            )
