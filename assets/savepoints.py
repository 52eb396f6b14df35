"""The jobs that create and restore savepoints; the first has a schedule."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from assets.resources import BATCH, LakehouseResource, job_of, refusals

SCHEDULED = "scheduled"


class Created(dg.Config):
    prefix: str = Field(
        default=SCHEDULED, description="how its name begins; the time of its run follows"
    )
    keep: int = Field(default=7, ge=1, description="how many of these stay; older ones are removed")


@dg.op
def create(config: Created, lakehouse: LakehouseResource) -> dg.Output[str]:
    """Creates a savepoint of all tables, at one consistent cut, while jobs go on: `lakehouse savepoint create`."""
    from lakehouse.storage.versions import savepoints

    name = f"{config.prefix}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    with refusals():
        made = savepoints.create(lakehouse.declared, name)
        gone = savepoints.drop_all_but(lakehouse.settings, f"{config.prefix}-", config.keep)
    metadata: dict[str, Any] = {
        "savepoint": name,
        "tables": len(made.tables),
        "bytes": made.bytes,
        "held": savepoints.held(lakehouse.settings, name),
        "removed": gone,
    }
    return dg.Output(name, metadata=metadata)


create_savepoint = job_of("create_savepoint", create)


class Restored(dg.Config):
    savepoint: str = Field(description="as `lakehouse savepoint list` shows it")
    discard: bool = Field(default=False, description="make no savepoint of what is there now")


@dg.op(pool=BATCH)
def restore(config: Restored, lakehouse: LakehouseResource) -> dg.Output[str]:
    """Puts all tables back as they were at a savepoint: `lakehouse savepoint restore`. All streaming jobs must be stopped."""
    from lakehouse.storage.versions import restoring
    from streaming_jobs.supervision import supervisor

    with refusals(), supervisor.all_stopped(lakehouse.settings, lakehouse.catalog.pipelines()):
        before = restoring.restore(lakehouse.declared, config.savepoint, keep=not config.discard)
    return dg.Output(config.savepoint, metadata={"before": before})


restore_savepoint = job_of("restore_savepoint", restore)
savepoint_daily = dg.ScheduleDefinition(
    name="savepoint_daily",
    cron_schedule="20 2 * * *",
    execution_timezone="UTC",
    job=create_savepoint,
    description="Creates a savepoint each night and keeps the last seven. Off until it is switched on.",
)
