"""The reconciliation of a keyed or versioned table, which has no ranges: it is computed whole, as of its last commit."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import functions as F

from lakehouse.batch import compute
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import Range
from lakehouse.reconcile import diagnosis
from lakehouse.storage.delta.digest import Difference, differences, digests
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.session import Session
from lakehouse.stream.engines import keyed
from lakehouse.transform.analysis import validation
from lakehouse.transform.versions import VALID


def reconciled(session: Session, table: Table, span: Range | None, started: float) -> Certificate:
    """Returns the certificate, not recorded yet. Raises RangeError for a `span`, and before the first commit."""
    if span is not None:
        session.catalog.check_derived(table)  # raises
    last = next(session.commit_log(table).by_stream(), None)
    if last is None or last.frontier is None:
        raise RangeError(
            f"table={table.name}: nothing is computed before the stream's first commit; start its job"
        )
    followed = session.catalog.followed_inputs(table)
    read = {each.name: last.version_read(each.name) for each in followed}
    session.check_whole(table, last.version)
    actual = session.read(table, last.version)
    references = dict(last.inputs["references"])
    expected = keyed.recomputed(session, table, read, references, last.frontier)
    ours, theirs = digests(actual, expected)
    since = last.frontier - table.ttl if table.ttl else compute.first(session, table)
    first = since or last.frontier
    certificate = Certificate(
        table=table.name,
        start=min(first, last.frontier),
        end=last.frontier,
        verdict="EQUAL",
        rows_in_table=ours.rows,
        rows_recomputed=theirs.rows,
        rows_by_batch_runs=0,
        checksum_in_table=str(ours),
        checksum_recomputed=str(theirs),
        frontier=last.frontier,
        version=last.version,
        code_version=table.code_version,
        at=datetime.now(UTC),
        inputs={"tables": read, "references": last.inputs["references"]},
        seconds=time.monotonic() - started,
    )
    if ours == theirs:
        return certificate
    keys = (*table.keys, *(VALID[:1] if table.kind.keeps_versions else ()))
    computed_rows, table_rows = (each.withColumn("_all", F.lit(1)) for each in (expected, actual))
    difference = differences(computed_rows, table_rows, keys, "_all", table.tolerance).get(1)
    if not table.deterministic:
        detail = "declared with deterministic=False"
        return replace(certificate, verdict="UNVERIFIABLE", detail=detail)
    if difference is None:
        return certificate
    why = f"`lakehouse backfill {table.name}` has its job compute it again, when it is started the next time"
    cause = diagnosis.tied(validation.ties(session, table))
    return replace(certificate, verdict="DIFFERENT", detail=why, cause=cause, **counted(difference))


def counted(difference: Difference) -> dict[str, Any]:
    """Returns the fields of a certificate that say how many rows differ, and which."""
    return {name: getattr(difference, name) for name in ("missing", "extra", "changed", "examples")}
