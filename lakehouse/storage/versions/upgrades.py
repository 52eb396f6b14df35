"""The other version of a table, beside it, and the exchange of the two.

The other version is the table itself once more, below a root of its own in which links stand for
what it reads: rows, commit log, position and checkpoint. So a batch run and a stream fill it as they
fill any table, and the table goes on meanwhile.

An exchange puts its rows into the table in one Delta commit, which has its position, too. Readers see
the one or the other, whoever has old files open reads on, and what reads the table follows as after
a batch run. What the table held before is then the other version, so the same exchange takes it back.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import Range, text
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import read_json, replace_file
from lakehouse.storage.disk.layout import Note, Side, table_path
from lakehouse.storage.disk.publish_lock import held
from lakehouse.storage.disk.root import check_on_a_disk
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import comparisons
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.position import checkpoint_files, checkpoints, declared_state
from lakehouse.storage.position.checkpoints import Beginning
from lakehouse.storage.versions import interruptions, restoring, savepoints
from lakehouse.storage.versions.interruptions import State, Upgrade

Command = Literal["promote", "roll-back"]
DONE: Mapping[Command, State] = {"promote": "promoted", "roll-back": "rolled back"}
_BEFORE_ALL = NOTHING - 1  # the version of a line after which no earlier one holds
_IN_ONE_COMMIT: tuple[Side, ...] = ("quarantine", "")
_AS_FOLDERS: tuple[Side, ...] = ("state", "early")
_MOMENT = timedelta(microseconds=1)


def upgrade(settings: Settings, table: Table) -> Upgrade | None:
    return interruptions.upgrade(settings, table.name)


def of_all(lakehouse: Lakehouse) -> dict[str, Upgrade]:
    """Returns the upgrades of all declared tables with another version beside them. Raises JobError if a note cannot be read."""
    names = (
        name for name in layout.upgraded(lakehouse.settings) if name in lakehouse.catalog.tables
    )
    upgrades = {name: upgrade(lakehouse.settings, lakehouse.catalog.table(name)) for name in names}
    return {name: each for name, each in upgrades.items() if each}


def note_compared(
    settings: Settings,
    table: Table,
    compared: Mapping[str, Any],
    within: Range | None,
    refused: str,
) -> Upgrade:
    """Notes what was compared of the two versions; the one beside is up to the present then."""
    begun = upgrade(settings, table)
    state: State = begun.state if begun and begun.state != "filling" else "filled"
    may_differ = [text(within.start), text(within.end)] if within else []
    return note(settings, table, state, compared=compared, may_differ=may_differ, refused=refused)


def note(settings: Settings, table: Table, state: State, **more: Any) -> Upgrade:
    before, at = upgrade(settings, table), text(datetime.now(UTC))
    exchanged = before and before.command and not more.get("command")
    since = at if before is None or exchanged else before.since or at
    noted = Upgrade(state, at, table.code_version, since=since, **more)
    path = layout.upgrade(settings, table.name, "upgrade.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, asdict(noted))
    return noted


def alone(settings: Settings, table: Table) -> AbstractContextManager[object]:
    """One command at a time fills, exchanges or drops a version of the table. Raises JobError naming the process that does."""
    check_on_a_disk(settings, "versions of a table beside it")
    return held(layout.upgrade_lock(settings, table.name), table, "upgrading")


def under_way(lakehouse: Lakehouse, table: Table) -> dict[str, str]:
    """The other tables of the pipeline that a command upgrades now, each with the pid of its process."""
    others = [each for each in lakehouse.catalog.of_pipeline(table.pipeline) if each != table]
    pids = {t.name: locks.holder(layout.upgrade_lock(lakehouse.settings, t.name)) for t in others}
    return {name: pid for name, pid in pids.items() if pid}


def beside(settings: Settings, table: Table) -> Settings:
    """The settings below whose root the other version is."""
    return replace(settings, root=layout.upgrade(settings, table.name, "beside").absolute())


def begin(lakehouse: Lakehouse, table: Table) -> Settings:
    """Makes the root of the other version, if it is not there, and notes that it is filled.

    One that was filled reads on, also one that was exchanged, under its own code.

    :raises JobError: if the table cannot be upgraded, or the version beside it is another one.
    """
    begun = upgrade(lakehouse.settings, table)
    if begun and begun.command:
        raise JobError(_was_cut_off(table, begun.command))
    _check_kind(lakehouse, table)
    other = beside(lakehouse.settings, table)
    _check_code(other, lakehouse.catalog, table)
    link_inputs(lakehouse, table)
    if begun is None or begun.state == "filling":
        note(lakehouse.settings, table, "filling", may_differ=begun.may_differ if begun else ())
    return other


def _was_cut_off(table: Table, command: str) -> str:
    return f"table={table.name}: `lakehouse upgrade {command} {table.name}` was cut off; run that again first"


def _check_kind(lakehouse: Lakehouse, table: Table) -> None:
    changed = declared_state.changes(lakehouse, table)
    if changed is None:
        raise JobError(
            f"table={table.name}, layer={table.layer}: it has not begun there, so there is nothing to upgrade; start its job"
        )
    if not declared_state.upgradable(lakehouse.catalog, table, changed):
        raise JobError(
            f"table={table.name}, kind={table.kind}: a row table or a window table without a lookup, in the "
            f"layer that it has, can have another version beside it, and this one cannot; `lakehouse plan` says what it needs"
        )


def _check_code(other: Settings, catalog: Catalog, table: Table) -> None:
    if changed := declared_state.changes(Lakehouse(other, catalog), table):
        raise JobError(
            f"table={table.name}, {changed[0].field}={changed[0].now or 'none'}: the version beside it was filled with "
            f"{changed[0].then or 'none'}; go on with that code, or `lakehouse upgrade drop {table.name}` and fill it again"
        )


def link_inputs(lakehouse: Lakehouse, table: Table) -> None:
    """Has the other version read what the table reads: links to folders, commit logs and the notes beside them."""
    other = beside(lakehouse.settings, table)
    notes = ("jsonl", *(each for each in get_args(Note) if each != "reconciliation.json"))
    for each in lakehouse.catalog.input_tables(table):
        _link(lakehouse.path(each), table_path(other, each))
        for name in notes:
            _link(
                *(
                    layout.commit_logs(of) / f"{each.name}.{name}"
                    for of in (lakehouse.settings, other)
                )
            )


def _link(path: Path, to: Path) -> None:
    if not to.is_symlink():
        to.parent.mkdir(parents=True, exist_ok=True)
        to.symlink_to(os.path.relpath(path.absolute(), to.parent))


def check(lakehouse: Lakehouse, table: Table, command: Command) -> bool:
    """Returns True if the exchange was begun by that command already, and only has to go on.

    :raises JobError: if there is nothing to exchange, it was refused, or other code is declared.
    """
    begun = upgrade(lakehouse.settings, table)
    ready = ("promoted",) if command == "roll-back" else ("filled", "rolled back")
    if begun and begun.command:
        if begun.command != command:
            raise JobError(_was_cut_off(table, begun.command))
        return True
    if begun is None or begun.state not in ready:
        state = begun.state if begun else "none"
        remedy = f"`lakehouse upgrade {'promote' if command == 'roll-back' else 'fill'} {table.name}` comes first"
        raise JobError(
            f"table={table.name}, upgrade={state}: there is no version beside it to {command}; {remedy}"
        )
    if begun.refused and command == "promote":
        raise JobError(
            f"table={table.name}: {begun.refused}; drop it and fill it with other code, or fill again and let rows differ there "
            "(--differs-from, --differs-until)"
        )
    _check_code(beside(lakehouse.settings, table), lakehouse.catalog, table)
    return False


def exchange(lakehouse: Lakehouse, table: Table, command: Command) -> Upgrade:
    """Exchanges the two versions, or goes on with that. The table's job and batch runs do not run."""
    taken, other, gone = (
        layout.upgrade(lakehouse.settings, table.name, each) for each in ("taken", "beside", "gone")
    )
    if not check(lakehouse, table, command):
        _check_position(lakehouse, table)
        shutil.rmtree(taken, ignore_errors=True)
        savepoints.take_table(lakehouse, table, replace(lakehouse.settings, root=taken))
        now = upgrade(lakehouse.settings, table)
        assert now is not None
        generation = checkpoints.standing(lakehouse.settings, table).generation
        note(lakehouse.settings, table, now.state, command=command, generation=generation)
    begun = upgrade(lakehouse.settings, table)
    assert begun is not None
    if taken.exists():
        if other.exists():
            _put_in_place(lakehouse, table, begun.generation)
            shutil.rmtree(gone, ignore_errors=True)
            other.rename(gone)
        taken.rename(other)
    link_inputs(lakehouse, table)
    comparisons.forget(lakehouse.settings, table)
    done = note(lakehouse.settings, table, DONE[command])
    shutil.rmtree(gone, ignore_errors=True)
    return done


def hindrance(lakehouse: Lakehouse, table: Table) -> str:
    """Why the version beside the table cannot read on now, under this code and by this process; empty if it can."""
    begun = upgrade(lakehouse.settings, table)
    if begun and begun.command:
        return _was_cut_off(table, begun.command)
    if pid := locks.holder(layout.upgrade_lock(lakehouse.settings, table.name)):
        return f"table={table.name} (pid={pid}): that process fills, follows or exchanges its version beside"
    try:
        _check_code(beside(lakehouse.settings, table), lakehouse.catalog, table)
    except JobError as err:
        return str(err)
    return ""


def drop(settings: Settings, table: Table) -> None:
    """Removes the version beside the table. Raises JobError if there is none, or it is being exchanged."""
    begun = upgrade(settings, table)
    if begun is None or begun.command:
        why = f"table={table.name}: there is no other version"
        raise JobError(_was_cut_off(table, begun.command) if begun else why)
    layout.upgrade(settings, table.name, "upgrade.json").unlink()
    shutil.rmtree(layout.upgrades(settings) / table.name)


def _check_position(lakehouse: Lakehouse, table: Table) -> None:
    other = beside(lakehouse.settings, table)
    ours, theirs = frontier(lakehouse.settings, table), frontier(other, table)
    if checkpoints.standing(other, table).last is None:
        raise JobError(
            f"table={table.name}: the stream of the version beside it has had nothing to read yet; try again when its input has "
            "gone on"
        )
    # a query of Spark's knows no instants between two milliseconds
    if ours and (theirs is None or ours - theirs >= timedelta(milliseconds=1)):
        raise JobError(
            f"table={table.name}, frontier={text(theirs) if theirs else 'none'}: the version beside it is complete up to there, "
            f"and the table up to {text(ours)}, so rows that are final would be gone; have it catch up (`lakehouse upgrade fill "
            f"{table.name}`), or declare the changed table under another name"
        )


def _put_in_place(lakehouse: Lakehouse, table: Table, before: int) -> None:
    """The rows, the position and the commit log of the version beside the table, in the table."""
    from lakehouse.storage.delta import delta_writer

    other = beside(lakehouse.settings, table)
    last = checkpoints.standing(other, table).last
    assert last is not None  # `_check_position`
    generation = before + last.generation
    app = checkpoints.app(table, generation)
    taken = replace(
        lakehouse.settings, root=layout.upgrade(lakehouse.settings, table.name, "taken")
    )
    span = _span((taken, other), table)
    noted = {
        "exchange": before,
        "code_version": table.code_version,
        "inputs": last.inputs,
        "watermark": last.watermark,
        "frontier": last.frontier,
    }
    version = NOTHING
    for side in _IN_ONE_COMMIT:  # the table last: with it the exchange has happened
        source, to = (table_path(of, table, side) for of in (other, lakehouse.settings))
        version = delta_writer.exchange(source, to, app, last.batch, noted)
    for side in _AS_FOLDERS:
        restoring.put(*(table_path(of, table, side) for of in (other, lakehouse.settings)))
    if checkpoint := checkpoint_files.newest(other, table):
        restoring.put(checkpoint, checkpoint_files.folder_of(lakehouse.settings, table, generation))
    _renew_commit_log(lakehouse.settings, other, table, version, before, span)
    for name in ("declared.json", "handover.json"):
        _copy_note(*(layout.note(of, table, name) for of in (other, lakehouse.settings)))
    if checkpoints.beginning(lakehouse.settings, table, generation) is None:
        begun = checkpoints.beginning(other, table, last.generation) or Beginning(
            generation, None, "", datetime.now(UTC).isoformat()
        )
        begun = replace(begun, generation=generation, after=None, why="its versions were exchanged")
        checkpoints.beginnings(lakehouse.settings, table).append(begun)


def _copy_note(path: Path, to: Path) -> None:
    if path.exists():
        replace_file(to, read_json(path))
    else:
        to.unlink(missing_ok=True)


def _span(versions: Sequence[Settings], table: Table) -> Range | None:
    """Returns the range in which the rows of both versions lie."""
    keys = {
        file[f"partition.{PARTITION}"]
        for of in versions
        for file in delta_log.files(table_path(of, table))
    } - {None}
    spans = [comparisons.span_of(key) for key in keys]
    return Range(min(s.start for s in spans), max(s.end for s in spans)) if spans else None


def _renew_commit_log(
    settings: Settings, other: Settings, table: Table, version: int, before: int, span: Range | None
) -> None:
    """The lines of the other version, behind one after which the present ones hold no more.

    Of all that was replaced a line that covers no input: tables that read this one follow it.
    """
    commit_log, at = CommitLog(settings, table), datetime.now(UTC)
    void = Commit(table.name, "void", before, -1, _BEFORE_ALL, at, table.code_version)
    lines = [void]
    if span:
        lines.append(
            replace(
                void,
                role="batch",
                generation=0,
                batch=0,
                version=version,
                start=span.start,
                end=span.end,
                inputs={"tables": {}, "references": {}},
            )
        )
    for line in reversed(list(CommitLog(other, table))):
        lines.append(
            replace(
                line,
                generation=line.generation + (before if line.role == "stream" else 0),
                version=NOTHING if line.version == NOTHING else version,
            )
        )
    commit_log.append(*(replace(line, at=at + n * _MOMENT) for n, line in enumerate(lines)))
