"""Metadata for Dagster about commits, partitions, certificates and streaming jobs.

Numbers become plots, so a name must keep its meaning.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
from pyspark.sql.types import StructType

from lakehouse.declare.columns import ARRIVAL, ORIGIN, PARTITION
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, Range, parse_instant, past_beginning, text
from lakehouse.reconcile.coverage import Coverage, Stored
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_tables
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import report_files
from lakehouse.storage.log.certificates import COUNTS, Certificate
from lakehouse.storage.log.commits import NOTHING, Commit
from streaming_jobs.progress import JobStatus, QueryStatus
from streaming_jobs.supervision import desired
from streaming_jobs.supervision.desired import Desired, Event

if TYPE_CHECKING:
    from batch_jobs.planning import Backfill

Metadata = dict[str, Any]  # as Dagster takes it: numbers, texts and JSON as they are
_REASONS = 20  # the number of a partition's most frequent reasons that are shown
_TECHNICAL = {
    ARRIVAL: "how the row arrived: watermark in force, topic, partition, offset, time, place in a message of several",
    ORIGIN: "what wrote the row: stream or batch",
    PARTITION: "the partition; of an ingest table that of its arrival",
}
_MIB = 2**20
_COUNTS = ("restarts", "rows_per_second", "lag", "late", "quarantined", "batch_seconds")
_OF_QUERY = ("table", "state", "since", *_COUNTS)


def column_schema(settings: Settings, table: Table) -> Metadata:
    """Returns the columns of the table on disk; nothing if it is not there yet, for its plan would need Spark."""
    stored = StructType.fromJson({"fields": delta_tables.fields(table_path(settings, table))})
    columns = [
        dg.TableColumn(f.name, f.dataType.simpleString(), description=_TECHNICAL.get(f.name))
        for f in stored.fields
    ]
    if not columns:
        return {}
    return {"dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns))}


def of_commit(commit: Commit) -> Metadata:
    """Returns one batch run (or rebuild); its counts are those of the whole range."""
    return {
        "origin": "batch",
        "rows_written": commit.written,
        "rows_quarantined": commit.quarantined,
        "delta_version": commit.version,
        "seconds": round(commit.seconds, 3),
        "code_version": commit.code_version,
    } | ({"range": _range(commit.start, commit.end)} if commit.start and commit.end else {})


def of_backfill(
    planned: "Backfill", commits: Sequence[Commit], pending: dict[str, list[str]]
) -> Metadata:
    """Returns a batch run of many partitions: its plan, its results in sum, and the tables that must follow."""
    rewritten = [c for c in commits if c.version != NOTHING]
    return {
        "partitions_rewritten": len(rewritten),
        "partitions_unchanged": len(commits) - len(rewritten),
        "partitions_done_before": len(planned.done),
        "rows_written": sum(c.written for c in rewritten),
        "rows_quarantined": sum(c.quarantined for c in commits),
        "range": _range(planned.start, planned.end),
        "seconds": round(sum((c.seconds for c in commits), 0.0), 3),
        "plan": dg.MetadataValue.json(json.loads(json.dumps(asdict(planned), default=text))),
        **({"pending": pending} if pending else {}),
    }


def of_outcome(commit: Commit | None) -> Metadata:
    """Returns what a backfill did with one partition; None is one that it had done before it was cut short."""
    if commit is None or commit.version == NOTHING:
        return {"outcome": "unchanged" if commit else "done before"}
    versions = {"delta_version": commit.version, "code_version": commit.code_version}
    return {"outcome": "rewritten"} | versions


def of_partition(stored: Stored, quarantined: Mapping[str, int]) -> Metadata:
    """Returns the rows of a partition, their origin, and its quarantined rows by reason: a plot each over the partitions."""
    frequent = Counter(quarantined).most_common(_REASONS)
    by_reason = {f"quarantined: {reason}": rows for reason, rows in frequent}
    counts = {"rows": stored.rows, "rows_quarantined": sum(quarantined.values())}
    return counts | by_reason | {"origin": stored.origin}


def of_report(settings: Settings, table: Table, partition: str) -> Metadata:
    """Returns the path of the file that was drawn of a report's partition; nothing without one, or for another table."""
    path = report_files.file(settings, table, partition) if table.kind.is_report else None
    return {"report": dg.MetadataValue.path(str(path))} if path else {}


def instant(name: str, moment: datetime | None) -> Metadata:
    """Returns a point in event time; nothing before the first."""
    return {name: dg.MetadataValue.timestamp(moment)} if past_beginning(moment) else {}


def of_certificate(certificate: Certificate) -> Metadata:
    """Returns a verdict, with the first 20 rows that differ."""
    listed = "\n".join(f"- `{example}`" for example in certificate.examples)
    differences = dg.MetadataValue.md(listed)
    return {
        "verdict": certificate.verdict,
        "range": _range(certificate.start, certificate.end),
        **{name: getattr(certificate, name) for name in COUNTS},
        "checksum_in_table": certificate.checksum_in_table,
        "checksum_recomputed": certificate.checksum_recomputed,
        "delta_version": certificate.version,
        "code_version": certificate.code_version,
        "seconds": round(float(certificate.seconds), 3),
        **instant("frontier", certificate.frontier),
        **({"differences": differences} if certificate.examples else {}),
        **({"cause": certificate.cause} if certificate.cause else {}),
    }


def of_coverage(covered: Coverage) -> Metadata:
    """Returns the reconciled share of a table's history, and the cost of the reconciliation, to be plotted."""
    oldest = covered.oldest_unreconciled
    age = (datetime.now(UTC) - oldest).total_seconds() / 3600 if oldest else 0.0
    return {
        "reconciled_share": round(covered.share, 4),
        "reconciled_under_this_declaration": covered.reconciled_now,
        "partitions_closed": covered.partitions,
        "partitions_different": len(covered.different),
        "partitions_pending": len(covered.pending),
        "oldest_unreconciled_hours": round(age, 2),
        "reconciliation_seconds_within_a_day": round(float(covered.seconds), 1),
    }


def of_job(status: JobStatus, wanted: Desired | None, done: Sequence[Event], log: str) -> Metadata:
    """Returns a streaming job's desired state, its events and its present state, and the end of its log."""
    restarts = desired.restarts(done, parse_instant(wanted.since) if wanted else BEGINNING)
    texts = {
        "state": status.state,
        "freshness": status.freshness,
        "desired": f"{wanted.state} since {wanted.since} by {wanted.by}" if wanted else "",
        "last_restart": f"{restarts[-1].at}: {restarts[-1].why}" if restarts else "",
        "error": status.error,
    }
    metadata: Metadata = {
        **{name: text for name, text in texts.items() if text},
        "pid": status.pid,
        "restarts": len(restarts),
        "since": dg.MetadataValue.timestamp(parse_instant(status.started_at)),
        "heartbeat": dg.MetadataValue.timestamp(parse_instant(status.heartbeat)),
    }
    if status.ui and status.alive:
        metadata["spark_ui"] = dg.MetadataValue.url(status.ui)
    if status.queries:
        metadata |= _of_queries(status)
    return metadata | {"log": dg.MetadataValue.md(f"```\n{log}\n```")}


def _of_queries(status: JobStatus) -> Metadata:
    """Returns sums and worst cases of a job's queries, which become plots, and a table of all its queries."""
    queries, now = status.queries, datetime.now(UTC)
    topics = [q for q in queries if q.lags]  # the others read what these have written
    behind = [_behind(q.frontier, now) for q in queries if q.frontier]
    measures = {
        "rows_per_second": sum(q.rows_per_second for q in topics),
        "batch_seconds": max(q.batch_seconds for q in queries),
        "state_mib": sum(q.state_bytes for q in queries) / _MIB,
        "python_mib": status.python_bytes / _MIB,
        "jvm_mib": status.jvm_bytes / _MIB,
    } | ({"frontier_delay_seconds": max(behind)} if behind else {})
    return {
        "queries": sum(q.active for q in queries),
        "queries_paused": sum(q.state == "paused" for q in queries),
        "lag_records": sum(q.lag for q in topics),
        "state_rows": sum(q.state_rows for q in queries),
        "late": sum(q.late for q in queries),
        "quarantined": sum(q.quarantined for q in queries),
        **{name: round(float(x), 1) for name, x in measures.items()},
        "each_query": dg.MetadataValue.table([_of_query(q, now) for q in queries]),
        "lag_by_partition": {name: lag for q in topics for name, lag in sorted(q.lags.items())},
        "batch_milliseconds": {q.table: dict(q.phases) for q in queries if q.phases},
    }


def _of_query(query: QueryStatus, now: datetime) -> dg.TableRecord:
    """Returns one query as a row, with its fault in the last column."""
    return dg.TableRecord(
        {
            **{name: getattr(query, name) for name in _OF_QUERY},
            "frontier": query.frontier or "",
            "behind_seconds": _behind(query.frontier, now) if query.frontier else -1.0,
            "state_rows": query.state_rows,
            "trouble": " ".join(t for t in (query.offsets, query.error, query.waits) if t)[:500],
        }
    )


def _behind(frontier: str, now: datetime) -> float:
    """Returns the seconds by which a query's frontier is earlier than `now`."""
    return round((now - parse_instant(frontier)).total_seconds(), 1)


def _range(start: datetime, end: datetime) -> str:
    return str(Range(start, end))
