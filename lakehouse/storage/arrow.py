"""Rows between Spark and this process, as Arrow."""

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.storage import small_commits


def in_memory(rows: DataFrame) -> pa.Table | None:
    """The rows here.

    None if they are more than the driver may be sent, or of columns that only Spark writes.
    """
    try:
        table = rows.toArrow()
    except Py4JError as err:
        if "spark.driver.maxResultSize" not in str(err):
            raise
        return None
    return table if small_commits.can_hold(table.schema) else None


def in_spark(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """The rows there, by default each column of the type that it came with: a timestamp without a zone would else be given one.

    In one piece: rows behind an empty one Spark leaves out without a word, and pyarrow makes such
    where it filters by an expression, or appends tables.
    """
    schema = schema or from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows.combine_chunks(), schema)


def without_views(rows: pa.Table) -> pa.Table:
    """The rows with texts and bytes as Spark has them: delta-rs writes files in another form, of which Arrow takes no rows."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return rows.cast(pa.schema([f.with_type(plain.get(f.type, f.type)) for f in rows.schema]))
