"""The creation of Delta tables with the properties that they need here, without a JVM."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable, Schema, TableFeatures
from deltalake.schema import Field, PrimitiveType
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.storage.delta import committer, delta_log
from lakehouse.storage.delta.log_state import LogState
from lakehouse.storage.delta.row_keys import KEY

FOUND_BY = "lakehouse.keys"  # the property with the columns of the key, as JSON: `_key` is computed from these
PLAIN = {
    "delta.enableDeletionVectors": "false",  # pyarrow, which reads side tables, refuses them
    # the default, 10, would make a checkpoint every few seconds
    "delta.checkpointInterval": str(committer.CHECKPOINTS),
    # each checkpoint names all files removed within this time, one a micro-batch by compaction, and each
    # reader reads it; how long files stay follows from what is on disk (`maintenance`)
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
}
# a step marks the rows that it replaces (`keyed_files`)
KEYED = PLAIN | {"delta.enableDeletionVectors": "true"}
# replaced every second or so; files that the log no longer needs are removed (`delta_writer.tidy`)
PASSING = PLAIN | {
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table on disk, as its log declares it."""

    path: Path
    columns: StructType
    partitions: Sequence[str]
    properties: Mapping[str, str | None]


def found_by(keys: Sequence[str]) -> dict[str, str]:
    """Returns the properties of a table whose rows are found by these columns."""
    return KEYED | {FOUND_BY: json.dumps(list(keys))}


def create(
    path: Path,
    schema: StructType,
    partitioned: bool,
    searched: str,
    properties: dict[str, str] = PLAIN,
) -> StoredTable:
    """Makes the table unless it is there, and returns what it is on disk.

    `searched`: the columns whose least and greatest value each file records.
    """
    # the plan checks NOT NULL, not the table
    nullable = StructType([StructField(f.name, f.dataType) for f in schema])
    # by delta-rs: an empty commit costs Spark half a second, and a pipeline has many tables
    table = DeltaTable.create(
        str(path),
        Schema.from_json(nullable.json()),
        mode="ignore",
        configuration=properties
        | ({"delta.dataSkippingStatsColumns": searched} if searched else {}),
        partition_by=[PARTITION] if partitioned else None,
        raise_if_key_not_exists=False,  # delta-rs does not know our own property
    )
    # a table of this type lists its features, and Delta looks for this one if a field of a struct is required
    if '"timestamp_ntz"' in nullable.json() and "invariants" not in (
        table.protocol().writer_features or ()
    ):
        table.alter.add_feature(TableFeatures.Invariants, allow_protocol_versions_increase=True)
    return _stored(path, table)


def prepare_keyed(stored: StoredTable, keys: Sequence[str]) -> StoredTable:
    """Notes by which columns rows of a keyed table are found, and adds to an older table what `keyed_files` needs.

    The next step of such an older table writes it whole.
    """
    named = {FOUND_BY: found_by(keys)[FOUND_BY]}
    marking = {"delta.enableDeletionVectors": "true"}
    if KEY in stored.columns.names and (named | marking).items() <= stored.properties.items():
        return stored
    table = delta_log.open_table(stored.path)
    if KEY not in stored.columns.names:
        table.alter.add_columns(Field(KEY, PrimitiveType("binary")))
    if not marking.items() <= stored.properties.items():
        table.alter.add_feature(
            TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        )
        table.alter.set_table_properties(marking)
    if not named.items() <= stored.properties.items():
        table.alter.set_table_properties(named, False)
    return _stored(stored.path, table)


def is_found_otherwise(stored: StoredTable, keys: Sequence[str]) -> bool:
    """Returns True if the rows of a keyed table were written to be found by other columns than these."""
    return stored.properties.get(FOUND_BY) not in (None, found_by(keys)[FOUND_BY])


def _stored(path: Path, table: DeltaTable) -> StoredTable:
    metadata = table.metadata()
    columns = delta_log.schema_of(table)
    return StoredTable(path, columns, metadata.partition_columns, metadata.configuration)


def redeclared(log: LogState, columns: StructType, keys: Sequence[str]) -> list[dict]:
    """Returns the action by which a keyed table has these columns and keys from a commit on; none if it has them."""
    nullable = StructType([StructField(f.name, f.dataType) for f in columns])
    named = {FOUND_BY: found_by(keys)[FOUND_BY]}
    same = StructType.fromJson(json.loads(log.metadata["schemaString"])) == nullable
    if same and named.items() <= log.properties.items():
        return []
    declared = {"schemaString": nullable.json(), "configuration": log.properties | named}
    return [{"metaData": log.metadata | declared}]
