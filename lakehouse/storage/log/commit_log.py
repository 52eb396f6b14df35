"""The commit log of a table, and what follows from it: the frontier.

Each micro-batch or batch run that writes a table leaves one line in the table's commit log, after
its rows and before Spark's own checkpoint: a line therefore vouches for rows that are in the table.
Old lines of a commit log are removed (`commit_log_trimming`).
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, floor
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import append_line, values_backwards
from lakehouse.storage.disk.locks import alone
from lakehouse.storage.log.commits import Commit, encoded
from lakehouse.storage.position.handovers import handover_of


class CommitLog:
    """The commit log of one table: `<root>/_commit_log/<table>.jsonl`, one Commit a line, oldest first.

    Once it was trimmed, its first line says how far all positions in it have moved.
    """

    def __init__(self, settings: Settings, table: Table) -> None:
        self.path = layout.commit_log(settings, table)

    def append(self, commit: Commit) -> None:
        """Adds the line and has it on disk when it returns."""
        with self.writing():
            append_line(self.path, encoded(commit))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time: who trims the commit log replaces the file."""
        with alone(self.path.with_suffix(".lock")):
            yield

    def __iter__(self) -> Iterator[Commit]:
        """Newest first.

        A batch that was replayed appears once, one whose rows were taken back not at all.
        """
        seen: set[tuple[str, int, int]] = set()
        from lakehouse.storage.log import commit_log_repair

        for commit in _holding(commit_log_repair.readable(self.path)):
            if commit.role == "stream":
                batch = (commit.role, commit.generation, commit.batch)
                if batch in seen:
                    continue
                seen.add(batch)
            yield commit

    def by_stream(self) -> Iterator[Commit]:
        return (c for c in self if c.role == "stream")

    def last_arrival(self) -> Commit | None:
        """The last commit of the stream that rows came with.

        Those after it say how far event time has gone on without any (`quiet_timeout`): by them alone
        a producer that has died would look well.
        """
        return next((c for c in self.by_stream() if c.arrived), None)

    def rewriting(self) -> Iterator[Commit]:
        """The batch commits, and those of the stream that had late rows.

        The many others are not even decoded.
        """
        from lakehouse.storage.log import commit_log_repair

        roles = ('"role":"batch"', '"role":"void"')
        return _holding(
            commit_log_repair.readable(
                self.path,
                lambda line: '"late":0,' not in line or any(role in line for role in roles),
            )
        )

    def before(self, generation: int, batch: int) -> Commit | None:
        """The last commit of the stream before that batch: what a batch starts from, the same when it is replayed."""
        return next(
            (c for c in self.by_stream() if (c.generation, c.batch) < (generation, batch)), None
        )


def _holding(commits: Iterable[Commit]) -> Iterator[Commit]:
    """The commits, newest first, without those whose rows the table does not hold any more."""
    limit: float = float("inf")
    for commit in commits:
        if commit.role == "void":
            limit = min(limit, commit.version)
        elif commit.version <= limit:
            yield commit


def frontier(settings: Settings, table: Table) -> datetime | None:
    """How far the table is complete: no row behind it is still to come from the stream.

    None before the first commit. A report is complete up to the last partition that its inputs have
    all closed.
    """
    if table.kind.is_report:
        inputs = [frontier(settings, each) for each in table.closes_with]
        frontiers = [each for each in inputs if each]
        whole = PARTITION_LENGTHS[table.partition_by]
        return floor(min(frontiers), whole) if len(frontiers) == len(inputs) else None
    reached = next((c.frontier for c in CommitLog(settings, table).by_stream() if c.frontier), None)
    if reached is None and (begun := handover_of(settings, table)):
        return begun.frontier
    return reached


def note_dropped(settings: Settings, table: Table, rows: int) -> None:
    """Keeps that Spark dropped rows which the late filter had accepted: what it dropped is missing."""
    line = {"at": datetime.now(UTC).isoformat(), "rows": rows}
    append_line(_dropped(settings, table), json.dumps(line))


def dropped_by_spark(settings: Settings, table: Table, since: datetime | None) -> int:
    """How many rows Spark dropped after that instant."""
    lines = values_backwards(
        _dropped(settings, table),
        lambda line: (int(line["rows"]), datetime.fromisoformat(line["at"])),
    )
    return sum(rows for rows, at in lines if since is None or at > since)


def _dropped(settings: Settings, table: Table) -> Path:
    return layout.note(settings, table, "dropped.jsonl")
