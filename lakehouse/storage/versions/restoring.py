"""A savepoint put to use: restored in its place, forked into another root, or moved as one file.

A restore puts the folder of each table, its commit log and its checkpoint back as they were, one
after the other. Which one is being restored is noted before the first, so a restore that was cut
off is seen, nothing starts, and the same command goes on with it.
"""

import shutil
import tarfile
import zlib
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from lakehouse.errors import CommitError, SavepointError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.disk.root import make as make_root
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import checkpoints
from lakehouse.storage.versions import fork_guard, interruptions, read_holds, savepoints
from lakehouse.storage.versions.savepoints import Savepoint, copy_into

BEFORE = "before-"
"""How the names of savepoints begin that a restore makes of what it replaces."""


def restore(lakehouse: Lakehouse, name: str, *, keep: bool = True) -> str:
    """Puts all tables of the savepoint back as they were, while no job and no batch run is at work.

    :param keep: makes a savepoint of what is there now first.
    :returns: the name of that savepoint; empty without.
    :raises SavepointError: if it is damaged, another restore was cut off, a run is under way, or a
        table that it does not have has read from one that it has.
    :raises JobError: if a process is rewriting a table.
    """
    begun = interruptions.begun(lakehouse.settings)
    if begun and begun.savepoint != name:
        raise SavepointError(f"savepoint={name}: {interruptions.said(begun.savepoint)}")
    saved = savepoints.verify(lakehouse.settings, name)
    before = begun.before if begun else ""
    if not begun:
        _check_none_beside(lakehouse.settings, name)
        _check_readers(lakehouse, saved)
        if keep:
            now = datetime.now(UTC)
            before = f"{BEFORE}{name}-{now:%Y%m%dT%H%M%S}"
            try:
                savepoints.create(lakehouse, before, f"before {name} was restored")
            except CommitError as err:
                raise SavepointError(
                    f"savepoint={name}: what is there now would be kept first, and is not whole ({err}); `lakehouse savepoint "
                    f"restore {name} --discard` restores without keeping it"
                ) from err
    with ExitStack() as held:
        held.enter_context(savepoints.alone(lakehouse.settings))
        for table in lakehouse.catalog:
            held.enter_context(publishing(lakehouse.settings, table))
        if read_holds.began(lakehouse.settings):
            raise SavepointError(
                f"savepoint={name}: a batch run, a query or a reconciliation reads tables now, and would find others under its "
                "hands; restore when it has ended"
            )
        replace_file(layout.restoring(lakehouse.settings), {"savepoint": name, "before": before})
        try:
            _restore(lakehouse.settings, saved)
        except OSError as err:
            raise SavepointError(
                f"savepoint={name}: its tables must be put back whole and were not ({err}); make room, and run this command "
                "again, which goes on with it; until then nothing starts"
            ) from err
        layout.restoring(lakehouse.settings).unlink()
    return before


def fork(settings: Settings, name: str, root: Path) -> Settings:
    """A second lakehouse with the same past, in another root; the settings that it has there.

    Its streams go on from where those of the savepoint were, beside these.

    :raises SavepointError: if the savepoint is damaged, or the root has anything in it.
    """
    saved = savepoints.verify(settings, name)
    root = root.absolute()
    if root.exists() and any(root.iterdir()):
        raise SavepointError(
            f"root={root}: a fork begins in a folder that is new or empty, and this one is not; name another"
        )
    targets = {target for table in saved.tables.values() for target in table.targets}
    with savepoints.clean(root.with_name(f".{root.name}.new"), f"root={root}") as beside:
        make_root(replace(settings, root=beside))
        copy_into(layout.savepoint_root(settings, name), beside)
        fork_guard.note(replace(settings, root=beside), settings.root, targets)
        if root.exists():
            root.rmdir()
        beside.rename(root)
    return replace(settings, root=root)


def export(settings: Settings, name: str, file: Path) -> None:
    """Writes the savepoint as one file, to be moved to another machine or disk.

    :raises SavepointError: if it is damaged, or there is such a file.
    """
    savepoints.verify(settings, name)
    if file.exists():
        raise SavepointError(f"file={file}: it is there already; name another, or remove it")
    beside = file.with_name(f".{file.name}.new")
    try:
        with tarfile.open(beside, "w") as archive:
            archive.add(layout.savepoint(settings, name), name)
        beside.rename(file)
    except OSError as err:
        beside.unlink(missing_ok=True)
        raise SavepointError(
            f"file={file}: the savepoint must be written whole and was not ({err}); name a file where there is room"
        ) from err


def take_in(settings: Settings, file: Path) -> Savepoint:
    """Makes the exported file a savepoint of this root.

    :raises SavepointError: if it is not such a file, is damaged, or there is one of its name.
    """
    with savepoints.alone(settings):
        beside = layout.savepoints(settings) / ".import.new"
        shutil.rmtree(beside, ignore_errors=True)  # of one that was killed
        try:
            name = _unpacked(settings, file, beside)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    try:
        return savepoints.verify(settings, name)
    except BaseException:  # whatever it is: what is not verified is no savepoint
        savepoints.drop(settings, name)
        raise


def _unpacked(settings: Settings, file: Path, beside: Path) -> str:
    """The name of the savepoint that was in the file, and is now among the others."""
    try:
        with tarfile.open(file) as archive:
            archive.extractall(beside, filter="data")
        (folder,) = beside.iterdir()
        if not folder.is_dir():
            raise ValueError(f"{folder.name} in it is no folder")
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as err:
        raise SavepointError(
            f"file={file}: it must be what `lakehouse savepoint export` writes, and cannot be read ({err})"
        ) from err
    name = folder.name
    savepoints.check_name(settings, name)
    folder.rename(layout.savepoint(settings, name))
    return name


def _restore(settings: Settings, found: Savepoint) -> None:
    source = replace(settings, root=layout.savepoint_root(settings, found.name))
    layout.commit_logs(settings).mkdir(exist_ok=True)
    for name in get_args(layout.LogTable):
        put(layout.log_table(source, name), layout.log_table(settings, name))
    for name, saved in found.tables.items():
        for side in (*get_args(layout.Side), "report"):
            folder = f"{name}__{side}" if side else name
            put(*(layout.layer_path(each, saved.layer, folder) for each in (source, settings)))
        put(*(layout.query_checkpoints(each, name) for each in (source, settings)))
        kept = {path.name: path for path in layout.notes_of(source, name)}
        for path in layout.notes_of(settings, name):
            if path.name not in kept:
                path.unlink(missing_ok=True)
        for path in kept.values():
            beside = layout.commit_logs(settings) / f".{path.name}.new"
            shutil.copyfile(path, beside)
            beside.rename(layout.commit_logs(settings) / path.name)


def put(source: Path, to: Path) -> None:
    """Puts a folder in the place of another; without the first, the other goes."""
    beside, gone = to.with_name(f".{to.name}.new"), to.with_name(f".{to.name}.gone")
    for left in (beside, gone):
        shutil.rmtree(left, ignore_errors=True)
    if source.is_dir():
        copy_into(source, beside)
    if to.is_dir():
        to.rename(gone)
    if beside.is_dir():
        beside.rename(to)
    shutil.rmtree(gone, ignore_errors=True)


def _check_none_beside(settings: Settings, name: str) -> None:
    if tables := layout.upgraded(settings):
        raise SavepointError(
            f"savepoint={name}, table={tables[0]}: the version beside the table would have read more than its inputs hold then, "
            f"and miss what comes in its place; `lakehouse upgrade drop {tables[0]}` removes it, and afterwards it can be "
            "filled again"
        )


def _check_readers(lakehouse: Lakehouse, found: Savepoint) -> None:
    for table in lakehouse.catalog:
        saved = found.tables.get(table.name)
        if saved and saved.layer != table.layer:
            raise SavepointError(
                f"savepoint={found.name}, table={table.name}, layer={table.layer}: in the savepoint its layer is {saved.layer}; "
                "declare it there again, or give what is declared now a new name"
            )
        if saved or not checkpoints.standing(lakehouse.settings, table).began:
            continue
        read = [
            each.name for each in lakehouse.catalog.timed_inputs(table) if each.name in found.tables
        ]
        if read:
            raise SavepointError(
                f"savepoint={found.name}, table={table.name}: it is not in the savepoint and has read {', '.join(read)} "
                f"beyond what that holds; remove its folder {lakehouse.path(table)}, and its stream "
                "fills it again"
            )
