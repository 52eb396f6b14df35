"""Partitions of derived tables: which there are, which are closed, what they hold. Read without Spark.

Dagster's partitions and the tables' own have the same keys (`event_time.partition_format`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from lakehouse.catalog import Catalog, table_path
from lakehouse.event_time import Range, floor, partition_format, partition_range
from lakehouse.frontier import Journal, certificates, frontier
from lakehouse.settings import Settings
from lakehouse.table import GRAINS, Table


@dataclass(frozen=True, slots=True)
class Stored:
    """What the Delta log says of one partition: its rows, and whether a bounded run wrote any of them."""

    rows: int = 0
    by_bounded: bool = False

    @property
    def origin(self) -> str:
        return "bounded" if self.by_bounded else "live"


def definition(settings: Settings, table: Table) -> dg.TimeWindowPartitionsDefinition:
    """The hours or days of a derived table from `settings.since` on."""
    kinds = {"hour": dg.HourlyPartitionsDefinition, "day": dg.DailyPartitionsDefinition}
    return kinds[table.grain](start_date=_first_day(settings), timezone="UTC", fmt=partition_format(table.grain))


def mapping(table: Table) -> dg.TimeWindowPartitionMapping | None:
    """The input's partitions that a partition of `table` reads: its own (None), or more if windows straddle."""
    grain = GRAINS[table.grain]
    if table.window is None or table.window.within(grain):
        return None
    back = -(-table.window.reach // grain)
    return dg.TimeWindowPartitionMapping(start_offset=-back, allow_nonexistent_upstream_partitions=True)


def derived(catalog: Catalog) -> list[Table]:
    """The tables with event-time partitions, which bounded runs may replace."""
    return [t for t in catalog if catalog.kind(t) in ("row", "window")]


def stored(settings: Settings, table: Table) -> tuple[int, dict[str, Stored]]:
    """The table's Delta version and what each of its partitions holds; (-1, {}) if it is not there."""
    import pyarrow
    from deltalake import DeltaTable

    path = table_path(settings, table)
    if not DeltaTable.is_deltatable(str(path)):
        return -1, {}
    delta = DeltaTable(str(path))
    found: dict[str, Stored] = {}
    for file in pyarrow.table(delta.get_add_actions(flatten=True)).to_pylist():
        before = found.get(file.get("partition._partition", ""), Stored())
        bounded = before.by_bounded or file.get("min._origin") == "bounded"  # sorts before "live"
        found[file.get("partition._partition", "")] = Stored(before.rows + (file["num_records"] or 0), bounded)
    return delta.version(), found


def reached(settings: Settings, catalog: Catalog, table: Table) -> tuple[datetime | None, dict[str, object]]:
    """The table's frontier, and what had been read of the topics by then: topic -> partition -> next offset."""
    commit = next((c for c in Journal(settings, table).live() if c.frontier), None)
    ahead = commit.frontier if commit else None
    while commit and (driving := catalog.driving_input(table)):
        end = commit.inputs["tables"][driving.name]  # Delta's offset: a version, and how many of its files
        versions = end["reservoirVersion"] - (end["index"] < 0)
        table, commit = driving, next((c for c in Journal(settings, driving).live() if c.version <= versions), None)
    return ahead, dict(commit.inputs) if commit else {}


def closed(settings: Settings, table: Table) -> Range | None:
    """The whole partitions from the table's first row (not before `settings.since`) to its frontier; None if none."""
    ahead = frontier(settings, table)
    if ahead is None:
        return None
    grain = GRAINS[table.grain]
    # Dagster does not know the partitions of the future, which a fast clock may close
    end = floor(min(ahead, datetime.now(UTC)), grain)
    if end <= _first_day(settings):
        return None
    _, found = stored(settings, table)
    starts = [s for s in (partition_range(key, table.grain).start for key in found) if s >= _first_day(settings)]
    return Range(min(starts), end) if starts and min(starts) < end else None


def last(span: Range, table: Table, partitions: int) -> Range:
    """The last `partitions` of whole partitions."""
    return Range(max(span.start, span.end - partitions * GRAINS[table.grain]), span.end)


def uncertified(settings: Settings, table: Table) -> list[Range]:
    """The whole closed partitions that no EQUAL certificate of the present declaration covers, as ranges in order."""
    span = closed(settings, table)
    if span is None:
        return []
    proven = [c for c in certificates(settings, table) if c.verdict == "EQUAL" and c.fingerprint == table.fingerprint]
    gaps, reached = [], span.start
    for start, end in [*sorted((c.start, c.end) for c in proven), (span.end, span.end)]:
        if min(start, span.end) > reached:
            gaps.append(_widened(reached, min(start, span.end), GRAINS[table.grain]))
        reached = max(reached, end)
    return list(dict.fromkeys(gaps))


def _widened(start: datetime, end: datetime, grain: timedelta) -> Range:
    return Range(floor(start, grain), floor(end + grain - timedelta(microseconds=1), grain))


def _first_day(settings: Settings) -> datetime:
    return datetime.fromisoformat(settings.since).replace(tzinfo=UTC)
