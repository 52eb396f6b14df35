"""`lakehouse.read`: the rows of a table as Arrow, now or as they were, without a JVM."""

from dataclasses import replace
from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import lakehouse
from benchmarks.command_cpu import START, filled
from lakehouse.cli import commands, console
from lakehouse.errors import QueryError, RangeError, UnknownTable
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_log, table_creation
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import load
from support import accounts

ACCOUNTS = """
from pyspark.sql import DataFrame, functions as F
from measured_tables import events
from lakehouse import keyed_table

@keyed_table(layer="gold", keys=["account", "region"])
def accounts(events: DataFrame) -> DataFrame:
    return events.groupBy(F.lit("a").alias("account"), F.lit(1).alias("region")).count()
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    base = replace(from_environment({}), root=tmp_path_factory.mktemp("read") / "root")
    made = filled(base, tables=2, commits=4).settings
    (made.root / "accounts_tables.py").write_text(ACCOUNTS)
    return replace(made, tables=(*made.tables, "accounts_tables"))


def test_a_table_is_an_arrow_table_of_its_own_columns(settings):
    rows = lakehouse.read("rows_1", settings=settings)
    assert isinstance(rows, pa.Table) and rows.column_names == ["id", "at"]
    assert sorted(rows["id"].to_pylist()) == [0, 1, 2, 3]
    frame = rows.to_pandas().sort_values("id")
    assert frame["at"].iloc[0] == START and str(frame["at"].dtype) == "datetime64[us, UTC]"


def test_a_table_is_read_as_it_was(settings):
    path = table_path(settings, load(settings).catalog.table("rows_1"))
    written = delta_log.written(path, 2)
    assert len(lakehouse.read("rows_1", "2", settings=settings)) == 2
    assert len(lakehouse.read("rows_1", written.isoformat(), settings=settings)) == 2
    with pytest.raises(QueryError, match="its log has the versions 0 to 4"):
        lakehouse.read("rows_1", "5", settings=settings)


def test_of_a_keyed_table_the_rows_that_were_replaced_are_not_read(settings):
    path = table_path(settings, load(settings).catalog.table("accounts"))
    table_creation.create(path, from_arrow_schema(accounts.ARROW), False, "", table_creation.KEYED)
    accounts.upsert(path, 0, [((name, 1), 1) for name in "abc"])
    accounts.upsert(path, 1, [(("b", 1), 2)])
    rows = lakehouse.read("accounts", settings=settings)
    assert rows.column_names == ["account", "region", "n", "at", "price"]
    assert sorted(zip(*rows.select(["account", "n"]).to_pydict().values(), strict=True)) == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
    ]


def test_another_name_is_refused_with_the_nearest(settings):
    with pytest.raises(UnknownTable, match=r"did you mean .*rows_1"):
        lakehouse.read("row_1", settings=settings)
    with pytest.raises(UnknownTable, match="nothing has been written to the table yet"):
        lakehouse.read("rows_1__quarantine", settings=settings)


@pytest.fixture
def query(settings, monkeypatch, capfdbinary):
    """Returns what a query writes to standard output and standard error."""
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)

    def written(sql: str, **options) -> tuple[bytes, str]:
        commands.query(sql, **options)
        out, err = capfdbinary.readouterr()
        return out, err.decode()

    return written


def test_a_query_is_a_parquet_file_with_its_types(query):
    out, err = query("SELECT * FROM rows_1 ORDER BY id", limit=3, file_format="parquet")
    rows = pq.read_table(BytesIO(out))
    assert rows.schema.types == [pa.int64(), pa.timestamp("us", "UTC")]
    assert rows["id"].to_pylist() == [0, 1, 2] and rows["at"][0].as_py() == START
    assert "the first 3 rows; --limit 0 shows all" in err


def test_a_query_is_a_csv_file_with_instants_as_text(query):
    sql = "SELECT id, at, CAST(NULL AS INT) AS none, 'a,\"b' AS text FROM rows_1 ORDER BY id"
    out, err = query(sql, limit=0, file_format="csv")
    header, first, *others = out.decode().split("\r\n")
    assert header == "id,at,none,text" and first == '0,2026-01-01T00:00:00Z,,"a,""b"'
    assert len(others) == 4 and not err


def test_nested_values_of_a_csv_file_are_json(capsys):
    console.write_csv(["n", "d", "b"], [({"at": START, "k": [1]}, Decimal("1.50"), True)])
    assert capsys.readouterr().out.splitlines()[1] == (
        '"{""at"": ""2026-01-01T00:00:00Z"", ""k"": [1]}",1.50,true'
    )


def test_a_parquet_file_is_not_written_to_a_terminal(query, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(RangeError, match=r"`> rows.parquet`"):
        query("SELECT * FROM rows_1", limit=1, file_format="parquet")
