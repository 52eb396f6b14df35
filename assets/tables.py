"""Sources and tables as assets: their metadata in the graph, and the batch runs that fill them."""

import inspect
from typing import Any

import dagster as dg

from assets import partitions, staleness
from assets.metadata import (
    column_schema,
    instant,
    of_backfill,
    of_commit,
    of_outcome,
    of_partition,
    of_report,
)
from assets.resources import BATCH, LakehouseResource, refusals
from assets.streams import job_key
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.inputs.sources import Source
from lakehouse.declare.table import Table
from lakehouse.reconcile import coverage
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit


def specs_and_assets(
    settings: Settings, catalog: Catalog
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Returns every source and table: sources and ingest tables as external assets, the others with their batch runs."""
    sources = [_source(s) for s in catalog.sources.values()]
    return [*sources, *(_table(settings, catalog, table) for table in catalog)]


def _table(
    settings: Settings, catalog: Catalog, table: Table
) -> dg.AssetSpec | dg.AssetsDefinition:
    if table.kind.is_derived:
        return _derived(settings, catalog, table)
    make = _reference if table.kind.is_reference else _written_by_stream
    return make(settings, catalog, table)


def _source(source: Source) -> dg.AssetSpec:
    about = source.about
    schema = {"schema": dg.MetadataValue.md(f"```sql\n{inspect.cleandoc(source.schema)}\n```")}
    return dg.AssetSpec(
        source.name,
        description=about.description,
        kinds={about.kind},
        group_name="sources",
        metadata={**about.metadata, **schema},
    )


def _written_by_stream(settings: Settings, catalog: Catalog, table: Table) -> dg.AssetSpec:
    """Returns a table that its streaming job alone writes: nothing to materialise, nothing to backfill."""
    deps = [job_key(table.pipeline)] + [
        dg.AssetDep(name) for name in table.inputs if table.kind.is_upserted
    ]
    return dg.AssetSpec(table.name, deps=deps, **_shown(settings, catalog, table))


def _derived(settings: Settings, catalog: Catalog, table: Table) -> dg.AssetsDefinition:
    @dg.asset(
        key=table.name,
        deps=_deps(catalog, table),
        partitions_def=partitions.definition(settings, table),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=BATCH,
        **_shown(settings, catalog, table),
    )
    def batch_run(
        context: dg.AssetExecutionContext, lakehouse: LakehouseResource
    ) -> dg.MaterializeResult:
        from batch_jobs import backfill as job

        window = context.partition_time_window
        outcomes: dict[str, Commit] = {}
        with refusals():
            session = lakehouse.session_of(table)
            planned = job.plan(session, table.name, window.start, window.end)
            assert planned is not None  # there is always a plan of an explicit range
            for commit in job.run(session, planned):
                (key,) = commit.span.partitions(table.partition_by)
                outcomes[key] = commit
                context.log.info(
                    f"{key}: {of_outcome(commit)['outcome']}, {len(outcomes)} of {len(planned.partitions)}"
                )
        _, stored = coverage.stored(lakehouse.settings, table)
        aside = coverage.reasons(lakehouse.settings, table, context.partition_keys)
        for key in context.partition_keys:
            held = of_partition(stored.get(key, coverage.Stored()), aside[key]) | of_outcome(
                outcomes.get(key)
            )
            held |= of_report(lakehouse.settings, table, key)
            context.add_asset_metadata(held, partition_key=key)
        shared = instant("frontier", frontier(lakehouse.settings, table)) | column_schema(
            lakehouse.settings, table
        )
        metadata = of_backfill(planned, list(outcomes.values()), job.pending(session, planned))
        return dg.MaterializeResult(metadata=metadata | shared)

    return batch_run


def _reference(settings: Settings, catalog: Catalog, table: Table) -> dg.AssetsDefinition:
    @dg.asset(
        key=table.name, deps=_deps(catalog, table), pool=BATCH, **_shown(settings, catalog, table)
    )
    def rebuild(lakehouse: LakehouseResource) -> dg.MaterializeResult:
        from lakehouse.batch import reference_tables

        with refusals():
            commit = reference_tables.rebuild(lakehouse.session_of(table), table)
        version, stored = coverage.stored(lakehouse.settings, table)
        now: dict[str, Any] = {
            "changed": commit is not None,
            "rows": sum(p.rows for p in stored.values()),
            "delta_version": version,
        }
        return dg.MaterializeResult(metadata={**(of_commit(commit) if commit else {}), **now})

    return rebuild


def _deps(catalog: Catalog, table: Table) -> list[dg.AssetDep]:
    timed = {each.name: each for each in catalog.timed_inputs(table)}
    deps = []
    for name in table.inputs:
        partitioned = name in timed and not timed[name].kind.reads_sources
        deps.append(
            dg.AssetDep(name, partition_mapping=partitions.mapping(table) if partitioned else None)
        )
    if any(each.pipeline != table.pipeline for each in timed.values()):
        deps.append(dg.AssetDep(job_key(table.pipeline)))
    return deps


def _shown(settings: Settings, catalog: Catalog, table: Table) -> dict[str, Any]:
    """Returns what the UI shows of a table, from its declaration."""
    declared = {
        "kind": table.kind.name,
        "delay": str(table.delay) if table.delay else "",
        "marker": table.marker,
        "watermark by": table.watermark_by,
        "window": str(table.window or ""),
        "context": str(table.context or ""),
        "ttl": str(table.ttl or ""),
        "final rows": table.final_rows,
        "keys": ", ".join(table.keys),
        "report": str(table.report or ""),
        "location": dg.MetadataValue.path(str(table_path(settings, table))),
        "declaration": dg.MetadataValue.md(
            f"```{'sql' if table.sql else 'python'}\n{table.code}\n```"
        ),
    }
    tags = {"layer": table.layer, "pipeline": table.pipeline}
    return {
        "description": table.description,
        "group_name": table.layer,
        "owners": [table.owner] if table.owner else [],
        "kinds": {"delta", "spark"},
        "tags": tags | ({"late": table.late} if table.has_late_rows else {}),
        "code_version": table.code_version,
        "freshness_policy": staleness.policy(settings, catalog, table),
        "metadata": {k: v for k, v in declared.items() if v} | column_schema(settings, table),
    }
