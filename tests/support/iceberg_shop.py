"""An Iceberg table of a shop, in a real catalog on SQLite: what its owner does to it."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, LongType, NestedField, TimestamptzType
from pyroaring import BitMap

from lakehouse import iceberg_table
from lakehouse.declare.inputs.iceberg import IcebergSource

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL, cents DECIMAL(12,2)"
COLUMNS = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "cents", DecimalType(12, 2)),
)


class Shop:
    """The table `shop.orders`."""

    def __init__(
        self,
        root: Path,
        columns: Schema = COLUMNS,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    ) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.uri = f"sqlite:///{root}/catalog.db"
        self.catalog = SqlCatalog("default", uri=self.uri, warehouse=f"file://{root}/warehouse")
        self.catalog.create_namespace("shop")
        self.create(columns, spec)

    def create(
        self,
        columns: Schema = COLUMNS,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        version: int = 2,
    ) -> None:
        properties = {"format-version": str(version)}
        self.catalog.create_table(
            "shop.orders", columns, partition_spec=spec, properties=properties
        )

    @property
    def table(self) -> Table:
        return self.catalog.load_table("shop.orders")

    def source(self, schema: str = SCHEMA, **how) -> IcebergSource:
        catalog = {"type": "sql", "uri": self.uri}
        return iceberg_table("shop.orders", catalog=catalog, schema=schema, **how)

    def rows(self, *ns: int, **more) -> pa.Table:
        """A row for each number, with what else its columns are to hold."""
        rows = [
            {"n": n, "at": START + timedelta(seconds=n), "cents": Decimal(f"{n}.25"), **more}
            for n in ns
        ]
        schema = self.table.schema().as_arrow()
        return pa.Table.from_pylist(rows, schema=schema)

    def append(self, *ns: int, **more) -> None:
        self.table.append(self.rows(*ns, **more))

    def numbers(self) -> list[int]:
        """As the table's own scan has them."""
        return sorted(self.table.scan().to_arrow()["n"].to_pylist())

    def data_files(self) -> list[DataFile]:
        return [task.file for task in self.table.scan().plan_files()]

    def last(self) -> int:
        return self.table.current_snapshot().snapshot_id

    def compact(self) -> None:
        """All rows in one file: the rows stay the same."""
        table, rows = self.table, self.table.scan().to_arrow()
        with table.transaction() as transaction:
            update = transaction.update_snapshot().overwrite()
            update._summary = lambda _: Summary(Operation.REPLACE)  # pyiceberg makes none itself
            for file in self.data_files():
                update.delete_data_file(file)
            for file in _dataframe_to_data_files(table.metadata, rows, table.io):
                update.append_data_file(file)
            update.commit()

    def expire(self, *snapshots: int) -> None:
        self.table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()

    def delete_by_position(self, path: str, places: Iterable[int]) -> None:
        """A delete file, which names the places of rows in a file."""
        places = sorted(places)
        there = self.root / f"deletes-{len(self.table.snapshots())}.parquet"
        deletes = {"file_path": [path] * len(places), "pos": pa.array(places, pa.int64())}
        pq.write_table(pa.table(deletes), there)
        self._commit_deletes(there, FileFormat.PARQUET, len(places))

    def delete_by_vector(self, path: str, places: Iterable[int]) -> None:
        """A deletion vector in a file of Puffin, as version 3 of the format has it."""
        bits = BitMap(places)
        vector = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bits.serialize()
        payload = b"\xd1\xd3\x39\x64" + vector
        blob = len(payload).to_bytes(4, "big") + payload + bytes(4)
        about = {
            "type": "deletion-vector-v1",
            "fields": [],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": 4,
            "length": len(blob),
            "properties": {"referenced-data-file": path, "cardinality": str(len(bits))},
        }
        footer = json.dumps({"blobs": [about]}).encode()
        there = self.root / f"deletes-{len(self.table.snapshots())}.puffin"
        end = len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
        there.write_bytes(b"PFA1" + blob + b"PFA1" + footer + end)
        self._commit_deletes(there, FileFormat.PUFFIN, len(bits))

    def delete_by_equality(self) -> None:
        """A delete file, which names values of rows."""
        there = self.root / "equal.parquet"
        pq.write_table(pa.table({"n": [1]}), there)
        content = DataFileContent.EQUALITY_DELETES
        self._commit_deletes(there, FileFormat.PARQUET, 1, content)

    def _commit_deletes(
        self,
        there: Path,
        kind: FileFormat,
        count: int,
        content: DataFileContent = DataFileContent.POSITION_DELETES,
    ) -> None:
        """pyiceberg writes no delete files: their manifest is written here."""
        deletes = DataFile.from_args(
            content=content,
            file_path=f"file://{there}",
            file_format=kind,
            partition=Record(),
            record_count=count,
            file_size_in_bytes=there.stat().st_size,
        )
        deletes.spec_id = 0
        with self.table.transaction() as transaction:
            update = transaction.update_snapshot().fast_append()
            update._operation = Operation.DELETE
            before = update._existing_manifests()
            metadata = transaction.table_metadata
            writer = _DeleteManifest(
                metadata.spec(),
                metadata.schema(),
                update.new_manifest_output(),
                update.snapshot_id,
                update._compression,
            )
            with writer:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=update.snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=deletes,
                )
                writer.add(entry)
            added = writer.to_manifest_file()
            update._existing_manifests = lambda: [*before, added]
            update.commit()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}
