"""Changes of a Delta table of others as rows: those that each version removed and added, in the order of versions."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.declare.inputs.changes import ADDED
from lakehouse.storage.foreign.foreign_log import READ, TYPE, VERSION

WIRE = f"{TYPE} STRING, {VERSION} BIGINT"
"""The columns of each record besides the table's own."""
_OPERATIONS = {
    READ: "r",
    "insert": "c",
    "update_preimage": "b",
    "update_postimage": "u",
    "delete": "d",
}
_GONE = ("b", "d")


def columns(at: Column) -> dict[str, Column]:
    """Returns the columns besides the declared ones; `at` is the record's own timestamp, when its version was committed."""
    op = F.create_map(*(F.lit(text) for pair in _OPERATIONS.items() for text in pair))[F.col(TYPE)]
    gone, version = op.isin(*_GONE), F.col(VERSION).cast("string")
    # as for changes of a database: the first reading comes before all else; in a version, removed rows come before added ones
    position = F.concat(
        F.when(op == "r", "0/").otherwise("1/"),
        F.lpad(version, 20, "0"),
        F.when(gone, "/0").otherwise("/1"),
    )
    return dict(zip(ADDED, (op, gone, at, position, version), strict=True))
