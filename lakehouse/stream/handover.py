"""The handover: where a new table's batch run over history ends and its stream begins, at a frontier of its input.

Every row still to come behind it is late, so a batch run may compute all of history there.
Ahead of it the stream computes every window, and reads the input from the first version that holds a
row of one. So no row is left out and none is doubled, whenever either of them runs.
"""

import logging
from dataclasses import asdict, replace
from datetime import UTC, datetime

from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import compute
from lakehouse.declare.columns import WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import (
    BEGINNING,
    OPEN_END,
    PARTITION_LENGTHS,
    Range,
    past_beginning,
    text,
)
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_json, replace_file
from lakehouse.storage.disk.locks import alone
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import NOTHING
from lakehouse.storage.position import declared_state, table_state
from lakehouse.storage.position.handovers import Handover, handover_of
from lakehouse.storage.position.table_state import TableState
from lakehouse.storage.session import Session
from lakehouse.transform import observing, plan, ranges_of

_log = logging.getLogger(__name__)


def begin(session: Session, table: Table) -> Handover:
    """Sets the table's handover at the last full partition behind its input's frontier.

    Returns it, or the one that is set already, if that is still of use.

    Raises RangeError for an ingest table or a reference table, JobError if the stream has begun
    without one, if the input has no frontier yet, if rows ahead of it are in versions of the input
    that a stream can no longer read, or if the table has several inputs with event time,
    DeclarationError if the stream started under another declaration (`declared_state`).
    """
    session.catalog.check_streamed(table)
    if len(inputs := session.catalog.timed_inputs(table)) > 1:
        raise JobError(
            f"table={table.name}, inputs={', '.join(each.name for each in inputs)}: a handover is between a batch run and the "
            "stream of one input; a table of several begins with all that its inputs' logs have, so start its job"
        )
    declared_state.begin(session, table_state.read(session, table))
    with alone(layout.note(session.settings, table, "handover.json").with_suffix(".lock")):
        # read again: the second of two concurrent calls finds what the first has set
        return _begin(session, table_state.read(session, table))


def _begin(session: Session, state: TableState) -> Handover:
    table, started, noted = state.table, state.standing.began, state.handover
    if noted and (
        started or delta_log.oldest(session.path(session.catalog.driving(table))) <= noted.version
    ):
        return noted
    if started:
        raise JobError(
            f"table={table.name}: its stream has begun without a handover, and writes all that its input's log had then; "
            "what lies before that a backfill computes"
        )
    driving = session.catalog.driving(table)
    last = next(
        (c for c in session.commit_log(driving).by_stream() if past_beginning(c.frontier)),
        None,
    )
    if last is None or last.frontier is None:
        raise JobError(
            f"table={table.name}: its input {driving.name} has no frontier yet; start its job first"
        )
    versioned_frontiers = [
        frontier(session.settings, versioned) or BEGINNING
        for versioned in session.catalog.versioned_inputs(table)
    ]
    ahead = ranges.floor(
        min([last.frontier - table.after, *versioned_frontiers]),
        PARTITION_LENGTHS[table.partition_by],
    )
    reads = reads_from(session, table, ahead)
    before = handover_of(session.settings, driving)
    if before and reads < before.frontier:
        raise JobError(
            f"table={table.name}: windows ahead of {text(ahead)} read {driving.name} from {text(reads)} on, but its stream "
            f"writes from {text(before.frontier)} on only; try again when its frontier is further"
        )
    handover = Handover(
        frontier=ahead,
        input=driving.name,
        version=first_version(session, driving, reads),
        until=last.version,
        inputs=last.inputs,
        code_version=table.code_version,
        at=datetime.now(UTC),
    )
    kept = asdict(handover) | {"frontier": text(ahead), "at": text(handover.at)}
    replace_file(layout.note(session.settings, table, "handover.json"), kept)
    declared_state.note_handover(session.settings, table, kept)
    return handover


def check(lakehouse: Lakehouse, state: TableState) -> TableState:
    """Restores the handover's file if it is gone and the stream has begun: else the stream would write rows from before it.

    Returns the state with the handover. Raises JobError if the stream has not begun, and the file of
    the handover up to which batch runs have filled the table is gone; also if the file and the note
    of the declaration differ.
    """
    if state.standing.began:
        return _put_back(lakehouse, state)
    table = state.table
    filled = any(
        c.role == "batch" and c.version != NOTHING for c in lakehouse.commit_log(table).rewriting()
    )
    if filled and state.handover is None:
        path = layout.note(lakehouse.settings, table, "handover.json")
        raise JobError(
            f"table={table.name}, file={path}: it held the handover up to which "
            "batch runs have filled "
            "the table, and it is gone, so the stream would write their rows again; restore the file, or run "
            f"`lakehouse bootstrap {table.name}`, which sets another and computes what lies before it"
        )
    return state


def _put_back(lakehouse: Lakehouse, state: TableState) -> TableState:
    table = state.table
    path = layout.note(lakehouse.settings, table, "handover.json")
    noted_handover = state.note.handover if state.note else None
    if state.handover:
        if not noted_handover:  # an earlier version did not note it
            declared_state.note_handover(lakehouse.settings, table, read_json(path))
        elif noted_handover != read_json(path):
            raise JobError(
                f"table={table.name}, file={path}: it must hold where the stream began, and the note of its declaration says "
                f"{noted_handover['frontier']}, so one of the two is an older copy; put both back from one copy, or run "
                f"`lakehouse bootstrap {table.name}` again"
            )
    elif noted_handover:
        replace_file(path, noted_handover)
        began_at = noted_handover["frontier"]
        message = f"table={table.name}, file={path}: it was gone, and holds where the stream began ({began_at})"
        _log.warning(f"{message}; it is put back from what was noted with the declaration")
        return replace(state, handover=handover_of(lakehouse.settings, table))
    return state


def reads_from(session: Session, table: Table, ahead: datetime) -> datetime:
    """Returns the first event time of the input from which results after `ahead` are computed."""
    if table.window is None or table.window.kind != "session":
        return ranges_of.context(Range(ahead, OPEN_END), table).start
    # a session that is open at that time may have begun at any time before
    references = session.references(compute.pinned(session, table))
    sessions = compute.preview(
        session, plan.plan_of(session, table), Range(ahead, OPEN_END), references
    )
    first = observing.only(sessions.agg(F.min(f"{WINDOW}.start")))[0]
    return min(ahead, first.astimezone(UTC)) if first else ahead


def first_version(lakehouse: Lakehouse, driving: Table, reads: datetime) -> int:
    """Returns the first version of the input that may hold a row from `reads` on, by the statistics of its files."""
    path, column = lakehouse.path(driving), lakehouse.catalog.time_statistic(driving)
    oldest = delta_log.oldest(path)
    kept = delta_log.changes(path, oldest or -1, column)
    before = delta_log.files(path, oldest) if oldest else []
    if kept is None or any(delta_log.may_reach(file, column, reads) for file in before):
        raise JobError(
            f"table={driving.name}: rows from {text(reads)} on are in versions up to {oldest}, and its log does not keep those "
            "before it any more, so no stream can begin with them; try again when its frontier is further, or keep more "
            "(LAKEHOUSE_VERSIONS, LAKEHOUSE_HISTORY)"
        )
    return next(
        (c.version for c in kept if any(span.end > reads for span in c.spans)),
        delta_log.latest(path),
    )
