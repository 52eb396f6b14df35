"""A consistent cut of several inputs: versions that have read the same of each ingest table that more than one is computed from.

A table that joins the debits and the credits of one ingest table would else see a transfer on one
side and not yet on the other. A version of an input has read what its commit log says, and what the
inputs that it read had read.
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
    """Which versions of a table's inputs may be read together."""

    session: Session
    inputs: Sequence[Table]
    # input -> the ingest tables that others are computed from, too
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
        """The newest versions up to `most` that are consistent.

        At worst those of `least`, which are: -1 for an input of which nothing is read.
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
        """The versions of an input, newest first, each with what it has read of the ingest tables that are shared."""
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
                version = later - 1  # others have committed since: a batch run, maintenance
            if version < least:
                return
            read, later = self._read(table, line), line.version
            yield version, {name: read[name] for name in shared}
        if least < 0:
            yield -1, dict.fromkeys(shared, -1)

    def _last_of(self, table: Table, version: int, most: int) -> int:
        """The last version before the stream's next commit, whose line in the commit log is yet to come."""
        path = self.session.path(table)
        while version < most:
            noted = (delta_log.commit_info(path, version + 1) or {}).get("userMetadata") or ""
            if checkpoints.is_of_stream(table, noted):
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
