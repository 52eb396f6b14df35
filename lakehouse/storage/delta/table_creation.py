"""Delta tables are made, with the properties that they need here: without a JVM."""

import json
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable, Schema, TableFeatures
from deltalake.schema import Field, PrimitiveType
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.row_keys import KEY

FOUND_BY = "lakehouse.keys"  # the property that names, as JSON, the columns whose `_key` a row has
CHECKPOINTS = 50  # commits from one of Delta's checkpoints to the next
PLAIN = {
    "delta.enableDeletionVectors": "false",  # pyarrow, by which side tables are read, refuses them
    # the default, 10, would be one every few seconds
    "delta.checkpointInterval": str(CHECKPOINTS),
    # each checkpoint names all files removed within it, by compaction one a micro-batch, and each
    # reader reads it; how long they stay is by what is on disk (`maintenance`)
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
}
# what a step replaces is marked (`keyed_files`)
KEYED = PLAIN | {"delta.enableDeletionVectors": "true"}
# replaced every second or so; its files go by what the log names (`delta_writer.tidy`)
PASSING = PLAIN | {
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}


def found_by(keys: Sequence[str]) -> dict[str, str]:
    """The properties of a table whose rows are found by these columns."""
    return KEYED | {FOUND_BY: json.dumps(list(keys))}


def create(
    path: Path,
    schema: StructType,
    partitioned: bool,
    searched: str,
    properties: dict[str, str] = PLAIN,
) -> None:
    """Makes the table unless it is there. `searched`: the columns of which each file records least and greatest value."""
    # the plan judges NOT NULL
    nullable = StructType([StructField(f.name, f.dataType) for f in schema])
    # by delta-rs: an empty commit costs Spark half a second, and a pipeline has many tables
    table = DeltaTable.create(
        str(path),
        Schema.from_json(nullable.json()),
        mode="ignore",
        configuration=properties
        | ({"delta.dataSkippingStatsColumns": searched} if searched else {}),
        partition_by=[PARTITION] if partitioned else None,
        raise_if_key_not_exists=False,  # a property of our own is none that delta-rs knows
    )
    # a table of this type lists its features, and Delta looks for this one if a field of a struct is required
    if '"timestamp_ntz"' in nullable.json() and "invariants" not in (
        table.protocol().writer_features or ()
    ):
        table.alter.add_feature(TableFeatures.Invariants, allow_protocol_versions_increase=True)


def prepare_keyed(path: Path, keys: Sequence[str]) -> None:
    """Notes by which columns rows of a keyed table are found, and lets one of an earlier version have what `keyed_files` writes.

    The next step of such a one writes it whole.
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
    """Whether the rows of a keyed table were written to be found by other columns than these."""
    named = delta_log.open_table(path).metadata().configuration.get(FOUND_BY)
    return named not in (None, found_by(keys)[FOUND_BY])


def redeclared(path: Path, columns: StructType, keys: Sequence[str]) -> list[dict]:
    """The action by which a keyed table has these columns and keys from a commit on; none if it has them."""
    table = delta_log.open_table(path)
    nullable = StructType([StructField(f.name, f.dataType) for f in columns])
    about, named = table.metadata(), found_by(keys)[FOUND_BY]
    same = Schema.from_json(nullable.json()) == table.schema()
    if same and about.configuration.get(FOUND_BY) == named:
        return []
    described = {"name": about.name, "description": about.description}
    return [
        {
            "metaData": {
                "id": str(about.id),
                **{name: text for name, text in described.items() if text},
                "format": {"provider": "parquet", "options": {}},
                "schemaString": nullable.json(),
                "partitionColumns": about.partition_columns,
                "configuration": about.configuration | {FOUND_BY: named},
                "createdTime": about.created_time,
            }
        }
    ]
