"""The commands of the `lakehouse` command line that fill, show and remove the other version of a table.

Those that exchange it with the table stop for its job: they are with the streaming jobs.
"""

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from batch_jobs.arguments import Name, asked
from lakehouse.cli import console
from lakehouse.cli.console import AsJson

group = console.group("Upgrades: another version of a table, beside it, until it takes its place.")

_MAY_DIFFER = (
    "Rows may differ {} this instant only, ISO 8601; where others do, the version is not promoted"
)


@group.command()
def fill(
    table: Name,
    differs_from: Annotated[str | None, typer.Option(help=_MAY_DIFFER.format("from"))] = None,
    differs_until: Annotated[str | None, typer.Option(help=_MAY_DIFFER.format("before"))] = None,
    as_json: AsJson = False,
) -> None:
    """Fill a changed table beside the present one, up to now, and compare the two.

    The table and its job go on. Run it again to have it catch up; killed, it continues. Exit code 0
    when done, 1 if rows differ where they may not, 2 when refused.
    """
    from batch_jobs import upgrade as job
    from lakehouse.ranges import optional_range
    from lakehouse.runtime import spark_session
    from lakehouse.storage import upgrades
    from lakehouse.storage.session import Session

    lakehouse, first, last = asked(differs_from, differs_until)
    may_differ = optional_range(first, last)
    chosen = lakehouse.catalog.table(table)  # an unknown name is refused before a JVM starts
    with ExitStack() as opened:
        opened.enter_context(upgrades.alone(lakehouse.settings, chosen))
        with console.working("starting Spark") as now:
            spark = opened.enter_context(
                spark_session.opened(lakehouse.settings, f"upgrade {table}")
            )
            session = Session.on(lakehouse, spark)
            now(f"looking where {table} is to begin")
            planned = job.plan(session, table)
        total = len(planned.partitions) - len(planned.done) if planned else 0
        with console.counting(f"history of {table}", total) as done:
            for commit in job.fill(session, table, planned):
                done(commit.written)
        with console.working("comparing the two versions"):
            upgrade, partitions = job.compare(session, table, may_differ)
    if as_json:
        console.print_json(
            [asdict(upgrade) | {"partitions": [asdict(each) for each in partitions]}]
        )
    else:
        columns = ("partition", "rows before", "after", "missing", "extra", "changed")
        console.print_rows(columns, (tuple(asdict(p).values()) for p in partitions if p.differs))
        summary = upgrade.compared
        console.print_text(
            f"{table}: {summary['rows_before']:,} rows before, {summary['rows_after']:,} after; {summary['differing']} of "
            f"{summary['partitions']} partitions differ"
        )
    if upgrade.refused:
        console.print_error(f"{table}: {upgrade.refused}")
        raise typer.Exit(1)


@group.command()
def status(as_json: AsJson = False) -> None:
    """List the tables with another version beside them, and what can be done with it. Needs no JVM."""
    from lakehouse.storage import upgrades

    lakehouse, _, _ = asked(None, None)
    by_table = upgrades.of_all(lakehouse)
    if as_json:
        console.print_json([{"table": name} | asdict(each) for name, each in by_table.items()])
        return
    console.print_rows(
        ("table", "state", "at", "code version", "cut off", "refused"),
        (
            (name, each.state, each.at, each.code_version, each.command, each.refused)
            for name, each in by_table.items()
        ),
    )


@group.command()
def drop(
    table: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False
) -> None:
    """Remove the version beside a table: one that is not wanted, or, once promoted, the one before.

    After that there is nothing to roll back to. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.storage import upgrades

    lakehouse, _, _ = asked(None, None)
    chosen = lakehouse.catalog.table(table)
    if not yes:
        typer.confirm(f"Remove the version beside {table}?", abort=True)
    with upgrades.alone(lakehouse.settings, chosen):
        upgrades.drop(lakehouse.settings, chosen)
    console.print_text(f"{table}: the version beside it is removed")
