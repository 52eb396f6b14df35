"""Commit logs have a bounded size: of old lines only those stay that late rows and batch runs still need.

`_commits` has every line, copied before any is let go. What stays of the old lines is what `CommitLog.rewriting`
is asked for: of the batch runs of a range the last, and of the stream's commits with late rows one
for each pair of hours between which they missed something. So a commit log grows with the
hours of event time in it, not with its micro-batches.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from lakehouse.ranges import floor
from lakehouse.storage.disk.files import replace_bytes
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING, Commit, decoded, encoded

LONGEST = 16 << 20  # bytes of a commit log, before it is trimmed
_RECENT = 8 << 20  # bytes that stay as they are: more than an hour of two commits a second
_HOUR = timedelta(hours=1)


def trim(commit_log: CommitLog, longest: int = LONGEST, recent: int = _RECENT) -> None:
    """Trims a commit log that is longer than `longest`.

    All but its last `recent` bytes must be in `_commits`.

    It is replaced in one step: a reader sees all of the old lines or none of them.
    """
    path = commit_log.path
    if not path.exists() or path.stat().st_size <= longest:
        return
    with commit_log.writing():
        whole = path.read_bytes()
        cut = whole.rfind(b"\n", 0, len(whole) - recent) + 1
        old = (line.decode() for line in whole[:cut].split(b"\n") if line.endswith(b"}"))
        try:
            commits = list(map(decoded, old))
        except (
            ValueError,
            KeyError,
            TypeError,
        ):  # a torn line: first the commit log is made whole (`commit_log_repair`)
            return
        kept = "".join(f"{encoded(commit)}\n" for commit in remembered(commits)).encode()
        gone = shift(path) + cut - len(kept) - len(first_line(0))
        replace_bytes(path, first_line(gone) + kept + whole[cut:])


def shift(commit_log: Path) -> int:
    """How many bytes have gone from before a line: the difference of its first position and where it is now."""
    if not commit_log.exists():
        return 0
    with commit_log.open("rb") as file:
        first = file.read(len(first_line(0)))
    try:
        return int(first[1:]) if first.startswith(b"#") else 0
    except ValueError:  # torn: whoever flushes the commit log finds it cut, and makes it whole (`commit_log_repair`)
        return 0


def first_line(count: int) -> bytes:
    """The first line of a trimmed commit log; no reader takes it for a commit."""
    return f"#{count:020}\n".encode()


def remembered(commits: Iterable[Commit]) -> list[Commit]:
    """What stays of old commits, given and returned oldest first: `late_merge.dirty` finds the same in it."""
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
