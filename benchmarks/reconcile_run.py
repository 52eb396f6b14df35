"""The reconciliation of whole hours of campaign_views against computing them once, in turn in one warm process.

    python -m benchmarks.reconcile_run HOURS TIMES RESULT

RESULT: a JSON object, name -> seconds of each time: `computing` the hours into nothing, `reconciling` them, a `tick` of the
schedule with nothing changed, a `digest` of all rows of the record; and how many `rows` that has.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks import repeated
from benchmarks.measure import BenchmarkError
from lakehouse.batch import compute
from lakehouse.declare import catalog
from lakehouse.reconcile import coverage, reconciliation
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.session import Session
from lakehouse.transform.checks import judged_rows


def main(hours: int, times: int, result: Path) -> None:
    settings = from_environment()
    session = Session(settings, catalog.load(settings), spark_session.create(settings, "reconcile"))
    table, record = session.catalog.table("campaign_views"), session.catalog.table("ad_events")
    span = repeated.hours(hours)
    rows = session.read(record).select(
        "user_id", "page_id", "ad_id", "ad_type", "event_type", "event_time", "ip_address"
    )

    def reconcile() -> None:
        certificate = reconciliation.reconcile(session, table, span)
        if certificate.verdict != "EQUAL" or not certificate.rows_recomputed:
            raise BenchmarkError(
                f"reconciliation: {certificate.verdict} over {certificate.rows_recomputed:,} rows; void"
            )

    def tick() -> None:
        found = [
            r for r in coverage.ranges(coverage.due(session, table), table) if r.start < span.end
        ]
        if found:
            raise BenchmarkError(
                f"reconciliation: {found[0]} is asked for again though nothing was changed; void"
            )

    acts = {
        "computing": lambda: _nowhere(
            judged_rows.good(compute.compute(session, table, span).judged)
        ),
        "reconciling": reconcile,
        "tick": tick,
        "digest": lambda: digest(rows),
    }
    found = {name: [] for name in acts}
    for _ in range(times):
        for name, act in acts.items():
            found[name].append(_timed(act))
    result.write_text(json.dumps(found | {"rows": rows.count()}))
    session.spark.stop()


def _nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
