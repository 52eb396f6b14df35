"""What a folder, or a table of others, answers to the ingest table that reads it: a module for each kind has the answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_files import Away, Seen

IsLost = Callable[[Registered], bool]
"""Whether it was accepted that the records of a file are lost."""


class Opened(Protocol):
    """A file that is read from its beginning on."""

    def take(self, most: int, size: int) -> tuple[Sequence[int], Sequence[bytes] | pa.Table | None]:
        """The next records, each with its line or row: at most so many, and of about so many bytes."""

    def close(self) -> None: ...


class Feed(Protocol):
    """What an ingest table follows: its files come into the register, in the order in which they are read."""

    register: Register

    @property
    def refused(self) -> list[str]:
        """Returns what is there and cannot be read as it is, with the reason."""

    @property
    def remarks(self) -> list[str]:
        """That, and what else is to be known of what is there."""

    def look(self, read: int, most: int) -> None:
        """Registers what has come, until about so many records are ahead of those that are read.

        Now and then it forgets files of those that are read for good.

        Raises Away if what it follows is not there, SourceError if it cannot go on.
        """

    def present(self) -> Any:
        """All that is there now, for `has_read`. Raises Away."""

    def has_read(self, present: Any, read: int) -> bool:
        """Returns True if so many records are all of what was present then, and can be read."""


class ForeignFiles(ABC):
    """The files of a folder, or of a table of others, beside the register of those that are read."""

    may_rename: ClassVar[bool] = False
    """Whether a file that is gone may be there under another name."""

    def __init__(self, path: str, register: Register) -> None:
        self.path, self.register = Path(path), register

    @abstractmethod
    def feed(self, is_lost: IsLost, types: Mapping[str, str] = MappingProxyType({})) -> Feed:
        """A feed that follows it; `types`: the names of the types that columns of a table must have."""

    @abstractmethod
    def open(self, known: Registered) -> Opened:
        """Opens a registered file at its beginning. Raises SourceError; Gone if it is not there."""

    @abstractmethod
    def has(self, known: Registered) -> bool:
        """Returns True if a registered file can still be read."""

    @abstractmethod
    def changed(self) -> tuple[str, int]:
        """The first change since it was read to its end, and how many there are. Raises Away."""

    def stamp(self, known: Registered) -> Seen | None:
        """A file as it lies there now, if it may be written to while it is open."""
        return None

    def follow_renames(self) -> bool:
        """Notes which files have another name now; whether one has. Raises Away."""
        return False

    def passed_over(self) -> int | None:
        """The version up to which someone has to accept that it is not read; None if the next one can be."""
        return None

    def passing(self, last: int) -> str:
        """The versions that are not read if all up to this one are passed over."""
        return f"versions {self.register.through + 1} to {last}"

    def unregistered(self) -> list[str]:
        """The files that are there and not registered as they are, and why. Raises Away."""
        return []

    @property
    def settle(self) -> float:
        """Seconds for which a file stands still before it is registered; a file of a table does at once."""
        return 0.0

    def look(self) -> str:
        """Says what has changed since it was read to its end; empty if nothing has, or it is not there any more.

        What is known by then is not read from the disk once more.
        """
        try:
            first, many = self.changed()
        except Away:
            return ""
        if not many:
            return ""
        more = f", and {many - 1:,} more" if many > 1 else ""
        return (
            f"history={self.path}: {first}{more}; it was read to its end before, so what is new there is not in the table; "
            "an ingest table of another name reads all that is there now"
        )
