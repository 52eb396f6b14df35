"""The cache of a table's commits: read again when it is gone, read on after a crash, and of a bounded size.

Commits are read from `_commits`, which has them up to the last flush, from the records of the table's own
log, and from the note of lines that have none. The cache has them in the order in which they are copied to
`_commits`: its positions, moved by what its first line says, are those that `_commits` knows.

Of old commits only those stay that late rows and batch runs still need, what `CommitLog.rewriting` is asked
for: of the batch runs of a range the last, and of the stream's commits with late rows one for each pair of
hours between which they missed something. So a cache grows with the hours of event time in it, not with
its micro-batches.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.logs import warn_once
from lakehouse.ranges import EPOCH, floor
from lakehouse.storage.delta import delta_log, delta_tables
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import (
    backwards,
    lines_backwards,
    remove,
    replace_bytes,
)
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.log.commits import NOTHING, Commit, decoded, records_of

if TYPE_CHECKING:
    from lakehouse.storage.log.commit_log import CommitLog

_log = logging.getLogger(__name__)

BROKEN = (ValueError, KeyError, TypeError, AttributeError)  # what decoding raises
LONGEST = 16 << 20  # bytes of a cache, before it is trimmed
_RECENT = 8 << 20  # bytes that stay as they are: more than an hour of two commits a second
_MANY = 15_000  # commits that are read again of a long history, but for those that stay
_HOUR = timedelta(hours=1)
_TAIL = 20  # versions among whose lines the last commit of a table's log is looked for
_BATCH = '"role":"batch"'
_AT = re.compile(r'"at":"[^"]*"')  # of the first fields of a line
_VERSION = re.compile(r'"version":(-?\d+)')


def is_whole(log: "CommitLog") -> bool:
    """Returns True if the cache is there, and neither its first line nor its last one is torn."""
    with suppress(OSError, ValueError), log.path.open("rb") as file:
        _moved(file.read(len(first_line(0))))
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
    return False


def is_needless(log: "CommitLog") -> bool:
    """Returns True if the table has no commit yet, so that a reader needs no cache."""
    is_new = delta_log.latest(table_path(log.settings, log.table)) == 0
    return is_new and not log.notes.path.exists() and not _position(log)


def _position(log: "CommitLog") -> int:
    """Returns the position up to which the cache was copied to `_commits`."""
    path = layout.log_table(log.settings, "_commits")
    if not delta_log.exists(path):
        return 0
    return delta_log.open_table(path).transaction_version(f"commit log:{log.table.name}") or 0


def opened(log: "CommitLog") -> Iterator[str] | None:
    """The lines of the cache, last first; None if it is gone or empty. Who deletes it then takes nothing from them."""
    try:
        file = log.path.open("rb")
    except FileNotFoundError:
        return None
    if os.fstat(file.fileno()).st_size:
        return backwards(file)
    file.close()
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def has_noted(log: "CommitLog") -> bool:
    """Returns True if the cache has all lines of the note. They are among its last ones."""
    missing = {_instant(line) for line in lines_backwards(log.notes.path)}
    for line in lines_backwards(log.path) if missing else ():
        missing.discard(_instant(line))
        if not missing:
            break
    return not missing


def add(log: "CommitLog", commits: Sequence[Commit], *, recorded: bool) -> None:
    """Adds commits to the cache, and those before them that a crash kept from it. What is `recorded` may be there already."""
    gone = not is_whole(log)
    if gone:
        read_again(log)  # with these, if the table is there
    known = read_on(log, commits[0].version) if recorded or gone else set()
    lines = [encoded(commit) for commit in commits]
    _append(log, [line for line in lines if _instant(line) not in known])


def read_on(log: "CommitLog", until: int | None = None) -> set[str]:
    """Adds what the table's log records after the last version in the cache, up to before a version.

    Returns the instants of the last commits that the cache had.
    """
    path = table_path(log.settings, log.table)
    versions, instants = dict[int, bool](), set[str]()
    for line in lines_backwards(log.path):
        if (found := _VERSION.search(line)) and int(found[1]) != NOTHING:
            number = int(found[1])
            versions[number] = versions.get(number, False) or _BATCH in line
        instants.add(_instant(line))
        if len(versions) > _TAIL:
            break
    last = max(versions, default=NOTHING)
    # one version may have the commits of many partitions, and the cache a part of them
    begin = last if versions.get(last) else last + 1
    if until is None:  # in most cases it has all: then nothing is listed
        until = (last if delta_log.is_last(path, last) else delta_log.latest(path)) + 1
    for version in range(begin, until):
        commits, whole = _recorded(log, version)
        lines = [encoded(commit) for commit in commits if whole]
        _append(log, [line for line in lines if _instant(line) not in instants])
    return instants


def _append(log: "CommitLog", lines: Sequence[str]) -> None:
    """Adds lines, which need not survive a crash of the machine, to a cache that is there; to none if it is not."""
    with suppress(FileNotFoundError), log.path.open("rb+", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        file.write("".join(f"{line}\n" for line in lines).encode())


def read_again(log: "CommitLog") -> None:
    """Writes the cache, in one step: a reader sees all of the lines or none of them."""
    position, copied, rest = _all(log)
    old, new = (
        "".join(f"{encoded(commit)}\n" for commit in commits).encode() for commits in (copied, rest)
    )
    replace_bytes(log.path, first_line(position - len(first_line(0)) - len(old)) + old + new)


def all_of(log: "CommitLog") -> list[Commit]:
    """All commits, oldest first."""
    _, copied, rest = _all(log)
    return [*copied, *rest]


def _all(log: "CommitLog") -> tuple[int, list[Commit], list[Commit]]:
    """The position up to which `_commits` has the table's commits, these, and the others; oldest first."""
    made = delta_log.made(table_path(log.settings, log.table))
    position, copied = _copied(log, made[1] if made else None)
    if not made:
        return position, [], []
    known = {_key(commit) for commit in copied}
    noted = reversed(list(log.notes.newest_first()))
    # what is known from before was of another table of that name, which was removed
    rest = [commit for commit in noted if _key(commit) not in known and commit.at >= made[1]]
    versions = list(delta_log.versions(table_path(log.settings, log.table)))
    records = [record for version in versions if (record := _recorded(log, version))[0]]
    last = max((commit.version for commit in (*copied, *rest)), default=NOTHING)
    if lost := [version for version in versions if version > last and _is_older(log, version)]:
        message = (
            f"{len(lost)} commits of the stream were made by an earlier version of the library, and their lines are gone "
            "before `_commits` had them; rows and positions are in the table, their counts are unknown"
        )
        warn_once(_log, f"commit log={log.path}: {message}", log.path, "earlier")
    by_stream = [place for place, (commits, _) in enumerate(records) if commits[0].role == "stream"]
    numbers = {_number(commit) for commit in (*copied, *rest)}
    begins = copied[-_MANY].at if len(copied) >= _MANY else EPOCH
    uncounted = 0
    for place, (commits, whole) in enumerate(records):
        if whole:
            rest += [c for c in commits if _key(c) not in known and c.at >= begins]
        elif place != by_stream[-1]:  # else a crash came before it was done, and it is run again
            without_line = [c for c in commits if _number(c) not in numbers and c.at >= begins]
            rest += without_line
            uncounted += sum(not commit.arrived for commit in without_line)
    if uncounted:
        message = (
            f"{uncounted} micro-batches wrote their rows before they counted the late ones, and the lines with these counts are "
            f"gone before `_commits` had them; the rows are in the table, the counts are unknown; leave {log.notes.path.name} to "
            "the job"
        )
        warn_once(_log, f"commit log={log.path}: {message}", log.path, "uncounted")
    return position, copied, _in_order(rest)


def _in_order(commits: Iterable[Commit]) -> list[Commit]:
    """Sorts commits by their instants.

    A commit of a later version counts as no earlier: the clocks of two hosts may differ. A void line names the
    version that it goes back to.
    """
    latest, instants = EPOCH, list[tuple[datetime, Commit]]()
    for commit in sorted(commits, key=lambda c: (c.version, c.at)):
        if commit.version != NOTHING and commit.role != "void":
            latest = max(latest, commit.at)
            instants.append((latest, commit))
        else:
            instants.append((commit.at, commit))
    return [commit for _, commit in sorted(instants, key=lambda placed: placed[0])]


def _recorded(log: "CommitLog", version: int) -> tuple[list[Commit], bool]:
    return records_of(
        log.table.name, version, delta_log.noted(table_path(log.settings, log.table), version)
    )


def _is_older(log: "CommitLog", version: int) -> bool:
    """Returns True if an earlier version of the library, which recorded nothing, wrote this version's batch."""
    metadata = delta_log.noted(table_path(log.settings, log.table), version)
    return f'"{log.table.name}:stream:' in metadata and '"records"' not in metadata


def _copied(log: "CommitLog", since: datetime | None) -> tuple[int, list[Commit]]:
    """Returns the position up to which the cache was copied to `_commits`, and the commits there since an instant, if given."""
    path = layout.log_table(log.settings, "_commits")
    if not delta_log.exists(path):
        return 0, []
    log_table, name = delta_log.open_table(path), log.table.name
    position = log_table.transaction_version(f"commit log:{name}") or 0
    if since is None:
        return position, []
    recent = (
        f"SELECT at FROM rows WHERE \"table\" = '{name}' ORDER BY at DESC LIMIT 1 OFFSET {_MANY}"
    )
    where = (
        f"\"table\" = '{name}' AND (role <> 'stream' OR late > 0 OR at > COALESCE(({recent}), ''))"
    )
    commits = map(_of_row, delta_tables.rows(log_table, where=where))
    return position, _in_order(commit for commit in commits if commit.at >= since)


def _of_row(row: Mapping[str, object]) -> Commit:
    values: dict[str, object] = {}
    for field in fields(Commit):
        value = row.get(field.name)
        if field.name in ("inputs", "heads", "readings"):
            values[field.name] = json.loads(str(value)) if value else {}
        elif value is not None or field.default is MISSING or field.default is None:
            values[field.name] = value
    return decoded(json.dumps(values))


def _key(commit: Commit) -> tuple[object, ...]:
    return commit.at, commit.role, commit.generation, commit.batch, commit.start, commit.frontier


def _number(commit: Commit) -> tuple[str, int, int]:
    return commit.role, commit.generation, commit.batch


def _instant(line: str) -> str:
    found = _AT.search(line)
    return found[0] if found else ""


def behind(log: "CommitLog", copied: int) -> tuple[list[Commit], int] | None:
    """The commits behind the position up to which the cache was copied, and the position behind these.

    None if the cache is gone or damaged: it is to be read again.
    """
    moved = shift(log.path)
    if moved > 0 and not copied:
        message = (
            "it was trimmed, because `_commits` had every line; `_commits` is gone or was made again, "
            "and the old lines with it"
        )
        _log.warning(f"commit log={log.path}: {message}")
    position = max(copied, moved)
    begin = position - moved
    try:
        with log.path.open("rb") as file:
            file.seek(max(begin - 1, 0))
            content = file.read()
            os.fsync(file.fileno())  # a crash of the machine must not take what counts as copied
    except FileNotFoundError:
        return None
    whole, newline, _ = content[min(begin, 1) :].rpartition(b"\n")
    lines = [line for line in whole.split(b"\n") if line and not line.startswith(b"#")]
    try:
        if begin and content[:1] != b"\n":
            raise ValueError("it was cut")
        commits = [decoded(line.decode()) for line in lines]
    except BROKEN:
        remove(log.path)
        return None
    return commits, position + len(whole + newline)


def end(cache: Path) -> int:
    """The position behind the last line."""
    size = _size(cache)
    return 0 if size is None else size + shift(cache)


def trim(log: "CommitLog", longest: int = LONGEST, recent: int = _RECENT) -> None:
    """Trims a cache that is longer than `longest`.

    All but its last `recent` bytes must be in `_commits`.

    It is replaced in one step: a reader sees all of the old lines or none of them.
    """
    path = log.path
    if (_size(path) or 0) <= longest:
        return
    with log.writing(), suppress(FileNotFoundError):
        whole = path.read_bytes()
        cut = whole.rfind(b"\n", 0, len(whole) - recent) + 1
        old = (line.decode() for line in whole[:cut].split(b"\n") if line.endswith(b"}"))
        kept = "".join(f"{encoded(commit)}\n" for commit in remembered(map(decoded, old))).encode()
        gone = shift(path) + cut - len(kept) - len(first_line(0))
        replace_bytes(path, first_line(gone) + kept + whole[cut:])


def shift(cache: Path) -> int:
    """Returns by how many bytes each line stands before its first position."""
    try:
        with cache.open("rb") as file:
            return _moved(file.read(len(first_line(0))))
    except FileNotFoundError:
        return 0


def _moved(first: bytes) -> int:
    return int(first[1:]) if first.startswith(b"#") else 0


def first_line(count: int) -> bytes:
    """The first line of a cache; no reader takes it for a commit."""
    return f"#{count:020}\n".encode()


def remembered(commits: Iterable[Commit]) -> list[Commit]:
    """Returns the old commits that stay, given and returned oldest first: `late_merge.dirty` finds the same in them."""
    kept: dict[object, Commit] = {}
    for commit in commits:
        if commit.role == "batch":
            ranged = (commit.start, commit.end, commit.version == NOTHING)
            kept.pop(ranged, None)
            kept[ranged] = commit
        elif commit.role == "void":
            kept[commit.generation] = commit
        elif commit.role == "stream" and commit.late_from and commit.late_to:
            key = (commit.generation, floor(commit.late_from, _HOUR), floor(commit.late_to, _HOUR))
            before = kept.pop(key, None)
            kept[key] = _both(before, commit) if before else commit
    return list(kept.values())


def _both(before: Commit, commit: Commit) -> Commit:
    """The later of two commits, with what the late rows of both missed."""
    assert before.late_from and commit.late_from and before.late_to and commit.late_to
    assert before.watermark and commit.watermark  # else no row would be late
    return replace(
        commit,
        late=before.late + commit.late,
        late_from=min(before.late_from, commit.late_from),
        late_to=max(before.late_to, commit.late_to),
        watermark=min(before.watermark, commit.watermark),
    )
