"""Exactly-once appends, replacements of ranges, side tables. The only place that writes tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log, log_state, small_commits, small_files, table_creation
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk.objects import for_spark
from lakehouse.storage.keyed import keyed_files

# what is noted with a commit; a function is called once the rows are written
Metadata = Mapping[str, object] | Callable[[], Mapping[str, object]]

if TYPE_CHECKING:
    import pyarrow


def append(
    rows: "DataFrame | pyarrow.Table",
    path: Path,
    app: str,
    batch: int,
    metadata: Mapping[str, object],
) -> int:
    """Appends the rows of one micro-batch and returns the Delta version that has them.

    The batch is recorded in the same commit as the last one of `app` (`committed`). Of a DataFrame
    Spark writes the files, as Delta does, with their statistics; rows in memory need no Spark job.
    The commit is not Delta's own, which would read the state of the whole table, most of the time
    of a small commit, for what the caller knows. Two writers of one `app` exclude each other: the
    one that commits second fails.
    """
    return commit(files_of(rows, path), path, app, batch, metadata)


def commit(
    files: Sequence[Mapping], path: Path, app: str, batch: int, metadata: Mapping[str, object]
) -> int:
    """Appends files that are written already, otherwise as `append`."""
    version = small_commits.commit(files, path, app, batch, _text(app, batch, metadata))
    small_files.committed(path, files, version)
    return version


def compute(rows: DataFrame) -> None:
    """Computes rows that are written already."""
    # not by Spark's "noop": V2 writes cannot read a file with marked rows (keyed tables)
    rows.agg(F.count(F.lit(1))).head()


def upsert(
    rows: "pyarrow.Table",
    path: Path,
    app: str,
    batch: int,
    metadata: Metadata,
    touched: "pyarrow.ChunkedArray",
) -> int:
    """Puts rows in the place of all that a keyed table has of the `touched` keys, otherwise as `append`."""
    return keyed_files.upsert(rows, path, app, batch, _text(app, batch, metadata), touched)


def swap(
    rows: DataFrame,
    path: Path,
    app: str,
    batch: int,
    metadata: Metadata,
    files: int,
    keys: Sequence[str],
) -> int:
    """Puts rows, in so many `files`, in the place of all rows and columns that a keyed table has, otherwise as `append`.

    Rows are found by the `keys`. Readers see what was before, or what is.
    """
    text = partial(_text, app, batch, metadata)
    return keyed_files.replace(rows, path, app, batch, text, files, keys)


def replace(rows: DataFrame, path: Path, partitions: Sequence[str], metadata: Metadata) -> int:
    """Replaces whole partitions by `rows`, which lie in them, in one commit, and returns its version.

    An append of the stream to another partition is no conflict to Delta. Nothing replaced by nothing is no
    commit.
    """
    return _overwrite(rows, path, partitions, "batch", metadata)


def exchange(source: Path, path: Path, app: str, batch: int, metadata: Mapping[str, object]) -> int:
    """Replaces all that a table holds by what the table in `source` holds, in one commit, and returns its version.

    Columns come along. Files are linked, not copied. Done before by `app`, it is not done again.
    """
    version = small_commits.exchange(source, path, app, batch, _text(app, batch, metadata))
    _bases.pop(path, None)  # it has other columns, maybe
    return version


def add_columns(path: Path, added: Sequence[StructField]) -> None:
    """Adds nullable columns behind those that the table has."""
    table_creation.add_columns(path, StructType([*added]))
    _bases.pop(path, None)


def redeclare(path: Path, columns: StructType) -> None:
    """Has a table without a row have these columns, unless it has them."""
    table_creation.redeclare(path, columns)
    _bases.pop(path, None)


def overwrite(rows: DataFrame, path: Path, metadata: Metadata) -> int:
    """Replaces a whole reference table, in one commit, and returns its version."""
    return _overwrite(rows, path, None, "reference", metadata)


def _overwrite(
    rows: DataFrame,
    path: Path,
    partitions: Sequence[str] | None,
    writer: str,
    metadata: Metadata,
) -> int:
    version = delta_log.latest(path)
    removed = [
        file
        for file in log_state.files_at(path, version)
        if partitions is None or file["partitionValues"][PARTITION] in partitions
    ]
    added = files_of(rows, path)
    if partitions and not added and not removed:
        return version
    mark = _noted(metadata)
    text = _text(f"{writer}:{mark['run']}", 0, mark)
    return small_commits.replace(added, removed, path, version, partitions, text)


def files_of(rows: "DataFrame | pyarrow.Table", path: Path) -> list[dict]:
    """Writes the rows as files of the table, which a commit is yet to name: a DataFrame's by Spark."""
    if not isinstance(rows, DataFrame):
        return small_commits.files_of(rows, path)
    written = _writer(rows.sparkSession, path).writeFiles(rows._jdf)
    return [json.loads(written.apply(n).json())["add"] for n in range(written.size())]


# of each table: its id, and Delta's snapshot by which Spark writes its files
_bases: dict[Path, tuple[str, object]] = {}


def _writer(spark: SparkSession, path: Path):
    """A transaction of Delta's that writes files, and is never committed.

    It asks Delta's snapshot for columns and properties alone, so any will do: for the present one
    Delta lists the log, and asks for the state of each file in it, each time.
    """
    identity, none = small_commits.identity(path), _jvm(spark, "scala.Option").empty()
    log = _delta_log(spark, path)
    if _bases.get(path, ("", None))[0] != identity:
        _bases[path] = (identity, log.update(False, none, none))
    return log.startTransaction(none, _jvm(spark, "scala.Some")(_bases[path][1]))


def _delta_log(spark: SparkSession, path: Path):
    log = _jvm(spark, "org.apache.spark.sql.delta.DeltaLog")
    return log.forTable(spark._jsparkSession, for_spark(path))


def _jvm(spark: SparkSession, name: str) -> Any:
    """A class of the JVM by its full name: written with dots, the JVM looks for a class at each of them."""
    return getattr(spark._jvm, name)


def purge(path: Path, partitions: Sequence[str]) -> int:
    """Removes the files of closed partitions that only older versions have, and returns how many.

    Nobody may need these.
    """
    kept = {Path(file).name for file in open_table(path).file_uris()}
    unneeded = [
        file
        for p in partitions
        for file in (path / f"{PARTITION}={p}").glob("*.parquet")
        if file.name not in kept
    ]
    for file in unneeded:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum
    return len(unneeded)


def holds(path: Path, partitions: Sequence[str]) -> bool:
    """Returns True if any of the partitions has a file."""
    return any(file[f"partition.{PARTITION}"] in partitions for file in delta_log.files(path))


def tidy(path: Path, hours: int = 1) -> None:
    """Removes the files that no version of the last hours needs.

    Of none but the present one with 0.
    """
    open_table(path).vacuum(retention_hours=hours, enforce_retention_duration=False, dry_run=False)


def version(path: Path) -> int:
    return open_table(path).version()


def _text(app: str, batch: int, metadata: Metadata) -> str:
    return json.dumps({"app": app, "batch": batch, **_noted(metadata)}, default=str)


def _noted(metadata: Metadata) -> Mapping[str, object]:
    return metadata() if callable(metadata) else metadata


def version_of(path: Path, app: str, batch: int) -> int:
    """The version by which `app` wrote that batch. Raises CommitError."""
    marked = _marked(path, app, batch)
    if marked is None:
        raise CommitError(
            f"table={path.name}, batch={batch}: its log has no commit of {app} with that batch; restore the log"
        )
    return marked


def noted(path: Path, app: str, batch: int) -> dict | None:
    """Returns the metadata of the commit by which `app` wrote that batch; None if it made none."""
    marked = _marked(path, app, batch)
    return None if marked is None else json.loads(delta_log.noted(path, marked))


def _marked(path: Path, app: str, batch: int) -> int | None:
    """The version whose commit carries our mark: other writers may have committed since.

    From the newest backwards, file by file: the table's state, which grows with its files, is not
    loaded for that.
    """
    # as it stands in the log, quoted once more
    mark = json.dumps(f'{{"app": "{app}", "batch": {batch},')[:-1]
    latest = delta_log.latest(path)
    for version in range(latest, -1, -1):
        commit = delta_log.commit_file(path, version)
        if not commit.exists():
            break
        with commit.open("rb") as log:
            if mark.encode() in log.readline():  # commitInfo comes first
                return version
    return None
