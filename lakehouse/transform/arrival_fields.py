"""The origin of rows, by `_arrival`: their unique place at the source, and their order there."""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.declare.columns import ARRIVAL, PLACE, RECORD, SOURCE_ORDER

POSITION = ("topic", "partition", "offset")


def of_records(watermark: Column, topic: Column, time: Column, with_place: bool) -> Column:
    """Returns the struct `_arrival` of judged records."""
    partition, offset, place = (
        F.col(f"{RECORD}_{name}").alias(name) for name in ("partition", "offset", PLACE)
    )
    fields = [watermark.alias("watermark"), topic.alias("topic"), partition, offset]
    return F.struct(*fields, time.alias("time"), *([place] if with_place else []))


def has_place(rows: DataFrame) -> bool:
    """Returns True if a message may have several rows, so that each has its place in it."""
    arrival = rows.schema[ARRIVAL].dataType
    return isinstance(arrival, StructType) and PLACE in arrival.names


def places(rows: DataFrame, names: Iterable[str] = SOURCE_ORDER) -> list[Column]:
    """Returns the fields of `_arrival` by name, by default those of the source's order, and the place in the message, if any."""
    own = [*names, PLACE] if has_place(rows) else names
    return [F.col(f"{ARRIVAL}.{name}").alias(name) for name in own]
