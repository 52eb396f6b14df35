"""Values of a query, made without pyarrow: the same that pyarrow makes."""

from datetime import datetime

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from lakehouse.cli import query
from lakehouse.errors import QueryError

INSTANT = "2026-01-01T01:02:03.456789"
TYPES = {
    "number": "1",
    "decimal": "CAST(1.5 AS DECIMAL(20,3))",
    "wide decimal": "arrow_cast(1, 'Decimal256(50,2)')",
    "double": "1e0",
    "half": "arrow_cast(1.5, 'Float16')",
    "unsigned": "arrow_cast(12345678901234567890, 'UInt64')",
    "text": "'x'",
    "view": "arrow_cast('x', 'Utf8View')",
    "dictionary": "arrow_cast('x', 'Dictionary(Int32, Utf8)')",
    "bytes": "X'6162'",
    "boolean": "true",
    "null": "NULL",
    "date": "CAST('2026-01-01' AS DATE)",
    "time": "CAST('01:02:03' AS TIME)",
    "instant": f"""arrow_cast('{INSTANT}', 'Timestamp(Microsecond, Some("UTC"))')""",
    "local instant": f"arrow_cast('{INSTANT}', 'Timestamp(Microsecond, None)')",
    "in a zone": """arrow_cast('2026-01-01T00:00:00', 'Timestamp(Second, Some("Europe/Berlin"))')""",
    "nanoseconds": f"CAST('{INSTANT}' AS TIMESTAMP)",
    "nanoseconds in a list": f"[{{a: CAST('{INSTANT}' AS TIMESTAMP)}}]",
    "duration": "arrow_cast(5, 'Duration(Second)')",
    "difference": "now() - now()",
    "interval": "interval '1 day'",
    "list": "[1, 2, NULL]",
    "struct": "{a: 1, b: 'x'}",
    "map": "map(['k'], [1])",
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_value_is_what_pyarrow_makes_of_it(kind: str):
    (batch,) = QueryBuilder().execute(f"SELECT {TYPES[kind]} AS value")
    (values,) = query._values(batch, ["t"], 0)
    expected = pa.record_batch(batch).column("value").to_pylist()
    assert (values, repr(values)) == (expected, repr(expected))


@pytest.mark.parametrize("kind", ["Timestamp(Microsecond, None)", "Date32"])
def test_a_year_that_python_has_not_is_refused_with_its_row(kind: str):
    days = 3_000_000 if kind == "Date32" else 3_000_000 * 86_400_000_000
    (batch,) = QueryBuilder().execute(f"SELECT arrow_cast({days}, '{kind}') AS value")
    with pytest.raises(QueryError, match=r"table=t, row=8, value=10183.*in the years 1 to 9999"):
        query._values(batch, ["t"], 7)


def test_rows_of_spark_are_values_too():
    batch = pa.record_batch({"at": pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))})
    assert query._values(batch, [], 0) == [[datetime(2026, 1, 1)]]
