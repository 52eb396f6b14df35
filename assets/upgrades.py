"""The jobs that plan what a start would change, fill another version of a table, keep it beside that, and exchange the two."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from assets.resources import BATCH, LakehouseResource, job_of, refusals, run_key
from assets.streams import asked_by
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.ranges import Range, optional_range, parse_instant
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse

if TYPE_CHECKING:
    from lakehouse.storage.log.comparisons import Compared
    from lakehouse.storage.versions.upgrades import Upgrade

VERSIONS_AGREE = "versions_agree"


@dg.op
def plan(lakehouse: LakehouseResource) -> dg.Output[int]:
    """Shows what a start of the tables as they are declared now would change: `lakehouse plan`. Changes nothing.

    Its output is the number of tables that need a command first.
    """
    from lakehouse.cli import change_plan

    planned = change_plan.planned(lakehouse.declared, lakehouse.catalog, undeclared=True)
    rows = []
    for plan in planned:
        if plan.action != "nothing":
            why = "; ".join((*plan.changes, plan.says))
            facts = {"table": plan.table, "plan": plan.action, "command": plan.command, "why": why}
            rows.append(dg.TableRecord(facts))
    asking = sum(plan.action in change_plan.ASKING for plan in planned)
    columns = [dg.TableColumn(name) for name in ("table", "plan", "command", "why")]
    changed = dg.MetadataValue.table(rows, dg.TableSchema(columns))
    metadata: dict[str, Any] = {"tables": len(planned), "changed": changed}
    return dg.Output(asking, metadata=metadata)


plan_changes = job_of("plan_changes", plan)


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
def fill(
    config: Filled, lakehouse: LakehouseResource
) -> Iterator[dg.AssetCheckEvaluation | dg.Output]:
    """Fills a changed table beside the present one and compares the two: `lakehouse upgrade fill`. The streams go on.

    Its output is the number of partitions with rows that differ. It fails if rows differ where they may not.
    """
    with refusals():
        ends = ((config.differs_from, "from"), (config.differs_until, "until"))
        first, last = (parse_instant(text, name) if text else None for text, name in ends)
        within = optional_range(first, last)
        table = lakehouse.catalog.table(config.table)
    upgrade, partitions, rows = _compared(lakehouse, table, within)
    yield dg.AssetCheckEvaluation(dg.AssetKey(table.name), VERSIONS_AGREE, **_outcome(upgrade))
    differing = [partition for partition in partitions if partition.differs]
    metadata: dict[str, Any] = dict(upgrade.compared)
    metadata |= {"rows_filled": rows, "differing_partitions": _table(differing)}
    if upgrade.refused:
        raise dg.Failure(f"{table.name}: {upgrade.refused}", metadata=metadata, allow_retries=False)
    yield dg.Output(len(differing), metadata=metadata)


fill_upgrade = job_of("fill_upgrade", fill)


def _compared(
    lakehouse: LakehouseResource, table: Table, within: Range | None
) -> "tuple[Upgrade, list[Compared], int]":
    """Brings the version beside the table up to the present and compares; the last value is the rows that batch runs wrote."""
    from batch_jobs import upgrade as job

    with refusals(), job.alone(lakehouse.declared, table):
        session = lakehouse.session_of(table)
        planned = job.plan(session, table.name)
        rows = sum(commit.written for commit in job.fill(session, table.name, planned))
        return *job.compare(session, table.name, within), rows


def _table(partitions: "Sequence[Compared]") -> dg.MetadataValue:
    columns = [dg.TableColumn(name) for name in partitions[0].counts] if partitions else []
    records = [dg.TableRecord(partition.counts) for partition in partitions]
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def _outcome(upgrade: "Upgrade") -> dict[str, Any]:
    """Returns the comparison of a table with the version beside it, as a check that fails if rows differ where they may not."""
    compared, summary = dict(upgrade.compared), "not compared yet"
    if compared:
        where = f", within {upgrade.within}" if upgrade.within else ""
        summary = f"{compared['differing']} of {compared['partitions']} partitions differ{where}"
    return {
        "passed": bool(compared) and not upgrade.refused,
        "metadata": compared | {"state": upgrade.state, "at": upgrade.at},
        "severity": dg.AssetCheckSeverity.ERROR if compared else dg.AssetCheckSeverity.WARN,
        "description": upgrade.refused or summary,
    }


class Beside(dg.Config):
    tables: list[str] = Field(
        default=[],
        description="tables with a version beside them; if none is named, all whose version was filled with this code",
    )


@dg.op(pool=BATCH)
def compare(
    config: Beside, lakehouse: LakehouseResource
) -> Iterator[dg.AssetCheckEvaluation | dg.Output]:
    """Brings versions beside tables up to the present and compares what has closed since: `lakehouse upgrade follow`, once.

    Its output is the number of partitions with rows that differ. It fails if rows differ outside of the
    range in which they may, as the version was last filled or followed with.
    """
    from lakehouse.storage.versions import upgrades

    with refusals():
        reading, hindrances = beside(lakehouse.declared)
        tables = [lakehouse.catalog.table(name) for name in config.tables or reading]
    if not tables:
        raise dg.Failure("\n".join(hindrances) or _NONE, allow_retries=False)
    differing, refused = 0, []
    for table in tables:
        present = upgrades.upgrade(lakehouse.settings, table)
        upgrade, _, _ = _compared(lakehouse, table, present.within if present else None)
        yield dg.AssetCheckEvaluation(dg.AssetKey(table.name), VERSIONS_AGREE, **_outcome(upgrade))
        differing += upgrade.compared["differing"]
        refused += [f"{table.name}: {upgrade.refused}"] if upgrade.refused else []
    if refused:
        raise dg.Failure("\n".join(refused), allow_retries=False)
    yield dg.Output(differing, metadata={"tables": [table.name for table in tables]})


compare_versions = job_of("compare_versions", compare)
_NONE = "no table has a version beside it; `fill_upgrade` fills one"


def beside(lakehouse: Lakehouse) -> tuple[list[str], list[str]]:
    """Returns the tables whose versions beside can read on under this code, and the reasons why others cannot."""
    from lakehouse.storage.versions import upgrades

    why = {
        name: upgrades.hindrance(lakehouse, lakehouse.catalog.table(name))
        for name in upgrades.of_all(lakehouse)
    }
    return [name for name in why if not why[name]], [reason for reason in why.values() if reason]


def follow_versions(settings: Settings, catalog: Catalog) -> dg.ScheduleDefinition:
    """Returns the schedule, at first off, of a run every ten minutes for all versions beside that can read on under this code."""

    @dg.schedule(
        name="follow_versions",
        cron_schedule="*/10 * * * *",
        execution_timezone="UTC",
        job=compare_versions,
        description="Keeps versions beside their tables up to the present, and compares partitions as they close. Off until "
        "it is switched on.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        reading, hindrances = beside(Lakehouse(settings, catalog))
        if not reading:
            return dg.SkipReason("; ".join(hindrances) or _NONE)
        config = dg.RunConfig(ops={"compare": Beside(tables=reading)})
        tags = {"tables": ", ".join(reading)[:200]}
        return dg.RunRequest(run_key=run_key(context), run_config=config, tags=tags)

    return evaluate


def checks(settings: Settings, catalog: Catalog) -> list[dg.AssetChecksDefinition]:
    """Returns `versions_agree` for each table that has a version beside it when the code location is loaded."""
    from lakehouse.storage.disk import layout

    names = [name for name in layout.upgraded(settings) if name in catalog.tables]
    return [_versions_agree(catalog.table(name)) for name in names]


def _versions_agree(table: Table) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=table.name,
        name=VERSIONS_AGREE,
        description="The table and the version beside it have the same rows, but for where they may differ, as they were last "
        "compared: by `fill_upgrade`, `compare_versions`, or `lakehouse upgrade follow`.",
    )
    def check(lakehouse: LakehouseResource) -> dg.AssetCheckResult:
        from lakehouse.storage.versions import upgrades

        with refusals():
            upgrade = upgrades.upgrade(lakehouse.settings, table)
        if upgrade is None:
            return dg.AssetCheckResult(passed=True, description="there is no version beside it now")
        return dg.AssetCheckResult(**_outcome(upgrade))

    return check


class Exchanged(dg.Config):
    table: str = Field(description="a table with a version beside it, which `fill_upgrade` filled")
    command: Literal["promote", "roll-back"] = Field(
        default="promote",
        description="`roll-back` takes a promotion back, under the code of before",
    )


@dg.op(pool=BATCH)
def exchange(
    context: dg.OpExecutionContext, config: Exchanged, lakehouse: LakehouseResource
) -> dg.Output[str]:
    """Has the filled version of a table take its place, in one commit, or takes that back.

    Its streaming job is ended for that, and goes on with the loaded code.
    """
    from lakehouse.stream import beside
    from streaming_jobs.supervision import exchange as job
    from streaming_jobs.supervision import supervisor

    with refusals():
        chosen = lakehouse.catalog.table(config.table)

        def catch_up(table: Table) -> None:
            beside.catch_up(lakehouse.session_of(table), table)

        done, pid = job.exchange(
            lakehouse.declared, chosen.name, config.command, catch_up, asked_by(context)
        )
        if pid is not None:
            supervisor.await_running(lakehouse.settings, chosen.pipeline, pid)
    return dg.Output(done.state, metadata={"at": done.at, "code_version": done.code_version})


exchange_versions = job_of("exchange_versions", exchange)
