"""The start of a streaming query: from its checkpoint if that fits the table, else in a new
generation after the table's last commit.

The next generation begins with this, by kind of table:

    stepped          the position of the last commit that the table holds (`stream.strategy`); it has no checkpoint
    divided again    the checkpoint of the generation before, with its state in other partitions (`stream.rescaling`)
    window (state)   its state built again: the input from the first version that holds a row of a window still open
    keyed, versions  all that its inputs have, as after `lakehouse backfill`

A keyed or versioned table whose reference table has changed begins again as well: all its rows see the reference tables as of one
moment. (A keyed table in steps of `stream.engines.groups` goes on, and computes all rows in its next step.)
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, JobError
from lakehouse.ranges import BEGINNING
from lakehouse.storage.delta import delta_log, delta_writer, small_commits
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.position import checkpoint_content, checkpoint_files, checkpoints
from lakehouse.storage.position.checkpoints import Beginning, Standing, Written
from lakehouse.storage.position.table_state import TableState
from lakehouse.storage.session import Session
from lakehouse.stream import handover, positions
from lakehouse.stream.strategy import Strategy

_log = logging.getLogger(__name__)


def fit(session: Session, state: TableState, filled_by: Strategy) -> TableState:
    """Returns the state from which the table's query goes on, in a new generation if it cannot go on in the last one.

    Raises CommitError where rows might be lost or doubled.
    """
    table, standing = state.table, state.standing
    last, stepped = standing.last, filled_by != "state"
    if stepped and standing.has_checkpoint:
        # nobody would ever read the versions that maintenance keeps for it
        checkpoint_files.remove(session.settings, table.name)
        _log.warning(
            f"table={table.name}: it keeps its position in its own commits now; its checkpoint was removed"
        )
        standing = checkpoints.standing(session.settings, table)
        state = replace(state, standing=standing)
    wrong = "" if stepped else _misfit(session, state)
    if fault := last and _input_fault(session, table, last):
        if not table.kind.is_upserted:
            raise CommitError(f"table={table.name}, {fault}")
        wrong = wrong or fault
    wrong = wrong or _beginning_gone(session, state)
    if standing.taken_back:  # with its checkpoint gone, too, nothing else says so
        wrong = wrong or f"the table was put back to version {standing.version}"
    if not wrong and not _is_renewed(session, state, filled_by):
        return state
    if standing.taken_back:
        _check_readers(session, table, standing)
        _put_back_aside(session, table, standing)
        _void(session, table, standing, standing.generation + 1)
    if wrong:
        begun = _begin(session, state, wrong, stepped)
        looked_for = checkpoint_files.folder_of(session.settings, table, begun.generation).parent
        look = "" if stepped else f". Look for what removed or replaced the folder {looked_for}"
        what = wrong if stepped else f"the checkpoint did not fit the table ({wrong})"
        _log.warning(
            f"table={table.name}, generation={begun.generation}: {what}, so a new generation begins behind "
            f"{_behind(table, standing)}; no row is lost or doubled{look}"
        )
    return replace(state, standing=checkpoints.standing(session.settings, table))


def _misfit(session: Session, state: TableState) -> str:
    """Returns why a query of Spark's cannot go on from its checkpoint; empty if it can."""
    table, standing = state.table, state.standing
    checkpoint = checkpoint_files.folder_of(session.settings, table, standing.generation)
    checkpoint_content.set_unreadable_aside(checkpoint)
    inputs = _position(session, table, standing.last) if standing.last else None
    wrong = checkpoints.misfit(checkpoint, standing, inputs, stateful=table.kind.is_windowed)
    if table.kind.keeps_latest and not wrong and (done := checkpoint_files.done(checkpoint)):
        return checkpoint_files.state_gone(checkpoint, done[-1])
    return wrong


def go_on_divided(lakehouse: Lakehouse, table: Table, checkpoint: Path, why: str) -> None:
    """Begins the next generation of a query of Spark's with this checkpoint: its own, with the state divided again.

    Its micro-batches continue the numbers of the generation before.
    """
    standing = checkpoints.standing(lakehouse.settings, table)
    beginning = standing.beginning
    again = {
        name: getattr(beginning, name) for name in ("frontier", "aside", "version") if beginning
    }
    checkpoints.begin(
        lakehouse.settings,
        table,
        standing.number,
        why,
        checkpoint,
        continues=True,
        divided=checkpoint_files.done(checkpoint)[-1],
        **again,
    )


def _is_renewed(session: Session, state: TableState, filled_by: Strategy) -> bool:
    """Returns True if a keyed or versioned table begins again, because a reference table of it has changed."""
    table, standing = state.table, state.standing
    last = standing.last
    if not table.kind.is_upserted or last is None or filled_by == "groups":
        return False
    if standing.begins_whole:
        return False  # it begins with all rows anyway
    changed = [
        f"{name} was read at version {version} and is at {now}"
        for name, version in last.inputs["references"].items()
        if (now := delta_writer.version(session.path(session.catalog.table(name)))) != version
    ]
    if not changed:
        return False
    why = "; ".join(changed)
    begun = checkpoints.begin(session.settings, table, standing.number, why)
    message = (
        f"table={table.name}, generation={begun.generation}: {why}; all rows are computed again from all that the inputs have, "
        "because rows of one table are as of the same version"
    )
    _log.warning(message)
    return True


def _beginning_gone(lakehouse: Lakehouse, state: TableState) -> str:
    """Returns the fault if the generation's beginning is unknown: a replayed micro-batch could be written twice. Else empty."""
    own = state.standing.generation
    if own == 1 or state.standing.beginning:
        return ""
    path = layout.note(lakehouse.settings, state.table, "generations.jsonl")
    return f"how generation {own} began is not known any more, because {path} has lost it"


def _behind(table: Table, standing: Standing) -> str:
    last = standing.last
    if table.kind.is_upserted:
        return "nothing, with all that its inputs have"
    return (
        f"micro-batch {last.batch} of generation {last.generation}"
        if last
        else "nothing, with all that its input has"
    )


def _position(lakehouse: Lakehouse, table: Table, last: Written | Commit) -> Mapping:
    """Returns how far a micro-batch had read the input that its query follows."""
    return last.inputs["tables"][lakehouse.catalog.driving(table).name]


def _begin(session: Session, state: TableState, why: str, stepped: bool) -> Beginning:
    table, standing = state.table, state.standing
    kind, last = table.kind, standing.last
    if stepped:
        continues = bool(last) and not kind.is_upserted
        return checkpoints.begin(session.settings, table, standing.number, why, continues=continues)
    if (
        last is None
        and table.kind.is_derived
        and delta_log.oldest(session.path(session.catalog.driving(table))) > 0
    ):
        raise CommitError(
            f"table={table.name}: it is to begin again ({why}), the table holds no commit of it, and its input's log does not "
            f"go back to its beginning; give the table a new name, and begin that by `lakehouse bootstrap`"
        )
    again = _state_from(session, state) if last and kind.is_windowed else {}
    begun = checkpoints.begin(session.settings, table, standing.number, why, **again)
    if last and again:
        folder = checkpoint_files.folder_of(session.settings, table, begun.generation)
        checkpoint_files.write(session.spark, folder, _position(session, table, last))
    return begun


def _state_from(session: Session, state: TableState) -> dict[str, Any]:
    """Returns up to when table and quarantine have their windows, and the input version with the first row of a later one."""

    table, standing = state.table, state.standing
    start = state.handover.frontier if state.handover else BEGINNING

    def reached(of: Written | Commit | None) -> datetime:
        return max((of and of.frontier) or BEGINNING, start)

    ahead, aside = reached(standing.last), reached(standing.last)
    pending, path = standing.pending, session.path(table, "quarantine")
    if (
        pending
        and delta_log.committed(path, checkpoints.app(table, pending.generation)) < pending.batch
    ):
        aside = reached(standing.noted)  # the crash came before the write to the quarantine
    driving = session.catalog.driving(table)
    try:
        version = handover.first_version(
            session, driving, handover.reads_from(session, table, min(ahead, aside))
        )
    except JobError as err:
        raise CommitError(
            f"table={table.name}: its state is to be built again, and cannot be: {err}; or give the table a new "
            "name, and begin that by `lakehouse bootstrap`"
        ) from err
    return {"frontier": ahead.isoformat(), "aside": aside.isoformat(), "version": version}


def _void(lakehouse: Lakehouse, table: Table, standing: Standing, generation: int) -> None:
    """Notes in the commit log that the lines after the version that the table holds are of rows that it no longer has."""
    held = (
        standing.written.version
        if standing.written and not table.kind.is_upserted
        else standing.version
    )
    if not standing.last:
        held = NOTHING
    void = Commit(table.name, "void", generation, -1, held, datetime.now(UTC), table.code_version)
    lakehouse.commit_log(table).append(void)


def _input_fault(lakehouse: Lakehouse, table: Table, last: Written | Commit) -> str:
    """Returns the fault of an input that is no longer what was read of it, or lacks what comes next.

    Empty if there is none.
    """
    faults = (
        _fault_of(lakehouse, table, each, last) for each in lakehouse.catalog.followed_inputs(table)
    )
    return next(filter(None, faults), "")


def _fault_of(lakehouse: Lakehouse, table: Table, of: Table, last: Written | Commit) -> str:
    offset = last.inputs["tables"][of.name]
    path, read = lakehouse.path(of), offset["reservoirVersion"] - (offset["index"] < 0)
    if another := positions.another(path, offset["reservoirId"]):
        return (
            f"{another}; put that one back from a copy, or remove this table's folder and those of the tables that read it as "
            "well, and the next start fills them from what the input has now"
        )
    latest, oldest = delta_log.latest(path), delta_log.oldest(path)
    if read > latest:
        return (
            f"input={of.name}, version={latest}: the table was computed from its version {read}, so the input is older than "
            f"what was read of it; put back its version {read}, or put this table back to what it was then"
        )
    if offset["reservoirVersion"] < oldest:
        return (
            f"input={of.name}, version={offset['reservoirVersion']}: the query goes on from there, and the input's log "
            f"begins with {oldest}; give the table a new name, and begin that by `lakehouse bootstrap`"
        )
    if table.kind.is_upserted and _put_back_since(lakehouse, of, last.at):
        return f"its input {of.name} was put back since, and rows that were read of it are not there any more or come again"
    return ""


def _put_back_since(lakehouse: Lakehouse, table: Table, moment: datetime) -> bool:
    """Returns True if rows of the table were taken back after that. Reads all lines: iterating a `CommitLog` hides such lines."""
    lines = takewhile(lambda line: line.at > moment, lakehouse.commit_log(table).lines())
    return any(line.role == "void" for line in lines)


def _check_readers(lakehouse: Lakehouse, table: Table, standing: Standing) -> None:
    """Raises CommitError if rows that are written again would enter twice a table that a stream fills from this one."""
    begun = ", ".join(_begun_behind(lakehouse, table))
    if not begun:
        return
    assert standing.taken_back is not None  # the callers have checked it
    whole = standing.taken_back.version
    what, remedy = (
        "it was put back to that",
        f"Put back its version {whole} (deltalake: DeltaTable(...).restore({whole})), and what is wrong with its rows right by a "
        "backfill or by hand",
    )
    if standing.latest < whole:
        what = "its log ends with that, so it was removed, or replaced by an older copy"
        remedy = f"Put its folder back from a copy with that version; or remove those of {begun} as well, and a start fills all"
    raise CommitError(
        f"table={table.name}, version={standing.version}: {what}, and {begun} had read version {whole}; what the query writes "
        f"again would enter there twice. {remedy}"
    )


def _begun_behind(lakehouse: Lakehouse, table: Table) -> list[str]:
    """Returns the tables that a stream has begun to fill from this one, directly or through others, each after its input."""
    begun: list[str] = []
    for reader in lakehouse.catalog:  # inputs come first
        inputs = lakehouse.catalog.timed_inputs(reader)
        reads = any(each == table or each.name in begun for each in inputs)
        if (
            reads
            and not reader.kind.is_upserted
            and checkpoints.standing(lakehouse.settings, reader).last
        ):
            begun.append(reader.name)
    return begun


def _put_back_aside(lakehouse: Lakehouse, table: Table, standing: Standing) -> None:
    """Restores the quarantine to the table's last commit: rows that were quarantined later are judged again."""
    path = lakehouse.path(table, "quarantine")
    if not table.kind.has_partitions or not delta_log.exists(path):
        return
    first = checkpoints.first_after(path, table, standing.number)
    if first is None:
        return
    if delta_log.oldest(path) > max(first - 1, 0):
        raise CommitError(
            f"table={table.name}, version={first - 1}: its quarantine must go back to that with it, and the log does not reach "
            f"there any more; put back {path} as it was then"
        )
    small_commits.put_back(path, first - 1)
