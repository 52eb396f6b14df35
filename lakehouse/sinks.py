"""Exactly-once appends, replacements of ranges, side tables. The only place that writes tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from lakehouse import delta_log, plan
from lakehouse.errors import CommitError, DeclarationError
from lakehouse.event_time import ORIGIN, PARTITION, WINDOW
from lakehouse.lake import Lake
from lakehouse.table import Table

_PROPERTIES = {
    "delta.enableDeletionVectors": "false",  # delta-rs, which reads for sensors and the CLI, refuses them
    "delta.checkpointInterval": "50",  # the default, 10, would be one every few seconds
    # each checkpoint names all files removed within it, by compaction one a micro-batch; not how long they stay (`upkeep`)
    "delta.deletedFileRetentionDuration": "interval 1 day",
}
_PASSING = _PROPERTIES | {"delta.logRetentionDuration": "interval 1 hour"}  # replaced every second or so


def create(lake: Lake, table: Table) -> None:
    """Makes the table and its quarantine if they are not there. Raises DeclarationError if the columns are others.

    A function that live and bounded runs may differ by is refused here, before it has run.
    """
    declared = plan.stored_schema(lake, table)
    plan.check(lake, table)
    partitioned = lake.catalog.puts_aside(table)
    _create(lake.path(table), declared, partitioned, _searched(lake, table))
    if partitioned:
        _create(lake.path(table, "quarantine"), StructType.fromDDL(plan.QUARANTINE), True, "reason")
    if table.early:
        _create(lake.path(table, "early"), declared, False, "", _PASSING)
    stored = {f.name: f.dataType for f in lake.read(table).schema}
    wanted = {f.name: f.dataType for f in declared}
    if changed := sorted(n for n in stored | wanted if stored.get(n) != wanted.get(n)):
        raise DeclarationError(
            f"table={table.name}, columns={', '.join(changed)}: the table on disk has other columns or types than its "
            "declaration; give the new shape a new name, or remove the old table and fill it again"
        )


def _searched(lake: Lake, table: Table) -> str:
    """The columns whose least and greatest value each file records; each costs CPU for every row."""
    kind = lake.catalog.kind(table)
    if not lake.catalog.puts_aside(table):
        return ""
    # by the origin Dagster tells who wrote a partition; a record has one writer only
    instant = WINDOW if kind == "window" else lake.catalog.event_time(table)
    return instant if kind == "record" else f"{instant},{ORIGIN}"


def _create(path: Path, schema: StructType, partitioned: bool, searched: str, properties: dict[str, str] = _PROPERTIES) -> None:
    from deltalake import DeltaTable, Schema

    nullable = StructType([StructField(f.name, f.dataType) for f in schema])  # NOT NULL is the gate's to judge
    # by delta-rs: an empty commit costs Spark half a second, and a pipeline has many tables
    DeltaTable.create(
        str(path), Schema.from_json(nullable.json()), mode="ignore",
        configuration=properties | ({"delta.dataSkippingStatsColumns": searched} if searched else {}),
        partition_by=[PARTITION] if partitioned else None,
    )  # fmt: skip


def committed(path: Path, app: str) -> int:
    """The last batch that `app` wrote to the table, -1 if none."""
    version = _delta(path).transaction_version(app)
    return -1 if version is None else version


def append(
    rows: DataFrame, path: Path, app: str, batch: int, metadata: Mapping[str, object], *, replayed: bool = False
) -> int:
    """Appends the rows of one micro-batch and returns the Delta version that has them.

    The batch is recorded in the same commit as the last one of `app` (`committed`); a batch `replayed` after that is
    computed all the same, for its counts and, behind a stateful operator, for its state. The transaction is Delta's own;
    the writer's options `txnAppId` and `txnVersion` would ask for the last batch before each commit, and Delta answers
    by reading the state of the whole table: two thirds of the time of a small commit, for what the caller knows.
    Two writers of one `app` still exclude each other: the one that commits second fails.
    """
    if replayed:
        rows.write.format("noop").mode("overwrite").save()
        return version_of(rows.sparkSession, path, app, batch)
    delta = rows.sparkSession._jvm.org.apache.spark.sql.delta
    transaction = delta.DeltaLog.forTable(rows.sparkSession._jsparkSession, str(path)).startTransaction()
    files = transaction.writeFiles(rows._jdf)
    return _commit(rows.sparkSession, transaction, files, None, app, batch, metadata)


@dataclass(frozen=True, slots=True)
class Swapped:
    """A version of a table that was written whole, and the JVM's list of its files."""

    version: int
    files: object


def whole(spark: SparkSession, path: Path, schema: StructType) -> DataFrame:
    """All rows of a table of few files, by these: a scan by Delta would first compute the state of the table, in a second."""
    files = _delta(path).file_uris()
    return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)


def swap(
    rows: DataFrame, path: Path, app: str, batch: int, metadata: Mapping[str, object], before: Swapped | None = None
) -> Swapped:
    """As `append`, but in place of all rows that the table has: readers see the one or the other.

    `before`: what was written last, if it is known; a table that somebody else has written since is looked at anew.
    """
    delta = rows.sparkSession._jvm.org.apache.spark.sql.delta
    transaction = delta.DeltaLog.forTable(rows.sparkSession._jsparkSession, str(path)).startTransaction()
    ours = before if before and before.version == transaction.snapshot().version() else None
    there = ours.files if ours else transaction.filterFiles()
    files = transaction.writeFiles(rows._jdf)
    version = _commit(rows.sparkSession, transaction, files, there, app, batch, metadata)
    return Swapped(version, files)


def _commit(spark: SparkSession, transaction, files, instead_of, app: str, batch: int, metadata: Mapping[str, object]) -> int:
    """Commits the JVM's lists of files, the ones in place of the others, with the batch as the last one of `app`."""
    jvm = spark._jvm
    delta, some, now = jvm.org.apache.spark.sql.delta, jvm.scala.Some, jvm.java.lang.System.currentTimeMillis()
    transaction.readTxn().addOne(app)
    output = jvm.org.apache.spark.sql.streaming.OutputMode
    for i in range(instead_of.size() if instead_of else 0):
        files = files.appended(instead_of.apply(i).removeWithTimestamp(now, True))
    mode = output.Complete() if instead_of else output.Append()
    update = getattr(delta, "DeltaOperations$StreamingUpdate")(mode, app, batch, some(_text(app, batch, metadata)))
    return transaction.commit(files.appended(delta.actions.SetTransaction(app, batch, some(now))), update)


def replace(rows: DataFrame, path: Path, partitions: Sequence[str], metadata: Mapping[str, object]) -> int:
    """Replaces whole partitions by `rows`, in one commit, and returns its version.

    The predicate is literal and on the partition column only, so that a live append to another partition is no
    conflict to Delta.
    """
    predicate = f"{PARTITION} IN ({', '.join(repr(p) for p in partitions)})"
    run, before = str(metadata["run"]), version(path)
    (
        rows.write.format("delta").mode("overwrite")
        .option("replaceWhere", predicate).option("userMetadata", _text(f"bounded:{run}", 0, metadata))
        .save(str(path))
    )  # fmt: skip
    found = replaced(rows.sparkSession, path, run, before)
    return before if found is None else found  # nothing replaced by nothing: Delta makes no commit


def purge(path: Path, partitions: Sequence[str]) -> int:
    """Removes the files of closed partitions that only older versions have, and returns how many; nobody may need these."""
    kept = {Path(file).name for file in _delta(path).file_uris()}
    found = [file for p in partitions for file in (path / f"{PARTITION}={p}").glob("*.parquet") if file.name not in kept]
    for file in found:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum
    return len(found)


def replaced(spark: SparkSession, path: Path, run: str, after: int) -> int | None:
    """The version, later than `after`, by which that run replaced partitions; None if it did not."""
    return _marked(spark, path, f"bounded:{run}", 0, after)


def holds(path: Path, partitions: Sequence[str]) -> bool:
    """Whether any of the partitions has a file."""
    return any(file[f"partition.{PARTITION}"] in partitions for file in delta_log.files(path))


def overwrite(rows: DataFrame, path: Path, metadata: Mapping[str, object]) -> int:
    """Replaces a whole snapshot table, in one commit, and returns its version."""
    run = f"snapshot:{metadata['run']}"
    rows.write.format("delta").mode("overwrite").option("userMetadata", _text(run, 0, metadata)).save(str(path))
    return version_of(rows.sparkSession, path, run, 0)


def tidy(path: Path, hours: int = 1) -> None:
    """Removes the files that no version of the last hours needs; of none but the present one with 0."""
    _delta(path).vacuum(retention_hours=hours, enforce_retention_duration=False, dry_run=False)


def version(path: Path) -> int:
    return _delta(path).version()


def _text(app: str, batch: int, metadata: Mapping[str, object]) -> str:
    return json.dumps({"app": app, "batch": batch, **metadata}, default=str)


def version_of(spark: SparkSession, path: Path, app: str, batch: int) -> int:
    """The version by which `app` wrote that batch. Raises CommitError."""
    found = _marked(spark, path, app, batch)
    if found is None:
        raise CommitError(
            f"table={path.name}, batch={batch}: no commit of {app} in its history; the log was cut or edited"
        )
    return found


def _marked(spark: SparkSession, path: Path, app: str, batch: int, after: int = -1) -> int | None:
    """The version, later than `after`, whose commit carries our mark: other writers may have committed since.

    From the newest backwards, file by file: the table's state, which grows with its files, is not loaded for that.
    """
    mark = json.dumps(f'{{"app": "{app}", "batch": {batch},')[:-1]  # as it stands in the log, quoted once more
    latest = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path)).update(
        False, spark._jvm.scala.Option.empty(), spark._jvm.scala.Option.empty()
    ).version()  # fmt: skip
    for version in range(latest, after, -1):
        commit = path / "_delta_log" / f"{version:020}.json"
        if not commit.exists():
            break
        with commit.open() as log:
            if mark in log.readline():  # commitInfo comes first
                return version
    return None


def _delta(path: Path):
    from deltalake import DeltaTable

    return DeltaTable(str(path))
