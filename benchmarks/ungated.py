"""Our streaming job without the bookkeeping of lateness, to see what it costs: right as long as nothing is late.

    python -m benchmarks.ungated

No row's window is compared with its stored watermark, and none is counted as late. That watermark is still stored and
drives Spark, which closes windows by it.
"""

import os
import sys

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import event_time
from lakehouse.table import Grain
from lakehouse.windows import Window
from streaming_jobs import driver


def flagged(rows: DataFrame, window: Window | None, moment: str, grain: Grain) -> DataFrame:
    if window is None:
        return rows
    return rows.withColumn(event_time.WINDOW, event_time._assigned(window, moment))


def counts(window: Window | None, moment: str) -> list[Column]:
    nothing = F.max(F.lit(None).cast("bigint"))
    arrived, late = F.count(F.lit(1)).alias("arrived"), F.count(F.lit(None)).alias("late")
    return [arrived, late, *(nothing.alias(name) for name in ("watermark", "late_from", "late_to"))]


def accepted(rows: DataFrame, *, late_too: bool = False) -> DataFrame:
    return rows.drop(event_time._WATERMARK)


if __name__ == "__main__":
    event_time.flagged, event_time.counts, event_time.accepted = flagged, counts, accepted
    code = driver.main(["ads", "--available-now"])
    sys.stdout.flush()
    os._exit(code)
