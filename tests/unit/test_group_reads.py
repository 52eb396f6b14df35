"""What a step of a keyed table reads of its inputs."""

import pyarrow as pa
from pyspark.sql import types as T

from lakehouse.stream.engines import group_reads


def test_rows_that_are_all_older_than_a_column_have_null_in_it():
    columns = T.StructType()
    columns.add("id", T.IntegerType()).add("at", T.TimestampType())
    columns.add("tags", T.ArrayType(T.StringType())).add("_key", T.BinaryType())
    rows = pa.table({"_key": [b"1"], "id": pa.array([1], pa.int32())})
    seen = group_reads._with_columns(rows, columns)
    assert seen.column_names == ["id", "at", "tags", "_key"]
    assert seen.to_pylist() == [{"id": 1, "at": None, "tags": None, "_key": b"1"}]
    assert seen.schema.field("at").type == pa.timestamp("us", "UTC")
