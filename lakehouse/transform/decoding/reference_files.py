"""Reads the files and tables of reference data whole: a value that is not of the declared type is an error."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from lakehouse.declare.columns import quoted
from lakehouse.declare.inputs.files import FileSource
from lakehouse.errors import DeclarationError
from lakehouse.transform.decoding import values

_CORRECT = "; every row of a reference must be as it is declared; correct the file"


def file_rows(spark: SparkSession, source: FileSource) -> DataFrame:
    """Returns all rows of the files. A row that does not fit the schema fails the read, since a reference must be whole.

    Raises DeclarationError if the header line of CSV files does not name the columns, or a Delta table has others.
    """
    if source.format == "delta":  # it has its own columns
        return _table_rows(spark, source)
    schema = values.of_ddl(source.schema)
    values.check(f"files={source.path}", schema, source.format)
    if source.format == "csv":
        return _csv_rows(spark, source, schema)
    lines = spark.read.text(source.path).where(F.trim("value") != "")
    record = values.record("json", schema, F.col("value").cast("binary"))
    rows = lines.select(F.inline(F.array(record)))
    problem = F.concat(F.lit(f"files={source.path}: {values.NO_JSON}: "), F.col(values.CORRUPT))
    error = F.raise_error(F.concat(problem, F.lit(_CORRECT))).cast("boolean")
    # a reference must be whole, so reading a row with a problem fails
    whole = rows.where(F.when(problem.isNull(), True).otherwise(error))
    return whole.select(*map(quoted, schema.names))


def _csv_rows(spark: SparkSession, source: FileSource, schema: StructType) -> DataFrame:
    """Returns rows of CSV files: Spark splits their lines, and the texts are read as in a line of a folder."""
    options = {"header": str(source.header).lower(), "mode": "FAILFAST", "escape": '"'}
    if source.header:
        _check_header(spark, source)
        options["enforceSchema"] = "false"  # Spark compares the header of each further file as well
    texts = StructType([StructField(name, StringType()) for name in schema.names])
    rows = spark.read.format("csv").schema(texts).options(**options).load(source.path)
    columns = []
    for field in schema:
        # Spark reads an empty field as null
        text = F.coalesce(F.col(quoted(field.name)), F.lit(""))
        text = F.when(~text.isin(*source.nulls), text) if source.nulls else text
        if isinstance(field.dataType, StringType | BinaryType):
            columns.append(text.cast(field.dataType))
            continue
        value = values.exact(field.dataType, text)
        declared = f"field={field.name}: declared {field.dataType.simpleString().upper()}, got "
        why = F.concat(F.lit(f"files={source.path}, {declared}"), text, F.lit(_CORRECT))
        wrong = F.raise_error(why).cast(field.dataType)
        columns.append(F.when(text.isNull() | value.isNotNull(), value).otherwise(wrong))
    named = zip(columns, schema.names, strict=True)
    return rows.select(*(column.alias(name) for column, name in named))


def _table_rows(spark: SparkSession, source: FileSource) -> DataFrame:
    """Returns the declared columns of a Delta table of others, at its newest version."""
    rows = spark.read.format("delta").load(source.path)
    types = {field.name: field.dataType for field in rows.schema}
    fields = values.of_ddl(source.schema).fields
    for field in fields:
        if types.get(field.name) != field.dataType:
            actual = types[field.name].simpleString() if field.name in types else "not there"
            raise DeclarationError(
                f"files={source.path}, column={field.name}: the schema has it as {field.dataType.simpleString()}, and in "
                f"the Delta table it is {actual}; declare the column as it is there"
            )
    return rows.select(*(quoted(field.name) for field in fields))


def _check_header(spark: SparkSession, source: FileSource) -> None:
    """Compares the first line with the columns: Spark reads columns by place, and any first line as a header."""
    columns = values.of_ddl(source.schema).fieldNames()
    # a file without a line has no columns
    named = spark.read.option("header", "true").csv(source.path).columns
    if [name.lower() for name in named] != [name.lower() for name in columns]:
        raise DeclarationError(
            f"files={source.path}, first line={','.join(named)!r}: a header line names the columns of the schema in their order, "
            f"{','.join(columns)!r}; a row would be lost, or values taken for those of other columns. Correct the file, or "
            "declare header=False for files that have no such line"
        )
