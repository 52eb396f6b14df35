"""What Dagster is told of commits, partitions and certificates. Numbers become plots, so a name keeps its meaning."""

from datetime import datetime

import dagster as dg

from assets.partitions import Stored
from lakehouse.catalog import table_path
from lakehouse.event_time import ARRIVAL, EPOCH, ORIGIN, PARTITION, Range
from lakehouse.frontier import Certificate, Commit
from lakehouse.settings import Settings
from lakehouse.table import Table

Metadata = dict[str, dg.MetadataValue]
_TECHNICAL = {
    ARRIVAL: "how the row arrived: watermark in force, topic, partition, offset, time",
    ORIGIN: "the run that wrote the row: live or bounded",
    PARTITION: "the partition; of a record that of its arrival",
}
_SPARK_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def column_schema(settings: Settings, table: Table) -> Metadata:
    """The columns of the table on disk; nothing if it is not there yet (a plan of it would need Spark)."""
    from deltalake import DeltaTable

    path = str(table_path(settings, table))
    if not DeltaTable.is_deltatable(path):
        return {}
    fields = DeltaTable(path).schema().fields
    columns = [dg.TableColumn(f.name, _type(f.type), description=_TECHNICAL.get(f.name)) for f in fields]
    return {"dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns))}


def of_commit(commit: Commit) -> Metadata:
    """One bounded run (or rebuild): its counts are those of the whole range."""
    return {
        "origin": dg.MetadataValue.text("bounded"),
        "rows_written": dg.MetadataValue.int(commit.written),
        "rows_arrived": dg.MetadataValue.int(commit.arrived),
        "rows_late": dg.MetadataValue.int(commit.late),
        "rows_quarantined": dg.MetadataValue.int(commit.quarantined),
        "delta_version": dg.MetadataValue.int(commit.version),
        "seconds": dg.MetadataValue.float(round(commit.seconds, 3)),
        "fingerprint": dg.MetadataValue.text(commit.fingerprint),
    } | ({"range": _range(commit.start, commit.end)} if commit.start and commit.end else {})


def of_partition(found: Stored) -> Metadata:
    """What one partition holds."""
    return {"rows": dg.MetadataValue.int(found.rows)}


def instant(name: str, moment: datetime | None) -> Metadata:
    """A point in event time; nothing before the first."""
    return {name: dg.MetadataValue.timestamp(moment)} if moment and moment > EPOCH else {}


def of_certificate(proof: Certificate) -> Metadata:
    """A verdict; of the rows that differ the first 20."""
    counts = ("rows_live", "rows_bounded", "rows_by_bounded_runs", "missing", "extra", "changed")
    differences = dg.MetadataValue.md("\n".join(f"- `{example}`" for example in proof.examples))
    return {
        "verdict": dg.MetadataValue.text(proof.verdict),
        "range": _range(proof.start, proof.end),
        **{name: dg.MetadataValue.int(getattr(proof, name)) for name in counts},
        "digest_live": dg.MetadataValue.text(proof.digest_live),
        "digest_bounded": dg.MetadataValue.text(proof.digest_bounded),
        "delta_version": dg.MetadataValue.int(proof.version),
        "fingerprint": dg.MetadataValue.text(proof.fingerprint),
        "seconds": dg.MetadataValue.float(round(proof.seconds, 3)),
        **instant("frontier", proof.frontier),
        **({"differences": differences} if proof.examples else {}),
    }


def _range(start: datetime, end: datetime) -> dg.MetadataValue:
    return dg.MetadataValue.text(str(Range(start, end)))


def _type(kind) -> str:
    """A Delta type as Spark writes it: struct<start:timestamp,end:timestamp>."""
    if hasattr(kind, "fields"):
        return f"struct<{','.join(f'{f.name}:{_type(f.type)}' for f in kind.fields)}>"
    if hasattr(kind, "element_type"):
        return f"array<{_type(kind.element_type)}>"
    if hasattr(kind, "key_type"):
        return f"map<{_type(kind.key_type)},{_type(kind.value_type)}>"
    return _SPARK_NAMES.get(kind.type, kind.type)
