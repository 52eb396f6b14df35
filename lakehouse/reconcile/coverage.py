"""The reconciled share of a table's history, and the partitions to reconcile next: from logs and
certificates, without Spark.

A partition is computed again only if that can show something new.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION, kind_of_reason
from lakehouse.declare.table import Table
from lakehouse.ranges import (
    BEGINNING,
    PARTITION_LENGTHS,
    Range,
    floor,
    joined,
    partition_format,
    partition_range,
)
from lakehouse.reconcile.invalidation import Mark, look
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk import files
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import report_files
from lakehouse.storage.log.certificates import Certificate, Verdict, certificates
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.table_content import Content, Lost, Stored, content

MOST = 200  # partitions of a table that are reconciled in one go
_INSTANT = timedelta(microseconds=1)
# reconciled partitions are reconciled again, one at a time, but not sooner
_SAMPLED_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Due:
    """A closed partition that is due for reconciliation, and the reason."""

    partition: str
    why: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, and the verdict in force.

    :param verdict: OPEN ahead of the frontier; None if it is closed and has none.
    """

    key: str
    verdict: Verdict | None
    stored: Stored


@dataclass(frozen=True, slots=True)
class Choice:
    """The ranges of a table to reconcile now, in this order; None stands for the whole of a table without ranges."""

    spans: tuple[Range | None, ...]
    due: tuple[Due, ...] = ()  # the partitions in these ranges, each with its reason


@dataclass(frozen=True, slots=True)
class Coverage:
    """The reconciled share of a table's closed history."""

    table: str
    partitions: int  # closed ones, from the first row on
    reconciled: int  # the last verdict is EQUAL, and nothing was changed since
    reconciled_now: int  # under the present declaration; the others under the one that made them
    oldest_unreconciled: datetime | None  # the start of the first partition that is not reconciled
    different: tuple[Certificate, ...]  # certificates of ranges whose last verdict is DIFFERENT
    pending: tuple[str, ...]
    unverifiable: tuple[str, ...]
    changed: tuple[Due, ...]  # partitions that were changed since they were reconciled
    seconds: float  # the time that reconciling took within the last day
    lost: tuple[Lost, ...] = ()  # partitions of which a data file is missing
    unknown: tuple[str, ...] = ()  # partitions without a certificate
    before_since: int = 0  # partitions that begin before `settings.since`: the reconciliation of what is due leaves them alone

    @property
    def share(self) -> float:
        return self.reconciled / self.partitions if self.partitions else 0.0


def _lost(settings: Settings, table: Table, held: Content) -> dict[str, Lost]:
    """Returns the partitions of which a data file, or the file that was drawn of a report, is missing."""
    by_partition = {lost.partition: lost for lost in held.lost}
    for key in report_files.computed(settings, table) if table.kind.is_report else ():
        drawn = report_files.file(settings, table, key)
        if drawn and not files.exists(drawn):
            by_partition.setdefault(key, Lost(key, str(drawn), 0))
    return by_partition


def reasons(settings: Settings, table: Table, partitions: Iterable[str]) -> dict[str, Counter[str]]:
    """Returns, for each partition, the reasons why the table has quarantined rows of it: reason -> rows."""
    import pyarrow.compute as pc

    path = table_path(settings, table, "quarantine")
    counts: dict[str, Counter[str]] = {key: Counter() for key in partitions}
    if counts and delta_log.exists(path):
        asked = pc.field(PARTITION).isin(list(counts))
        rows = open_table(path).to_pyarrow_dataset().to_table(["reason", PARTITION], filter=asked)
        for row in rows.group_by(["reason", PARTITION]).aggregate([([], "count_all")]).to_pylist():
            counts[row[PARTITION]][kind_of_reason(row["reason"])] += row["count_all"]
    return counts


def closed(
    settings: Settings, table: Table, known: Iterable[str] = (), first: datetime | None = None
) -> Range | None:
    """Returns the range of whole partitions from the table's first row, or the first `known` one, to its frontier.

    It begins at `first` at the earliest, by default `settings.since`. Returns None if there is no such partition.
    """
    return _closed(settings, table, {*content(settings, table).partitions, *known}, first)


def _closed(
    settings: Settings, table: Table, keys: Iterable[str], first: datetime | None
) -> Range | None:
    """Returns the range as `closed` does, for these partitions."""
    ahead = frontier(settings, table)
    if ahead is None:
        return None
    length, first = PARTITION_LENGTHS[table.partition_by], first or settings.first_day
    # Dagster does not know partitions of the future, which a fast clock may close
    end = floor(min(ahead, datetime.now(UTC)), length)
    if end <= first:
        return None
    starts = [
        s for s in (partition_range(key, table.partition_by).start for key in keys) if s >= first
    ]
    return Range(min(starts), end) if starts and min(starts) < end else None


def latest(
    settings: Settings, table: Table, verdict: Verdict | None = None, first: datetime = BEGINNING
) -> dict[str, Certificate]:
    """Returns the last certificate of each whole partition from `first` on, or the last one with that verdict.

    An OPEN certificate does not count: it says nothing about a partition.
    """
    return _latest(certificates(settings, table), table, verdict, first)


def _latest(
    found: Iterable[Certificate], table: Table, verdict: Verdict | None, first: datetime
) -> dict[str, Certificate]:
    by_partition: dict[str, Certificate] = {}
    length = PARTITION_LENGTHS[table.partition_by]
    for certificate in found:
        start, end = (
            floor(max(certificate.start, first) + length - _INSTANT, length),
            floor(certificate.end, length),
        )
        if (
            certificate.verdict == "OPEN"
            or verdict not in (None, certificate.verdict)
            or start >= end
        ):
            continue
        by_partition |= dict.fromkeys(Range(start, end).partitions(table.partition_by), certificate)
    return by_partition


def reconcilable(catalog: Catalog) -> list[Table]:
    """Returns the tables that can be compared with a batch run, in the order in which they are reconciled."""
    return [*catalog.derived, *catalog.keyed]


def chosen(lakehouse: Lakehouse, table: Table) -> Choice:
    """Returns the ranges of a table that are reconciled by default: the partitions that are `due`, neighbours together.

    A keyed or versioned table has no ranges: it is reconciled whole, each time.
    """
    if table.kind.is_upserted:
        has_begun = table.deterministic and frontier(lakehouse.settings, table) is not None
        return Choice((None,) if has_begun else ())
    due_now = due(lakehouse, table)
    return Choice(tuple(ranges(due_now, table)), tuple(due_now))


def without_frontier(settings: Settings, table: Table) -> bool:
    """Returns True if a table has rows but no frontier, because its commit log is gone: then nothing is ever due."""
    if table.kind.is_upserted or frontier(settings, table) is not None:
        return False
    return bool(content(settings, table).partitions)


def due(lakehouse: Lakehouse, table: Table) -> list[Due]:
    """Returns the closed partitions to reconcile now, in order, at most `MOST`.

    Reads the changes in the logs since the last call.

    Due are new partitions; those with a missing data file, or with changes of their rows or input since;
    those that are PENDING; those that were DIFFERENT under another declaration; and, of those EQUAL under
    this one, the one whose reconciliation is the oldest.
    """
    if not table.deterministic:
        return []
    certified = latest(lakehouse.settings, table, None, lakehouse.settings.first_day)
    held = content(lakehouse.settings, table)
    first = lakehouse.settings.first_day
    keys, marks = _closed_and_changed(lakehouse, table, {table.name: held}, certified, first)
    gone = _lost(lakehouse.settings, table, held)
    chosen, settled = [], []
    for key in keys:
        last = certified.get(key)
        if last is None:
            chosen.append(Due(key, "new"))
        elif key in gone and last.verdict != "DIFFERENT":
            chosen.append(Due(key, f"its data file {gone[key].file} is missing"))
        elif key in marks:
            chosen.append(Due(key, marks[key].why))
        elif last.verdict == "PENDING":
            chosen.append(Due(key, "it was PENDING"))
        elif last.verdict == "DIFFERENT" and last.code_version != table.code_version:
            chosen.append(Due(key, "it was DIFFERENT under another declaration"))
        elif last.verdict == "EQUAL" and last.code_version == table.code_version:
            settled.append((last.at, key))
    if (
        len(chosen) < MOST
        and settled
        and (oldest := min(settled))[0] < datetime.now(UTC) - _SAMPLED_AFTER
    ):
        chosen.append(Due(oldest[1], f"a sample, reconciled at {oldest[0]:%Y-%m-%dT%H:%MZ}"))
    return sorted(chosen[:MOST], key=lambda each: each.partition)


def coverage(
    lakehouse: Lakehouse, table: Table, contents: Mapping[str, Content] | None = None
) -> Coverage:
    """Returns the reconciled share of history, the differences, and the cost of the reconciliation within the last day.

    It covers all history, also the part before `settings.since`. `contents`: those of the table and its inputs, if they
    are read already.
    """
    contents = contents or {table.name: content(lakehouse.settings, table)}
    held = contents[table.name]
    recorded = certificates(lakehouse.settings, table)
    certified = _latest(recorded, table, None, BEGINNING)
    keys, marks = _closed_and_changed(lakehouse, table, contents, certified, BEGINNING)
    gone = _lost(lakehouse.settings, table, held)
    by_verdict: dict[str, list[str]] = {}
    for key in keys:
        verdict = "" if key not in certified or key in marks else certified[key].verdict
        verdict = "" if key in gone and verdict == "EQUAL" else verdict
        by_verdict.setdefault(verdict, []).append(key)
    equal = by_verdict.get("EQUAL", [])
    reconciled = set(equal)  # made once: by key, a year of hours took three times the CPU
    unreconciled = next((key for key in keys if key not in reconciled), None)
    since = datetime.now(UTC) - timedelta(days=1)
    return Coverage(
        table=table.name,
        partitions=len(keys),
        reconciled=len(equal),
        reconciled_now=sum(certified[key].code_version == table.code_version for key in equal),
        oldest_unreconciled=partition_range(unreconciled, table.partition_by).start
        if unreconciled
        else None,
        different=tuple(certified[key] for key in by_verdict.get("DIFFERENT", [])),
        pending=tuple(by_verdict.get("PENDING", [])),
        unverifiable=tuple(by_verdict.get("UNVERIFIABLE", [])),
        changed=tuple(Due(key, marks[key].why) for key in sorted(marks)),
        seconds=sum(c.seconds for c in recorded if c.at > since),
        lost=tuple(gone[key] for key in sorted(gone.keys() & set(keys))),
        unknown=tuple(key for key in keys if key not in certified),
        before_since=sum(
            key < lakehouse.settings.first_day.strftime(partition_format(table.partition_by))
            for key in keys
        ),
    )


def partitions(lakehouse: Lakehouse, table: Table) -> list[Partition]:
    """Returns a table's partitions in order, each with the verdict in force: its last one, unless that was EQUAL.

    An EQUAL partition that was changed since is PENDING, one of which a data file is missing DIFFERENT.
    """
    settings = lakehouse.settings
    held = content(settings, table)
    rows = held.partitions
    certified: dict[str, Certificate] = {}
    marks: Collection[str] = ()
    if table.kind.is_derived:
        certified = latest(settings, table)
        contents = {table.name: held}
        closed, marks = _closed_and_changed(lakehouse, table, contents, certified, BEGINNING)
    else:  # hours of arrival: closed when they are over
        now = datetime.now(UTC)
        closed = sorted(k for k in rows if partition_range(k, table.partition_by).end <= now)
    gone = _lost(settings, table, held)

    def verdict(key: str) -> Verdict | None:
        last = certified[key].verdict if key in certified else None
        if last != "EQUAL":
            return last
        return "DIFFERENT" if key in gone else "PENDING" if key in marks else last

    found = {key: verdict(key) for key in closed}
    ahead: dict[str, Verdict | None] = dict.fromkeys(sorted(rows.keys() - found.keys()), "OPEN")
    return [Partition(key, each, rows.get(key, Stored())) for key, each in (found | ahead).items()]


def _closed_and_changed(
    lakehouse: Lakehouse,
    table: Table,
    contents: Mapping[str, Content],
    known: Mapping[str, Certificate],
    first: datetime,
) -> tuple[list[str], dict[str, Mark]]:
    """Returns the closed partitions in order, also emptied ones, and the reconciled ones that were changed since."""

    partitions = contents[table.name].partitions

    def keys(more: Iterable[str]) -> list[str]:
        span = _closed(lakehouse.settings, table, {*partitions, *known, *more}, first)
        return list(span.partitions(table.partition_by)) if span else []

    versions = {name: held.version for name, held in contents.items()}
    marks, emptied = look(lakehouse, table, known, keys(()), versions)
    return keys(emptied), marks


def ranges(partitions: Iterable[Due], table: Table) -> list[Range]:
    """Returns the partitions as ranges; neighbours make one range."""
    return joined(partition_range(each.partition, table.partition_by) for each in partitions)
