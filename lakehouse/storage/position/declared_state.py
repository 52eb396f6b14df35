"""The declaration that a table's stream started with. A start under an incompatible one is refused.

It is read and compared without a JVM.

A checkpoint is of one declaration. Under another one Spark refuses some changes and takes others
without notice, such as another window or filter, and then rows of two meanings stand in one table.
So a declaration is kept, beside the commit log, when the query begins, and compared at each start.
It leaves out all that decides no row of the stream: comments, docstrings, expectations, the policy
for late rows, owner, metrics, `early_results`, `stale_after`, `tolerance`, `deterministic`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Literal

from lakehouse.declare import code_version, rules
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.ranges import text
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import (
    checkpoint_files,
    checkpoints,
    state_partitions,
    table_state,
)
from lakehouse.storage.position.declared_changes import Change, diffs
from lakehouse.storage.position.table_state import BegunWith, TableState

_log = logging.getLogger(__name__)

Way = Literal["accept", "compute whole", "upgrade", "another name"]
_ANOTHER = "declare it under another name, or take the change back"
_AS_STORED = (
    "have its function return the columns that the table has; a field that was renamed where it is sent is declared by both "
    "names, and the function takes coalesce(new, former) for the former"
)


def declaration(catalog: Catalog, table: Table) -> dict[str, str]:
    """Returns the parts of a declaration that decide the rows of the table's streaming query, by name, as text."""
    sources = catalog.sources_of(table)
    code = (
        {"query": " ".join(table.sql.split())}
        if table.sql
        else code_version.written(table.transformation)
    )
    parts = {
        "layer": table.layer,
        "kind": table.kind.name,
        "topics": ", ".join(sorted(source.address for source in sources.values())),
        **{f"schema of {source.address}": source.read_as for source in sources.values()},
        **{f"reader of {s.address}": s.reader_note for s in sources.values()},
        **{f"framing of {s.address}": s.framing for s in sources.values()},
        "history": ", ".join(f"until {text(s.until)}" for s in sources.values() if s.until),
        "input": ", ".join(each.name for each in catalog.followed_inputs(table)),
        "versioned tables": ", ".join(sorted(t.name for t in catalog.versioned_inputs(table))),
        "reads": ", ".join(
            sorted(
                t.name for t in (*catalog.pinned_inputs(table), *catalog.refreshed_inputs(table))
            )
        ),
        "event time": catalog.event_time(table),
        "delay": str(table.delay),
        "marker": table.marker,
        "watermark_by": table.watermark_by,
        "window": str(table.window or ""),
        "keys": ", ".join(table.keys),
        "context": str(table.context or ""),
        "ttl": str(table.ttl or ""),
        "final_rows": str(table.final_rows or ""),
        "duplicates": str(table.deduplicate or ""),
        "lookup": " ".join(map(str, table.lookup.meaning)) if table.lookup else "",
        "partitions": table.partition_by,
    }
    return {name: text for name, text in (parts | dict(code)).items() if text}


def begin(lakehouse: Lakehouse, state: TableState) -> TableState:
    """Keeps the declaration that the table's streaming query begins with, and returns the state with it.

    Raises DeclarationError if the query would continue under an incompatible one.
    """
    table, catalog, note = state.table, lakehouse.catalog, state.note
    now = declaration(catalog, table)
    if note and state.is_bound:
        before = note.declaration
        if changed := _changed(before, now):
            raise DeclarationError(_refusal(catalog, table, changed))
        if any(
            code_version.is_digest(text) and before.get(name) != text for name, text in now.items()
        ):
            return replace(state, note=_keep(lakehouse, table, note.handover))
        return state
    if note and any(_differs(name, note.declaration, now) for name in note.declaration | now):
        # there is no row, but the position and checkpoint are of the former plan
        why = "it is declared otherwise, and had read no row"
        checkpoints.renew(lakehouse.settings, table, why)
        if all(line.role != "batch" for line in lakehouse.commit_log(table).rewriting()):
            layout.note(lakehouse.settings, table, "handover.json").unlink(missing_ok=True)
        _log.info(f"table={table.name}: {why}, so it begins with all that its inputs have")
    last = state.standing.newest
    # the lakehouse is from before declarations were kept, or the file is gone
    if note is None and last and last.code_version != table.code_version:
        path = table_state.note_path(lakehouse.settings, table)
        message = (
            f"table={table.name}, code version={table.code_version}: its last rows were written under "
            f"{last.code_version}, and what that was is not known, for there is no {path}. The query "
            f"goes on, and later changes are noticed; `lakehouse reconcile run {table.name}` finds what differs"
        )
        _log.warning(message)
    _keep(lakehouse, table, None)
    return table_state.read(lakehouse, table)


def keep(lakehouse: Lakehouse, table: Table) -> None:
    """Keeps the present declaration as the one that the table's streaming query begins or continues with."""
    note = table_state.noted(lakehouse.settings, table)
    bound = table_state.binding(lakehouse, table) is not None
    _keep(lakehouse, table, note.handover if note and bound else None)


def _keep(lakehouse: Lakehouse, table: Table, handover: Mapping[str, object] | None) -> BegunWith:
    now = datetime.now(UTC).isoformat()
    note = BegunWith(now, declaration(lakehouse.catalog, table), handover)
    replace_file(table_state.note_path(lakehouse.settings, table), asdict(note))
    return note


def note_handover(settings: Settings, table: Table, handover: Mapping[str, object]) -> None:
    """Keeps the handover at which the table's streaming query begins, beside its declaration: `handover_of` as JSON."""
    if note := table_state.noted(settings, table):
        path = table_state.note_path(settings, table)
        replace_file(path, asdict(note) | {"handover": handover})


def check(lakehouse: Lakehouse, tables: Iterable[Table]) -> None:
    """Raises DeclarationError, a line for each table, if their queries would continue under incompatible declarations."""
    if refused := refusals(lakehouse, tables):
        raise DeclarationError("\n".join(refused))


def refusals(lakehouse: Lakehouse, tables: Iterable[Table]) -> list[str]:
    """Returns why queries of these tables cannot continue: the changes of each, what they mean, and the remedy."""
    by_table = ((table, changes(lakehouse, table)) for table in tables)
    return [_refusal(lakehouse.catalog, table, changed) for table, changed in by_table if changed]


def changes(lakehouse: Lakehouse, table: Table) -> list[Change] | None:
    """Returns the changes of a table's declaration since its stream began; None if it has not, so that any is right."""
    before = table_state.binding(lakehouse, table)
    return None if before is None else _changed(before, declaration(lakehouse.catalog, table))


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    changed = [
        Change(name, before.get(name, ""), now.get(name, ""))
        for name in {**before, **now}
        if _differs(name, before, now)
    ]
    # other topics have another schema, history, reader and framing, too
    of_topics = any(change.what == "topics" for change in changed)
    return [
        each
        for each in changed
        if not (of_topics and each.what in ("schema", "history", "reader", "framing"))
    ]


def accept(lakehouse: Lakehouse, table: Table) -> list[Change]:
    """Lets a table's streaming query continue as it is declared now, if that is possible, and returns the changes.

    The rows that are there stay as they are. Raises DeclarationError if nothing changed, or if it is
    not possible.
    """
    changed = changes(lakehouse, table)
    if not changed:
        raise DeclarationError(
            f"table={table.name}: it is declared as its streaming query began, so there is nothing to accept"
        )
    if not _goes_onward(lakehouse.catalog, table, changed):
        raise DeclarationError(_refusal(lakehouse.catalog, table, changed))
    keep(lakehouse, table)
    return changed


def remarks(lakehouse: Lakehouse, tables: Sequence[Table]) -> list[str]:
    """Returns the warnings of a start of these tables' queries: settings and declarations without effect."""
    pinned = (_pinned(lakehouse, table) for table in tables)
    return [*rules.warnings(lakehouse.catalog, tables), *filter(None, pinned)]


def _pinned(lakehouse: Lakehouse, table: Table) -> str:
    """Returns a warning that a table's state is in another number of partitions than the settings say.

    Returns "" if it is not.
    """
    now = state_partitions.wanted(lakehouse.settings, table)
    then = state_partitions.divided(checkpoint_files.newest(lakehouse.settings, table))
    if then in (None, now):
        return ""
    return (
        f"table={table.name}, shuffle_partitions={now}: its state is in {then} partitions, and Spark keeps to them as long as "
        f"the checkpoint is there, so the setting changes nothing here; set shuffle_partitions to {then} among the "
        f"resources of {table.pipeline}, or, to have {now}, `lakehouse stream rescale {table.pipeline}` divides it again"
    )


def _differs(name: str, kept: Mapping[str, str], now: Mapping[str, str]) -> bool:
    then, present = kept.get(name, ""), now.get(name, "")
    if then and code_version.is_digest(present):  # a note of an earlier version has the value
        then = code_version.digest(name, then)
    return then != present and not (
        name.startswith(("function", "constant")) and code_version.same(then, present)
    )


def _goes_onward(catalog: Catalog, table: Table, changed: Sequence[Change]) -> bool:
    if table.window and not (table.window.short or table.window.kind == "count"):
        return False
    return all(change.what in table.kind.onward for change in changed)


def way(catalog: Catalog, table: Table, changed: Sequence[Change]) -> Way:
    """Returns the way in which a table can become as it is declared now."""
    if _goes_onward(catalog, table, changed):
        return "accept"
    if table.kind.is_upserted and not {change.what for change in changed} & {"layer", "kind"}:
        return "compute whole"
    return "upgrade" if upgradable(catalog, table, changed) else "another name"


def upgradable(catalog: Catalog, table: Table, changed: Sequence[Change]) -> bool:
    """Returns True if the changed table can be filled beside the present one and replace it (`storage.versions.upgrades`)."""
    elsewhere = {change.what for change in changed} & {"layer", "kind", "event"}
    # a second version of a lookup would ask its service for all of the past again
    return table.kind.has_late_rows and not elsewhere and not table.lookup


def _refusal(catalog: Catalog, table: Table, changed: list[Change]) -> str:
    another, upgrade = _ANOTHER, _upgrade(table)
    chosen = way(catalog, table, changed)
    if chosen == "upgrade":
        remedy = f"{upgrade}; or {another}"
    elif chosen == "accept":
        rather = upgrade if upgradable(catalog, table, changed) else another
        remedy = f"`lakehouse table accept {table.name}` has it go on from here, with the rows before as they are; or {rather}"
    elif chosen == "compute whole":
        remedy = f"`lakehouse backfill {table.name}` has its job compute it whole at the next start; or {another}"
    elif table.kind.has_late_rows:
        remedy = f"{another}; `lakehouse bootstrap NAME` fills the new table from the rows that its input has"
    else:
        remedy = f"{another}; a new ingest table reads what it is declared with from the beginning"
    refusal = f"table={table.name}, {'; '.join(map(str, changed))}; {remedy}"
    return "\n  ".join([refusal, *diffs(changed)])


def of_other_columns(lakehouse: Lakehouse, table: Table) -> str:
    """Returns the remedy for a table whose columns on disk cannot become the declared ones."""
    begins = table_state.binding(lakehouse, table) is None
    if begins and not delta_log.files(lakehouse.path(table)):
        return f"it has no row, so `lakehouse stream restart {table.pipeline}` under this code has it begin with these"
    if table.kind.reads_sources:
        return f"{_AS_STORED}; or {_ANOTHER}"
    whether = upgradable(lakehouse.catalog, table, ())
    return f"{_upgrade(table)}; or {_ANOTHER}" if whether else _ANOTHER


def _upgrade(table: Table) -> str:
    return f"`lakehouse upgrade fill {table.name}` fills the changed table beside this one, to be compared and promoted"
