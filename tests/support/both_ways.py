"""Steps by prepared plans, compared with the ordinary way: of some queries each step is computed both ways."""

import os
import random
from collections import Counter, defaultdict

import pyarrow as pa
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

    def both(self, function, rows, columns, instants=(), key=None):
        refused = self.refusal(key)
        found = few(self, function, rows, columns, instants, key)
        if not self._both:
            return found
        seen["compared" if found else f"ordinary: {self.refusal(key) or 'not in memory'}"] += 1
        failed = not refused and self.refusal(key).startswith("its run failed")
        if found or failed:
            outcome = Observation()
            frames = {
                name: in_spark(self._session.spark, rows[name], columns[name]) for name in rows
            }
            try:
                ordinary = function(frames, instants, outcome).toArrow()
            except PySparkException:
                assert failed, (
                    f"{self._table.name}: the ordinary way fails, the prepared plan does not"
                )
                return found
            assert not failed, f"{self._table.name}: the ordinary way runs, but {self.refusal(key)}"
            _assert_equal(self._table.name, found.rows, ordinary)
            if found.observed:
                observed = observing.observed(outcome) or {}
                assert {**found.observed} == {
                    name: value.astimezone() if hasattr(value, "astimezone") else value
                    for name, value in observed.items()
                }, self._table.name
        return found

    PreparedSteps.__init__, PreparedSteps.few = begin, both  # type: ignore[method-assign]


def _assert_equal(table: str, found: pa.Table, ordinary: pa.Table) -> None:
    assert found.schema.equals(ordinary.schema), f"{table}: {found.schema}\n{ordinary.schema}"
    one, other = (sorted(map(repr, rows.to_pylist())) for rows in (found, ordinary))
    assert one == other, table
