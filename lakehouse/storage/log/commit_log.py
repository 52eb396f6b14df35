"""The commits of a table, and what follows from them: the frontier.

Each micro-batch or batch run that writes a table is recorded in the Delta commit of its rows. What has
no such commit, or is known only after it, is a line of the note `lines.jsonl`, until it is in the log
table `_commits` (`log_tables`), where commits outlive the table's own log.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from lakehouse.declare.table import Table
from lakehouse.logs import warn_once
from lakehouse.ranges import PARTITION_LENGTHS, floor
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.locks import READ_ONLY, alone
from lakehouse.storage.disk.notes import Notes, encoded
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.log import commit_cache
from lakehouse.storage.log.commits import Commit, decoded
from lakehouse.storage.position.handovers import handover_of

_log = logging.getLogger(__name__)


class CommitLog:
    """The commit log of one table, one Commit a line, oldest first: `<root>/_commit_log/<table>.jsonl`.

    The file is a cache (`commit_cache`): whoever finds none reads the commits again. Its first line says how
    far all positions in it have moved.
    """

    def __init__(self, settings: Settings, table: Table) -> None:
        path = layout.commit_log(settings, table)
        if path.is_symlink():  # an input of a version beside a table
            settings = replace(settings, root=path.resolve().parents[1])
            path = layout.commit_log(settings, table)
        self.settings, self.table, self.path = settings, table, path

    @property
    def notes(self) -> Notes[Commit]:
        """The commits that neither a Delta commit nor `_commits` has."""
        return Notes(layout.note(self.settings, self.table, "lines.jsonl"), partial(typed, Commit))

    def append(self, *commits: Commit, recorded: bool = False) -> None:
        """Adds commits; they are on disk when it returns.

        :param recorded: whether their Delta commit has them.
        """
        with self.writing():
            if not recorded:
                self.notes.append(*commits)
            commit_cache.add(self, commits, recorded=recorded)

    def read_on(self) -> None:
        """Adds to the cache what a crash kept from it, or reads all again if it was cut."""
        if not self.exists:
            return
        with self.writing():
            if commit_cache.is_whole(self) and commit_cache.has_noted(self):
                commit_cache.read_on(self)
            else:
                commit_cache.read_again(self)

    @property
    def exists(self) -> bool:
        """Returns True if the table is there; without it nothing is known of its commits but what the cache has."""
        return delta_log.exists(table_path(self.settings, self.table))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time."""
        with alone(self.path.with_suffix(".lock")):
            yield

    def lines(self, chosen: Callable[[str], bool] = lambda line: True) -> Iterator[Commit]:
        """All commits, newest first, also those that were replayed, or whose rows were taken back.

        A cache with a line that is none is said on standard error, and left to be read again.
        """
        for line in self._texts():
            if not chosen(line):
                continue
            try:
                yield decoded(line)
            except commit_cache.BROKEN as err:
                message = f"commit log={self.path}: a line holds one commit, and one is torn ({err}); all are read again"
                warn_once(_log, message, self.path, line)
                with suppress(OSError):
                    self.path.unlink(missing_ok=True)

    def _texts(self) -> Iterator[str]:
        while not (lines := commit_cache.opened(self)) and self.exists:
            if commit_cache.is_needless(self):
                break
            try:
                self.read_on()
            except OSError as err:
                if err.errno not in READ_ONLY:
                    raise
                return map(encoded, reversed(commit_cache.all_of(self)))
        return lines or iter(())

    def __iter__(self) -> Iterator[Commit]:
        """Yields the commits, the newest first.

        A batch that was replayed appears once, one whose rows were taken back not at all.
        """
        seen: set[tuple[str, int, int]] = set()
        for commit in _holding(self.lines()):
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
        roles = ('"role":"batch"', '"role":"void"')
        return _holding(
            self.lines(lambda line: '"late":0,' not in line or any(role in line for role in roles))
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
    """Returns the frontier of a table: no row behind it is still to come from the stream.

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
    _dropped(settings, table).append({"at": datetime.now(UTC), "rows": rows})


def dropped_by_spark(settings: Settings, table: Table, since: datetime | None) -> int:
    """Returns the number of rows that Spark dropped after that instant."""
    lines = _dropped(settings, table).newest_first()
    return sum(rows for rows, at in lines if since is None or at > since)


def _dropped(settings: Settings, table: Table) -> Notes[tuple[int, datetime]]:
    return Notes(
        layout.note(settings, table, "dropped.jsonl"),
        lambda line: (int(line["rows"]), datetime.fromisoformat(line["at"])),
    )
