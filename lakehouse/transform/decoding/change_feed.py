"""Changes of a Delta table of others as rows: what each version took away and brought, in the order of versions."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.declare.inputs.changes import ADDED
from lakehouse.storage.foreign.foreign_log import READ, TYPE, VERSION

WIRE = f"{TYPE} STRING, {VERSION} BIGINT"
"""What stands in each record beside the table's columns."""
_OPERATIONS = {
    READ: "r",
    "insert": "c",
    "update_preimage": "b",
    "update_postimage": "u",
    "delete": "d",
}
_GONE = ("b", "d")


def columns(at: Column) -> dict[str, Column]:
    """The columns beside the declared ones; `at`: the record's own timestamp, when its version was committed."""
    op = F.create_map(*(F.lit(text) for pair in _OPERATIONS.items() for text in pair))[F.col(TYPE)]
    gone, version = op.isin(*_GONE), F.col(VERSION).cast("string")
    # as of changes of a database: what was read first is before all others; in a version rows go before they come
    position = F.concat(
        F.when(op == "r", "0/").otherwise("1/"),
        F.lpad(version, 20, "0"),
        F.when(gone, "/0").otherwise("/1"),
    )
    return dict(zip(ADDED, (op, gone, at, position, version), strict=True))
