"""Refreshed reference tables in the stream of a row table: the versions that its rows see, in memory while they do."""

from collections.abc import Mapping

from pyspark.sql import DataFrame

from lakehouse.batch import refreshed
from lakehouse.ranges import EPOCH
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.transform.function_inputs import VersionsSeen


class RefreshedInputs:
    """The versions of refreshed reference tables that the rows of one step after another see."""

    def __init__(self, run: StreamRun) -> None:
        self.run = run
        # joined rows come when their join was possible, not in the order in which they arrived
        self.in_order = not run.session.catalog.follows_frontiers(run.table)
        self.after = EPOCH  # no row of the next step arrived before
        self.kept: dict[tuple[str, int], DataFrame] = {}

    def met(self, rows: DataFrame) -> list[VersionsSeen]:
        """Returns which of the rows saw which versions (`refreshed.met`)."""
        session, table = self.run.session, self.run.table
        by_versions = refreshed.met(session, table, lambda: rows, after=self.after, read=self._read)
        if by_versions and self.in_order:
            self.after = by_versions[0].since
        needed = {each for met in by_versions for each in met.versions.items()}
        for each in self.kept.keys() - needed:
            self.kept.pop(each).unpersist()
        return by_versions

    def _read(self, versions: Mapping[str, int]) -> Mapping[str, DataFrame]:
        for name, version in versions.items():
            if (name, version) not in self.kept:
                rows = self.run.session.references({name: version})[name]
                self.kept[name, version] = rows.persist()
        return {name: self.kept[name, version] for name, version in versions.items()}
