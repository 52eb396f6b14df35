"""The beginning of a run that needs the states of its keys: with states kept before its range, or with the first row.

Kept states are made of all rows before an instant, so any run may begin with them, and losing them
costs time alone. They hold until a row before their instant is changed. After that, runs begin with
states kept before the change, until a batch run has followed and kept others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from lakehouse.batch.batch_state import rewrites
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, PARTITION_LENGTHS, Range, floor
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.keyed import state_files
from lakehouse.storage.keyed.state_files import Kept
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.session import Session
from lakehouse.transform.functions.process_ttl import Run

States = Literal["", "keep", "compare"]
"""The use that a batch run makes of the states at its end."""

# rows since the last kept states, after which a stream keeps some inside a partition
_MANY = 20_000
_LAST = 3  # inside a partition: a step that is replayed begins before the last
_RECENT, _OLD = timedelta(days=2), timedelta(days=62)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The states that a run begins with, and those that it is to keep."""

    table: Table
    run: Run
    start: datetime  # of the rows that it reads
    versions: Mapping[str, int]  # of its inputs
    compared: Kept | None = None  # the kept states to compare with, instead of keeping some


def holds(kept: Kept, changed: list[Commit]) -> bool:
    """Returns True if no row before the instant of the states was changed since."""
    return all(
        rewrite.span.start >= kept.at or rewrite.version <= kept.covers.get(rewrite.table, -1)
        for rewrite in changed
    )


def stream_begins(
    session: Session, table: Table, span: Range, versions: Mapping[str, int]
) -> Beginning:
    """Returns the beginning of a step of the stream.

    A step keeps states at the start of a partition, and inside one when computing from there costs more
    than keeping them. It keeps none where an input was rewritten ahead of the table, for it passes over that.
    """
    changed = rewrites(session, table)
    before = _newest(session, table, span.start, changed)
    since = before.at if before else BEGINNING
    keep_at: datetime | None = floor(span.end, PARTITION_LENGTHS[table.partition_by])
    if keep_at and keep_at <= since:
        rows = _rows(session, table, Range(since, span.end), versions)
        keep_at = span.end if rows > max(_MANY, before.keys if before else 0) else None
    passed_over = any(
        rewrite.version <= versions[rewrite.table] and rewrite.span.overlaps(span)
        for rewrite in changed
    )
    return _beginning(session, table, span, versions, before, None if passed_over else keep_at)


def batch_begins(
    session: Session, table: Table, span: Range, versions: Mapping[str, int], states: States
) -> Beginning:
    """Returns the beginning of a batch run, which keeps the states at its end, or compares the last kept in its range."""
    changed = rewrites(session, table)
    before = _newest(session, table, span.start, changed)
    if states != "compare":
        keep_at = span.end if states == "keep" else None
        return _beginning(session, table, span, versions, before, keep_at)
    last = _newest(session, table, span.end, changed)
    if last is None or last.at <= span.start or last.code_version != table.code_version:
        return _beginning(session, table, span, versions, before, None)
    return replace(_beginning(session, table, span, versions, before, last.at), compared=last)


def differing(session: Session, begun: Beginning | None) -> datetime | None:
    """Returns the instant of the compared states, if the rows before it give others."""
    if not begun or not begun.compared or begun.run.states is None:
        return None
    stored = state_files.rows(session.spark, session.settings, begun.table, begun.compared)
    # under other names: a checksum leaves technical columns out
    sides = (rows.toDF(*map(str, range(len(rows.columns)))) for rows in (stored, begun.run.states))
    try:
        kept_digest, new_digest = map(digest, sides)
        return begun.compared.at if kept_digest != new_digest else None
    finally:
        if begun.run.full is not None:
            begun.run.full.unpersist()


@contextmanager
def keeping(session: Session, begun: Beginning | None) -> Iterator[None]:
    """Keeps the states that a run is to keep, once the block, which writes its rows, has succeeded."""
    try:
        yield
        if begun and begun.run.states is not None:
            _keep(session, begun)
    finally:
        if begun and begun.run.full is not None:
            begun.run.full.unpersist()


def _keep(session: Session, begun: Beginning) -> None:
    """Writes the states, and removes those that no longer hold or are not worth keeping.

    A run over history, range after range, finds the states of the range before, however old they are.
    """
    run, table = begun.run, begun.table
    assert run.states is not None and run.keep_at is not None
    state_files.keep(session.settings, table, run.states, run.keep_at, begun.versions)
    changed, kept = rewrites(session, table), state_files.kept(session.settings, table)
    instants = [each.at for each in kept if holds(each, changed)]
    worth = {run.keep_at} | worth_keeping(instants, PARTITION_LENGTHS[table.partition_by])
    gone = [each for each in kept if each.at not in worth or not holds(each, changed)]
    state_files.forget(session.settings, table, gone)


def worth_keeping(instants: list[datetime], length: timedelta) -> set[datetime]:
    """Returns the last instants, each partition's for two days, each day's for two months, and each month's."""
    last = instants[-1] if instants else BEGINNING

    def wanted(at: datetime) -> bool:
        age = last - at
        if age > _RECENT and at != floor(at, timedelta(days=1)):
            return False
        return at == floor(at, length) and (age <= _OLD or at.day == 1)

    return {*instants[-_LAST:], *filter(wanted, instants)}


def _newest(
    lakehouse: Lakehouse, table: Table, instant: datetime, changed: list[Commit]
) -> Kept | None:
    """Returns the last kept states that hold and are not after the instant."""
    older = (
        states for states in state_files.kept(lakehouse.settings, table) if states.at <= instant
    )
    return max(
        (states for states in older if holds(states, changed)),
        key=lambda states: states.at,
        default=None,
    )


def _beginning(
    session: Session,
    table: Table,
    span: Range,
    versions: Mapping[str, int],
    before: Kept | None,
    keep_at: datetime | None,
) -> Beginning:
    states = state_files.rows(session.spark, session.settings, table, before) if before else None
    start = before.at if before else BEGINNING
    return Beginning(table, Run(span.end, states, keep_at), start, versions)


def _rows(lakehouse: Lakehouse, table: Table, span: Range, versions: Mapping[str, int]) -> int:
    """Returns about how many rows the inputs have in the span, by the statistics of their files."""
    return sum(
        file["num_records"] or 0
        for t in lakehouse.catalog.timed_inputs(table)
        for file in delta_log.files(lakehouse.path(t), versions[t.name])
        if lakehouse.may_hold(t, file, span)
    )
