"""The register of an ingest table that reads files: which files there are, and which records each has.

`_commit_log/<table>.files.jsonl`, beside the table's commit log. A file is in it before the first
step that reads it, and its records are numbered there: so the position of the table is one number,
and a step that is taken again reads the records that it read before. Files that were read and will
not come again are forgotten; the numbers of the others stay.
"""

import json
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lakehouse.declare.table import Table
from lakehouse.errors import CommitError
from lakehouse.logs import warn_once
from lakehouse.settings import Settings
from lakehouse.storage.disk import files, layout
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.typed_values import typed

_log = logging.getLogger(__name__)

_WORTH = 1_000  # files to forget, before the whole is written again for it
_FORGET = 3_600.0  # seconds until it is looked again for files to forget


@dataclass(frozen=True, slots=True)
class Registered:
    """A file whose records are numbered."""

    path: str  # in the folder; of a table as its log names it
    size: int  # bytes
    modified: int  # nanoseconds since 1970
    count: int  # of records
    first: int = 0  # the number of its first record
    digest: str = ""  # of what it holds; a file of a table never changes
    header: bool = False  # its first line is no record
    values: Mapping[str, str | None] = field(default_factory=dict)  # of a table's partition
    vector: Mapping[str, Any] | None = None  # of a table's file: which of its rows are dead
    # of a table whose changes are read: what its rows are, and the version that has them
    change: str = ""
    version: int = -1

    @property
    def end(self) -> int:
        """The number behind its last record."""
        return self.first + self.count

    @property
    def identity(self) -> str:
        """By what it differs from the others of a Delta table: if changes are read, a file comes again when its rows go."""
        return f"{self.version}:{self.change}:{self.path}" if self.change else self.path


class Register:
    """The register as it was when it was read, and what this process has added since.

    Raises CommitError if it is damaged.
    """

    def __init__(self, settings: Settings, table: Table) -> None:
        self.note = layout.note(settings, table, "files.jsonl")
        self.table = table.name
        self._forget_at = 0.0
        self._clear()
        for number, line in _lines(self.note):
            try:
                self._take(line)
            except (KeyError, TypeError, AttributeError, ValueError) as err:
                raise damaged(self, f"line {number} cannot be used ({err!r})") from err

    def _clear(self) -> None:
        self.files: list[Registered] = []
        self.end = 0  # the number behind the last record
        self.through = -1  # the last version of a table of others whose files are all here; of Iceberg, the snapshot
        self.sequence: int | None = None  # the number of that snapshot's commit
        # the columns of an Iceberg table (`iceberg_columns.shape`)
        self.shape: Mapping[str, Any] | None = None
        self.since: set[str] = set()  # files that were added behind that version, by their identity
        self._places: dict[str, int] = {}  # path -> the place of the file that has it now
        self._alike: dict[tuple[int, str], list[int]] = {}
        self._first: list[int] = []

    def of_path(self, path: str) -> Registered | None:
        """The file that is registered by this path, the last one if several were."""
        place = self._places.get(path)
        return None if place is None else self.files[place]

    def like(self, found: Registered) -> list[Registered]:
        """The files that hold the same."""
        places = self._alike.get((found.size, found.digest), ())
        return [self.files[place] for place in places]

    def of_record(self, number: int) -> Registered | None:
        """The file that has this record; None if it is not registered, or was forgotten."""
        place = bisect_right(self._first, number) - 1
        return self.files[place] if place >= 0 and number < self.files[place].end else None

    def add(
        self,
        found: Sequence[Registered],
        through: int | None = None,
        sequence: int | None = None,
    ) -> None:
        """Numbers the records of these files, on the disk first; `through`: the version of a table that they complete.

        `sequence`: of a snapshot of Iceberg the number of its commit. Files of that version that a process added which ended
        in between are passed over.
        """
        lines, first = [], self.end
        for file in found:
            if through is None or file.identity not in self.since:
                lines.append({"file": asdict(replace(file, first=first))})
                first += file.count
        self._write(
            [*lines, *([] if through is None else [{"through": through, "sequence": sequence}])]
        )

    def move(self, known: Registered, path: str) -> None:
        """Notes that a file has another name."""
        self._write([{"moved": known.path, "to": path}])

    def take_shape(self, shape: Mapping[str, Any]) -> None:
        """Notes the columns by which the files of an Iceberg table are read from now on."""
        if shape != self.shape:
            self._write([{"shape": shape}])

    def forget(self, read: int, gone: Callable[[Registered], bool]) -> None:
        """Leaves out the files that are `gone`, if all their records are among those that are `read` for good.

        Once these are many, for the whole is written again; it is looked for them now and then.
        """
        if (now := time.monotonic()) < self._forget_at:
            return
        self._forget_at = now + _FORGET
        kept = [each for each in self.files if each.end > read or not gone(each)]
        if len(self.files) - len(kept) < _WORTH:
            return
        lines: list[Mapping] = [{"shape": self.shape}] if self.shape else []
        since, end, through = self.since, 0, self.through
        for each in kept:
            if through >= 0 and each.identity in since:  # those before make up that version
                lines.append({"through": through, "sequence": self.sequence})
                through = -1
            if each.first != end:
                lines.append({"from": each.first})
            lines.append({"file": asdict(each)})
            end = each.end
        lines += [{"through": through, "sequence": self.sequence}] if through >= 0 else []
        lines += [{"from": self.end}] if self.end != end else []
        self.restart(lines)

    def restart(self, lines: Sequence[Mapping] = ()) -> None:
        """Forgets all but these lines: without any, for a table that has read nothing yet."""
        if self.end or self.through >= 0:
            Notes(self.note, dict).replace(lines)
            self._clear()
            for line in lines:
                self._take(line)

    def _write(self, lines: Sequence[Mapping]) -> None:
        if lines:
            Notes(self.note, dict).append(*lines)
        for line in lines:
            self._take(line)

    def _take(self, line: Mapping) -> None:
        if "through" in line:
            self.through, self.sequence = int(line["through"]), line.get("sequence")
            self.since.clear()
        elif "shape" in line:
            self.shape = line["shape"]
        elif "from" in line:
            self.end = max(int(line["from"]), self.end)
        elif "moved" in line:
            if line["moved"] not in self._places and line["to"] in self._places:
                return  # a step that was finished and the query behind it both noted it
            place = self._places.pop(line["moved"])
            self.files[place] = replace(self.files[place], path=line["to"])
            self._places[line["to"]] = place
        else:
            file = typed(Registered, line["file"])
            if file.first != self.end:
                what = f"{file.path} begins with record {file.first}, and the files before it end with {self.end}"
                raise damaged(self, what)
            self._places[file.path] = len(self.files)
            self._alike.setdefault((file.size, file.digest), []).append(len(self.files))
            self._first.append(file.first)
            self.since.add(file.identity)
            self.files.append(file)
            self.end = file.end


def _lines(note: Path) -> Iterator[tuple[int, Any]]:
    """Yields the lines of a register with their numbers; one that is torn is named and left out."""
    lines = note.read_text(errors="replace").splitlines() if files.exists(note) else ()
    for number, line in enumerate(lines, 1):
        try:
            yield number, json.loads(line)
        except ValueError:
            warn_once(
                _log,
                f"file={note}, line={number}: it is torn, as by a crash while it was written; it is left out, and the file "
                "that it was of is registered again",
            )


def damaged(register: Register, what: str) -> CommitError:
    """Returns the error of a register that no reader can use any more."""
    return CommitError(
        f"table={register.table}, file={register.note}: it numbers the records that the table has read, and {what}; put it "
        "back, from a savepoint for example, or read the files by an ingest table of another name"
    )
