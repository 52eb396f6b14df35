"""Asset checks: what must hold of a table's rows, and that stream and batch give the same rows.

Only bad data fails a check. Whatever keeps a check from looking at the data raises.
"""

from dataclasses import asdict
from typing import Any

import dagster as dg
from pydantic import Field

from assets.metadata import of_certificate
from assets.resources import RECONCILIATION, LakehouseResource, refusals, run_key, schedule
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, PARTITION_LENGTHS, Range, past_beginning, text
from lakehouse.reconcile import coverage
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.log.commit_log import frontier

EXPECTATIONS_HOLD = "expectations_hold"
STREAM_EQUALS_BATCH = "stream_equals_batch"


class Closed(dg.Config):
    """The distance that a check looks back from the frontier."""

    partitions: int = Field(default=24, ge=1, description="the last closed partitions")


def checks(catalog: Catalog) -> list[dg.AssetChecksDefinition]:
    """Returns `stream_equals_batch` of each derived table, and `expectations_hold` of each with expectations."""
    derived = catalog.derived
    reconciled = [_stream_equals_batch(table) for table in coverage.reconcilable(catalog)]
    return reconciled + [_expectations_hold(t, t in derived) for t in _expecting(catalog)]


def check_expectations(settings: Settings, catalog: Catalog) -> list[dg.ScheduleDefinition]:
    """Returns the hourly schedule of all checks `expectations_hold`, with its job; none if no table has that check."""
    expecting = _expecting(catalog)
    if not expecting:
        return []
    key_of = {t.name: dg.AssetCheckKey(dg.AssetKey(t.name), EXPECTATIONS_HOLD) for t in expecting}
    job = dg.define_asset_job(
        "check_expectations",
        selection=dg.AssetSelection.checks(*key_of.values()),
        description="Judges the stored rows of all tables that have expectations.",
    )

    @schedule(
        name="check_expectations_hourly",
        cron_schedule="50 * * * *",
        job=job,
        description="Judges the stored rows of tables that have expectations: of keyed tables nothing else does.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        keys = [key_of[t.name] for t in expecting if _has_rows_to_judge(settings, catalog, t)]
        if not keys:
            return dg.SkipReason("no table with expectations has rows, or a closed partition, yet")
        return dg.RunRequest(run_key=run_key(context), asset_check_keys=keys)

    return [evaluate]


def _expecting(catalog: Catalog) -> list[Table]:
    return [t for t in catalog if t.expectations and not t.kind.reads_sources]


def _has_rows_to_judge(settings: Settings, catalog: Catalog, table: Table) -> bool:
    if table in catalog.derived:
        return coverage.closed(settings, table, first=BEGINNING) is not None
    return delta_log.latest(table_path(settings, table)) > 0


def _stream_equals_batch(table: Table) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=table.name,
        name=STREAM_EQUALS_BATCH,
        description="A batch run over the stored input gives the rows of the closed partitions again.",
        blocking=table.deterministic,  # else it never passes
        pool=RECONCILIATION,
    )
    def check(config: Closed, lakehouse: LakehouseResource) -> dg.AssetCheckResult:
        settings, span = lakehouse.settings, None
        if not table.kind.is_upserted:
            span = closed(settings, table, config.partitions)
        return dg.AssetCheckResult(**verdict(settings, reconciled(lakehouse, table, span)))

    return check


def reconciled(lakehouse: LakehouseResource, table: Table, *spans: Range | None) -> Certificate:
    """Reconciles each of the `spans`, records the verdicts, and returns one certificate over all of them."""
    from lakehouse.reconcile import reconciliation

    certificates = []
    with refusals():
        for span in spans:
            session = lakehouse.session_of(table)
            certificates += reconciliation.reconcile_parts(session, table, span)
        return reconciliation.summed(certificates)


def verdict(settings: Settings, certificate: Certificate) -> dict[str, Any]:
    """Returns the outcome of a check. It fails if no row was compared, or another range of the table is known to differ."""
    different = Verdicts(settings).now()[certificate.table].different
    result, rows = certificate.verdict, certificate.rows_recomputed
    summary = f"{result}: {certificate.rows_in_table} rows in the table, {rows} in batch"
    description = [summary, *filter(None, (certificate.detail, certificate.cause))]
    for span, difference in sorted(different.items()) if result != "DIFFERENT" else ():
        description.append(f"DIFFERENT: {Range(*span)}, since {text(difference.at)}")
    is_unknown = result in ("PENDING", "UNVERIFIABLE")
    return {
        "passed": result == "EQUAL" and rows > 0 and not different,
        "metadata": of_certificate(certificate),
        "severity": dg.AssetCheckSeverity.WARN if is_unknown else dg.AssetCheckSeverity.ERROR,
        "description": ". ".join(description),
    }


def _expectations_hold(table: Table, partitioned: bool) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=table.name,
        name=EXPECTATIONS_HOLD,
        description="\n".join(
            ["Each of these holds of the stored rows:\n", *(f"- `{e}`" for e in table.expectations)]
        ),
        blocking=True,
        pool=RECONCILIATION,
    )
    def check(config: Closed, lakehouse: LakehouseResource) -> dg.AssetCheckResult:
        from lakehouse.transform.checks import quality
        from lakehouse.transform.lateness import between, instant_of

        rows, where = lakehouse.session_of(table).read(table), "all"
        if partitioned:
            span = closed(lakehouse.settings, table, config.partitions)
            moment = instant_of(table.window, lakehouse.catalog.event_time(table))
            rows, where = rows.where(between(moment, span)), str(span)
        # first: Great Expectations would call files that it cannot read a broken expectation
        looked_at = rows.count()
        with refusals():
            results = quality.validate(rows, table.expectations)
        metadata: dict[str, Any] = {
            "rows": looked_at,
            "range": where,
            "expectations": dg.MetadataValue.table([dg.TableRecord(asdict(r)) for r in results]),
        }
        return dg.AssetCheckResult(passed=all(r.passed for r in results), metadata=metadata)

    return check


def closed(settings: Settings, table: Table, count: int) -> Range:
    """Returns the last `most` closed partitions; raises Failure if there is none."""
    span = coverage.closed(settings, table, first=BEGINNING)
    if span is None:
        ahead = past_beginning(frontier(settings, table))
        raise dg.Failure(
            f"table={table.name}, frontier={text(ahead) if ahead else None}: only whole {table.partition_by}s behind the "
            "frontier are checked; wait until the stream has closed one",
            allow_retries=False,
        )
    length = PARTITION_LENGTHS[table.partition_by]
    return Range(max(span.start, span.end - count * length), span.end)
