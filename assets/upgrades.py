"""The jobs that plan what a start would change, fill another version of a table, and exchange the two."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from assets.resources import BATCH, LakehouseResource, refusals
from lakehouse.ranges import optional_range, parse_instant

if TYPE_CHECKING:
    from lakehouse.cli.change_plan import Planned


@dg.op
def plan(lakehouse: LakehouseResource) -> dg.Output[int]:
    """What a start of the declared tables would change: `lakehouse plan`. Its output counts those that need a command first."""
    from lakehouse.cli import change_plan

    planned = change_plan.planned(lakehouse.declared, lakehouse.catalog, undeclared=True)
    rows = [
        dg.TableRecord(
            {"table": each.table, "plan": each.action, "command": each.command, "why": _why(each)}
        )
        for each in planned
        if each.action != "nothing"
    ]
    asking = sum(each.action in change_plan.ASKING for each in planned)
    columns = [dg.TableColumn(name) for name in ("table", "plan", "command", "why")]
    metadata: dict[str, Any] = {
        "tables": len(planned),
        "changed": dg.MetadataValue.table(rows, dg.TableSchema(columns)),
    }
    return dg.Output(asking, metadata=metadata)


def _why(planned: "Planned") -> str:
    return "; ".join((*planned.changes, planned.says))


@dg.job(
    description="Shows what a start of the tables as they are declared now would change. Changes nothing."
)
def plan_changes() -> None:
    plan()


class Filled(dg.Config):
    table: str = Field(description="a row or window table that was changed")
    differs_from: str = Field(
        default="",
        description="rows may differ from this instant only, ISO 8601; give both ends or neither",
    )
    differs_until: str = Field(
        default="", description="rows may differ before this instant only, ISO 8601"
    )


@dg.op(pool=BATCH)
def fill(config: Filled, lakehouse: LakehouseResource) -> dg.Output[int]:
    """Fills a changed table beside the present one and compares the two: `lakehouse upgrade fill`. The streams go on.

    Its output is in how many partitions rows differ. It fails if rows differ where they may not.
    """
    from batch_jobs import upgrade as job
    from lakehouse.storage import upgrades

    with refusals():
        ends = ((config.differs_from, "from"), (config.differs_until, "until"))
        first, last = (parse_instant(text, name) if text else None for text, name in ends)
        may_differ = optional_range(first, last)
        table = lakehouse.catalog.table(config.table)
        with upgrades.alone(lakehouse.settings, table):
            session = lakehouse.session_of(table)
            planned = job.plan(session, table.name)
            rows = sum(commit.written for commit in job.fill(session, table.name, planned))
            upgrade, partitions = job.compare(session, table.name, may_differ)
    columns = [dg.TableColumn(name) for name in asdict(partitions[0])] if partitions else []
    differing = [dg.TableRecord(asdict(each)) for each in partitions if each.differs]
    metadata: dict[str, Any] = dict(upgrade.compared) | {
        "rows_filled": rows,
        "differing_partitions": dg.MetadataValue.table(differing, dg.TableSchema(columns)),
    }
    if upgrade.refused:
        raise dg.Failure(f"{table.name}: {upgrade.refused}", metadata=metadata, allow_retries=False)
    return dg.Output(len(differing), metadata=metadata)


@dg.job(
    description="Fills a changed table beside the present one, up to now, and compares both, while the streams go on."
)
def fill_upgrade() -> None:
    fill()


class Exchanged(dg.Config):
    table: str = Field(description="a table with a version beside it, which `fill_upgrade` filled")
    command: Literal["promote", "roll-back"] = Field(
        default="promote",
        description="`roll-back` takes a promotion back, under the code of before",
    )


@dg.op(pool=BATCH)
def exchange(config: Exchanged, lakehouse: LakehouseResource) -> dg.Output[str]:
    """Has the version beside a table take its place, or takes that back. The table's streaming job must be stopped."""
    from lakehouse.stream import beside
    from streaming_jobs import exchange as job

    with refusals():
        done = job.exchange(
            lakehouse.declared,
            config.table,
            config.command,
            lambda table: beside.catch_up(lakehouse.session_of(table), table),
        )
    return dg.Output(done.state, metadata={"at": done.at, "code_version": done.code_version})


@dg.job(
    description="Has the filled version of a table take its place, in one commit, or takes that back. Its job must be stopped."
)
def exchange_versions() -> None:
    exchange()
