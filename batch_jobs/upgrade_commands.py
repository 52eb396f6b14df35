"""The commands of the `lakehouse` command line that fill, follow and remove the other version of a table.

The commands that exchange it with the table, and the status, depend on the table's job: they are with the streaming jobs.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from batch_jobs.arguments import Name, asked_range
from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson, Yes

if TYPE_CHECKING:
    from lakehouse.storage.log.comparisons import Compared
    from lakehouse.storage.session import Session
    from lakehouse.storage.versions.upgrades import Upgrade

group = console.group("Upgrades: another version of a table, beside it, until it takes its place.")

_MAY_DIFFER = (
    "Rows may differ {} this instant only, ISO 8601; where others do, the version is not promoted"
)
_From = Annotated[str | None, typer.Option(help=_MAY_DIFFER.format("from"))]
_Until = Annotated[str | None, typer.Option(help=_MAY_DIFFER.format("before"))]
_COLUMNS = ("partition", "rows before", "after", "missing", "extra", "changed")


@group.command()
def fill(
    table: Name, differs_from: _From = None, differs_until: _Until = None, as_json: AsJson = False
) -> None:
    """Fill a changed table beside the present one, up to now, and compare the two.

    The table and its job go on. Run it again to have it catch up; killed, it continues. Exit code 0
    when done, 1 if rows differ where they may not, 2 when refused.
    """
    from batch_jobs import upgrade as job

    lakehouse, may_differ = asked_range(differs_from, differs_until)
    chosen = lakehouse.catalog.table(table)  # an unknown name is refused before a JVM starts
    with (
        job.alone(lakehouse, chosen),
        opening.session(lakehouse, f"upgrade {table}") as session,
    ):
        _fill(session, table)
        with console.working("comparing the two versions"):
            upgrade, partitions = job.compare(session, table, may_differ)
    if as_json:
        console.print_json(
            [asdict(upgrade) | {"partitions": [asdict(each) for each in partitions]}]
        )
    else:
        console.print_rows(_COLUMNS, (p.counts.values() for p in partitions if p.differs))
        console.print_text(_summary(table, upgrade))
    _end(table, upgrade)


@group.command()
def follow(
    table: Name,
    every: Annotated[
        float, typer.Option(help="Seconds between two looks for what came since", min=0.1)
    ] = 60,
    differs_from: _From = None,
    differs_until: _Until = None,
    as_json: AsJson = False,
) -> None:
    """Keep the version beside a table up to the present, and compare the two as partitions close, until Ctrl-C or SIGTERM.

    One that is not there yet is filled first. Each partition is shown when both versions have closed
    it, and again when its result changes; at the start, those that are known to differ. Where rows
    may differ is as `fill` was given it, unless it is given here. Killed, the command continues when
    it is run again. Exit code 0 when ended, 1 if rows differ where they may not, 2 when refused.
    """
    from batch_jobs import upgrade as job
    from lakehouse.stopping import by_signals
    from lakehouse.storage.log import comparisons
    from lakehouse.storage.versions import upgrades

    lakehouse, may_differ = asked_range(differs_from, differs_until)
    chosen = lakehouse.catalog.table(table)  # an unknown name is refused before a JVM starts
    with ExitStack() as opened:
        opened.enter_context(job.alone(lakehouse, chosen))
        present = upgrades.upgrade(lakehouse.settings, chosen)
        may_differ = may_differ or (present.within if present else None)
        compared = comparisons.noted(lakehouse.settings, chosen)
        shown = {key: each for key, each in compared.items() if not each.differs}
        session = opened.enter_context(opening.session(lakehouse, f"upgrade {table}", lasting=True))
        _fill(session, table)
        stopping = opened.enter_context(by_signals())  # what is under way is done first
        refused = ""
        while True:
            upgrade, partitions = job.compare(session, table, may_differ)
            news = [p for p in partitions if _result(p) != _result(shown.get(p.partition))]
            shown |= {p.partition: p for p in news}
            _show(table, news, upgrade, as_json)
            if upgrade.refused not in ("", refused):
                console.print_error(f"{table}: {upgrade.refused}")
            refused = upgrade.refused
            if stopping.wait(every):
                break
            _fill(session, table)
    if not as_json:
        console.print_text(_summary(table, upgrade))
    _end(table, upgrade)


def _fill(session: "Session", table: str) -> None:
    """Fills the version beside the table up to the present, and shows how far it is."""
    from batch_jobs import upgrade as job

    planned = job.plan(session, table)
    total = len(planned.partitions) - len(planned.done) if planned else 0
    with console.counting(f"history of {table}", total) as done:
        for commit in job.fill(session, table, planned):
            done(commit.written)


def _result(compared: "Compared | None") -> dict[str, str | int]:
    return compared.counts if compared else {}


def _show(table: str, news: "Iterable[Compared]", upgrade: "Upgrade", as_json: bool) -> None:
    if as_json:
        console.print_json({"table": table} | asdict(each) for each in news)
        return
    for each in news:
        console.print_text(
            f"{upgrade.at} {table} {each.partition}: {each.rows_before:,} rows before, {each.rows_after:,} after; "
            f"{each.missing:,} missing, {each.extra:,} extra, {each.changed:,} changed"
        )
        for example in each.examples:
            console.print_text(f"  {example}")


def _summary(table: str, upgrade: "Upgrade") -> str:
    summary = upgrade.compared
    return (
        f"{table}: {summary['rows_before']:,} rows before, {summary['rows_after']:,} after; {summary['differing']} of "
        f"{summary['partitions']} partitions differ"
    )


def _end(table: str, upgrade: "Upgrade") -> None:
    if upgrade.refused:
        console.print_error(f"{table}: {upgrade.refused}")
        raise typer.Exit(1)


@group.command()
def drop(table: Name, yes: Yes = False) -> None:
    """Remove the version beside a table: one that is not wanted, or, once promoted, the one before.

    After that there is nothing to roll back to. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.storage.versions import upgrades

    lakehouse = opening.lakehouse()
    chosen = lakehouse.catalog.table(table)
    if not yes:
        typer.confirm(f"Remove the version beside {table}?", abort=True)
    with upgrades.alone(lakehouse.settings, chosen):
        upgrades.drop(lakehouse.settings, chosen)
    console.print_text(f"{table}: the version beside it is removed")
