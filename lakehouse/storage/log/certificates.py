"""Certificates: the recorded verdicts, in the log table `_certificates`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, delta_tables
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.log import log_tables

Verdict = Literal["EQUAL", "DIFFERENT", "PENDING", "OPEN", "UNVERIFIABLE"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The recorded verdict over a range of one table."""

    table: str
    start: datetime
    end: datetime
    verdict: Verdict
    rows_in_table: int
    rows_recomputed: int
    # rows of the range that a batch run wrote: they say nothing about the stream
    rows_by_batch_runs: int
    checksum_in_table: str
    checksum_recomputed: str
    frontier: datetime | None
    version: int
    inputs: Mapping[str, Any]
    code_version: str
    at: datetime
    seconds: float
    missing: int = 0
    extra: int = 0
    changed: int = 0
    examples: tuple[str, ...] = ()
    detail: str = ""
    cause: str = ""  # the cause of a difference, as far as it can be known (`reconcile.diagnosis`)


# counts of rows, which add up from one range to the next
COUNTS = ("rows_in_table", "rows_recomputed", "rows_by_batch_runs", "missing", "extra", "changed")


def certify(settings: Settings, certificates: Iterable[Certificate]) -> None:
    """Records the verdicts in the Delta table `_certificates`."""
    rows = [json.loads(encoded(c)) for c in certificates]
    if rows:
        log_tables.append(layout.log_table(settings, "_certificates"), rows, Certificate)


def certificates(settings: Settings, table: Table | None = None) -> list[Certificate]:
    """Returns the recorded verdicts, oldest first."""
    path = layout.log_table(settings, "_certificates")
    if not delta_log.exists(path):
        return []
    of_table = f"\"table\" = '{table.name}'" if table else "true"
    rows = delta_tables.rows(open_table(path), where=of_table)
    return [_certificate(row) for row in sorted(rows, key=lambda row: row["at"])]


def _certificate(row: Mapping[str, object]) -> Certificate:
    values: dict[str, Any] = {
        f.name: row[f.name] for f in fields(Certificate) if row.get(f.name) is not None
    }
    values["inputs"] = json.loads(str(values["inputs"]))
    values["examples"] = tuple(json.loads(str(values["examples"])))
    for name in ("start", "end", "at", "frontier"):
        values[name] = (
            datetime.fromisoformat(str(values[name])).astimezone(UTC) if name in values else None
        )
    return Certificate(**values)
