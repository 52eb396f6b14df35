"""The headers of a record of a topic, each as text."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def text(headers: Column, name: str) -> Column:
    """Returns the text of the last header of that name; null if it is missing, has no value or is not UTF-8."""
    value = _last(headers, name).cast("string")
    return F.when(F.is_valid_utf8(value), value)


def rule(headers: Column, name: str) -> tuple[Column, str]:
    """Returns the condition under which that header is unreadable, with the reason."""
    valid = F.is_valid_utf8(_last(headers, name).cast("string"))
    return ~F.coalesce(valid, F.lit(True)), f"header={name}: not UTF-8"


def _last(headers: Column, name: str) -> Column:
    own = F.filter(headers, lambda header: header["key"] == name)
    return F.try_element_at(own, F.lit(-1))["value"]
