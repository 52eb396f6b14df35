"""Rules of the catalog about names and policies, decided by the declarations alone."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from lakehouse.errors import DeclarationError
from lakehouse.table import Table

if TYPE_CHECKING:
    from lakehouse.catalog import Catalog


def check_names(modules: Sequence[ModuleType], tables: Mapping[str, Table]) -> None:
    """Raises DeclarationError for a table that is in no variable of its own name, by which alone tables are found, and for a
    module without one.

    The variable of a function's table has that name by itself; that of `sql_table`, which is given both, may not.
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
        if not any(table.pipeline == module.__name__.rpartition(".")[2] for table in tables.values()):
            raise DeclarationError(f"tables={module.__name__!r}: it declares no table; add @table or leave it out")


def warnings(catalog: "Catalog", tables: Sequence[Table]) -> list[str]:
    """What is allowed, and does not do what it seems to."""
    found = ((table, _withholding(catalog, table)) for table in tables if table.late == "update")
    return [_in_vain(table, before) for table, before in found if before]


def _in_vain(table: Table, before: Table) -> str:
    kept_out = "behind the watermark" if before.by_neighbours else f"after the {before.grain} of their event time"
    return (
        f"table={table.name}, late='update': rows that arrive {kept_out} never reach it, for {before.name}, "
        f"late={before.late!r}, keeps them out, so no update shows them; declare late='update' on {before.name} as well"
    )


def _withholding(catalog: "Catalog", table: Table) -> Table | None:
    """The nearest table before this one that keeps late rows out; a record keeps every row."""
    before = catalog.driving_input(table)
    if before is None or catalog.kind(before) == "record":
        return None
    return before if before.late != "update" else _withholding(catalog, before)
