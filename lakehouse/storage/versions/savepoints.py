"""Savepoints: all declared tables at one consistent cut, from which a lakehouse is restored or forked.

A savepoint is itself the root of a lakehouse, beside a list of its files with their checksums. Data
files, which never change, are hard links to those of the tables: a savepoint copies none of them,
and neither compaction nor the removal of a table takes one from it. Logs and notes are copies.

Streams go on meanwhile. A table is taken after those that read it, and its commit log before its
rows, so nothing in a savepoint refers to rows that are not in it. It is what a crash of all jobs
could have left, and each of them goes on from there as after one.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, get_args

from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, PathError, SavepointError
from lakehouse.paths import below, check_length, within
from lakehouse.ranges import past_beginning, text
from lakehouse.settings import Settings
from lakehouse.storage.delta import deletion_vector_files, delta_log, log_state
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import digest_of, link, read_json, replace_file
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.root import check_on_a_disk
from lakehouse.storage.disk.root import make as make_root
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.keyed import state_files
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.position import checkpoints
from lakehouse.storage.versions import read_holds
from lakehouse.storage.versions import savepoint_checks as checks

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]*")
_COMMIT = re.compile(r"(\d{20})\.")  # a commit of a Delta log, or a checkpoint of it
_BUSY = 5.0  # seconds to wait for another command that creates or restores


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One table in a savepoint."""

    layer: str
    version: int  # of Delta; -1: the table had no commit
    rows: int
    frontier: str  # ISO 8601; empty before the first
    position: Mapping[str, Any]  # up to where its stream had read its inputs
    code_version: str  # of its declaration
    targets: tuple[str, ...] = ()  # where it is published


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What a savepoint is of."""

    name: str
    at: str  # ISO 8601 UTC: when it was begun
    note: str
    library: str  # the version of this library
    tables: Mapping[str, SavedTable]
    files: int
    bytes: int
    contents: str  # the checksum of the list of its files
    checksum: str = ""  # of all the above


def create(lakehouse: Lakehouse, name: str, note: str = "") -> Savepoint:
    """Creates the savepoint, of all declared tables, while streams and batch runs go on.

    :raises SavepointError: if the name is taken or unusable.
    :raises CommitError: if a table lacks a data file that its log names.
    """
    with alone(lakehouse.settings), read_holds.under_way(lakehouse.settings):
        check_name(lakehouse.settings, name)
        folder = layout.savepoint(lakehouse.settings, f".{name}.new")
        with clean(folder, f"savepoint={name}") as beside:
            made = _made(lakehouse, name, beside.name, note)
            beside.rename(layout.savepoint(lakehouse.settings, name))
    return made


def check_name(settings: Settings, name: str) -> None:
    """Raises SavepointError if no savepoint of that name can be created."""
    if not _NAME.fullmatch(name):
        raise SavepointError(
            f"savepoint={name!r}: a name has letters, digits, '_', '-' and '.', a letter or digit first; choose another"
        )
    check_length("savepoint", name)
    if layout.savepoint(settings, name).exists():
        raise SavepointError(
            f"savepoint={name}: there is one of that name; choose another, or drop it (`lakehouse savepoint drop {name}`)"
        )


def _made(lakehouse: Lakehouse, name: str, beside: str, note: str) -> Savepoint:
    """All that belongs to the savepoint, in the folder `beside`."""
    to = replace(lakehouse.settings, root=layout.savepoint_root(lakehouse.settings, beside))
    to.root.mkdir(parents=True)
    at = text(datetime.now(UTC))
    # lines of commit logs move to the log tables meanwhile, and are to be in one of the two
    with locks.alone(layout.flush_lock(lakehouse.settings)):
        for log in get_args(layout.LogTable):
            _take(layout.log_table(lakehouse.settings, log), layout.log_table(to, log))
        for table in reversed(list(lakehouse.catalog)):  # inputs come first there
            take_table(lakehouse, table, to)
    tables = {table.name: _saved(to, table) for table in lakehouse.catalog}
    size, files = _list(lakehouse.settings, beside)
    listed = digest_of(layout.savepoint_file(lakehouse.settings, beside, "contents.jsonl"))
    library = version_of("unified-lakehouse")
    made = Savepoint(name, at, note, library, tables, files, size, listed)
    # as it is read again: of what JSON has not, a tuple say, the checksum would differ
    made = replace(made, checksum=checks.checksum(json.loads(json.dumps(asdict(made)))))
    replace_file(layout.savepoint_file(lakehouse.settings, beside, "savepoint.json"), asdict(made))
    return made


def savepoints(settings: Settings) -> list[Savepoint]:
    """All savepoints, oldest first. Raises SavepointError for one that cannot be read."""
    folder = layout.savepoints(settings)
    entries = folder.iterdir() if folder.is_dir() else ()
    names = [path.name for path in entries if path.is_dir() and not path.name.startswith(".")]
    return sorted((_read(settings, name) for name in names), key=lambda each: each.at)


def savepoint(settings: Settings, name: str) -> Savepoint:
    """The savepoint of that name. Raises SavepointError if there is none."""
    if not _NAME.fullmatch(name) or not layout.savepoint(settings, name).is_dir():
        names = ", ".join(each.name for each in savepoints(settings)) or "none"
        raise SavepointError(f"savepoint={name}: there is none of that name; there are: {names}")
    return _read(settings, name)


def verify(settings: Settings, name: str) -> Savepoint:
    """Reads each file of the savepoint, and compares it with its checksum.

    :raises SavepointError: naming a file that is damaged, missing or not its own.
    """
    saved = savepoint(settings, name)
    root, listed = (
        layout.savepoint_root(settings, name),
        layout.savepoint_file(settings, name, "contents.jsonl"),
    )
    remedy = f"it cannot be used; drop it (`lakehouse savepoint drop {name}`), and use another"
    if not _is_as_created(listed, saved):
        raise SavepointError(
            f"savepoint={name}, file={listed}: the list of its files is not the one it was created with; {remedy}"
        )
    contents = checks.contents(listed)
    try:
        if stranger := checks.stranger(settings, root):
            raise SavepointError(f"savepoint={name}, {stranger}; {remedy}")
    except (PathError, CommitError, ValueError, KeyError, TypeError) as err:
        raise SavepointError(f"savepoint={name}, {err}; {remedy}") from err
    present = {str(path.relative_to(root)) for path in checks.files(root)}
    if others := sorted(present ^ contents.keys()):
        what = "is missing" if others[0] in contents else "is none of its files"
        raise SavepointError(f"savepoint={name}, file={root / others[0]}: it {what}; {remedy}")
    for path, checksum in contents.items():
        if digest_of(within(root, path)) != checksum:
            raise SavepointError(
                f"savepoint={name}, file={root / path}: it is damaged, for its checksum is not the one it was created with; "
                f"{remedy}"
            )
    return saved


def held(settings: Settings, name: str) -> int:
    """Returns the bytes that the savepoint alone keeps on the disk: files that no table has any more, and its copies of logs."""
    stats = (path.stat() for path in checks.files(layout.savepoint_root(settings, name)))
    return sum(each.st_size for each in stats if each.st_nlink == 1)


def drop(settings: Settings, name: str) -> None:
    """Removes a savepoint, also one that is damaged. Raises SavepointError if there is none."""
    with alone(settings):
        if not _NAME.fullmatch(name) or not layout.savepoint(settings, name).is_dir():
            savepoint(settings, name)
        gone = layout.savepoint(settings, f".{name}.gone")
        layout.savepoint(settings, name).rename(gone)  # half of it is never taken for one
        shutil.rmtree(gone)


def drop_all_but(settings: Settings, prefix: str, newest: int) -> list[str]:
    """Removes the savepoints whose names begin so, but for the `newest` ones; their names."""
    names = [each.name for each in savepoints(settings) if each.name.startswith(prefix)]
    gone = names[: len(names) - newest] if len(names) > newest else []
    for name in gone:
        drop(settings, name)
    return gone


def copy_into(source: Path, to: Path) -> None:
    """A folder of a root again, somewhere else: data files as links, all that may be appended to as copies."""
    for path in checks.files(source):
        beside = to / path.relative_to(source)
        beside.parent.mkdir(parents=True, exist_ok=True)
        in_log = {"_delta_log", "_checkpoints"} & {*beside.parts}
        if path.suffix in (".parquet", ".bin") and not in_log:
            link(path, beside)
        else:
            shutil.copyfile(path, beside)


@contextmanager
def clean(beside: Path, what: str) -> Iterator[Path]:
    """A folder that is filled beside the place where it is to be: half of it goes if that does not succeed.

    Raises SavepointError where the disk does not take it.
    """
    shutil.rmtree(beside, ignore_errors=True)
    try:
        yield beside
    except OSError as err:
        raise SavepointError(
            f"{what}: it must be written whole and was not ({err}); nothing of it is left; make room, and run this again"
        ) from err
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """One command at a time creates, restores or removes savepoints.

    What one that was killed has left half done, and holds room, goes first. Raises SavepointError.
    """
    check_on_a_disk(settings, "savepoints")
    make_root(settings)

    def refusal(holder: str) -> SavepointError:
        return SavepointError(
            f"savepoints={layout.savepoints(settings)} (pid={holder}): that process creates, restores or drops one, and one at "
            "a time may; run this again when it has ended"
        )

    with locks.alone(layout.savepoints_lock(settings), _BUSY, str(os.getpid()), refusal):
        for half in _halves(settings):
            shutil.rmtree(half, ignore_errors=True)
        yield


def left_half(settings: Settings) -> list[Path]:
    """The folders that a killed command left half done, to be removed by the next one. None while one is at work."""
    at_work = locks.holder(layout.savepoints_lock(settings))
    return [] if at_work else _halves(settings)


def _halves(settings: Settings) -> list[Path]:
    folders = layout.savepoints(settings).glob(".*")
    return sorted(each for each in folders if each.suffix in (".new", ".gone"))


def take_table(lakehouse: Lakehouse, table: Table, to: Settings) -> None:
    """A table as it is now, with its commit log and checkpoint, once more below another root."""
    checkpoint = layout.query_checkpoints(lakehouse.settings, table.name)
    if checkpoint.is_dir():
        # first: one that knows of a later micro-batch than the table would not fit it
        for path in checks.files(checkpoint):
            beside = layout.query_checkpoints(to, table.name) / path.relative_to(checkpoint)
            beside.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # Spark removes what it needs no more
                shutil.copyfile(path, beside)
    with lakehouse.commit_log(table).writing():
        for path in layout.notes_of(lakehouse.settings, table.name):
            beside = layout.commit_logs(to) / path.name
            beside.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # a cache may be deleted at any moment
                shutil.copyfile(path, beside)
    sides: tuple[layout.Side, ...] = ("quarantine",) if table.kind.has_partitions else ()
    sides += ("early",) if table.early_results else ()
    _take_states(lakehouse.settings, table, to)
    # after the table: each of its rows has its answer then
    answers: tuple[layout.Side, ...] = ("answers",) if table.lookup else ()
    for side in (*sides, "", *answers):
        _take(lakehouse.path(table, side), table_path(to, table, side))
    once_more: tuple[layout.Note, ...] = ("references.jsonl", "files.jsonl")
    for name in once_more:  # behind the rows: each line was written before the first row of its own
        if (seen := layout.note(lakehouse.settings, table, name)).is_file():
            shutil.copyfile(seen, layout.note(to, table, name))


def _take_states(settings: Settings, table: Table, to: Settings) -> None:
    """The kept states of a process function: those that are whole, for what is being written has no note yet."""
    source, beside = (table_path(each, table, "state") for each in (settings, to))
    for each in state_files.kept(settings, table):
        copy_into(below(source, each.folder), below(beside, each.folder))
        replace_file(beside / each.note, read_json(source / each.note))


def _take(path: Path, to: Path) -> None:
    """A Delta table at its latest version."""
    version = delta_log.latest(path)
    if version < 0:
        return
    delta_log.folder(to).mkdir(parents=True)
    for file in delta_log.folder(path).iterdir():
        number = _COMMIT.match(file.name)
        if number and int(number[1]) <= version:
            shutil.copyfile(file, delta_log.folder(to) / file.name)
    # what no commit names yet is still being written, and would change under its link
    for file in _named(path, log_state.files_since(to)):
        beside = to / file.relative_to(path)
        if file.exists() and not beside.exists():
            beside.parent.mkdir(parents=True, exist_ok=True)
            link(file, beside)
    for file in _named(to, log_state.files_at(to, version)):
        if not file.exists():
            raise CommitError(
                f"table={path.name}, file={file.relative_to(to)}: the table's log names it and it is not there, so a savepoint "
                f"would lack its rows; `lakehouse reconcile repair {path.name}` computes them again where that is possible"
            )


def _named(path: Path, files: Sequence[Mapping]) -> list[Path]:
    """Returns the paths of these data files of a table, and of their deletion vectors."""
    return sorted(
        {delta_log.data_file(path, each) for each in files}
        | deletion_vector_files.of_files(path, files)
    )


def _saved(settings: Settings, table: Table) -> SavedTable:
    path, reached = table_path(settings, table), past_beginning(frontier(settings, table))
    last = checkpoints.standing(settings, table).last
    return SavedTable(
        table.layer,
        delta_log.latest(path),
        log_state.rows(path) if delta_log.exists(path) else 0,
        reached.isoformat() if reached else "",
        dict(last.inputs) if last else {},
        table.code_version,
        tuple(target.name for target in table.publish),
    )


def _list(settings: Settings, name: str) -> tuple[int, int]:
    """Writes the list of a savepoint's files; their bytes, and how many they are."""
    root, size, files = layout.savepoint_root(settings, name), 0, 0
    before = _known_before(settings)
    with layout.savepoint_file(settings, name, "contents.jsonl").open("w") as listed:
        for path in checks.files(root):
            stat, relative = path.stat(), str(path.relative_to(root))
            checksum = before.get((stat.st_dev, stat.st_ino)) or digest_of(path)
            listed.write(json.dumps([relative, checksum]) + "\n")
            size, files = size + stat.st_size, files + 1
        listed.flush()
        os.fsync(listed.fileno())
    return size, files


def _known_before(settings: Settings) -> dict[tuple[int, int], str]:
    """The checksums of files that the last savepoint holds as well: what has not changed is not read again.

    Of one that is damaged, those that it still has.
    """
    by_inode: dict[tuple[int, int], str] = {}
    for last in savepoints(settings)[-1:]:
        listed = layout.savepoint_file(settings, last.name, "contents.jsonl")
        contents = checks.contents(listed) if _is_as_created(listed, last) else {}
        for path, checksum in contents.items():
            with suppress(FileNotFoundError):
                stat = within(layout.savepoint_root(settings, last.name), path).stat()
                if stat.st_nlink > 1:
                    by_inode[stat.st_dev, stat.st_ino] = checksum
    return by_inode


def _is_as_created(listed: Path, saved: Savepoint) -> bool:
    return listed.is_file() and digest_of(listed) == saved.contents


def _read(settings: Settings, name: str) -> Savepoint:
    path = layout.savepoint_file(settings, name, "savepoint.json")
    try:
        content = read_json(path)
        checks.check_description(name, content)
        return typed(Savepoint, content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
        raise SavepointError(
            f"savepoint={name}, file={path}: it cannot be read ({err!r}); drop it (`lakehouse savepoint drop {name}`)"
        ) from err
