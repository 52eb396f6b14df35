"""SQL over the lakehouse without a JVM: deltalake's DataFusion reads the tables.

Spark runs a query if a view needs it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from lakehouse import ranges
from lakehouse.declare.catalog import Catalog
from lakehouse.errors import QueryError, UnknownTable
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.delta import delta_log, delta_tables, python_years
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import Side
from lakehouse.storage.lakehouse import Lakehouse, load
from lakehouse.storage.log import log_tables

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from lakehouse.storage.session import Session

T = TypeVar("T")
# from the query, its batches, the number of rows asked for, and the names of the tables
Conversion = Callable[[str, "pyarrow.RecordBatchReader", int | None, Iterable[str]], T]

_COMMITS = "_commits"
_BESIDE = "__beside"
_SELECT_AS_TEXT = "select the column as text (CAST(... AS VARCHAR)), or leave the row out by WHERE"
_COMMENTS = re.compile(r"\s*(--[^\n]*\n|/\*.*?\*/)", re.DOTALL)
# types in a schema of deltalake's
_BY_PYARROW = re.compile(r"\b(?:Timestamp|Duration)\(ns|\bInterval\(")
_FIELD = re.compile(r"[^()]*\[(\w+)\]")  # the field of a struct, as DataFusion names it
_UNKNOWN = re.compile(r"table '(?:datafusion\.public\.)?(.+?)' not found")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows under their column names; `more` if the limit cut some off."""

    columns: tuple[str, ...]
    rows: list[tuple]
    more: bool

    def records(self) -> list[dict[str, object]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def names(lakehouse: Lakehouse) -> dict[str, Path]:
    """Returns the names on disk that SQL can use: tables, quarantines, early results, answers, versions beside, log tables."""
    return {name: path for name, path in _paths(lakehouse).items() if delta_log.exists(path)}


def _paths(lakehouse: Lakehouse) -> dict[str, Path]:
    paths = {}
    for table in lakehouse.catalog:
        paths[table.name] = lakehouse.path(table)
        sides: dict[Side, object] = {
            "quarantine": table.kind.has_partitions,
            "answers": table.lookup,
            "early": table.early_results,
        }
        for side in (side for side, is_there in sides.items() if is_there):
            paths[f"{table.name}__{side}"] = lakehouse.path(table, side)
    for name in layout.upgraded(lakehouse.settings):
        if name in lakehouse.catalog.tables:
            upgraded = lakehouse.catalog.table(name)
            paths[f"{name}{_BESIDE}"] = layout.beside_path(lakehouse.settings, upgraded)
    logs = {n: layout.log_table(lakehouse.settings, n) for n in get_args(layout.LogTable)}
    return paths | logs


def late_views(catalog: Catalog) -> list[str]:
    """Returns the names of the late views: one for every table that has late rows."""
    return [f"{t.name}__late" for t in catalog if t.has_late_rows]


def named(sql: str, candidates: Iterable[str]) -> list[str]:
    """Returns the candidates that occur in `sql` as a word: perhaps more than it reads, never fewer."""
    words = set(re.findall(r"\w+", sql))
    return [name for name in candidates if name in words]


def run(lakehouse: Lakehouse, sql: str, limit: int | None = None, as_of: str = "") -> Answer:
    """Returns the first `limit` rows of a SELECT, read without a JVM.

    `as_of`: a version, or an instant at which all tables are read as they were then. Raises
    QueryError, UnknownTable, RangeError.
    """
    return select(lakehouse, sql, limit, as_of, as_answer)


def select(
    lakehouse: Lakehouse, sql: str, limit: int | None, as_of: str, convert: Conversion[T]
) -> T:
    """Returns the rows as `convert` gives them, which is `as_answer` or `as_arrow`. Raises as `run`."""
    sql = _select(sql)
    read = _read(lakehouse, sql)
    versions = _versions(read, as_of)
    try:
        reader = delta_tables.select(sql, read, versions)
        if not reader.schema.names:  # SELECT INTO makes a table of the engine's own
            raise QueryError(f"sql={sql!r}: one SELECT that gives columns; write it without INTO")
        return convert(sql, reader, limit, read)
    except QueryError:
        raise
    except Exception as err:  # DataFusion's errors reach Python as DeltaError and as bare Exception
        if unknown := _UNKNOWN.search(str(err)):
            raise _unknown(unknown[1], lakehouse) from err
        raise QueryError(f"sql={sql!r}: {_first(err)}") from err


def read(table: str, as_of: str = "", *, settings: Settings | None = None) -> "pyarrow.Table":
    """Returns the rows of a table as Arrow, without a JVM, in no order.

    pandas, Polars and DuckDB take it as it is: `read("turnover").to_pandas()`, `polars.from_arrow(...)`,
    `duckdb.sql("SELECT ... FROM rows")`. Columns of the library, such as `_arrival`, are left out; `lakehouse query` has them.

    :param table: a table, or a side table such as `turnover__quarantine`, of the lakehouse that `lakehouse.toml` or the
        environment names.
    :param as_of: a version, or an ISO 8601 instant, at which the table is read as it was then; empty: as it is now.
    :param settings: of another lakehouse.

    Raises UnknownTable if it is not declared or not written yet, QueryError if it cannot be read as it was, SettingsError.
    """
    import pyarrow as pa

    lakehouse = load(settings or from_environment())
    paths = {name: path for name, path in names(lakehouse).items() if name == table}
    if not paths:
        raise _unknown(table, lakehouse)
    columns = [field["name"] for field in delta_tables.fields(paths[table])]
    own = [name for name in columns if not name.startswith("_") or "__" in table]
    chosen = ", ".join('"' + name.replace('"', '""') + '"' for name in own)
    versions = _versions(paths, as_of)
    return pa.table(delta_tables.select(f'SELECT {chosen} FROM "{table}"', paths, versions))


def select_in_spark(
    session: "Session", sql: str, limit: int | None, as_of: str, convert: Conversion[T]
) -> T:
    """Returns the same rows by Spark, where the query can also name the late views, as they are now."""
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.logger import PySparkLogger

    from lakehouse.batch import late_merge
    from lakehouse.cli import query_rules

    sql, catalog = _select(sql), session.catalog
    # its log would only repeat the error that is raised
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
    try:
        query_rules.check_parsed(session.spark, sql)
    except PySparkException as err:
        raise QueryError(f"sql={sql!r}: {_first(err)}") from err
    read = _read(session, sql)
    versions = _versions(read, as_of)
    try:
        for name, path in read.items():
            reader = session.spark.read.format("delta")
            if name in versions:
                reader = reader.option("versionAsOf", versions[name])
            reader.load(str(path)).createOrReplaceTempView(name)
        late = named(sql, late_views(catalog))
        if late and as_of:
            raise QueryError(
                f"as_of={as_of!r}, table={late[0]}: a late view shows the present; query what it reads, or leave --as-of out"
            )
        for name in late:
            table = catalog.table(name.removesuffix("__late"))
            late_merge.late_rows(session, table).createOrReplaceTempView(name)
        # WITH .. INSERT would run at once; a subquery cannot contain it
        session.spark.sql(f"SELECT 1 FROM (\n{sql}\n)")
        rows = session.spark.sql(sql)
        query_rules.check_analysed(sql, rows)
        return convert(sql, _first_rows(rows, limit), limit, [*read, *late])
    except AnalysisException as err:
        if err.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            missing = (err.getMessageParameters() or {})["relationName"].strip("`")
            raise _unknown(missing, session) from err
        raise QueryError(f"sql={sql!r}: {_first(err)}") from err
    except PySparkException as err:
        raise QueryError(f"sql={sql!r}: {_first(err)}") from err


def _read(lakehouse: Lakehouse, sql: str) -> dict[str, Path]:
    """Returns the paths that a query reads by name, the log of commits up to date."""
    if named(sql, [_COMMITS]):
        log_tables.refresh(lakehouse.settings, lakehouse.catalog)
    paths = names(lakehouse)
    return {name: paths[name] for name in named(sql, paths)}


def _versions(tables: Mapping[str, Path], as_of: str) -> dict[str, int]:
    """Returns the versions of the tables to read; none without `as_of`."""
    if not as_of:
        return {}
    if as_of.isdigit():
        if len(tables) != 1:
            raise QueryError(
                f"as_of={as_of!r}, tables={', '.join(tables) or 'none'}: a version is of one table; give an instant instead"
            )
        [(name, path)] = tables.items()
        first, last = delta_log.oldest(path), delta_log.latest(path)
        if not first <= int(as_of) <= last:
            raise QueryError(
                f"as_of={as_of!r}, table={name}: its log has the versions {first} to {last}; take one of these"
            )
        return {name: int(as_of)}
    instant = ranges.parse_instant(as_of, "as_of")
    versions = {name: delta_log.at(path, instant) for name, path in tables.items()}
    for name, version in versions.items():
        if version is None:
            first = delta_log.oldest(tables[name])
            written = delta_log.written(tables[name], first)
            time = ranges.text(written) if written else "an unknown time"
            raise QueryError(
                f"as_of={as_of!r}, table={name}: its log begins with version {first} of {time}; take a later instant "
                "(LAKEHOUSE_HISTORY says how far back logs are kept)"
            )
    return {name: version for name, version in versions.items() if version is not None}


def answer(rows: "DataFrame", limit: int | None = None, tables: Iterable[str] = ()) -> Answer:
    """Returns the first `limit` rows of a DataFrame, which reads these tables. Raises QueryError."""
    return as_answer("", _first_rows(rows, limit), limit, tables)


def _first_rows(rows: "DataFrame", limit: int | None) -> "pyarrow.RecordBatchReader":
    return (rows if limit is None else rows.limit(limit + 1)).toArrow().to_reader()


def _of_users(sql: str, names: Sequence[str]) -> list[int]:
    """Returns the places of the columns, without those of the library that only a `*` has brought, except for a side table.

    Raises QueryError if no column is left.
    """
    every = "*" not in sql or "__" in sql
    places = [n for n, name in enumerate(names) if every or name[:1] != "_" or named(sql, [name])]
    if names and not places:
        raise QueryError(
            f"sql={sql!r}: * leaves out the columns of the library, and there are no others; name the ones to see: "
            f"{', '.join(names)}"
        )
    return places


def _select(sql: str) -> str:
    bare = sql.strip()
    while comment := _COMMENTS.match(bare + "\n"):
        bare = bare[comment.end() :].strip()
    bare = bare.rstrip("; \n")
    word = re.split(r"\W", bare.lstrip("( \n"), maxsplit=1)[0].upper()
    if word not in ("SELECT", "WITH", "VALUES"):
        raise QueryError(
            f"sql={sql!r}: one SELECT (or WITH, VALUES), because only runs write tables; write the query as one of these"
        )
    return bare


def as_answer(sql: str, reader, limit: int | None, tables: Iterable[str]) -> Answer:
    """Returns the first `limit` rows of the batches that a query gives, as Python has their values."""
    names = _headings(reader.schema.names)
    chosen = _of_users(sql, names)
    rows: list[tuple] = []
    for batch in reader:
        if limit is not None and len(rows) > limit:
            break
        values = _values(batch, tables, len(rows))
        rows += zip(*(values[place] for place in chosen), strict=True)
    cut = len(rows) if limit is None else limit
    return Answer(tuple(names[place] for place in chosen), rows[:cut], len(rows) > cut)


def as_arrow(sql: str, reader, limit: int | None, _: Iterable[str]) -> "pyarrow.Table":
    """Returns the first rows of the batches that a query gives, one more than `limit` if there are more."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    for batch in reader:
        if limit is not None and sum(map(len, batches)) > limit:
            break
        batches.append(pa.record_batch(batch))
    rows = pa.Table.from_batches(batches, pa.schema(reader.schema))
    names = _headings(rows.column_names)
    chosen = rows.rename_columns(names).select(_of_users(sql, names))
    return chosen if limit is None else chosen.slice(0, limit + 1)


def _values(batch, tables: Iterable[str], before: int) -> list[list]:
    """Returns the values of each column of a batch that has so many rows `before` it.

    Deltalake's own Arrow makes them if its values are those of pyarrow: pyarrow imports numpy, which takes a
    quarter of the CPU of a short query.
    """
    try:
        if _BY_PYARROW.search(str(batch.schema)):
            import pyarrow as pa

            batch = pa.record_batch(batch)
        return [column.to_pylist() for column in batch.columns]
    except (OverflowError, ValueError):
        import pyarrow as pa

        part, where = pa.Table.from_batches([pa.record_batch(batch)]), f"table={', '.join(tables)}"
        python_years.check(part, where, QueryError, _SELECT_AS_TEXT, before=before)
        raise


def _headings(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the columns' names, each once: the second of two columns `k` is `k_2`.

    A field is `start`, as in Spark, although DataFusion names it `revenue.window[start]`.
    """
    headings: dict[str, None] = {}
    for name in names:
        field = _FIELD.fullmatch(name)
        bare = field[1] if field else name
        copies = (f"{bare}_{number}" for number in count(2))
        headings[next(name for name in chain([bare], copies) if name not in headings)] = None
    return tuple(headings)


def _unknown(name: str, lakehouse: Lakehouse) -> UnknownTable:
    readable = [*_paths(lakehouse), *late_views(lakehouse.catalog)]
    if name in readable:
        return UnknownTable(
            f"table={name!r} (root={lakehouse.settings.root}): nothing has been written to the table yet; start its job"
        )
    if name.endswith(_BESIDE) and (table := name.removesuffix(_BESIDE)) in lakehouse.catalog.tables:
        return UnknownTable(
            f"table={name!r}: there is no version beside {table}; `lakehouse upgrade fill {table}` fills one with changed code"
        )
    near = get_close_matches(name, readable) or sorted(lakehouse.catalog.tables)
    return UnknownTable(
        f"table={name!r}: no module declares it (LAKEHOUSE_TABLES); did you mean {', '.join(near)}?"
    )


def _first(err: Exception) -> str:
    """Returns the part of an engine's message that is meant for people, on one line: without the plan and the stack."""
    text = re.split(
        r"\n\s*(?:\n|==|JVM stacktrace|at org\.)|; line \d+ pos \d+;\n", str(err).strip()
    )[0]
    return " ".join(text.split())
