"""Sums and counts over a keyed table, kept up to date by what came and what went of it: the rows that stay are not read.

The function makes sums of the rows that came in a step, and of those that went. A group's new row is
the one that the table holds, plus the first, minus the second. That does not hold for a group from
which rows only went (it may be empty now), nor for a sum from which values only went (it may have none
now): such groups are computed again from their rows (`stream.engines.groups`).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type

from lakehouse.errors import CommitError
from lakehouse.storage.delta.arrow import in_memory, in_spark
from lakehouse.storage.delta.row_keys import KEY, keyed
from lakehouse.storage.keyed.keyed_reader import KeyedReader
from lakehouse.storage.session import nullable
from lakehouse.stream.engines.keyed import is_short
from lakehouse.stream.engines.table_steps import Moved
from lakehouse.stream.micro_batch import StreamRun

_CAME = "_came"  # true for a sum of the rows that came, false for one of those that went
_DIGITS = 100  # more than any sum of decimals has

Values = Mapping[str, Any]  # by column: an int, a Decimal or None


@dataclass(frozen=True, slots=True)
class Differences:
    """The groups that rows came to or went from, each once, and the sums over these rows."""

    groups: pa.Table  # with their `_key`, and columns for the sums
    came: Sequence[Values | None]
    went: Sequence[Values | None]
    added: Sequence[str]  # the columns of sums

    @property
    def keys(self) -> pa.ChunkedArray:
        return self.groups[KEY]

    def to(self, stored: pa.Table | None) -> tuple[pa.Table, pa.Table]:
        """Returns the new rows of the groups, by the rows `stored` of them, and the groups whose rows must be read."""
        there = _by_key(stored, self.added)
        with localcontext(prec=_DIGITS):
            rows = [
                _row(there.get(key), came, went, self.added)
                for key, came, went in zip(self.keys.to_pylist(), self.came, self.went, strict=True)
            ]
        known = pa.array([row is not None for row in rows], pa.bool_())
        try:
            new = self.groups.filter(known)
            for name in self.added:
                values = [row[name] for row in rows if row is not None]
                place, field = new.schema.get_field_index(name), new.schema.field(name)
                new = new.set_column(place, field, pa.array(values, field.type))
        except (pa.ArrowInvalid, OverflowError):  # Spark reports what is wrong with it
            return self.groups.slice(0, 0), self.groups
        return new, self.groups.filter(pc.invert(known))


class Sums:
    """The differences of one step after another. `added`: the columns of sums and counts (`keeping.adding`)."""

    def __init__(self, run: StreamRun, reader: KeyedReader, added: Sequence[str]) -> None:
        self.run, self.reader, self.added = run, reader, added
        (self.name,) = run.plan.followed

    def step(
        self, moved: Moved, references: Mapping[str, DataFrame], versions: Hashable
    ) -> Differences | None:
        """Returns the differences by what came and went; None if it is too much, or not known. `versions`: of the references."""
        if moved.since is None or moved.since < 0:
            return None
        try:
            self.reader.move(moved.since)
            went, came = self.reader.changed(moved.until)
        except (CommitError, FileNotFoundError):
            return None
        path = self.run.session.path(self.run.table)
        if not is_short(self.run, path, went.num_rows + came.num_rows):
            return None
        moved_rows = {n: rows for n, rows in (("came", came), ("went", went)) if rows.num_rows}
        if not self._are_alike(moved_rows.values()):
            return None
        if not moved_rows:
            return Differences(pa.table({KEY: pa.array([], pa.binary())}), [], [], self.added)

        def summed(inputs: Mapping[str, DataFrame], *_: object) -> DataFrame:
            parts = [
                keyed(
                    self.run.plan.kept({self.name: rows}, references), self.run.table.keys
                ).withColumn(_CAME, F.lit(name == "came"))
                for name, rows in inputs.items()
            ]
            return reduce(DataFrame.unionByName, parts)

        columns = nullable(self.run.plan.inputs[self.name].schema)
        moved_rows = {name: rows.select(columns.names) for name, rows in moved_rows.items()}
        made = self.run.prepared.few(
            summed,
            lambda: moved_rows,
            dict.fromkeys(moved_rows, columns),
            name="sums",
            variant=(versions, *moved_rows),
        )
        if made:
            return self._differences(made.rows)
        spark = self.run.session.spark
        try:
            sums = in_memory(summed({n: in_spark(spark, rows) for n, rows in moved_rows.items()}))
        except ArithmeticException:  # the sums over all rows may fit all the same
            return None
        return None if sums is None else self._differences(sums)

    def _are_alike(self, parts: Iterable[pa.Table]) -> bool:
        """Returns True if all have the columns of the input with their types; False if the input has others since."""
        schema = self.run.plan.inputs[self.name].schema
        wanted = {field.name: to_arrow_type(field.dataType, timezone="UTC") for field in schema}
        return all(
            {name: rows.schema.field(name).type for name in wanted if name in rows.column_names}
            == wanted
            for rows in parts
        )

    def _differences(self, sums: pa.Table) -> Differences:
        """Returns the differences of the groups that changed. Groups to which as much came as went are left out."""
        places: dict[bytes, dict[bool, int]] = {}
        for place, (key, came) in enumerate(
            zip(sums[KEY].to_pylist(), sums[_CAME].to_pylist(), strict=True)
        ):
            places.setdefault(key, {})[came] = place
        values = sums.select(list(self.added)).to_pylist()
        found = [
            (
                next(iter(of_key.values())),
                _at(values, of_key.get(True)),
                _at(values, of_key.get(False)),
            )
            for of_key in places.values()
        ]
        found = [(place, came, went) for place, came, went in found if came != went]
        groups = sums.drop_columns([_CAME]).take(
            pa.array([place for place, _, _ in found], pa.int64())
        )
        return Differences(
            groups, [came for _, came, _ in found], [went for _, _, went in found], self.added
        )


def _at(values: Sequence[Values], place: int | None) -> Values | None:
    return None if place is None else values[place]


def _by_key(rows: pa.Table | None, added: Sequence[str]) -> Mapping[bytes, Values]:
    if rows is None:
        return {}
    return dict(zip(rows[KEY].to_pylist(), rows.select(list(added)).to_pylist(), strict=True))


def _row(
    there: Values | None, came: Values | None, went: Values | None, added: Sequence[str]
) -> Values | None:
    """Returns the sums of a group; None if they are not known."""
    if came is None or (there is None and went is not None):
        return None
    row = {}
    for name in added:
        before, plus, minus = (None if each is None else each[name] for each in (there, came, went))
        if minus is None:
            row[name] = before if plus is None else (before or 0) + plus
        elif before is None or plus is None:
            return None
        else:
            row[name] = before - minus + plus
    return row
