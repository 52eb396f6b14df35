"""Delta tables, read without a JVM: by deltalake, with their rows as Arrow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.objects import dataset

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset
    from deltalake import DeltaTable


def fields(path: Path) -> list[dict[str, Any]]:
    """Returns the columns as Delta writes them, each with its name and type; none before the table is made."""
    if not delta_log.exists(path):
        return []
    return json.loads(delta_log.open_table(path).schema().to_json())["fields"]


def rows_of(files: Sequence[Path]) -> "pyarrow.dataset.Dataset":
    """Returns the rows of some of a table's files, without their partition."""
    return dataset(files)


def write_parquet(rows: "pyarrow.Table", output: BinaryIO) -> None:
    """Writes rows as a Parquet file."""
    import pyarrow.parquet as pq

    pq.write_table(rows, output)


def select(sql: str, tables: Mapping[str, Path], versions: Mapping[str, int]):
    """Returns the result of a SELECT over the tables of these names, now or at their `versions`, as batches of Arrow.

    DataFusion's errors are raised unchanged: as DeltaError and as bare Exception.
    """
    from deltalake import QueryBuilder

    engine = QueryBuilder()
    for name, path in tables.items():
        engine.register(f'"{name}"', delta_log.open_table(path, versions.get(name)))
    return engine.execute(sql)


def rows(
    table: "DeltaTable", columns: Sequence[str] = (), where: str = "true"
) -> list[dict[str, Any]]:
    """Returns the rows of a log table, whose columns are texts and numbers."""
    from deltalake import QueryBuilder

    names = ", ".join(f'"{name}"' for name in columns) or "*"
    engine = QueryBuilder().register("rows", table)
    batches = engine.execute(f"SELECT {names} FROM rows WHERE {where}")
    return [row for batch in batches for row in delta_log.records(batch)]


class NewRows:
    """The rows of a log table that only grows, each read once.

    :param by: a column of texts that are greater in later rows.
    """

    def __init__(self, path: Path, columns: Sequence[str], by: str) -> None:
        self._path, self._columns, self._by = path, list(columns), by
        self._table: DeltaTable | None = None
        self._read: set[str] = set()
        self._greatest = ""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the rows added since the last call, and False; or all rows of the table, and True.

        It returns all after the table was compacted, or removed and made again, and if a clock that goes after the others
        gave a new row.
        """
        files, before = self._files(), self._read
        self._read = files
        if self._table is None or files == before:
            return [], files != before
        again = bool(before) and not (
            before <= files and self._is_later(self._table, files - before)
        )
        where = "true" if again or not before else f"\"{self._by}\" > '{self._greatest}'"
        new = rows(self._table, self._columns, where)
        self._greatest = max((row[self._by] for row in new), default=self._greatest)
        return new, again

    def _is_later(self, table: "DeltaTable", files: set[str]) -> bool:
        """Returns True if these files have no row that is not later than those read, by their statistics."""
        names = {Path(file).name for file in files}
        added = delta_log.records(table.get_add_actions(flatten=True))
        least = [each.get(f"min.{self._by}") for each in added if Path(each["path"]).name in names]
        return len(least) == len(names) and all(each and each > self._greatest for each in least)

    def _files(self) -> set[str]:
        if not delta_log.exists(self._path):
            self._table = None
            return set()
        if self._table is None or not delta_log.stamp(self._path, self._table.version()):
            self._table = delta_log.open_table(self._path)
        else:
            self._table.update_incremental()
        return set(self._table.file_uris())
