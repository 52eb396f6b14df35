"""The creation of Delta tables with the properties that they need here, without a JVM."""

import json
from collections.abc import Sequence
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


def found_by(keys: Sequence[str]) -> dict[str, str]:
    """Returns the properties of a table whose rows are found by these columns."""
    return KEYED | {FOUND_BY: json.dumps(list(keys))}


def create(
    path: Path,
    schema: StructType,
    partitioned: bool,
    searched: str,
    properties: dict[str, str] = PLAIN,
) -> None:
    """Makes the table unless it is there. `searched`: the columns whose least and greatest value each file records."""
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


def prepare_keyed(path: Path, keys: Sequence[str]) -> None:
    """Notes by which columns rows of a keyed table are found, and adds to an older table what `keyed_files` needs.

    The next step of such an older table writes it whole.
    """
    table = delta_log.open_table(path)
    if KEY not in {field.name for field in table.schema().fields}:
        table.alter.add_columns(Field(KEY, PrimitiveType("binary")))
    if table.metadata().configuration.get("delta.enableDeletionVectors") != "true":
        table.alter.add_feature(
            TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        )
        table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    if table.metadata().configuration.get(FOUND_BY) != found_by(keys)[FOUND_BY]:
        table.alter.set_table_properties({FOUND_BY: found_by(keys)[FOUND_BY]}, False)


def is_found_otherwise(path: Path, keys: Sequence[str]) -> bool:
    """Returns True if the rows of a keyed table were written to be found by other columns than these."""
    named = delta_log.open_table(path).metadata().configuration.get(FOUND_BY)
    return named not in (None, found_by(keys)[FOUND_BY])


def redeclared(log: LogState, columns: StructType, keys: Sequence[str]) -> list[dict]:
    """Returns the action by which a keyed table has these columns and keys from a commit on; none if it has them."""
    nullable = StructType([StructField(f.name, f.dataType) for f in columns])
    named = {FOUND_BY: found_by(keys)[FOUND_BY]}
    same = StructType.fromJson(json.loads(log.metadata["schemaString"])) == nullable
    if same and named.items() <= log.properties.items():
        return []
    declared = {"schemaString": nullable.json(), "configuration": log.properties | named}
    return [{"metaData": log.metadata | declared}]
