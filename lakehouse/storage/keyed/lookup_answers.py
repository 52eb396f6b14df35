"""Answers of services, beside the table that asked: `<table>__answers`, to which answers are only added.

An answer belongs to a row of the table's input, by `_row`. If one row has several answers, the one
asked last counts. It is read with the partition of that row.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from lakehouse.declare.columns import PARTITION, ROW
from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file
from lakehouse.storage.disk.objects import dataset

if TYPE_CHECKING:
    import pyarrow


def columns(key: StructType, answer: StructType) -> StructType:
    """Returns the columns of a table of answers."""
    schema = StructType().add(ROW, BinaryType()).add("key", key).add("answer", answer)
    schema = schema.add("failure", StringType()).add("asked", TimestampType())
    return (
        schema.add("seconds", DoubleType())
        .add("attempts", IntegerType())
        .add(PARTITION, StringType())
    )


def checker(answer: StructType) -> Callable[[object], dict[str, Any] | None]:
    """Returns a function that makes an answer of these columns from the result of a lookup.

    It raises TypeError, or pyarrow's errors, for a result that is no answer.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    kind, required = (
        to_arrow_type(answer, timezone="UTC"),
        [f.name for f in answer if not f.nullable],
    )

    def check(value: object) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise TypeError(
                f"it returned {value!r}, and a mapping of columns to values or None is an answer"
            )
        by_name = {name: value.get(name) for name in answer.names}
        missing = [name for name in required if by_name[name] is None]
        if missing or not set(value) & set(answer.names):
            raise TypeError(f"it returned {value!r} without {', '.join(missing or answer.names)}")
        return pa.array([by_name], kind)[0].as_py()

    return check


def recorded(
    path: Path, files: Iterable[dict], schema: "pyarrow.Schema", rows: "pyarrow.Array"
) -> "pyarrow.Table":
    """Returns the last asked answer to each of the `rows` in these files of the table at `path`: `_row`, `answer`, `failure`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = dataset([delta_log.data_file(path, file) for file in files], schema)
    mine = stored.to_table(
        columns=[ROW, "answer", "failure", "asked"], filter=pc.field(ROW).isin(rows)
    ).sort_by("asked")
    last = {row: place for place, row in enumerate(mine[ROW].to_pylist())}
    return mine.take(pa.array(last.values(), pa.int64())).drop_columns(["asked"])


def asked_again(settings: Settings, table: Table) -> list[str]:
    """Returns the partitions whose lookups were asked again, and that do not show the answers yet."""
    doubt = f"what a killed `--ask-again` of {table.name} asked may not be shown: `lakehouse reconcile run` finds what differs"
    partitions = read_value(layout.note(settings, table, "asked_again.json"), list[str], doubt)
    return partitions or []


def note_again(settings: Settings, table: Table, partitions: Iterable[str]) -> None:
    """Notes that the lookups of these partitions are asked again, before they are."""
    noted = sorted({*asked_again(settings, table), *partitions})
    replace_file(layout.note(settings, table, "asked_again.json"), noted)


def note_shown(settings: Settings, table: Table, partitions: Iterable[str]) -> None:
    """Notes that a batch run has computed these partitions with the answers recorded now."""
    noted = asked_again(settings, table)
    left = sorted(set(noted).difference(partitions))
    if left != noted:
        replace_file(layout.note(settings, table, "asked_again.json"), left)


def record(path: Path, app: str, rows: "pyarrow.Table") -> int:
    """Adds answers, and returns the version that has them. `app`: the name of the writer, one at a time."""
    return delta_writer.append(rows, path, app, delta_log.committed(path, app) + 1, {})
