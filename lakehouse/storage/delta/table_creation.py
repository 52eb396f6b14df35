"""The declaration of Delta tables, in their first commit and in later ones, without a JVM."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql.types import BinaryType, StructField, StructType

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
_BY_FEATURES = 7  # the version of Delta's protocol for writers that names features
_IMPLIED = {"appendOnly", "invariants"}  # features that the older versions have
_OF_TYPES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
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
    if not delta_log.exists(path):
        named = {"delta.dataSkippingStatsColumns": searched} if searched else {}
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": nullable(schema).json(),
            "partitionColumns": [PARTITION] if partitioned else [],
            "configuration": properties | named,
            "createdTime": committer.now(),
        }
        # by Spark an empty commit takes half a second, and a pipeline has many tables
        committer.create(path, _protocol(metadata), metadata)
    return _stored(path)


def nullable(columns: StructType) -> StructType:
    """Returns the columns as a table declares them: the plan checks NOT NULL, not the table."""
    return StructType([StructField(field.name, field.dataType) for field in columns])


def prepare_keyed(stored: StoredTable, keys: Sequence[str]) -> StoredTable:
    """Notes by which columns rows of a keyed table are found, and adds to an older table what `keyed_files` needs.

    The next step of such an older table writes it whole.
    """
    named = {FOUND_BY: found_by(keys)[FOUND_BY]}
    marking = {"delta.enableDeletionVectors": "true"}
    if KEY in stored.columns.names and (named | marking).items() <= stored.properties.items():
        return stored
    add_columns(stored.path, StructType().add(KEY, BinaryType()), named | marking)
    return _stored(stored.path)


def add_columns(path: Path, added: StructType, properties: Mapping[str, str] | None = None) -> None:
    """Adds nullable columns behind those that the table has, unless it has them, and sets the properties."""

    def change(log: LogState) -> list[dict]:
        columns = _columns(log)
        new = [field for field in nullable(added) if field.name not in columns.names]
        return declared(log, StructType([*columns, *new]), properties or {})

    log = partial(committer.head, path)
    if change(log()):
        committer.commit(log, change, "", operation="ADD COLUMNS", operationParameters={})


def redeclare(path: Path, columns: StructType) -> None:
    """Has a table without a row have these columns, unless it has them."""
    log = partial(committer.head, path)
    # without what may be null within a nested column: a plan over tables on disk knows less of it
    stored, wanted = (
        [(field.name, field.dataType.simpleString()) for field in each]
        for each in (_columns(log()), columns)
    )
    if stored != wanted:
        change = partial(declared, columns=nullable(columns), properties={})
        committer.commit(log, change, "", operation="REPLACE COLUMNS", operationParameters={})


def is_found_otherwise(stored: StoredTable, keys: Sequence[str]) -> bool:
    """Returns True if the rows of a keyed table were written to be found by other columns than these."""
    return stored.properties.get(FOUND_BY) not in (None, found_by(keys)[FOUND_BY])


def redeclared(log: LogState, columns: StructType, keys: Sequence[str]) -> list[dict]:
    """Returns the actions by which a keyed table has these columns and keys from a commit on; none if it has them."""
    return declared(log, nullable(columns), {FOUND_BY: found_by(keys)[FOUND_BY]})


def declared(log: LogState, columns: StructType, properties: Mapping[str, str]) -> list[dict]:
    """Returns the actions by which a table has these columns and properties from a commit on; none if it has them."""
    if _columns(log) == columns and properties.items() <= log.properties.items():
        return []
    metadata = log.metadata | {
        "schemaString": columns.json(),
        "configuration": {**log.properties, **properties},
    }
    protocol = both(log.protocol, _protocol(metadata))
    upgrade = [] if protocol == log.protocol else [{"protocol": protocol}]
    return [*upgrade, {"metaData": metadata}]


def both(one: Mapping, other: Mapping) -> dict:
    """Returns the protocol that has the features of both."""
    if one == other:
        return dict(one)
    protocol = {
        name: max(one[name], other[name]) for name in ("minReaderVersion", "minWriterVersion")
    }
    for name in ("readerFeatures", "writerFeatures"):
        features = {*(one.get(name) or ()), *(other.get(name) or ())}
        if name == "writerFeatures" and protocol["minWriterVersion"] == _BY_FEATURES:
            features |= _IMPLIED
        if features:
            protocol[name] = sorted(features)
    return protocol


def _protocol(metadata: Mapping) -> dict:
    """Returns the least protocol by which a table can have these columns and properties."""
    columns, properties = metadata["schemaString"], metadata["configuration"]
    features = {feature for kind, feature in _OF_TYPES.items() if f'"{kind}"' in columns}
    if properties.get("delta.enableDeletionVectors") == "true":
        features.add("deletionVectors")
    if not features:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": _BY_FEATURES,
        "readerFeatures": sorted(features),
        "writerFeatures": sorted(features | _IMPLIED),
    }


def _columns(log: LogState) -> StructType:
    return StructType.fromJson(json.loads(log.metadata["schemaString"]))


def _stored(path: Path) -> StoredTable:
    log = committer.head(path)
    return StoredTable(path, _columns(log), log.metadata["partitionColumns"], log.properties)
