"""The commands of the `lakehouse` command line that exchange a table with the version beside it, and say how far that is."""

from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson, Wait

if TYPE_CHECKING:
    from lakehouse.declare.table import Table
    from lakehouse.storage.session import Session
    from lakehouse.storage.versions.upgrades import Command

group = console.group("Upgrades: another version of a table, beside it, until it takes its place.")

_Name = Annotated[str, typer.Argument(metavar="TABLE", help="A table with a version beside it")]


@group.command()
def status(as_json: AsJson = False) -> None:
    """List the tables with another version beside them, and what can be done with it. Needs no JVM."""
    from lakehouse.storage.versions import upgrades
    from streaming_jobs.command_groups import views

    lakehouse = opening.lakehouse()
    by_table = upgrades.of_all(lakehouse)
    pipelines = {name: lakehouse.catalog.table(name).pipeline for name in by_table}
    ended = {
        name: views.ended_for(lakehouse.settings, pipeline, name)
        for name, pipeline in pipelines.items()
    }
    if as_json:
        console.print_json(
            {"table": name} | asdict(upgrade) | {"job_ended": ended[name]}
            for name, upgrade in by_table.items()
        )
        return
    rows = []
    for name, upgrade in by_table.items():
        numbers = ("rows_before", "rows_after", "differing", "partitions")
        counts = [upgrade.compared.get(number, "") for number in numbers]
        stands = (name, upgrade.state, upgrade.at, upgrade.code_version)
        rows.append((*stands, *counts, upgrade.command, upgrade.refused))
    columns = ("rows before", "after", "partitions differ", "of", "cut off", "refused")
    console.print_rows(("table", "state", "at", "code version", *columns), rows)
    for name, remark in ended.items():
        if remark:
            console.print_text(f"{pipelines[name]}: {remark}")


@group.command()
def promote(table: _Name, wait: Wait = None) -> None:
    """Have the version beside a table take its place, in one commit.

    The version reads first what came since it was filled, while the table's job goes on. The job is
    then ended and started again with this code; one that was stopped stays so. The version before is
    kept beside. A command that was cut off continues when it is run again; until then nothing
    starts. Exit code 0 when done, 2 when refused.
    """
    _exchange(table, "promote", wait)


@group.command("roll-back")
def roll_back(table: _Name, wait: Wait = None) -> None:
    """Take a promotion back, under the code of before, with the rows that came since.

    Otherwise as `promote`, the other way round.
    """
    _exchange(table, "roll-back", wait)


def _exchange(name: str, command: "Command", wait: float | None) -> None:
    from lakehouse.runtime import spark_session
    from lakehouse.storage.session import Session
    from lakehouse.stream import beside
    from streaming_jobs.supervision import exchange, supervisor

    lakehouse = opening.lakehouse()
    chosen = lakehouse.catalog.table(name)
    with (
        console.working(f"exchanging the versions of {name}") as now,
        ExitStack() as opened,
    ):

        @cache
        def session() -> "Session":
            now("starting Spark")
            spark = spark_session.opened(lakehouse.settings, f"upgrade {name}")
            return Session.on(lakehouse, opened.enter_context(spark))

        def catch_up(table: "Table") -> None:
            started = session()
            now(f"reading what came since {name} was filled")
            beside.catch_up(started, table)
            now(f"exchanging the versions of {name}")

        done, pid = exchange.exchange(lakehouse, name, command, catch_up)
    console.print_text(
        f"{name}: {done.state}; the other version stays beside it until `lakehouse upgrade drop {name}`"
    )
    if pid is not None:
        with console.working(f"starting {chosen.pipeline}"):
            status = supervisor.await_running(lakehouse.settings, chosen.pipeline, pid, wait)
        console.print_text(f"{chosen.pipeline}: {status.state}, pid {status.pid}")
