"""The writers of a partition's rows, by the log table of commits: their declarations and their reference tables."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, Range, partition_range
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import commits, log_tables, table_content

_COLUMNS = ["role", "at", "code_version", "inputs", "frontier", "start", "end"]
# the leading characters of an instant that name its partition
_DIGITS = {"hour": len("2026-01-01T00"), "day": len("2026-01-01")}
_REFERENCES = r'"references": (?P<references>\{[^}]*\})'


@dataclass(frozen=True, slots=True)
class Provenance:
    """The declarations and the versions of reference tables that one partition's writers had, the latest last."""

    code_versions: tuple[str, ...] = ()
    references: tuple[Mapping[str, int], ...] = ()


class _Writer(NamedTuple):
    """Commits with the same declaration and references, of one partition of the frontier (stream) or one range (batch)."""

    ahead: str | None
    start: str | None
    end: str | None
    code_version: str
    references: str


def written_by(
    settings: Settings, table: Table, partitions: Iterable[str]
) -> dict[str, Provenance]:
    """Returns the writers of each of the `partitions`: streams whose frontier crossed it, and its batch runs.

    Brings the Delta table `_commits` up to date, and reads it once. The result leaves out a partition
    whose writers are not recorded.
    """
    log_tables.flush(settings, [table])
    first = _first(settings, table)
    crossed, ranges = defaultdict(list), []
    for writer in sorted(first, key=first.__getitem__):
        if writer.ahead:
            crossed[writer.ahead].append(writer)
        else:  # a run for late rows may have rewritten some windows only, so earlier writers count, too
            ranges.append(writer)
    steps = sorted(crossed)

    def of(partition: str) -> Provenance:
        whole, digits = partition_range(partition, table.partition_by), _DIGITS[table.partition_by]
        start, end = whole.start.isoformat(), whole.end.isoformat()
        writers = list(crossed.get(start[:digits], []))
        if not table.window:  # its rows are written up to a partition ahead of its frontier
            before = whole.start - PARTITION_LENGTHS[table.partition_by]
            writers += crossed.get(before.isoformat()[:digits], [])
        if (after := bisect_right(steps, start[:digits])) < len(steps):
            writers.append(crossed[steps[after]][0])  # the one that closed it
        for writer in ranges:
            if writer.start and writer.end and writer.start <= start and end <= writer.end:
                writers.append(writer)
        writers.sort(key=first.__getitem__)
        code_versions = dict.fromkeys(writer.code_version for writer in writers)
        pinned = dict.fromkeys(writer.references for writer in writers if writer.references)
        return Provenance(tuple(code_versions), tuple(map(json.loads, pinned)))

    return {key: provenance for key in partitions if (provenance := of(key)).code_versions}


def _first(settings: Settings, table: Table) -> dict[_Writer, str]:
    """Returns the recorded writers, each with the time of its first commit: ISO text in UTC, sorted as the time is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    path = layout.log_table(settings, "_commits")
    if not delta_log.exists(path):
        return {}
    role = pc.field("role")
    by_stream = (role == "stream") & pc.field("frontier").is_valid()
    replaced = (role == "batch") & (pc.field("version") != commits.NOTHING)
    condition = (pc.field("table") == table.name) & (by_stream | replaced)
    first_commits: dict[_Writer, str] = {}
    dataset = open_table(path).to_pyarrow_dataset()
    for batch in dataset.to_batches(columns=_COLUMNS, filter=condition):
        text = {name: batch[name].cast(pa.string()) for name in _COLUMNS}
        is_stream, nothing = pc.equal(text["role"], "stream"), pa.scalar(None, pa.string())
        ahead = pc.utf8_slice_codeunits(text["frontier"], 0, _DIGITS[table.partition_by])
        references = pc.extract_regex(text["inputs"], _REFERENCES)
        columns = {
            "ahead": pc.if_else(is_stream, ahead, nothing),
            "start": pc.if_else(is_stream, nothing, text["start"]),
            "end": pc.if_else(is_stream, nothing, text["end"]),
            "code_version": text["code_version"],
            "references": pc.struct_field(references, "references"),
            "at": text["at"],
        }
        groups = pa.table(columns).group_by(list(_Writer._fields)).aggregate([("at", "min")])
        for row in groups.to_pylist():
            writer = _Writer(
                row["ahead"], row["start"], row["end"], row["code_version"], row["references"] or ""
            )
            first_commits[writer] = min(row["at_min"], first_commits.get(writer, row["at_min"]))
    return first_commits


def by_references(
    lakehouse: Lakehouse, table: Table, span: Range
) -> Iterator[tuple[Range, Mapping[str, int]]]:
    """Yields the range in parts, each with the versions of reference tables that the writers of its rows read last."""
    start, versions = span.start, None
    if lakehouse.catalog.pinned_inputs(table):
        stored = table_content.content(lakehouse.settings, table).partitions
        wholes = {key: partition_range(key, table.partition_by) for key in sorted(stored)}
        wholes = {key: whole for key, whole in wholes.items() if whole.overlaps(span)}
        made = written_by(lakehouse.settings, table, wholes)
        for key, whole in wholes.items():
            references = made[key].references[-1] if key in made and made[key].references else {}
            if versions not in (None, references):
                yield Range(start, whole.start), versions
                start = whole.start
            versions = references
    yield Range(start, span.end), versions or {}
