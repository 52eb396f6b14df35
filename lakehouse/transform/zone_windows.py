"""The windows of a time zone that hold an instant, as columns, by the arithmetic of UTC on the time that its clock shows."""

from datetime import timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.declare.windows import Window
from lakehouse.transform.decoding.values import java_class

_MICROSECOND = timedelta(microseconds=1)


def assigned(window: Window, event_time: str) -> Column:
    """Returns the column `window`; with sliding windows it multiplies rows, one for each window."""
    size, slide, offset = (
        F.lit(span // _MICROSECOND) for span in (window.size, window.slide, window.offset)
    )
    table, clock = window.clock.table, java_class("Clock")
    shown = Column(clock.asShown(table, F.unix_micros(event_time)._jc))
    last = shown - F.pmod(shown - offset, slide)

    def bounds(start: Column) -> Column:
        times = {"start": start, "end": start + size}
        reached = {name: Column(clock.asReached(table, at._jc)) for name, at in times.items()}
        return F.struct(*(F.timestamp_micros(at).alias(name) for name, at in reached.items()))

    if window.kind == "tumbling":
        return bounds(last)
    ended = shown - size
    first = ended - F.pmod(ended - offset, slide) + slide
    # windows whose start and end the clock skips have the bounds of others
    return F.explode(F.array_distinct(F.transform(F.sequence(first, last, slide), bounds)))
