"""The jobs that merge late rows, compute the history of a new table, and replay quarantined rows.

The first has a schedule.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import dagster as dg
from pydantic import Field

from assets.metadata import of_commit
from assets.resources import BATCH, LakehouseResource, job_of, refusals, run_key, schedule
from lakehouse.declare.catalog import Catalog
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import Commit


@dg.op(pool=BATCH)
def update_tables(lakehouse: LakehouseResource) -> Iterator[dg.AssetMaterialization | dg.Output]:
    """Merges late rows into the closed partitions of tables declared late="update", inputs first."""
    from batch_jobs import update as job

    with refusals():
        tables = job.wanted(lakehouse.catalog, None)
        runs = (job.run(lakehouse.session_of(table), table.name) for table in tables)
        yield from _reported(lakehouse, chain.from_iterable(runs))


def _reported(
    lakehouse: LakehouseResource, commits: Iterable[Commit]
) -> Iterator[dg.AssetMaterialization | dg.Output]:
    """Yields the partitions that batch runs write, as they are written, and at the end the number of commits."""
    made = 0
    for commit in commits:
        made += 1
        table = lakehouse.catalog.table(commit.table)
        for key in commit.span.partitions(table.partition_by):
            yield dg.AssetMaterialization(table.name, partition=key, metadata=of_commit(commit))
    yield dg.Output(made)


update = job_of("update", update_tables)


class NewTable(dg.Config):
    table: str = Field(
        description="a derived table whose stream has not begun, or has begun at a handover"
    )


@dg.op(pool=BATCH)
def fill_history(
    config: NewTable, lakehouse: LakehouseResource
) -> Iterator[dg.AssetMaterialization | dg.Output]:
    """Begins a new table over history: sets its handover, if it has none, and computes the history before that.

    The stream goes on from there.
    """
    from batch_jobs import backfill as job

    with refusals():
        session = lakehouse.session_of(lakehouse.catalog.table(config.table))
        planned = job.begin(session, config.table)
        yield from _reported(lakehouse, job.run(session, planned) if planned else ())


bootstrap = job_of("bootstrap", fill_history)


class IngestTable(dg.Config):
    table: str = Field(description="an ingest table: it reads a topic")


@dg.op(pool=BATCH)
def replay_quarantine(config: IngestTable, lakehouse: LakehouseResource) -> dg.Output[int]:
    """Judges the quarantined rows of an ingest table again and writes those that are good now.

    The tables that read it follow.
    """
    from lakehouse.maintenance import replay_quarantine as job

    with refusals():
        ingest = lakehouse.catalog.table(config.table)
        done = job.replay(lakehouse.session_of(ingest), ingest)
    follow = [f"{name} {span}" for name, spans in done.follow.items() for span in spans]
    metadata: dict[str, Any] = {
        "rows": done.rows,
        "waiting": done.waiting,
        "stay_quarantined": dict(done.bad),
        "computed_again": follow,
    }
    return dg.Output(done.rows, metadata=metadata)


replay = job_of("replay", replay_quarantine)


def merge_late_rows(settings: Settings, catalog: Catalog) -> dg.ScheduleDefinition:
    """Returns the schedule of a run every ten minutes, if commit logs show a closed partition that waits for late rows."""

    @schedule(
        name="merge_late_rows",
        cron_schedule="*/10 * * * *",
        job=update,
        description="Computes windows again that late rows missed, once their partition has closed.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        from batch_jobs import update as job

        lakehouse = Lakehouse(settings, catalog)
        waiting = job.waiting(lakehouse)
        names = [name for name, dirt in waiting.items() if any(d.closed for d in dirt)]
        if not names:
            nothing = "no closed partition waits for late rows"
            return dg.SkipReason("; ".join([nothing, *job.withheld(lakehouse)]))
        return dg.RunRequest(run_key=run_key(context), tags={"tables": ", ".join(names)})

    return evaluate
