"""`lakehouse.read`: the rows of a table as Arrow, now or as they were, without a JVM."""

import os
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import lakehouse
from benchmarks.command_cpu import START, filled
from lakehouse.cli import commands, main, row_files
from lakehouse.errors import QueryError, RangeError, SettingsError, UnknownTable
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_log, table_creation
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import load
from support import accounts

ACCOUNTS = """
from pyspark.sql import DataFrame, functions as F
from {module} import events
from lakehouse import keyed_table

@keyed_table(layer="gold", keys=["account", "region"])
def accounts(events: DataFrame) -> DataFrame:
    return events.groupBy(F.lit("a").alias("account"), F.lit(1).alias("region")).count()
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    base = replace(from_environment({}), root=tmp_path_factory.mktemp("read") / "root")
    made = filled(base, tables=2, commits=4).settings
    (made.root / "accounts_tables.py").write_text(ACCOUNTS.format(module=made.tables[0]))
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
    row_files.write_csv(["n", "d", "b"], [({"at": START, "k": [1]}, Decimal("1.50"), True)])
    assert capsys.readouterr().out.splitlines()[1] == (
        '"{""at"": ""2026-01-01T00:00:00Z"", ""k"": [1]}",1.50,true'
    )


def test_a_parquet_file_is_not_written_to_a_terminal(query, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(RangeError, match=r"`> rows.parquet`"):
        query("SELECT * FROM rows_1", limit=1, file_format="parquet")


def test_in_a_csv_file_null_is_nothing_and_an_empty_text_is_quoted(query):
    out, _ = query("SELECT NULL AS a, '' AS b, 'x' AS c", file_format="csv")
    assert out == b'a,b,c\r\n,"",x\r\n'
    assert query("SELECT NULL AS a", file_format="csv")[0] == b'a\r\n""\r\n', "no empty line"


def test_numbers_that_are_none_and_intervals_are_text_in_a_csv_file(query):
    sql = "SELECT CAST('NaN' AS DOUBLE) AS n, CAST('-inf' AS DOUBLE) AS i, INTERVAL '1 day' AS d"
    assert query(sql, file_format="csv")[0] == b'n,i,d\r\nnan,-inf,"[0, 1, 0]"\r\n'


@pytest.mark.parametrize("value", ["X'61ff'", "make_array(X'61ff')"])
def test_bytes_that_are_not_utf8_are_refused_in_csv_and_kept_in_parquet(query, value, capfdbinary):
    sql = f"SELECT X'61' AS a, {value} AS b"
    with pytest.raises(QueryError, match=r"row=1, value=b'a\\xff'.*encode\(COLUMN, 'hex'\)"):
        query(sql, file_format="csv")
    assert capfdbinary.readouterr().out == b""
    rows = pq.read_table(BytesIO(query(sql, file_format="parquet")[0]))
    assert rows.to_pylist() in ([{"a": b"a", "b": b"a\xff"}], [{"a": b"a", "b": [b"a\xff"]}])


def test_a_result_without_rows_is_a_file_with_its_columns(query):
    sql = "SELECT * FROM rows_1 WHERE id < 0"
    assert query(sql, file_format="csv") == (b"id,at\r\n", "")
    rows = pq.read_table(BytesIO(query(sql, file_format="parquet")[0]))
    assert (len(rows), rows.schema.types) == (0, [pa.int64(), pa.timestamp("us", "UTC")])


@pytest.mark.parametrize("file_format", [None, "csv", "parquet"])
def test_a_query_that_leaves_no_column_is_refused(query, file_format):
    with pytest.raises(QueryError, match="name the ones to see: _partition"):
        query("SELECT * EXCEPT (id, at) FROM rows_1", file_format=file_format)


def test_two_forms_of_output_are_refused(query):
    with pytest.raises(SettingsError, match=r"format=csv, json=True: .*leave one out"):
        query("SELECT 1 AS a", file_format="csv", as_json=True)


def test_a_type_that_parquet_lacks_is_refused_and_named(query):
    with pytest.raises(QueryError, match="interval; cast the column to text"):
        query("SELECT INTERVAL '1 day' AS d", file_format="parquet")


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_full_disk_behind_standard_output_is_named(query, monkeypatch, file_format):
    with suppress(OSError), open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", full)
        with pytest.raises(OSError, match="No space left on device: 'standard output'"):
            query("SELECT 1 AS a", file_format=file_format)


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_reader_that_has_gone_ends_the_command_without_a_traceback(
    query, monkeypatch, capfdbinary, file_format
):
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(OSError), open(writer, "w") as gone, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", gone)
        with pytest.raises(SystemExit) as ended:
            main.app()(args=["query", "SELECT 1 AS a", "--format", file_format])
    assert ended.value.code == 1 and capfdbinary.readouterr().err == b""
