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
from lakehouse.cli import table_status
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.inputs.sources import Source
from lakehouse.declare.table import Table
from lakehouse.reconcile import coverage
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import table_content
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit

# parts of the declaration that the UI shows
_SHOWN = (
    "kind",
    "delay",
    "marker",
    "watermark by",
    "window",
    "context",
    "ttl",
    "final rows",
    "report",
)


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
    inputs = table.inputs if table.kind.is_upserted else ()
    deps = [dg.AssetDep(job_key(table.pipeline)), *map(dg.AssetDep, inputs)]
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
                outcome, total = of_outcome(commit)["outcome"], len(planned.partitions)
                context.log.info(f"{key}: {outcome}, {len(outcomes)} of {total}")
        stored = table_content.content(lakehouse.settings, table).partitions
        quarantined = coverage.reasons(lakehouse.settings, table, context.partition_keys)
        for key in context.partition_keys:
            of_key = of_partition(stored.get(key, table_content.Stored()), quarantined[key])
            of_key |= of_outcome(outcomes.get(key)) | of_report(lakehouse.settings, table, key)
            context.add_asset_metadata(of_key, partition_key=key)
        shared = instant("frontier", frontier(lakehouse.settings, table))
        shared |= column_schema(lakehouse.settings, table)
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
        content = table_content.content(lakehouse.settings, table)
        metadata = of_commit(commit) if commit else {}
        metadata |= {"changed": commit is not None, "delta_version": content.version}
        metadata["rows"] = content.rows
        return dg.MaterializeResult(metadata=metadata)

    return rebuild


def _deps(catalog: Catalog, table: Table) -> list[dg.AssetDep]:
    timed = {source.name: source for source in catalog.timed_inputs(table)}
    deps = []
    for name in table.inputs:
        partitioned = name in timed and not timed[name].kind.reads_sources
        mapping = partitions.mapping(table) if partitioned else None
        deps.append(dg.AssetDep(name, partition_mapping=mapping))
    if any(source.pipeline != table.pipeline for source in timed.values()):
        deps.append(dg.AssetDep(job_key(table.pipeline)))
    return deps


def _shown(settings: Settings, catalog: Catalog, table: Table) -> dict[str, Any]:
    """Returns what the UI shows of a table, from its declaration."""
    declared = table_status.declaration(catalog, table)
    shown = {name: declared[name] for name in _SHOWN if name in declared}
    code = f"```{'sql' if table.sql else 'python'}\n{table.code}\n```"
    shown |= {"keys": ", ".join(table.keys)} if table.keys else {}
    shown |= {"location": dg.MetadataValue.path(str(table_path(settings, table)))}
    shown |= {"declaration": dg.MetadataValue.md(code)} | column_schema(settings, table)
    tags = {"layer": table.layer, "pipeline": table.pipeline}
    return {
        "description": table.description,
        "group_name": table.layer,
        "owners": [table.owner] if table.owner else [],
        "kinds": {"delta", "spark"},
        "tags": tags | ({"late": table.late} if table.has_late_rows else {}),
        "code_version": table.code_version,
        "freshness_policy": staleness.policy(settings, catalog, table),
        "metadata": shown,
    }
