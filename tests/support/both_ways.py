"""Steps by prepared plans, compared with the ordinary way: of some queries each step is computed both ways."""

import os
import random
from collections import Counter, defaultdict
from functools import cache

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation

from lakehouse.storage.delta.arrow import in_spark
from lakehouse.stream import prepared_steps
from lakehouse.stream.prepared_steps import PreparedSteps
from lakehouse.transform import observing

SHARE = float(os.environ.get("BOTH_WAYS", "0.03"))  # of queries
seen: Counter[str] = Counter()  # steps that were compared, and why others were not


def compared(share: float = SHARE) -> None:
    """Has steps compared in this process from now on."""
    few, made = PreparedSteps.few, PreparedSteps.__init__

    def begin(self, *arguments) -> None:
        made(self, *arguments)
        self._both = random.random() < share
        if self._both:
            self._ordinary = defaultdict(lambda: prepared_steps.ORDINARY_FIRST)

    def both(self, function, rows, columns, instants=(), *, name="rows", variant=None):
        refused, rows = self.refusal(name), cache(rows)
        prepared = few(self, function, rows, columns, instants, name=name, variant=variant)
        if not self._both:
            return prepared
        refusal = self.refusal(name)
        seen["compared" if prepared else f"ordinary: {refusal or 'not in memory'}"] += 1
        failed = not refused and refusal.startswith("a run failed")
        if not prepared and not failed:
            return None
        outcome = Observation()
        spark = self._session.spark
        frames = {input_: in_spark(spark, rows()[input_], columns[input_]) for input_ in rows()}
        try:
            ordinary = function(frames, instants, outcome).toArrow()
        except (PySparkException, Py4JError, pa.ArrowException):
            assert failed, f"{self._table.name}: only the ordinary way fails"
            return None
        assert not failed, f"{self._table.name}: the ordinary way runs, but {refusal}"
        _assert_equal(self._table.name, prepared.rows, ordinary)
        if prepared.observed:
            observed = {
                column: value.astimezone() if hasattr(value, "astimezone") else value
                for column, value in (observing.observed(outcome) or {}).items()
            }
            assert {**prepared.observed} == observed, self._table.name
        return prepared

    PreparedSteps.__init__, PreparedSteps.few = begin, both  # type: ignore[method-assign]


def _assert_equal(table: str, prepared: pa.Table, ordinary: pa.Table) -> None:
    assert prepared.schema.equals(ordinary.schema), f"{table}: {prepared.schema}\n{ordinary.schema}"
    one, other = (sorted(_texts(rows)) for rows in (prepared, ordinary))
    assert one == other, table


def _texts(rows: pa.Table) -> list[str]:
    try:
        return [repr(row) for row in rows.to_pylist()]
    except (
        OverflowError,
        ValueError,
    ):  # an instant that Python has not, which Arrow shows as its number
        columns = [column.combine_chunks() for column in rows.columns]
        return [" ".join(str(column.slice(n, 1)) for column in columns) for n in range(len(rows))]
