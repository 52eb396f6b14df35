"""Rows between Spark and this process, as Arrow."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.storage.delta import small_commits

_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def in_memory(rows: DataFrame) -> pa.Table | None:
    """Returns the rows as an Arrow table in this process.

    None if they are more than the driver may be sent, or have columns that only Spark writes.
    """
    try:
        table = rows.toArrow()
    except Py4JError as err:
        if "spark.driver.maxResultSize" not in str(err):
            raise
        return None
    return table if small_commits.can_hold(table.schema) else None


def in_spark(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Returns the rows in Spark, by default with each column's own type: else a timestamp without a zone would be given one.

    They are sent in one piece. Spark silently leaves out rows after an empty piece, and pyarrow makes
    such pieces where it filters by an expression or appends tables.
    """
    schema = schema or from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows.combine_chunks() if len(rows) else [], schema)


def rows_at(file: pq.ParquetFile, places: np.ndarray) -> pa.Table:
    """Returns the rows at these places, as `plain`; only the row groups that have one are read."""
    sizes = np.array(
        [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    )
    begins = np.cumsum(sizes) - sizes
    of = np.searchsorted(begins, places, "right") - 1
    groups, nth = np.unique(of, return_inverse=True)
    before = np.cumsum(sizes[groups]) - sizes[groups]
    inside = places - begins[of] + before[nth]
    return plain(file.read_row_groups(groups.tolist())).take(pa.array(inside))


def plain(rows: pa.Table) -> pa.Table:
    """Returns the rows in Spark's types, without Arrow's encodings: delta-rs writes views, from which Arrow cannot take rows."""
    return rows.cast(plain_types(rows.schema))


def plain_types(columns: pa.Schema) -> pa.Schema:
    """Returns the columns without dictionaries and views, nested ones included: these are encodings, not types of Spark's."""
    return pa.schema(map(_plain, columns))


def _plain(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_dictionary(kind):
        return _plain(field.with_type(kind.value_type))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(map(_plain, kind)))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_plain(kind.key_field), _plain(kind.item_field)))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_plain(kind.value_field)))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(_plain(kind.value_field)))
    return field.with_type(_VIEWS.get(kind, kind))
