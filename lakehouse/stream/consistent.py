"""A consistent cut of several inputs: versions that have read the same of each ingest table that they share.

Without it, a table that joins the debits and the credits of one ingest table would see a transfer on
one side and not yet on the other. The commit logs say what a version of an input has read: its own
log for its inputs, and their logs for what those had read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.declare.table import Table
from lakehouse.storage.delta import delta_log
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.session import Session

Read = Mapping[str, int]  # ingest table -> the version up to which it is read


@dataclass(frozen=True, slots=True)
class Cuts:
    """The versions of a table's inputs that may be read together."""

    session: Session
    inputs: Sequence[Table]
    # input -> its ingest tables from which other inputs are computed as well
    shared: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, session: Session, table: Table) -> "Cuts":
        inputs = session.catalog.followed_inputs(table)
        of = {t.name: {i.name for i in session.catalog.ingest_tables_of(t)} for t in inputs}
        shared = {
            name: frozenset(i for i in own if any(i in of[other] for other in of if other != name))
            for name, own in of.items()
        }
        return cls(session, inputs, shared)

    def newest(self, least: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
        """Returns the newest consistent versions up to `most`.

        The versions of `least` are consistent, and the worst result; -1 stands for an input of which nothing is read.
        """
        waiting = {
            t.name: least[t.name] if self.shared[t.name] else most[t.name] for t in self.inputs
        }
        cuts = {
            t.name: self._cuts(t, least[t.name], most[t.name])
            for t in self.inputs
            if self.shared[t.name]
        }
        at = {name: next(of_input, None) for name, of_input in cuts.items()}
        while True:
            reached = [each for each in at.values() if each is not None]
            if len(reached) < len(at):
                return waiting
            behind: dict[str, int] = {}
            for _, read in reached:
                for ingest, version in read.items():
                    behind[ingest] = min(version, behind.get(ingest, version))
            ahead = [
                name
                for name, each in at.items()
                if each and any(version > behind[ingest] for ingest, version in each[1].items())
            ]
            if not ahead:
                return waiting | {name: each[0] for name, each in at.items() if each}
            for name in ahead:
                at[name] = next(cuts[name], None)

    def _cuts(self, table: Table, least: int, most: int) -> Iterator[tuple[int, Read]]:
        """Yields the versions of an input, newest first, each with the versions of the shared ingest tables that it has read."""
        shared = self.shared[table.name]
        if self.session.catalog.sources_of(table):
            yield from ((version, {table.name: version}) for version in range(most, least - 1, -1))
            return
        version, later = most, None
        for line in self.session.commit_log(table).by_stream():
            if line.version > most:
                continue
            if later is None:
                version = self._last_of(table, line.version, most)
            elif line.version < later:
                version = later - 1  # a batch run or maintenance has committed since
            if version < least:
                return
            read, later = self._read(table, line), line.version
            yield version, {name: read[name] for name in shared}
        if least < 0:
            yield -1, dict.fromkeys(shared, -1)

    def _last_of(self, table: Table, version: int, most: int) -> int:
        """Returns the last version before the stream's next commit, whose commit log line is not written yet."""
        path = self.session.path(table)
        while version < most:
            if checkpoints.is_of_stream(table, delta_log.noted(path, version + 1)):
                break
            version += 1
        return version

    def _read(self, table: Table, line: Commit) -> Read:
        versions: dict[str, int] = {}
        for each in self.session.catalog.followed_inputs(table):
            version = line.version_read(each.name)
            read: Read = {each.name: version}
            if not self.session.catalog.sources_of(each):
                lines = self.session.commit_log(each).by_stream()
                before = next((one for one in lines if one.version <= version), None)
                nothing = {i.name: -1 for i in self.session.catalog.ingest_tables_of(each)}
                read = self._read(each, before) if before else nothing
            for name, at in read.items():
                versions[name] = min(at, versions.get(name, at))
        return versions
