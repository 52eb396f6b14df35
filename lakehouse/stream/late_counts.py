"""The counts of the rows that a step's inputs brought, and of the late ones among them."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from lakehouse import ranges
from lakehouse.stream.engines.table_steps import InputRows
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.transform import lateness, observing


def counted(run: StreamRun, rows: Mapping[str, InputRows]) -> dict[str, Any]:
    """Returns how many rows arrived from all inputs, how many and from when to when late, and the furthest watermark of them."""
    seen = [_counted_of(run, name, each) for name, each in rows.items()]
    bounds = {
        name: bound((each[name] for each in seen if each[name] is not None), default=None)
        for name, bound in (("late_from", min), ("late_to", max), ("watermark", max))
    }
    return bounds | {name: sum(each[name] for each in seen) for name in ("arrived", "late")}


def _counted_of(run: StreamRun, name: str, rows: InputRows) -> dict[str, Any]:
    timed = run.plan.timed[name]

    def arrived(rows: DataFrame) -> DataFrame:
        return timed.counts(lateness.arrivals(timed.placed(rows), timed.event_time))

    def counts(inputs: Mapping[str, DataFrame], *_: object) -> DataFrame:
        return arrived(rows.written_by_stream(inputs[name]))

    few = run.prepared.few(
        counts, lambda: {name: rows.here}, {name: rows.columns}, name=f"counts {name}"
    )
    if few is not None:
        return in_micros(few.rows.to_pylist()[0])
    return in_micros(observing.only(arrived(rows.frame)).asDict())


def in_micros(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `lateness.counts`, with instants as Python has them."""
    bounds = {bound: ranges.micros(seen[bound]) for bound in ("late_from", "late_to")}
    return {**seen, **bounds, "watermark": seen["watermark"] and ranges.utc(seen["watermark"])}


def of_late_filter(run: StreamRun) -> dict[str, Any]:
    seen = run.late_filter_counts()
    del seen["watermark"]  # the query's own watermark is in force
    return seen
