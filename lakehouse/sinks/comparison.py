"""What a target holds, compared with the table at the target's version; and made equal to the newest version."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakehouse.declare.table import Table
from lakehouse.declare.targets import Fault, Position, Row, RowChange, Sink, Target
from lakehouse.errors import CommitError, SinkError
from lakehouse.sinks import changes, column_check
from lakehouse.sinks.actions import check_reads_back
from lakehouse.sinks.follower import changes_of, written
from lakehouse.sinks.formats import encoding
from lakehouse.sinks.formats.encoding import key_of, rows_of, value_of
from lakehouse.storage.delta import delta_log, python_years, small_commits, version_rows
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.versions import fork_guard
from lakehouse.storage.versions.read_holds import under_way

if TYPE_CHECKING:
    import pyarrow as pa

Cause = Literal["missing", "extra", "edited", "held", "several rows", "other row", "twice"] | Fault
_ATTEMPTS = 3  # a topic may be compacted while it is read: a difference is looked at again at the next version


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of which table and target do not have the same row.

    "edited": somebody else wrote it there; "held": a correction of it is held back; "several rows":
    the table has different rows with that key, so it is none; "twice": the target has it more than once.
    """

    key: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared. `repeated`: rows that the table has more than once, and the target, by its key, once."""

    target: str
    table: str
    version: int
    rows: int
    repeated: int
    held: tuple[int, ...]
    differences: tuple[Difference, ...]

    @property
    def verdict(self) -> Literal["EQUAL", "DIFFERENT"]:
        return "DIFFERENT" if self.differences else "EQUAL"


def compare(lakehouse: Lakehouse, table: Table, target: Target) -> Comparison:
    """Compares the target with the table at the version that the target holds, beside a follower that goes on.

    Raises SinkError if nothing was published yet, CommitError if the table does not have that
    version any more.
    """
    check_reads_back(target)
    with closing(target.sink(lakehouse.settings, table.name)) as sink:
        return _compared(lakehouse, table, target, sink)


def _rows_at(lakehouse: Lakehouse, table: Table, target: Target, version: int) -> "pa.Table":
    """The rows of the table. Raises SinkError for one that no target can hold."""
    rows = version_rows.all_at(lakehouse.path(table), version)
    where = f"target={target.name}, table={table.name}, version={version}"
    python_years.check(rows, where, SinkError, encoding.FIX, target.key)
    return rows


def _compared(lakehouse: Lakehouse, table: Table, target: Target, sink: Sink) -> Comparison:
    attempts = 0
    while True:
        position = sink.position()
        if position is None:
            raise SinkError(
                f"target={target.name}: no version of {table.name} was published there; `lakehouse publish start {target.name}`"
            )
        path = lakehouse.path(table)
        there = delta_log.exists(path) and small_commits.identity(path)
        if position.table != there:
            raise SinkError(
                f"target={target.name}, table={table.name}: it holds version {position.version} of a table that is no more "
                f"(id {position.table}); `--repair` makes it equal to the one that is there"
            )
        with under_way(lakehouse.settings):
            rows = _rows_at(lakehouse, table, target, position.version)
            held = _keys_held(lakehouse, table, target, position)
        found, twice = _found(sink, position.version)
        wanted = _by_key(map(sink.as_held, rows_of(changes.ordered(rows))), target.key)
        attempts += 1
        differences = differing(wanted, found, held, twice)
        differences += [Difference(*fault) for fault in sink.faults()]
        if not differences or attempts == _ATTEMPTS or sink.position() == position:
            repeated = sum(sum(values.values()) - 1 for values in wanted.values())
            return Comparison(
                target.name,
                table.name,
                position.version,
                rows.num_rows,
                repeated,
                position.held,
                tuple(differences),
            )


def differing(
    wanted: Mapping[str, Counter[str]],
    found: Mapping[str, tuple[str, bool]],
    held: Iterable[str] = (),
    twice: Iterable[str] = (),
) -> list[Difference]:
    """The keys that differ, in order: `wanted` rows by key, rows `found` with whether a follower wrote them.

    Also keys `held`, and those which the target has `twice`.
    """
    differences, held = [Difference(key, "twice") for key in sorted(twice)], set(held)
    for key in sorted(wanted.keys() | found.keys()):
        rows, (value, ours) = wanted.get(key, Counter[str]()), found.get(key, ("", True))
        if len(rows) > 1:
            differences.append(Difference(key, "several rows"))
        elif value not in rows or not value:
            differences.append(Difference(key, _cause(key, rows, value, ours, held)))
    return differences


def repair(lakehouse: Lakehouse, table: Table, target: Target) -> int:
    """Makes the target equal to the newest version in one transaction, and returns how many rows were sent.

    What was held back is released by it. A follower that runs is refused from then on: its
    supervisor starts it again.
    """
    check_reads_back(target)
    path = lakehouse.path(table)
    if not delta_log.exists(path):
        raise SinkError(f"table={table.name}: there is no such table yet; start its job first")
    fork_guard.check(lakehouse.settings, target.name)
    with closing(target.sink(lakehouse.settings, table.name)) as sink:
        sink.open()
        sink.mend()
        with under_way(lakehouse.settings):
            version = delta_log.latest(path)
            columns = version_rows.columns(path, version)
            column_check.check(table.name, target, columns)
            rows = rows_of(changes.ordered(_rows_at(lakehouse, table, target, version)))
        found, twice = _found(sink, _ALL)
        values = {key: "" if key in twice else value for key, (value, _) in found.items()}
        sending = _repairing(rows, values, target.key, sink.as_held)
        sink.columns(columns)
        sink.write(version, sending)
        sink.commit(Position(small_commits.identity(path), version, written(path, version)))
    return len(sending)


_ALL = 1 << 62  # of whatever version


def _repairing(
    rows: Sequence[Row],
    found: Mapping[str, str],
    key: Sequence[str],
    as_held: Callable[[Row], Row] = lambda row: row,
) -> list[RowChange]:
    wanted = {key_of(row, key): row for row in rows}
    extra = [RowChange("delete", _row_of(of, key)) for of in found if of not in wanted]
    return extra + [
        RowChange("update" if of in found else "insert", row)
        for of, row in wanted.items()
        if found.get(of) != value_of(as_held(row))
    ]


def _found(sink: Sink, version: int) -> tuple[dict[str, tuple[str, bool]], set[str]]:
    """What a target holds by key, and the keys that it has more than once."""
    found: dict[str, tuple[str, bool]] = {}
    twice = set()
    for key, value, ours in sink.rows(version):
        if key in found:
            twice.add(key)
        found[key] = value, ours
    return found, twice


def _row_of(text: str, key: Sequence[str]) -> Row:
    """The columns of a key by its text."""
    if len(key) == 1:
        return {key[0]: text}
    try:
        return {name: json.loads(text)[name] for name in key}
    except (ValueError, KeyError, TypeError) as err:
        raise SinkError(
            f"key={text!r}: it is no key of {', '.join(key)}, so somebody else wrote it; delete it in the target"
        ) from err


def _by_key(rows: Iterable[Row], key: Sequence[str]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(key_of(row, key), Counter())[value_of(row)] += 1
    return found


def _cause(key: str, rows: Mapping[str, int], value: str, ours: bool, held: set[str]) -> Cause:
    if key in held:
        return "held"
    if value and not ours:
        return "edited"
    if not value:
        return "missing"
    return "other row" if rows else "extra"


def _keys_held(lakehouse: Lakehouse, table: Table, target: Target, position: Position) -> set[str]:
    """The keys of corrections that are held back, as far as the files of these versions are there."""
    found: set[str] = set()
    for version in position.held:
        try:
            found |= changes.keys_of(changes_of(lakehouse, table, target, version), target.key)
        except CommitError:  # its keys are reported as they differ, without this cause
            continue
    return found
