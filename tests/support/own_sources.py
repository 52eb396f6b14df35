"""The sources of the docs as a module, one that a test fills, and classes that break the contract of sources."""

import random
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lakehouse import SourceReader, SourceRecord, python_source
from support import ROOT

DOCS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "own-source.md").read_text(), re.DOTALL
)  # a table of SQLite, pages of an endpoint, and the test of the first
for block in DOCS:
    exec(block, globals())
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL"


class Filled(SourceReader):
    """What the test has put there, by the name of the source; it may be away."""

    sparse = True
    there: dict[
        str, dict[int, list[Any]]
    ] = {}  # partition -> what `read` gives, None where a number is missing
    away: set[str] = set()
    hanging: dict[str, threading.Event] = {}  # by method, what it waits for
    earliest: dict[str, dict[int, int]] = {}
    made: list["Filled"] = []
    closed = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.made.append(self)

    def latest_offset(self):
        self._answer("latest_offset")
        return {partition: len(given) for partition, given in self.there[self.name].items()}

    def earliest_offset(self):
        return self.earliest.get(self.name, {})

    def read(self, partition, start, end):
        self._answer("read")
        for number, given in enumerate(self.there[self.name][partition][start:end], start):
            if isinstance(given, SourceRecord) or given is None:
                if given is not None:
                    yield given
            else:
                yield SourceRecord(given, key=f"{partition}/{number}", offset=number)

    def close(self):
        self.closed = True

    def _answer(self, method: str) -> None:
        if method in self.away:
            raise ConnectionError(f"no route to {self.name}")
        if method in self.hanging:
            self.hanging[method].wait()


def filled(name: str, schema: str = SCHEMA, **partitions: list[Any]):
    """A source of what the test puts into its partitions (`p0=[...]`), empty at first."""
    Filled.there[name] = {int(key[1:]): given for key, given in partitions.items()}
    Filled.earliest.pop(name, None)
    Filled.away.clear()
    return python_source(
        name, Filled, schema=schema, options={"name": name}, poll_interval="0 seconds"
    )


class Numbers(SourceReader):
    """A hundred records, each its number: a source as it must be, of which others are made that are not."""

    def latest_offset(self):
        return 100

    def read(self, partition, start, end) -> Iterator[Any]:
        return (str(n) for n in range(start, end))


class Drawn(Numbers):
    """Other values each time."""

    def read(self, partition, start, end):
        return (f"{n} {random.random():.9f}" for n in range(start, end))


class Unordered(Numbers):
    """The order is that of the pieces."""

    def read(self, partition, start, end):
        return reversed([str(n) for n in range(start, end)])


class Cursor(Numbers):
    """Goes on where it was, whatever is asked."""

    at = 0

    def read(self, partition, start, end):
        for _ in range(start, end):
            yield str(self.at)
            self.at = (self.at + 1) % 100


class OfInstance(Numbers):
    """Another instance has other records."""

    made = 0

    def __init__(self):
        OfInstance.made += 1
        self.number = OfInstance.made

    def read(self, partition, start, end):
        return (f"{n} of {self.number}" for n in range(start, end))


class Left(Numbers):
    """An iterator that is left early takes a record along."""

    lost = 0

    def read(self, partition, start, end):
        with suppress(GeneratorExit):
            for n in range(start, end):
                yield str(n + self.lost)
            return
        self.lost = 1


class GoesBack(Numbers):
    """Each time one record fewer."""

    last = 101

    def latest_offset(self):
        GoesBack.last -= 1
        return GoesBack.last


class Inclusive(Numbers):
    """Takes the end for a part of the range."""

    def read(self, partition, start, end):
        return (str(n) for n in range(start, end + 1))


class Fewer(Numbers):
    """Leaves out the tenth without saying so."""

    def read(self, partition, start, end):
        return (str(n) for n in range(start, end) if n != 10)


class Numerals(Numbers):
    """Its records are no text."""

    def read(self, partition, start, end):
        return range(start, end)


class EmptyIsAll(Numbers):
    """Takes an empty range for all there is."""

    sparse = True

    def read(self, partition, start, end):
        return (
            SourceRecord(str(n), offset=n) for n in range(start, end if end > start else start + 1)
        )


class Away(Numbers):
    def read(self, partition, start, end):
        raise ConnectionError("no route to host")
