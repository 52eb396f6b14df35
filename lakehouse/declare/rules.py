"""Rules of the catalog about names, expectations and policies, decided by the declarations alone."""

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING

from lakehouse.declare import expectation_names
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError

if TYPE_CHECKING:
    from lakehouse.declare.catalog import Catalog

_OF_MANY_ROWS = {  # what changes nothing, and why something else cannot be kept
    "mostly": (
        (None, 1),
        "each row of this table is judged by itself as it is written, so a share means nothing; leave it out, or expect a "
        "share of a table that counts",
    ),
    "row_condition": (
        (None,),
        "each row of this table is judged by itself as it is written, without a condition; leave it out, and expect it of a "
        "column that is null where the rule does not apply",
    ),
    "ignore_row_if": (
        (None, "neither", "never"),
        "each row of this table is judged by itself as it is written, those with missing values too; leave it out, or give "
        "'neither' (of pairs) or 'never'",
    ),
}


def check(modules: Sequence[ModuleType], tables: Mapping[str, Table]) -> None:
    """Raises DeclarationError for a name by which something is not found."""
    _check_names(modules, tables)
    for table in tables.values():
        _check_expectations(table)


def _check_names(modules: Sequence[ModuleType], tables: Mapping[str, Table]) -> None:
    """Raises DeclarationError for a table that is in no variable of its own name, by which alone tables are found, and for a
    module without one.

    The variable of a function's table has that name by itself; that of `sql_table`, which is given
    both, may not.
    """
    for module in modules:
        for variable, table in vars(module).items():
            if not isinstance(table, Table):
                continue
            known = tables.get(table.name)
            if known is None or known.transformation is not table.transformation:
                raise DeclarationError(
                    f"table={table.name!r}, variable={variable!r} of {module.__name__}: a table is found by a variable of its "
                    f"own name, so this one would be left out; write {table.name} = ..., or rename the table"
                )
        if not any(
            table.pipeline == module.__name__.rpartition(".")[2] for table in tables.values()
        ):
            raise DeclarationError(
                f"tables={module.__name__!r}: it declares no table; add @table or leave it out"
            )


def _check_expectations(table: Table) -> None:
    """Raises DeclarationError for an expectation that Great Expectations does not have: an import of it takes seconds.

    Where it is imported already, somebody may have defined one of his own; `quality` looks for
    those when they are used.
    """
    known = expectation_names.signatures()
    named = known.keys() | expectation_names.not_judged().keys()
    unknown = [each.type for each in table.expectations if each.type not in named]
    if unknown and "great_expectations" not in sys.modules:
        near = get_close_matches(unknown[0], known, 1)
        raise DeclarationError(
            f"table={table.name}, expectation={unknown[0]!r}: Great Expectations has none of that name"
            + (f"; did you mean {near[0]}?" if near else "; see its gallery for the names")
        )


def check_single_rows(table: Table) -> None:
    """Raises DeclarationError for an argument about many rows where rows are judged one by one."""
    for each in table.expectations:
        known = expectation_names.signatures().get(each.type)
        for argument, (nothing, why) in _OF_MANY_ROWS.items() if known and known.by_row else ():
            value = each.kwargs.get(argument)
            if value not in nothing:
                raise DeclarationError(
                    f"table={table.name}, expectation={each.type}, {argument}={value!r}: {why}"
                )


def warnings(catalog: "Catalog", tables: Sequence[Table]) -> list[str]:
    """Declarations that are allowed but have no effect."""
    found = ((table, _withholding(catalog, table)) for table in tables if table.late == "update")
    return [_in_vain(table, before) for table, before in found if before]


def _in_vain(table: Table, before: Table) -> str:
    kept_out = (
        "behind the watermark"
        if before.by_neighbours
        else f"after the {before.partition_by} of their event time"
    )
    return (
        f"table={table.name}, late='update': rows that arrive {kept_out} never reach it, because {before.name} "
        f"(late={before.late!r}) keeps them out; declare late='update' on {before.name} as well"
    )


def _withholding(catalog: "Catalog", table: Table) -> Table | None:
    """The nearest table before this one that keeps late rows out; an ingest table keeps every row."""
    before = catalog.driving_input(table)
    if before is None or catalog.kind(before) == "ingest":
        return None
    return before if before.late != "update" else _withholding(catalog, before)
