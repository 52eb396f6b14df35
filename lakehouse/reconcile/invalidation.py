"""Reconciled partitions that were changed since: by the logs of a table and of its input, each read on from the last look.

`_commit_log/<table>.reconciliation.json` keeps the version up to which each log was read, and the
changes that are not reconciled since. It also keeps each table's id, and the time since which another
table has its name, or an older copy its place.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.ranges import partition_range
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.delta_log import Change
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.locks import alone_if_allowed
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate
from lakehouse.transform import ranges_of


def looked_at(settings: Settings, table: Table) -> dict[str, int]:
    """Returns the version up to which the log of `table`, and that of each input, were looked at."""
    return _looks(settings, table).versions


@dataclass(frozen=True, slots=True)
class Mark:
    """A partition was changed by a version of the table (else -1), or of some of its inputs."""

    version: int
    inputs: Mapping[str, int]
    why: str

    def holds(self, last: Certificate) -> bool:
        """Returns True if the certificate is older than the change."""
        return last.version < self.version or any(
            version_of(last, name) < version for name, version in self.inputs.items()
        )

    def with_(self, other: "Mark | None") -> "Mark":
        """Returns both changes as one, with the description of this one."""
        if other is None:
            return self
        names = self.inputs.keys() | other.inputs.keys()
        inputs = {n: max(self.inputs.get(n, -1), other.inputs.get(n, -1)) for n in names}
        return Mark(max(self.version, other.version), inputs, self.why)


@dataclass(frozen=True, slots=True)
class Looks:
    """The results of the looks at the logs of a table and of its inputs, as kept on disk.

    :param versions: the version up to which each log was looked at.
    :param marks: the changes since the reconciliation, by partition.
    :param tables: for each its id, the time since which certificates count, and its last commit at the look.
    """

    versions: dict[str, int] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)


def look(
    lakehouse: Lakehouse,
    table: Table,
    known: Mapping[str, Certificate],
    closed: Iterable[str],
    present: Mapping[str, int] = {},
) -> tuple[dict[str, Mark], Set[str]]:
    """Returns the partitions changed since they were reconciled, and those changed and not reconciled since.

    The logs are read from the last look on. The result is kept for the next look, unless this user may only read.

    `known`: the last certificates. `present`: the last versions of tables, as far as they are read already.
    A change of a `closed` partition without a certificate is kept, too: a running reconciliation may not have seen it. A
    partition counts as changed if its certificate is from before the table, or its input, was made again or put back from
    a copy. A removal of rows is kept for every partition, because the table does not list a partition without rows.
    """
    both = (table, *lakehouse.catalog.timed_inputs(table))
    candidates = known.keys() | set(closed)
    lock = _path(lakehouse.settings, table).with_suffix(".lock")
    with alone_if_allowed(lock) as ours:
        looks = _looks(lakehouse.settings, table)
        versions, marks, tables = dict(looks.versions), dict(looks.marks), dict(looks.tables)
        gone_back: set[str] = set()
        for each in both:
            path, before = lakehouse.path(each), versions.get(each.name)
            now = present.get(each.name, -1)
            if now < (before or 0):  # not known, or another process has looked since
                now = delta_log.latest(path)
            if before is not None and now < before:
                marks.clear()  # they refer to versions that are gone
                gone_back.add(each.name)
            if before is None and each is table:  # the first look: from the oldest certificate on
                seen = (certificate.version for certificate in known.values())
                before = min(seen, default=delta_log.oldest(path))
            elif before is None:
                before = min((version_of(c, each.name) for c in known.values()), default=now)
            if now > before:
                column = lakehouse.catalog.event_time(each) if each.kind.reads_sources else ""
                changes = delta_log.changes(path, before, column)
                for key, mark in _marked(changes, each, table, candidates, now).items():
                    marks[key] = mark.with_(marks.get(key))
            versions[each.name] = now
        marks = {k: mark for k, mark in marks.items() if k not in known or mark.holds(known[k])}
        again = _made_again(lakehouse.settings, both, known, tables, versions, gone_back)
        now_kept = Looks(versions, dict(sorted(marks.items())), tables)
        if ours and now_kept != looks:
            replace_file(_path(lakehouse.settings, table), asdict(now_kept))
    return {key: mark for key, mark in marks.items() if key in known} | again, marks.keys()


def _made_again(
    settings: Settings,
    tables: Iterable[Table],
    known: Mapping[str, Certificate],
    kept: dict[str, list[str]],
    versions: Mapping[str, int],
    gone_back: Set[str],
) -> dict[str, Mark]:
    """Returns the partitions whose certificate is about another table of that name, or about one that is not there.

    `kept`: name -> the table's id, the time since which certificates count, and its last commit at the
    look; brought up to date. `versions`: the present ones. `gone_back`: tables with fewer versions than at the last look.
    """
    marks: dict[str, Mark] = {}
    for each in tables:
        path = table_path(settings, each)
        before, went_back = kept.get(each.name, ["", "", ""]), each.name in gone_back
        present = delta_log.stamp(path, versions[each.name])
        entry = _present(path, present, before, known, went_back)
        if entry is None:
            marks |= dict.fromkeys(known, Mark(-1, {}, f"{each.name} is not there any more"))
            continue
        kept[each.name], since = entry, entry[1]
        if since:
            made = datetime.fromisoformat(since)
            older = (key for key, certificate in known.items() if certificate.at < made)
            why = f"{each.name} was made again, or put back from an older copy, at {since[:19]}Z"
            marks |= dict.fromkeys(older, Mark(-1, {}, why))
    return marks


def _present(
    path: Path, now: str, kept: list[str], known: Mapping[str, Certificate], gone_back: bool
) -> list[str] | None:
    """Returns the up-to-date entry that `_made_again` keeps of a table, `now` at a commit; None if the table is not there."""
    before, since, seen = kept
    if seen and delta_log.stamp(path, int(seen.partition(" ")[0])) == seen:
        return [before, since, now]  # its log continues from there: the table is not opened
    if (made := delta_log.made(path)) is None:
        return None
    identity, at = made
    if before != identity if before else any(certificate.at < at for certificate in known.values()):
        since = at.isoformat()
    elif gone_back:
        since = datetime.now(UTC).isoformat()
    return [identity, since, now]


def _marked(
    changes: list[Change] | None, changed: Table, table: Table, candidates: Set[str], now: int
) -> dict[str, Mark]:
    own = changed.name == table.name

    def mark(version: int, why: str) -> Mark:
        return Mark(version, {}, why) if own else Mark(-1, {changed.name: version}, why)

    if changes is None:
        why = f"the log of {changed.name} was cut before it was looked at: all may have changed"
        return dict.fromkeys(candidates, mark(now, why))
    marks: dict[str, Mark] = {}
    for change in changes:
        if own:
            by_hand = change.removes and not change.ours
            touched = change.partitions if by_hand else change.partitions & candidates
        elif change.removes or not (change.ours and change.by_stream):
            touched = frozenset(k for k in candidates if reaches(change, changed, table, k))
        else:
            continue  # rows that a stream appends are ahead of the frontier of each table that reads its table, or late
        why = f"{changed.name} was changed by {change}"
        marks |= dict.fromkeys(touched, mark(change.version, why))
    return marks


def reaches(change: Change, changed: Table, table: Table, partition: str) -> bool:
    """Returns True if rows of that partition of `table` may be computed from the changed rows of its input."""
    spans = change.spans or [
        partition_range(key, changed.partition_by) for key in change.partitions
    ]
    whole = partition_range(partition, table.partition_by)
    return any(ranges_of.reached(table, span, whole.end).overlaps(whole) for span in spans)


def version_of(certificate: Certificate, name: str) -> int:
    """Returns the version of an input that was read for the certificate; -1 if it names none."""
    return certificate.inputs.get("tables", {}).get(name, -1)


def _looks(settings: Settings, table: Table) -> Looks:
    meaning = "the logs are looked at as if for the first time"
    return read_value(_path(settings, table), Looks, meaning) or Looks()


def _path(settings: Settings, table: Table) -> Path:
    return layout.note(settings, table, "reconciliation.json")
