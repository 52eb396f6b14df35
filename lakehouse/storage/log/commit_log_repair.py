"""A commit log that was cut, damaged, or removed is made whole, and what cannot be known again is named.

`_commits` has a copy of every line up to the last flush, half a minute ago; what was committed
after that, the table's own log (`commit_log_rebuild`). Micro-batches that wrote nothing have no
line after that, and need none: a later one says as much.

A line that a crash tore while it was written is no damage: its micro-batch runs again, and writes
it again.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.logs import warn_once
from lakehouse.ranges import EPOCH
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import aside_name, lines_backwards, replace_bytes
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import commit_log_trimming
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commit_log_rebuild import rebuilt, unknown
from lakehouse.storage.log.commits import Commit, decoded, encoded

_log = logging.getLogger(__name__)

_BROKEN = (ValueError, KeyError, TypeError, AttributeError)  # what decoding raises


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a commit log, where it ends, and what it holds; None if that is no whole commit."""

    end: int
    commit: Commit | None


def mend(settings: Settings, table: Table) -> str:
    """Makes the commit log whole if it is not.

    Returns what was done and what is not known any more; empty if it was whole.

    For who writes the table: no micro-batch of it may run meanwhile, or the caller is its flush.
    """
    if not delta_log.exists(table_path(settings, table)):
        return ""
    commit_log = CommitLog(settings, table)
    position, copied = _copied(settings, table)
    with commit_log.writing():
        lines = _lines(commit_log.path)
        first = _damage(settings, table, lines, position, copied)
        if first is None:
            return ""
        kept = [line.commit for line in lines[:first] if line.commit]
        after = [line.commit for line in lines[first:] if line.commit]
        low = max((commit.at for commit in kept), default=_created(settings, table))
        instants = {commit.at for commit in (*kept, *after)}
        copies = [commit for commit in copied() if commit.at > low and commit.at not in instants]
        rest = sorted([*after, *copies], key=lambda commit: commit.at)
        made = rebuilt(settings, table, kept, rest)
        rest = sorted([*rest, *made], key=lambda commit: commit.at)
        aside = _write(
            commit_log.path, [*kept, *rest], max((c.at for c in copied()), default=None), position
        )
        torn = sum(1 for line in lines if not line.commit)
    return (
        _summary(commit_log.path, aside, torn, len(copies), made) if torn or copies or made else ""
    )


def _created(settings: Settings, table: Table) -> datetime:
    """When the table was made: what `_commits` knows from before was of another of that name, which was removed."""
    made = delta_log.made(table_path(settings, table))
    return made[1] if made else EPOCH


def readable(path: Path, chosen: Callable[[str], bool] = lambda line: True) -> Iterator[Commit]:
    """The commits of a commit log, last first.

    A line that is no whole commit is said on standard error, once, and left out.
    """
    for line in lines_backwards(path):
        if not chosen(line):
            continue
        try:
            yield decoded(line)
        except _BROKEN as err:
            _say_torn(path, line, err)


def _say_torn(path: Path, line: str, err: Exception) -> None:
    message = (
        f"commit log={path}: a line holds one commit, and one is torn ({err}); it is left out until the job is started, "
        "which makes it again"
    )
    warn_once(_log, message, path, line)


def whole_lines(path: Path, text: bytes) -> list[dict]:
    """The lines of a part of a commit log, as `_commits` has them.

    One that is no whole commit is said and left out.
    """
    whole = []
    for line in text.decode(errors="replace").splitlines():
        try:
            decoded(line)
            whole.append(json.loads(line))
        except _BROKEN as err:
            if line.endswith("}"):  # else a crash tore it while it was written
                _say_torn(path, line, err)
    return whole


def mend_if_cut(settings: Settings, table: Table, position: int) -> None:
    """Makes a commit log whole that was cut while its job runs, and says so on standard error.

    As it does if `_commits` is gone.
    """
    path = CommitLog(settings, table).path
    if not position and commit_log_trimming.shift(path) > 0:
        message = (
            "it was trimmed, because `_commits` had every line; `_commits` is gone or was made again, "
            "and the old lines with it"
        )
        _log.warning(f"commit log={path}: {message}")
    if is_cut(path, position) and (message := mend(settings, table)):
        _log.warning(message)


def is_cut(path: Path, position: int) -> bool:
    """Whether the commit log does not have any more what was copied from it up to that position."""
    if not position:
        return False
    end = position - commit_log_trimming.shift(path)
    if not path.exists() or path.stat().st_size < end or end < 1:
        return True
    with path.open("rb") as file:
        file.seek(end - 1)
        return file.read(1) != b"\n"


def _copied(settings: Settings, table: Table) -> tuple[int, Callable[[], list[Commit]]]:
    """How far the commit log was copied to `_commits`, and what stands there of it.

    Read when it is needed, for it is long.
    """
    path = layout.log_table(settings, "_commits")
    if not delta_log.exists(path):
        return 0, list
    log_table = open_table(path)
    commits: list[Commit] = []

    def known() -> list[Commit]:
        if not commits:
            rows = log_table.to_pyarrow_table(filters=[("table", "=", table.name)]).to_pylist()
            commits.extend(sorted(map(_of_row, rows), key=lambda commit: commit.at))
        return commits

    return log_table.transaction_version(f"commit log:{table.name}") or 0, known


def _of_row(row: Mapping[str, object]) -> Commit:
    values: dict[str, object] = {}
    for field in fields(Commit):
        value = row.get(field.name)
        if field.name in ("inputs", "heads", "readings"):
            values[field.name] = json.loads(str(value)) if value else {}
        elif value is not None or field.default is MISSING or field.default is None:
            values[field.name] = value
    return decoded(json.dumps(values))


def _lines(path: Path) -> list[_Line]:
    if not path.exists():
        return []
    lines, end = [], 0
    for text in path.read_bytes().splitlines(keepends=True):
        end += len(text)
        if not text.startswith(b"#"):
            lines.append(_Line(end, _commit(text)))
    return lines


def _commit(text: bytes) -> Commit | None:
    try:
        return decoded(text.decode())
    except _BROKEN:
        return None


def _damage(
    settings: Settings,
    table: Table,
    lines: list[_Line],
    position: int,
    known: Callable[[], list[Commit]],
) -> int | None:
    """The line from which on lines are missing or torn; None if the commit log is whole."""
    path = CommitLog(settings, table).path
    copied = position - commit_log_trimming.shift(path)
    torn = next((n for n, line in enumerate(lines) if not line.commit), None)
    if is_cut(path, position):
        known_at = {commit.at for commit in known()}
        strange = (
            n
            for n, line in enumerate(lines)
            if line.end <= copied and not (line.commit and line.commit.at in known_at)
        )
        return next(strange, len(lines) if torn is None else torn)
    if torn is not None and lines[torn].end <= copied:
        return torn  # it was whole when it was copied, or a crash tore it: then nothing is missing
    by_stream = [line.commit for line in lines if line.commit and line.commit.role == "stream"]
    batches = {(commit.generation, commit.batch) for commit in by_stream}
    if any(
        unknown(settings, table, batches, max((commit.version for commit in by_stream), default=-1))
    ):
        return len(lines) if torn is None else torn
    return None


def _write(
    path: Path, commits: list[Commit], copied: datetime | None, position: int
) -> Path | None:
    """Replaces the commit log in one step, after a copy of it.

    Its first line has the flush go on behind what was `copied` last.
    """
    aside = aside_name(path) if path.exists() else None
    if aside:
        shutil.copy(path, aside)
    lines = [(f"{encoded(commit)}\n".encode(), commit.at) for commit in commits]
    end = len(commit_log_trimming.first_line(0)) + sum(
        len(line) for line, at in lines if copied and at <= copied
    )
    first = commit_log_trimming.first_line(position - end)
    replace_bytes(path, first + b"".join(line for line, _ in lines))
    return aside


def _summary(path: Path, aside: Path | None, torn: int, copies: int, made: list[Commit]) -> str:
    where = f"as it was it is kept as {aside.name}" if aside else "it was gone"
    message = (
        f"commit log={path}: {torn} lines were torn, {copies + len(made)} missing; {where}; {copies} are "
        "put back from _commits"
    )
    if not made:
        return message
    versions = f"versions {made[0].version} to {made[-1].version}"
    return (
        f"{message}, and {len(made)} are made again from the table's own commits ({versions}). Of these it is not known any more "
        "how many rows came late, what they missed, and how long each took: "
        f"`lakehouse reconcile run {path.stem}` compares their hours, `lakehouse backfill {path.stem}` computes them again"
    )
