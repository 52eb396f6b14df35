"""The sink of the docs as a module, so that other processes can import it, and sinks that are wrong."""

import re
import time
from dataclasses import dataclass
from typing import Any

from lakehouse import Target
from lakehouse.sinks.formats.encoding import key_of, value_of
from support import ROOT

DOCS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "own-sink.md").read_text(), re.DOTALL
)  # the sink, and its test
exec(DOCS[0], globals())
SqliteSink: Any = globals()["SqliteSink"]


class NotesLate(SqliteSink):
    """The rows are visible, and then the position."""

    def write(self, version, changes):
        super().write(version, changes)
        self.db.execute("COMMIT")


class NotesEarly(SqliteSink):
    """The position is visible, and then the rows."""

    def write(self, version, changes):
        self.changes = changes

    def commit(self, position):
        super().commit(position)
        time.sleep(0.2)
        super().write(position.version, self.changes)
        self.db.execute("COMMIT")


class RefusesNobody(SqliteSink):
    """Whoever commits is let through, and no lock is held until then."""

    def write(self, version, changes):
        self.changes = changes

    def commit(self, position):
        super().write(position.version, self.changes)
        self.db.execute("UPDATE position SET value = ?", [position.to_json()])
        self.db.execute("COMMIT")


class Appends(SqliteSink):
    """A change of a row is one more row."""

    def write(self, version, changes):
        self._begin()
        self.db.execute("CREATE TABLE IF NOT EXISTS all_rows (key TEXT, value TEXT)")
        for change in changes:
            if change.kind != "delete":
                given = [key_of(change.row, self.key), value_of(change.row)]
                self.db.execute("INSERT INTO all_rows VALUES (?, ?)", given)

    def rows(self, version):
        if self.db.execute("SELECT * FROM sqlite_master WHERE name = 'all_rows'").fetchone():
            yield from ((*row, True) for row in self.db.execute("SELECT * FROM all_rows"))


@dataclass(frozen=True, slots=True)
class Wrong(Target):
    of: Any
    path: str

    def sink(self, settings, table):
        return self.of(self.path, self.key)
