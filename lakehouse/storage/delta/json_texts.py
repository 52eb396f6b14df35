"""Nested values as JSON in which different values are different texts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_WHOLE = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_SHORTER = r'(T\d\d:\d\d:\d\d\.\d{3})000(?=Z?")'


def json_of(value: "Column", kind: "DataType", **options: str) -> "Column":
    """Returns a struct, array or map as JSON, with instants whole: `to_json` cuts them to milliseconds.

    Where nothing is cut, the text is that of `to_json`, by which rows of tables were found before.
    """
    from pyspark.sql import functions as F

    cut = F.to_json(value, options)
    if '"timestamp' not in kind.json():
        return cut
    whole = F.to_json(value, options | _WHOLE)
    return F.when(cut == F.regexp_replace(whole, _SHORTER, "$1"), cut).otherwise(whole)
