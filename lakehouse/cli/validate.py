"""`lakehouse validate`: the refusals of a start because of the declarations."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson, Pipelines
from lakehouse.errors import RegistryAway, SourceAway

if TYPE_CHECKING:
    from lakehouse.declare.table import Table
    from lakehouse.storage.lakehouse import Lakehouse


def validate(
    pipelines: Pipelines = None,
    spark: Annotated[
        bool,
        typer.Option(
            help="Run each function over no rows, in Spark; without, the rest in a second"
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Check the declarations of tables as a start would, without a broker and without changes.

    Exit code 2 if a table is refused.
    """
    from lakehouse.storage.position import declared_state

    lakehouse = opening.lakehouse()
    tables = opening.tables(lakehouse, pipelines)
    refused = {table.name: declared_state.refusals(lakehouse, [table]) for table in tables}
    by_spark = _refused_by_spark(lakehouse, tables) if spark else _refused_by_text(tables)
    for name, line in by_spark:
        refused[name].append(line)
    unchecked = {} if spark else {t.name: "query" if t.sql else "function" for t in tables}
    if as_json:
        for table in tables:
            of_check = {"refused": refused[table.name], "unchecked": unchecked.get(table.name, "")}
            console.print_json([{"table": table.name, "pipeline": table.pipeline} | of_check])
    else:
        _show(refused)
    if unchecked:
        console.print_note(
            f"not checked, for it needs Spark: {_listed(unchecked)}; `lakehouse validate` without --no-spark checks them"
        )
    if any(refused.values()):
        raise typer.Exit(2)


def _listed(unchecked: dict[str, str]) -> str:
    """Returns the tables of each kind as text: "the function of a, the query of b, c"."""
    kinds = ("function", "query")
    names = {kind: [name for name, other in unchecked.items() if other == kind] for kind in kinds}
    return ", ".join(f"the {kind} of {', '.join(names[kind])}" for kind in kinds if names[kind])


def _refused_by_text(tables: "Iterable[Table]") -> Iterator[tuple[str, str]]:
    """Yields a table's name and the reason for each refusal by the text of a query alone."""
    from lakehouse.transform.analysis import clocks

    for table in tables:
        for shown, rule in clocks.in_sql(table) if table.deterministic else ():
            yield table.name, f"table={table.name}, {shown}: {rule}; {clocks.UNVERIFIABLE}"


def _show(refused: dict[str, list[str]]) -> None:
    # a table that reads a refused one is refused with the same message
    lines = dict.fromkeys(line for of_table in refused.values() for line in of_table)
    for line in lines:
        console.print_error(line)
    console.print_text(f"{len(refused)} tables, {len(lines) or 'none'} refused")


def _refused_by_spark(
    lakehouse: "Lakehouse", tables: "Iterable[Table]"
) -> Iterator[tuple[str, str]]:
    """Yields the tables' names, each with the reason of its refusal."""
    from lakehouse.stream.reading.registry import unreadable
    from lakehouse.transform.analysis.validation import refusal, unended

    with opening.session(lakehouse, "validate") as session, console.working("validating") as now:
        for table in tables:
            now(f"looking at {table.name}")
            if why := refusal(session, table):
                yield table.name, why
            elif warning := unended(session, table):
                console.print_note(warning)
            try:
                yield from ((table.name, why) for why in unreadable(session, table))
            except (RegistryAway, SourceAway) as err:
                console.print_note(f"table={table.name}, what it reads was not looked at: {err}")
