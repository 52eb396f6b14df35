"""What others do to the history of a topic after it was read to its end: none of that is read, and all of it is said."""

from pathlib import Path

from lakehouse.declare.inputs.sources import FilesSource, FolderSource, IcebergSource
from lakehouse.storage.disk.files import digest_of
from lakehouse.storage.foreign import foreign_files, foreign_log, iceberg_feed
from lakehouse.storage.foreign.file_register import Register
from lakehouse.storage.foreign.foreign_files import Away, Seen
from lakehouse.storage.foreign.iceberg_tables import IcebergTable


class Afterwards:
    """Looks again and again at a history that was read; what is known by then is not read from the disk once more."""

    def __init__(self, source: FilesSource, register: Register) -> None:
        self._source, self._register = source, register
        self._path = Path(source.address)
        self._iceberg = IcebergTable(source) if isinstance(source, IcebergSource) else None
        self._compared: dict[str, tuple[Seen, str]] = {}  # files, and what is wrong with each
        self._through = register.through  # the last version that was looked at
        self._first = ""  # of the versions behind what was read that add or remove rows
        self._many = 0  # of those
        self._sequence = register.sequence  # of a table of Iceberg: the number of that commit

    def look(self) -> str:
        """What has changed since it was read; empty if nothing has, or it is not there any more, which takes nothing away."""
        try:
            if isinstance(self._source, FolderSource):
                return self._of_folder(self._source.pattern)
            return self._of_iceberg(self._iceberg) if self._iceberg else self._of_table()
        except Away:
            return ""

    def _of_table(self) -> str:
        newest = foreign_log.latest(self._path)
        while self._through < newest:
            self._through += 1
            version = foreign_log.version(self._path, self._through)
            if version is None or version.added or version.removes:
                what = version.removes if version else "not in the log any more"
                self._first = (
                    self._first or f"version {self._through} ({what or 'rows were added'})"
                )
                self._many += 1
        return self._said(self._first, self._many) if self._many else ""

    def _of_iceberg(self, table: IcebergTable) -> str:
        self._through, self._sequence, said = iceberg_feed.since(
            table, self._through, self._sequence
        )
        if said:
            self._first = self._first or f"snapshot {said[0]}"
            self._many += len(said)
        return self._said(self._first, self._many) if self._many else ""

    def _of_folder(self, pattern: str) -> str:
        listing = foreign_files.listed(self._path, pattern)
        compared = {each.path: self._of_file(each) for each in listing}
        self._compared = {each.path: (each, compared[each.path]) for each in listing}
        changed = [f"{path}, which {what}" for path, what in sorted(compared.items()) if what]
        return self._said(f"file {changed[0]}", len(changed)) if changed else ""

    def _of_file(self, found: Seen) -> str:
        """What became of a file; empty if it is as it was when it was read."""
        before = self._compared.get(found.path)
        if before and before[0] == found:
            return before[1]
        known = self._register.of_path(found.path)
        if known is None:
            return "" if self._is_renamed(found) else "has come since"
        same = (found.size, found.modified) == (known.size, known.modified)
        same = same or (found.size == known.size and self._digest(found) == known.digest)
        return "" if same else "was written to since"

    def _is_renamed(self, found: Seen) -> bool:
        return any(
            known.size == found.size
            and foreign_files.is_same_time(known.modified, found.modified)
            and foreign_files.seen(self._path, known.path) is None
            and known.digest == self._digest(found)
            for known in self._register.files
        )

    def _digest(self, found: Seen) -> str:
        try:
            return digest_of(self._path / found.path)
        except OSError:  # moved meanwhile, or not to be read
            return ""

    def _said(self, first: str, many: int) -> str:
        more = f", and {many - 1:,} more" if many > 1 else ""
        return (
            f"history={self._path}: {first}{more}; it was read to its end before, so what is new there is not in the table; "
            "an ingest table of another name reads all that is there now"
        )
