"""The commands of the `lakehouse` command line that exchange a table with the version beside it. Its job must be stopped."""

from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console

if TYPE_CHECKING:
    from lakehouse.declare.table import Table
    from lakehouse.storage.upgrades import Command

group = console.group("Upgrades: another version of a table, beside it, until it takes its place.")

_Name = Annotated[str, typer.Argument(metavar="TABLE", help="A table with a version beside it")]


@group.command()
def promote(table: _Name) -> None:
    """Have the version beside a table take its place, in one commit. The table's job must be stopped.

    The version reads first what came since it was filled. The one before is kept beside. A command
    that was cut off continues when it is run again; until then nothing starts. Exit code 0 when
    done, 2 when refused.
    """
    _exchange(table, "promote")


@group.command("roll-back")
def roll_back(table: _Name) -> None:
    """Take a promotion back, under the code of before, with the rows that came since. The table's job must be stopped.

    Otherwise as `promote`, the other way round.
    """
    _exchange(table, "roll-back")


def _exchange(name: str, command: "Command") -> None:
    from lakehouse.runtime import spark_session
    from lakehouse.settings import from_environment
    from lakehouse.storage import full_disk
    from lakehouse.storage.lakehouse import load
    from lakehouse.storage.session import Session
    from lakehouse.stream import beside
    from streaming_jobs.exchange import exchange, stands

    lakehouse = load(from_environment())
    chosen = lakehouse.catalog.table(name)
    with (
        full_disk.named(
            lakehouse.settings,
            f"the exchange of the versions of {name}",
            lambda: stands(lakehouse.settings, chosen),
        ),
        console.working(f"exchanging the versions of {name}") as now,
    ):

        def catch_up(table: "Table") -> None:
            now("starting Spark")
            with spark_session.opened(lakehouse.settings, f"upgrade {name}") as spark:
                now(f"reading what came since {name} was filled")
                beside.catch_up(Session.on(lakehouse, spark), table)
            now(f"exchanging the versions of {name}")

        done = exchange(lakehouse, name, command, catch_up)
    console.print_text(
        f"{name}: {done.state}; the other version stays beside it until `lakehouse upgrade drop {name}`"
    )
