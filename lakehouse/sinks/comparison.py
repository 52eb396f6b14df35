"""The comparison of a target with its table at the target's version, and its repair to the newest version."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakehouse.declare.table import Table
from lakehouse.declare.targets import Fault, Position, Row, RowChange, Sink, Target
from lakehouse.errors import CommitError, SinkError
from lakehouse.sinks import base, changes
from lakehouse.sinks.actions import check_reads_back
from lakehouse.sinks.follower import changes_of, committed_at
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
    """A key for which table and target have different rows.

    "edited": somebody else wrote it there; "held": a correction of it is held back; "several rows": the table has
    different rows with that key, so it is none; "twice": the target has it more than once.
    """

    key: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result. `repeated` counts rows that the table has more than once, and the target, by its key, once."""

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
    """Returns the rows of the table. Raises SinkError for one that no target can hold."""
    rows = version_rows.all_at(lakehouse.path(table), version)
    where = f"target={target.name}, table={table.name}, version={version}"
    python_years.check(rows, where, SinkError, encoding.FIX, target.key)
    return rows


def _compared(lakehouse: Lakehouse, table: Table, target: Target, sink: Sink) -> Comparison:
    path = lakehouse.path(table)
    attempt = 0
    while True:
        attempt += 1
        position = sink.position()
        if position is None:
            raise SinkError(
                f"target={target.name}: no version of {table.name} was published there; `lakehouse publish start {target.name}`"
            )
        if position.table != (delta_log.exists(path) and small_commits.identity(path)):
            raise SinkError(
                f"target={target.name}, id={position.table}: {table.name} is another table now; `--repair` makes the two equal"
            )
        with under_way(lakehouse.settings):
            rows = _rows_at(lakehouse, table, target, position.version)
            held = _keys_held(lakehouse, table, target, position)
        present, twice = _rows_there(sink, position.version)
        wanted = _by_key(map(sink.as_held, rows_of(changes.ordered(rows))), target.key)
        differences = differing(wanted, present, held, twice)
        differences += [Difference(*fault) for fault in sink.faults()]
        if not differences or attempt == _ATTEMPTS or sink.position() == position:
            repeated = sum(sum(values.values()) - 1 for values in wanted.values())
            return Comparison(
                target=target.name,
                table=table.name,
                version=position.version,
                rows=rows.num_rows,
                repeated=repeated,
                held=position.held,
                differences=tuple(differences),
            )


def differing(
    wanted: Mapping[str, Counter[str]],
    present: Mapping[str, tuple[str, bool]],
    held: Iterable[str] = (),
    twice: Iterable[str] = (),
) -> list[Difference]:
    """Returns the keys that differ, in order.

    :param wanted: the rows of the table by key.
    :param present: the row of the target by key, and True if a follower wrote it.
    :param held: keys of corrections that are held back.
    :param twice: keys that the target has more than once.
    """
    differences = [Difference(key, "twice") for key in sorted(twice)]
    held = set(held)
    for key in sorted(wanted.keys() | present.keys()):
        rows = wanted.get(key, Counter[str]())
        value, ours = present.get(key, ("", True))
        cause: Cause
        if len(rows) > 1:
            cause = "several rows"
        elif value and value in rows:
            continue
        elif key in held:
            cause = "held"
        elif not value:
            cause = "missing"
        elif not ours:
            cause = "edited"
        else:
            cause = "other row" if rows else "extra"
        differences.append(Difference(key, cause))
    return differences


def repair(lakehouse: Lakehouse, table: Table, target: Target) -> int:
    """Makes the target equal to the newest version in one transaction, and returns how many rows were sent.

    It releases what was held back. A follower that runs is refused from then on: its supervisor starts it again.
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
            base.check_columns(table.name, target, columns)
            rows = rows_of(changes.ordered(_rows_at(lakehouse, table, target, version)))
        present, twice = _rows_there(sink, _ALL)
        values = {key: "" if key in twice else value for key, (value, _) in present.items()}
        sending = _repairing(rows, values, target.key, sink.as_held)
        sink.columns(columns)
        sink.write(version, sending)
        sink.commit(Position(small_commits.identity(path), version, committed_at(path, version)))
    return len(sending)


_ALL = 1 << 62  # of whatever version


def _repairing(
    rows: Sequence[Row],
    present: Mapping[str, str],
    key: Sequence[str],
    as_held: Callable[[Row], Row] = lambda row: row,
) -> list[RowChange]:
    wanted = {key_of(row, key): row for row in rows}
    extra = [RowChange("delete", _row_of(text, key)) for text in present if text not in wanted]
    return extra + [
        RowChange("update" if text in present else "insert", row)
        for text, row in wanted.items()
        if present.get(text) != value_of(as_held(row))
    ]


def _rows_there(sink: Sink, version: int) -> tuple[dict[str, tuple[str, bool]], set[str]]:
    """Returns the rows of a target by key, and the keys that it has more than once."""
    rows: dict[str, tuple[str, bool]] = {}
    twice = set()
    for key, value, ours in sink.rows(version):
        if key in rows:
            twice.add(key)
        rows[key] = value, ours
    return rows, twice


def _row_of(text: str, key: Sequence[str]) -> Row:
    """Returns the columns of a key by its text."""
    if len(key) == 1:
        return {key[0]: text}
    try:
        return {name: json.loads(text)[name] for name in key}
    except (ValueError, KeyError, TypeError) as err:
        raise SinkError(
            f"key={text!r}: it is no key of {', '.join(key)}, so somebody else wrote it; delete it in the target"
        ) from err


def _by_key(rows: Iterable[Row], key: Sequence[str]) -> dict[str, Counter[str]]:
    by_key: dict[str, Counter[str]] = {}
    for row in rows:
        by_key.setdefault(key_of(row, key), Counter())[value_of(row)] += 1
    return by_key


def _keys_held(lakehouse: Lakehouse, table: Table, target: Target, position: Position) -> set[str]:
    """Returns the keys of corrections that are held back, as far as the files of these versions are there."""
    keys: set[str] = set()
    for version in position.held:
        with suppress(CommitError):  # its keys are reported as they differ, without this cause
            keys.update(changes_of(lakehouse, table, target, version).keys(target.key))
    return keys
