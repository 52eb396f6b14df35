"""The changes that a start of the declared tables would make, table by table, from logs: `lakehouse plan`. Needs no JVM."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lakehouse.cli import console
from lakehouse.declare.table import Table
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_changes, declared_state

Asking = Literal["accept", "compute whole", "upgrade", "another name"]
Action = Literal["nothing", "in place", "begin", "not declared"] | Asking
ASKING = get_args(Asking)
"""Actions whose command must run first, or a start is refused."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan for one table.

    :param changes: the parts that decide its rows and were declared differently when its stream began.
    :param diff: the lines of code that differ.
    :param command: the command to run; empty if a start suffices.
    :param rows: the rows of its inputs that must be read.
    :param bytes: the size of these rows' files on disk.
    :param downstream: the tables that read it, and those that read them.
    """

    table: str
    action: Action
    says: str
    changes: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()
    command: str = ""
    rows: int = 0
    bytes: int = 0
    downstream: tuple[str, ...] = ()


def planned(
    lakehouse: Lakehouse, tables: Iterable[Table], *, undeclared: bool = False
) -> list[Planned]:
    """Returns the plan for each of the tables; with `undeclared` also for those on disk that no module declares."""
    plans = [_plan_of(lakehouse, table) for table in tables]
    if undeclared:
        says = "no module declares it; its rows stay, and nothing fills or maintains it"
        names = layout.known(lakehouse.settings)
        others = [name for name in names if name not in lakehouse.catalog.tables]
        plans += [Planned(name, "not declared", says) for name in others]
    return plans


def _plan_of(lakehouse: Lakehouse, table: Table) -> Planned:
    downstream = lakehouse.catalog.downstream(table)
    rows, size = _read(lakehouse, table)
    if not table.kind.is_streamed:
        return Planned(table.name, "nothing", "it is computed whole, as its inputs change")
    changed = declared_state.changes(lakehouse, table)
    if changed is None:
        says = "its stream begins with all that its inputs have"
        return Planned(table.name, "begin", says, rows=rows, bytes=size, downstream=downstream)
    if not changed:
        last = next(lakehouse.commit_log(table).by_stream(), None)
        if last is None or last.code_version == table.code_version:
            return Planned(table.name, "nothing", "it is declared as its stream began")
        says = "its stream goes on; what changed decides no row of it, such as an expectation or the policy for late rows"
        return Planned(table.name, "in place", says)
    action = declared_state.way(lakehouse.catalog, table, changed)
    shown, diff = tuple(map(str, changed)), tuple(declared_changes.diffs(changed))
    if action == "accept":
        command = f"lakehouse table accept {table.name}"
        says = "rows from the next start on are by the new code, those before stay; a backfill computes closed ranges again"
        return Planned(table.name, action, says, shown, diff, command, downstream=downstream)
    if action == "compute whole":
        command = f"lakehouse backfill {table.name}"
        says = "its job computes it whole at the next start, and its readers see one change"
        return Planned(table.name, action, says, shown, diff, command, rows, size, downstream)
    if action == "upgrade":
        command = f"lakehouse upgrade fill {table.name}"
        says = "the changed table is filled beside this one, compared with it, and takes its place in one commit"
        return Planned(table.name, action, says, shown, diff, command, rows, size, downstream)
    says = (
        "one table cannot hold rows of both; declare it under another name, or take the change back"
    )
    command = "lakehouse bootstrap NEW_NAME" if table.kind.is_derived else ""
    return Planned(table.name, "another name", says, shown, diff, command, rows, size, downstream)


def _read(lakehouse: Lakehouse, table: Table) -> tuple[int, int]:
    """Returns the rows of the inputs that are tables, and their bytes."""
    inputs = lakehouse.catalog.input_tables(table)
    paths = [lakehouse.path(source) for source in inputs]
    files = [file for path in paths for file in delta_log.files(path)]
    return sum(f["num_records"] or 0 for f in files), sum(f["size_bytes"] for f in files)


def show(plans: Sequence[Planned]) -> None:
    console.print_columns(
        plans,
        {
            "table": lambda p: p.table,
            "plan": lambda p: p.action,
            "command": lambda p: p.command,
            "reads rows": lambda p: p.rows or "",
            "bytes": lambda p: p.bytes or "",
            "downstream": lambda p: ", ".join(p.downstream),
        },
    )
    for plan in plans:
        if plan.action not in ("nothing", "begin"):
            console.print_text(f"{plan.table}: {'; '.join((*plan.changes, plan.says))}")
            for line in plan.diff:
                console.print_text(f"  {line}")
