"""The position of a table by its own commits, and the check that the checkpoint of a query of Spark's fits it.

Each life of a query is a generation: a folder `_checkpoints/<table>/<generation>`, if it is
Spark's, and an application of Delta's own transactions, `<table>:stream:<generation>`. Delta skips
a transaction whose number is not above the last one of its application, and takes none back when a
table is restored. So a new generation has a number above all those in folders, the commit log,
`_commit_log/<table>.generations.jsonl` and transactions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from lakehouse.declare.table import Table
from lakehouse.errors import CommitError
from lakehouse.ranges import EPOCH
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import make_folder, rename
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoint_files

_INSTANTS = ("watermark", "frontier")


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a generation: the micro-batch and generation that it follows, and why it began."""

    generation: int
    after: tuple[int, int] | None  # generation and batch; None: with all that its input has
    why: str
    at: str  # ISO 8601 UTC
    # state is built again: windows that had ended by then are in the table already
    frontier: str = ""
    aside: str = ""  # the same for the quarantine
    version: int | None = None  # the first version of the input to read for that
    # its micro-batches are numbered from `after` on, and that one may be run again
    continues: bool = False
    # its checkpoint is that of the previous generation, with the state divided again by that micro-batch
    divided: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """A micro-batch that is in a table, by the note in the same Delta commit."""

    generation: int
    batch: int
    version: int
    at: datetime
    inputs: Mapping[str, Any]
    watermark: datetime | None
    frontier: datetime | None
    topics: Mapping[str, str] = field(default_factory=dict)  # the ids of an ingest table's topics
    unknown_schemas: Sequence[int] = ()  # ids of schemas that the registry did not know
    # the offsets from which on topics with a history were read
    starts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def number(self) -> tuple[int, int]:
        return self.generation, self.batch


@dataclass(frozen=True, slots=True)
class Standing:
    """The position of a table: the last micro-batch that it holds, by its Delta log and by its commit log."""

    version: int  # the table's version; after a restore, the version that was restored
    latest: int  # the last version of the table's log
    written: Written | None  # the last commit of a streaming query
    noted: Commit | None  # the last line of the commit log that agrees with the table
    # the last line of the commit log, if the table does not hold its rows any more
    taken_back: Commit | None
    generation: int  # the newest, by folders, the note and the commit log; 1 before the first
    beginning: Beginning | None  # of that generation; a first one has no note
    has_checkpoint: bool  # a query of Spark's has begun a micro-batch

    @property
    def pending(self) -> Written | None:
        """Returns the micro-batch whose rows are in the table without a line in the commit log, after a crash; else None."""
        noted = self.noted is not None and (self.noted.generation, self.noted.batch)
        return self.written if self.written and (not noted or self.written.number > noted) else None

    @property
    def last(self) -> Written | Commit | None:
        """Returns the last micro-batch whose rows are in the table."""
        return self.pending or self.noted

    @property
    def number(self) -> tuple[int, int] | None:
        return (self.last.generation, self.last.batch) if self.last else None

    @property
    def newest(self) -> Commit | None:
        """Returns the stream's last line of the commit log."""
        return self.taken_back or self.noted

    @property
    def began(self) -> bool:
        """Returns True if the table's streaming query was ever started: then it continues from there."""
        return self.has_checkpoint or self.newest is not None or self.written is not None

    @property
    def begins_whole(self) -> bool:
        """Returns True if the next micro-batch computes all of a keyed or versioned table: it is the first of its generation."""
        divided = self.beginning is not None and self.beginning.divided
        return self.last is None or (self.last.generation < self.generation and not divided)


def standing(settings: Settings, table: Table) -> Standing:
    """Returns the table's position now, by the newest commits of its log, back to the last one of a streaming query."""
    path = table_path(settings, table)
    latest = version = delta_log.latest(path)
    holds, written = latest, None
    while version >= 0 and (info := delta_log.commit_info(path, version)) is not None:
        if info.get("operation") == "RESTORE":
            version = holds = _restored_to(path, info, version)
            continue
        if written := _written(table, version, info):
            break
        version -= 1
    # a line without a commit of its own names the last commit; a keyed table's names its version
    held = written.version if written and not table.kind.is_upserted else holds
    # version 0 has no rows: earlier lines are of another table of that name
    made = delta_log.made(path) if held == 0 else None
    since = made[1] if made else EPOCH
    lines = CommitLog(settings, table).by_stream()
    newest = noted = next(lines, None)
    while noted is not None and (noted.version > held or noted.at < since):
        noted = next(lines, None)
    taken_back = newest if newest is not noted else None
    generation, beginning = _generation(settings, table, newest)
    has_checkpoint = checkpoint_files.started(settings, table)
    return Standing(
        holds, latest, written, noted, taken_back, generation, beginning, has_checkpoint
    )


def _generation(
    settings: Settings, table: Table, newest: Commit | None
) -> tuple[int, Beginning | None]:
    """Returns the newest generation, and its beginning if that is noted."""
    newest_first = list(beginnings(settings, table).newest_first())
    folders = checkpoint_files.generations(settings, table)
    last = newest_first[0] if newest_first else None
    if last and last.divided and last.generation not in folders:
        last = None  # a crash came before its checkpoint was in place: the previous generation continues
    number = max([1, *folders, *(source.generation for source in (last, newest) if source)])
    return number, next((line for line in newest_first if line.generation == number), None)


def first_after(path: Path, table: Table, number: tuple[int, int] | None) -> int | None:
    """Returns the first version of a table or its quarantine by a micro-batch later than that number.

    Returns None if there is none.
    """
    version, first = delta_log.latest(path), None
    while version >= 0 and (info := delta_log.commit_info(path, version)) is not None:
        if info.get("operation") == "RESTORE":
            version = _restored_to(path, info, version)
            continue
        written = _written(table, version, info)
        if written and number and written.number <= number:
            break
        first = version if written else first
        version -= 1
    return first


def _restored_to(path: Path, info: Mapping, version: int) -> int:
    wanted = info.get("operationParameters", {}).get("version")
    if wanted not in (None, "null"):
        return int(wanted)
    wanted = (
        datetime.fromisoformat(str(info["operationParameters"]["timestamp"]))
        .astimezone(UTC)
        .timestamp()
        * 1000
    )
    earlier = range(version - 1, -1, -1)
    return next(
        (
            v
            for v in earlier
            if (delta_log.commit_info(path, v) or {}).get("timestamp", 0) <= wanted
        ),
        0,
    )


def _written(table: Table, version: int, info: Mapping) -> Written | None:
    """Returns the stream's micro-batch of a commit; None for another commit. Raises CommitError for a mark without one."""
    try:
        mark = json.loads(info.get("userMetadata") or "{}")
        name, role, generation = str(mark["app"]).rsplit(":", 2)
    except (ValueError, KeyError, TypeError):
        return None
    if (name, role) != (table.name, "stream"):
        return None
    try:
        at = datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC)
        # for an ingest table, the time when its rows arrived
        at = datetime.fromisoformat(mark["at"]) if "at" in mark else at
        watermark, frontier = (
            datetime.fromisoformat(str(mark[n])) if mark.get(n) else None for n in _INSTANTS
        )
        return Written(
            int(generation),
            int(mark["batch"]),
            version,
            at,
            dict(mark["inputs"]),
            watermark,
            frontier,
            mark.get("topics", {}),
            mark.get("unknown_schemas", ()),
            mark.get("starts", {}),
        )
    except (ValueError, KeyError, TypeError) as err:
        raise CommitError(
            f"table={table.name}, version={version}, userMetadata={info['userMetadata']}: a commit with the mark of the table's "
            f"stream has its micro-batch and inputs, and this one has not ({err!r}), so other code wrote it; restore the version "
            "before it by Delta's RESTORE"
        ) from err


def app(table: Table, generation: int) -> str:
    return f"{table.name}:stream:{generation}"


def is_of_stream(table: Table, metadata: str) -> bool:
    """Returns True if a commit with that metadata is one of the table's stream, of any generation."""
    return f'"{table.name}:stream:' in metadata


def frontier_at(settings: Settings, table: Table, version: int) -> datetime | None:
    """Returns the table's frontier by its commits up to that version.

    Returns None if it is not known: the stream's line is yet to come, or rows were taken back. Commits
    of batch runs and of maintenance change nothing.
    """
    lines = CommitLog(settings, table).by_stream()
    line = next((line for line in lines if line.version <= version), None)
    if line is None:
        return None
    for later in range(line.version + 1, version + 1):
        info = delta_log.commit_info(table_path(settings, table), later)
        if info is None or info.get("operation") == "RESTORE":
            return None
        if is_of_stream(table, info.get("userMetadata") or ""):
            return None
    return line.frontier


def begin(
    settings: Settings,
    table: Table,
    after: tuple[int, int] | None,
    why: str,
    checkpoint: Path | None = None,
    **more: Any,
) -> Beginning:
    """Notes the beginning of a generation above all others, and makes its folder, or puts this checkpoint there."""
    newest = max(standing(settings, table).generation, after[0] if after else 0) + 1
    paths = [table_path(settings, table), table_path(settings, table, "quarantine")]
    existing = [path for path in paths if delta_log.exists(path)]
    while any(delta_log.committed(path, app(table, newest)) >= 0 for path in existing):
        newest += 1
    begun = Beginning(newest, after, why, datetime.now(UTC).isoformat(), **more)
    beginnings(settings, table).append(begun)
    folder = checkpoint_files.folder_of(settings, table, newest)
    if checkpoint:
        rename(checkpoint, folder)
    else:
        make_folder(folder)
    return begun


def beginning(settings: Settings, table: Table, of: int | None = None) -> Beginning | None:
    """Returns the noted beginning of that generation, or the last one noted.

    Returns None for a first generation, which has no note.
    """
    noted = beginnings(settings, table).newest_first()
    return next((begun for begun in noted if of in (None, begun.generation)), None)


def beginnings(settings: Settings, table: Table) -> Notes[Beginning]:
    """Returns the note of how generations began. A crash tears a line before its generation has begun."""
    return Notes(layout.note(settings, table, "generations.jsonl"), partial(typed, Beginning))


def misfit(checkpoint: Path, standing: Standing, inputs: Mapping | None, *, stateful: bool) -> str:
    """Returns why the query cannot continue from its checkpoint; empty if it can.

    `inputs`: the inputs that the table's last micro-batch had read.
    """
    own, begun, number = standing.generation, standing.beginning, standing.number
    offsets, commits = checkpoint_files.begun(checkpoint), checkpoint_files.done(checkpoint)
    if not offsets and not commits:
        whole = begun is not None and begun.after is None
        empty = number is None or (number[0] < own and (whole or not stateful))
        return "" if empty else "it is gone"
    if not offsets or not (checkpoint / "metadata").is_file():
        return f"its {'metadata' if offsets else 'offsets'} is gone"
    begins, done = offsets[-1], commits[-1] if commits else -1
    if done not in (begins, begins - 1) or (begins and begins - 1 not in offsets):
        return f"its offsets end with micro-batch {begins}, its commits with {done if commits else 'none'}"
    if number is None:
        return f"it is at micro-batch {done}, and the table holds none" if done >= 0 else ""
    of, batch = number
    after = begun.after if begun else None
    if of > own:
        return f"it is of generation {own}, and the table of generation {of}"
    if of < own and done < 0 and after in (None, number):
        return ""  # its first micro-batch has written nothing yet
    if of < own and begun and begun.divided == done and after == number:
        return checkpoint_files.state_gone(
            checkpoint, done
        )  # nor has the first micro-batch after the division
    if of < own:
        return f"it is at micro-batch {done} of generation {own}, and the table holds none of that"
    if not done <= batch <= begins:
        return f"it is at micro-batch {done}, and the table at {batch}"
    if batch in offsets and checkpoint_files.ended(checkpoint, batch) != inputs:
        return f"its micro-batch {batch} had not read what the table's had"
    return checkpoint_files.state_gone(checkpoint, done) if stateful and done >= 0 else ""


def renew(settings: Settings, table: Table, why: str = "it was asked for") -> None:
    """Begins the next generation, with all that its inputs have, of a table that is computed again, or has read nothing."""
    stands = standing(settings, table)
    last = stands.last
    checkpoint = checkpoint_files.folder_of(settings, table, stands.generation)
    if (last and last.generation == stands.generation) or (checkpoint / "offsets").exists():
        begin(settings, table, None, why)
