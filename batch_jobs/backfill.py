"""The backfill: makes a closed range of one table hold its batch run. A new table begins with that of its history.

Several partitions are computed at a time and published one by one, each in one Delta commit with one
line in the commit log. A killed run continues where it was when it is run again. Partitions that were
not published stay as they were.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from batch_jobs.planning import Backfill, reading, replaceable, unfinished
from batch_jobs.planning import plan as plan
from lakehouse.batch import batch_state, compute, late_merge, reference_tables
from lakehouse.batch.batch_state import Dirt
from lakehouse.batch.publish import Publication
from lakehouse.declare.lookups import Ask
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.ranges import BEGINNING, OPEN_END, Range, partition_range
from lakehouse.reconcile.unchanged import unchanged
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.log.commits import Commit, unwritten
from lakehouse.storage.session import Session
from lakehouse.stream import handover
from lakehouse.stream.lag import lag
from lakehouse.transform import creation

_EVER = Range(BEGINNING, OPEN_END)
_LOOK = 1.0  # seconds between two looks at the positions of the streams


def run(
    session: Session,
    planned: Backfill,
    *,
    cascade: bool = False,
    ask: Ask = "missing",
    again: bool = False,
) -> Iterator[Commit]:
    """Makes the planned range of a table hold its batch run, and yields a commit for each partition once it is done.

    The commit has the version NOTHING if the partition had these rows already. One that is unchanged
    since its certificate is computed only `again`. `cascade`: the tables that read this one follow, as
    far as they do not show it yet. `ask`: the rows for which the service of a lookup is asked although
    they have a recorded answer. Raises, before anything is computed, RangeError (no longer as planned),
    DeclarationError, JobError (another process rewrites the table).
    """
    table = session.catalog.table(planned.table)
    with publishing(session.settings, table):
        # again, under the lock: since the plan another process may have made a run, erased an input, or put a table back
        state = batch_state.checked(session, table, planned.span)
        replaceable(session, table, planned.partitions)
        creation.create(session, table)  # refuses other columns than those on disk
        if not planned.run:
            yield from compute.published(session, table, Publication([planned.span]), ask)
        else:
            number, done = unfinished(session, state, planned.span)
            left = [p for p in planned.partitions if p not in done]
            certified = {} if again else unchanged(session, table, left)
            units = [partition_range(p, table.partition_by) for p in left if p not in certified]
            yield from _left_alone(session, table, certified, number, len(units))
            yield from _published(session, table, units, planned.at_once, number, ask)
    # found again: tables with a state are reached as far as their streams have come meanwhile
    for other, span in reading(session, table, planned.span) if cascade else ():
        yield from followed(session, other, span, planned.at_once)


def begin(session: Session, table_name: str) -> Backfill | None:
    """Sets the handover of a new table, if it has none, and returns the plan of its history up to there.

    Returns None if there is no history before the handover. Raises UnknownTable, RangeError, JobError.
    """
    table = session.catalog.table(table_name)
    session.catalog.check_streamed(table)
    creation.create(session, table)
    begins = handover.begin(session, table)
    span = compute.behind(session, table, begins.frontier)
    return plan(session, table_name, span.start, span.end) if span else None


def renew(lakehouse: Lakehouse, table_name: str) -> None:
    """Has the job of a keyed or versioned table compute it again when it is started the next time."""
    table = lakehouse.catalog.table(table_name)
    with publishing(lakehouse.settings, table):
        reference_tables.renew(lakehouse, table)


def pending(lakehouse: Lakehouse, planned: Backfill) -> dict[str, list[str]]:
    """Returns, by table, the partitions of the tables that read this one that wait for a batch run. Reads commit logs."""
    table, by_table = lakehouse.catalog.table(planned.table), {}
    for other, span in reading(lakehouse, table, planned.span):
        reached = set(span.partitions(other.partition_by))
        outdated = batch_state.read(lakehouse, other).outdated
        by_table[other.name] = [p for p in outdated if p in reached]
    return {name: partitions for name, partitions in by_table.items() if partitions}


def followed(
    session: Session, table: Table, span: Range = _EVER, at_once: int = 1
) -> Iterator[Commit]:
    """Makes the closed part of `span` show what was rewritten in the table's inputs. Open partitions wait."""
    with publishing(session.settings, table):
        state = batch_state.read(session, table)
        end = min(span.end, state.ahead)
        units = (partition_range(p, table.partition_by) for p in state.outdated)
        closed = [u for u in units if span.start <= u.start and u.end <= end]
        if closed:
            creation.create(session, table)
        # a session may continue into any later partition: all partitions up to there in one
        if table.window and table.window.kind == "session":
            dirt = [Dirt(p, True) for unit in closed for p in unit.partitions(table.partition_by)]
            for sessions in late_merge.session_spans(session, state, dirt):
                yield compute.backfill(session, table, sessions)
        else:
            yield from _published(session, table, closed, at_once)


def _left_alone(
    lakehouse: Lakehouse, table: Table, certified: Mapping[str, Certificate], run: int, left: int
) -> Iterator[Commit]:
    """Adds the lines of partitions that stay as they are, by their certificates: nothing of them is computed or read."""
    commit_log = lakehouse.commit_log(table)
    commit_log.read_on()  # what a crash kept from it
    for n, (key, last) in enumerate(certified.items(), 1):
        span = partition_range(key, table.partition_by)
        line = unwritten(
            table,
            "batch",
            start=span.start,
            end=span.end,
            run=run,
            left=left + len(certified) - n,
            inputs=last.inputs,
        )
        commit_log.append(line)
        yield line


def _published(
    session: Session,
    table: Table,
    units: Sequence[Range],
    at_once: int,
    run: int = 0,
    ask: Ask = "missing",
) -> Iterator[Commit]:
    left = len(units)
    for chunk in _chunks(units, at_once):
        _give_way(session)
        left -= len(chunk)
        yield from compute.published(session, table, Publication(chunk, run, left), ask)


def _chunks(units: Sequence[Range], most: int) -> Iterator[list[Range]]:
    """Yields lists of at most `most` units that follow each other without a gap."""
    chunk: list[Range] = []
    for unit in units:
        if chunk and (len(chunk) == most or unit.start != chunk[-1].end):
            yield chunk
            chunk = []
        chunk.append(unit)
    if chunk:
        yield chunk


def _give_way(lakehouse: Lakehouse) -> None:
    """Waits while a streaming query lags too far. The wait has a bound: the query may lag for another reason."""
    most = duration(lakehouse.settings.stream_lag)
    deadline = time.monotonic() + duration(lakehouse.settings.batch_within).total_seconds()
    while lag(lakehouse, datetime.now(UTC)) > most and time.monotonic() < deadline:
        time.sleep(_LOOK)


def rebuild(session: Session, table_name: str) -> Iterator[Commit]:
    """Computes a reference table, which has no range, again as a whole. Raises as `run`."""
    table = session.catalog.table(table_name)
    with publishing(session.settings, table):
        if commit := reference_tables.rebuild(session, table):
            yield commit
