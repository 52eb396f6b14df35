"""The state of a table that a batch run begins with, read once from commit logs and handed down.

The stream only appends and leaves late rows out, under every policy. Its commit log records what they missed. Whoever
plans without the table's lock reads the state again under it, because another process may have made a run since.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakehouse import ranges
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import BEGINNING, Range, partition_range
from lakehouse.storage.delta import delta_log
from lakehouse.storage.keyed import lookup_answers
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.transform import ranges_of

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Dirt:
    """The changes that a partition does not show yet: late rows that arrived at the watermark `since` or after.

    Without `since`, the whole partition is outdated. `until` is the latest instant that a late row missed, here
    or in a later partition.
    """

    partition: str
    closed: bool
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class BatchState:
    """The frontier of a table, its batch runs, and the partitions that wait for another run, in order."""

    table: Table
    frontier: datetime | None  # None before the first commit
    runs: list[Commit]  # the newest first
    # under every policy: they do not show yet what a batch run changed in an input, or what was asked again
    outdated: list[str]
    # under the policy `update` alone: they may be dirty, and include those that are outdated
    dirty: list[Dirt]

    @property
    def ahead(self) -> datetime:
        return self.frontier or BEGINNING

    @property
    def waiting(self) -> set[str]:
        """Returns the partitions that are outdated or may be dirty."""
        return {*self.outdated, *(dirt.partition for dirt in self.dirty)}


def read(lakehouse: Lakehouse, table: Table) -> BatchState:
    """Returns the state now. A batch run of a partition covers what its version of the input held."""
    # before the logs of the inputs: a run that ends meanwhile is missing, and its partitions only seem to wait
    lines = list(lakehouse.commit_log(table).rewriting())
    runs = [line for line in lines if line.role == "batch"]
    covered = _covered(table, runs)
    outdated = _outdated(lakehouse, table, covered)
    state = BatchState(table, frontier(lakehouse.settings, table), runs, outdated, [])
    if table.late != "update":
        return state
    inputs = [t.name for t in lakehouse.catalog.timed_inputs(table)]
    return replace(state, dirty=_dirty(state, lines, covered, inputs))


def checked(lakehouse: Lakehouse, table: Table, span: Range) -> BatchState:
    """Returns the state now. Raises RangeError unless a batch run may replace the span."""
    lakehouse.catalog.check_derived(table)
    state = read(lakehouse, table)
    ahead = _checked_frontier(lakehouse, table, state.frontier)
    check_range(table, span, ahead, whole_partitions=True)
    return state


def rewrites(lakehouse: Lakehouse, table: Table) -> list[Commit]:
    """Returns the batch runs that replaced rows of the table's inputs."""
    return [
        commit
        for t in lakehouse.catalog.timed_inputs(table)
        for commit in lakehouse.commit_log(t).rewriting()
        if commit.role == "batch" and commit.version != NOTHING
    ]


def closed_until(lakehouse: Lakehouse, table: Table) -> datetime:
    """Returns the frontier of a table with ranges; raises RangeError for other tables, and before any commit."""
    lakehouse.catalog.check_derived(table)
    return _checked_frontier(lakehouse, table, frontier(lakehouse.settings, table))


def _checked_frontier(lakehouse: Lakehouse, table: Table, ahead: datetime | None) -> datetime:
    if ahead is None and table.kind.is_report:
        raise RangeError(
            f"table={table.name}, inputs={', '.join(t.name for t in table.closes_with)}: a report needs partitions that all of "
            "these have closed, and not all have a frontier yet; start their jobs"
        )
    if ahead is None and delta_log.files(lakehouse.path(table)):
        raise RangeError(
            f"table={table.name}, commit log={lakehouse.commit_log(table).path}: the table has rows, and its commit "
            "log no line of the stream, so its frontier is not known; restore the commit log, or start the job of the table"
        )
    if ahead is None or ahead == BEGINNING:
        nothing = "nothing is closed before the stream's first rows; start its job"
        raise RangeError(f"table={table.name}: {nothing}")
    return ahead


def check_range(
    table: Table, span: Range, ahead: datetime, *, whole_partitions: bool = False
) -> None:
    """Raises RangeError for a `span` that may not be computed; `ahead` is the table's frontier."""
    if span.end > ahead and table.kind.is_report:
        raise RangeError(
            f"table={table.name}, range end={ranges.text(span.end)}: its inputs are complete up to {ranges.text(ahead)}, and a "
            "report covers closed partitions; end the range at or before that"
        )
    if span.end > ahead:
        raise RangeError(
            f"table={table.name}, range end={ranges.text(span.end)}: it crosses the frontier {ranges.text(ahead)}; "
            "rows ahead of the frontier belong to the stream; end the range at or before it"
        )
    if whole_partitions and not span.aligned(table.partition_by):
        raise RangeError(
            f"table={table.name}, range={span}: a range is replaced in whole {table.partition_by}s; move both ends "
            f"to a full {table.partition_by}"
        )


def _dirty(
    state: BatchState, lines: list[Commit], covered: dict[str, dict[str, int]], inputs: list[str]
) -> list[Dirt]:
    table = state.table
    by_partition: dict[str, tuple[datetime, datetime]] = {}

    def is_closed(partition: str) -> bool:
        return partition_range(partition, table.partition_by).end <= state.ahead

    for commit in (c for c in lines if c.role == "stream" and c.late_from and c.late_to):
        assert commit.watermark and commit.late_to  # without a watermark no row is late
        read = {name: commit.version_read(name) for name in inputs}
        for key in _uncovered(_missing(table, commit), table, covered, read):
            since, until = by_partition.get(key, (commit.watermark, commit.late_to))
            by_partition[key] = min(since, commit.watermark), max(until, commit.late_to)
    dirt = {key: Dirt(key, is_closed(key), *missed) for key, missed in by_partition.items()}
    dirt |= {key: Dirt(key, is_closed(key)) for key in state.outdated}
    return [dirt[key] for key in sorted(dirt)]


def _outdated(lakehouse: Lakehouse, table: Table, covered: dict[str, dict[str, int]]) -> list[str]:
    partitions: set[str] = set()
    for rewrite in rewrites(lakehouse, table):
        until = _followed(lakehouse, table, rewrite) if table.ttl else None
        touched = ranges_of.reached(table, rewrite.span, until)
        partitions.update(_uncovered(touched, table, covered, {rewrite.table: rewrite.version}))
    if table.lookup:
        partitions.update(lookup_answers.asked_again(lakehouse.settings, table))
    return sorted(partitions)


def _followed(lakehouse: Lakehouse, table: Table, rewrite: Commit) -> datetime:
    """Returns the instant up to which the stream went on from states made before the rewrite of an input."""
    steps = lakehouse.commit_log(table).by_stream()
    before = (c for c in steps if c.version_read(rewrite.table) < rewrite.version)
    return next((c.frontier for c in before if c.frontier), BEGINNING)


def _covered(table: Table, runs: Iterable[Commit]) -> dict[str, dict[str, int]]:
    """Returns, by partition, the versions of the inputs that batch runs have looked at for it."""
    covered: dict[str, dict[str, int]] = {}
    for run in runs:
        for partition in run.span.partitions(table.partition_by):
            versions = covered.setdefault(partition, {})
            for name, version in run.inputs["tables"].items():
                versions[name] = max(versions.get(name, -1), version)
    return covered


def _missing(table: Table, commit: Commit) -> Range:
    """Returns the span that the commit's late rows may change. The end of a session is found when it is computed."""
    assert commit.late_from and commit.late_to
    session = table.window if table.window and table.window.kind == "session" else None
    span = Range(commit.late_from, commit.late_to + (session.size if session else _INSTANT))
    return ranges_of.reached(table, span) if table.context else span


def _uncovered(
    span: Range, table: Table, covered: dict[str, dict[str, int]], versions: Mapping[str, int]
) -> Iterator[str]:
    """Yields the partitions for which no batch run has looked at these versions of the inputs."""
    return (
        p
        for p in span.partitions(table.partition_by)
        if any(covered.get(p, {}).get(name, -1) < version for name, version in versions.items())
    )
