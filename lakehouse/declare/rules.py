"""The rules that follow from the declarations alone: names, expectations, inputs, policies."""

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from lakehouse.declare import expectation_names, option_rules
from lakehouse.declare.columns import INGESTION
from lakehouse.declare.inputs import source_checks
from lakehouse.declare.modules import pipeline_of
from lakehouse.declare.remarks import check_all
from lakehouse.declare.table import Table
from lakehouse.declare.targets import Target
from lakehouse.errors import DeclarationError
from lakehouse.paths import check_length, is_name
from lakehouse.settings import SOONEST_STALE

if TYPE_CHECKING:
    from lakehouse.declare.catalog import Catalog

_OF_MANY_ROWS = {  # values without effect, and why no other value can be honoured
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
    """Raises DeclarationError for tables, targets and expectations whose names are wrong."""
    check_all(
        lambda: _check_names(modules, tables),
        lambda: _check_target_names(tables),
        *(partial(_check_expectations, table) for table in tables.values()),
    )


def _check_names(modules: Sequence[ModuleType], tables: Mapping[str, Table]) -> None:
    """Raises DeclarationError for a table that is in no variable of its own name, and for a module without tables.

    Tables are found by such a variable. A decorated function always has one; a table of `sql(...)` may not.
    """
    for module in modules:
        for variable, table in vars(module).items():
            if not isinstance(table, Table):
                continue
            check_length("table", table.name)
            namesake = tables.get(table.name)
            if namesake is None or namesake.transformation is not table.transformation:
                raise DeclarationError(
                    f"table={table.name!r}, variable={variable!r} of {module.__name__}: a table is found by a variable of "
                    f"its own name; write {table.name} = ..., or rename the table"
                )
        pipeline = pipeline_of(module.__name__)
        check_length("pipeline", pipeline)
        if not any(table.pipeline == pipeline for table in tables.values()):
            raise DeclarationError(
                f"tables={module.__name__!r}: it declares no table; add one, for example with @ingest_table, or leave it out"
            )


def _check_target_names(tables: Mapping[str, Table]) -> None:
    """Raises DeclarationError for a target of two tables, and for two targets of one place."""
    table_of: dict[str, str] = {}
    for table in tables.values():
        for target in table.publish:
            owner = table_of.setdefault(target.name, table.name)
            if owner != table.name or [t.name for t in table.publish].count(target.name) > 1:
                raise DeclarationError(
                    f"table={table.name}, target={target.name!r}: {owner} is published there, too; name another, or unite both"
                )
            if not is_name(target.name):
                raise DeclarationError(
                    f"table={table.name}, target={target.name!r}: a name of files has no '/'; choose another name"
                )
            check_length("target", target.name)
    placed: list[tuple[Table, Target]] = []
    for table in tables.values():
        for target in filter(lambda t: t.place, table.publish):
            for before, other in placed:
                if target.place.startswith(other.place) or other.place.startswith(target.place):
                    raise DeclarationError(
                        f"table={table.name}, target={target.name!r}: the target {other.name!r} of {before.name} writes to "
                        "the same place, or one lies in the other; give each its own"
                    )
            placed.append((table, target))


def _check_expectations(table: Table) -> None:
    """Raises DeclarationError for an expectation that Great Expectations does not have, without its import, which takes seconds.

    Where it is imported already, the user may have defined one; `quality` looks for those when they are used.
    """
    signatures = expectation_names.signatures()
    named = signatures.keys() | expectation_names.not_judged().keys()
    unknown = [e.type for e in table.expectations if e.type not in named]
    if unknown and "great_expectations" not in sys.modules:
        near = get_close_matches(unknown[0], signatures, 1)
        raise DeclarationError(
            f"table={table.name}, expectation={unknown[0]!r}: Great Expectations has none of that name"
            + (f"; did you mean {near[0]}?" if near else "; see its gallery for the names")
        )


def check_single_rows(table: Table) -> None:
    """Raises DeclarationError for an argument about many rows where rows are judged one by one."""
    for expectation in table.expectations:
        signature = expectation_names.signatures().get(expectation.type)
        if not signature or not signature.by_row:
            continue
        for argument, (nothing, why) in _OF_MANY_ROWS.items():
            value = expectation.kwargs.get(argument)
            if value not in nothing:
                raise DeclarationError(
                    f"table={table.name}, expectation={expectation.type}, {argument}={value!r}: {why}"
                )


def warnings(catalog: "Catalog", tables: Sequence[Table]) -> list[str]:
    """Returns warnings of declarations that are allowed but have no effect."""
    lines = []
    for table in tables:
        before = withholding(catalog, table) if table.late == "update" else None
        if before is None:
            continue
        kept_out = f"after the {before.partition_by} of their event time"
        if before.by_neighbours:
            kept_out = "behind the watermark"
        lines.append(
            f"table={table.name}, late='update': rows that arrive {kept_out} never reach it, because {before.name} "
            f"(late={before.late!r}) keeps them out; declare late='update' on {before.name} as well"
        )
    return lines


def withholding(catalog: "Catalog", table: Table) -> Table | None:
    """Returns the nearest upstream table that keeps late rows out. An ingest table keeps every row."""
    for before in catalog.timed_inputs(table):
        if not before.kind.is_derived:
            continue
        if before.late != "update":
            return before
        if nearest := withholding(catalog, before):
            return nearest
    return None


def check_table(catalog: "Catalog", table: Table) -> None:
    """Raises DeclarationError for a table whose options do not fit its kind and inputs."""
    where = f"table={table.name}"
    driving = [t.name for t in catalog.timed_inputs(table)]
    if reports := [t.name for t in catalog.input_tables(table) if t.report]:
        raise DeclarationError(
            f"{where}, input={reports[0]}: no table reads a report; read what it reads"
        )
    checks: list[tuple[object, Callable[[], None]]] = [
        (table.report, partial(option_rules.check_report, catalog, table)),
        (True, partial(_check_inputs, catalog, table, driving, where)),
        (table.kind.is_upserted, partial(_check_upserted, catalog, table, driving)),
        (table.as_of, partial(_check_as_of, table, where)),
        (True, partial(option_rules.check_targets, catalog, table, where)),
        (table.kind.reads_sources, partial(_check_ingest, catalog, table, where)),
        (table.kind.is_row_by_row, partial(_check_row_by_row, table, where)),
        (not table.report, partial(_check_no_order, catalog, table, driving, where)),
        (table.ttl, partial(option_rules.check_ttl_inputs, catalog, table, driving, where)),
        (True, partial(option_rules.check_final_rows, catalog, table, driving, where)),
        (True, partial(option_rules.check_lookup, catalog, table, where)),
        (True, partial(option_rules.check_refreshed, catalog, table, where)),
        # upserted tables keep every row, and are judged as a whole
        (not table.kind.is_upserted, partial(check_single_rows, table)),
        (True, partial(_check_values, table, where)),
    ]
    check_all(*(check for applies, check in checks if applies))


def _check_values(table: Table, where: str) -> None:
    for name in ("event_time", "marker", "watermark_by"):
        column = getattr(table, name)
        if "." in column:
            raise DeclarationError(
                f"{where}, {name}={column!r}: a name with a dot is a field of a struct here; have the function rename it"
            )
    if table.stale_after and table.stale_after < SOONEST_STALE:
        raise DeclarationError(
            f"{where}, stale_after={table.stale_after}: at least {SOONEST_STALE}; raise it or remove it"
        )


def _check_inputs(catalog: "Catalog", table: Table, driving: Sequence[str], where: str) -> None:
    """Raises DeclarationError for inputs that the table's kind cannot read, with the kind that reads them."""
    kind = table.kind
    sources = [n for n in table.inputs if n in catalog.sources_of(table)]
    read_files = list(catalog.files_of(table))
    if sources and not kind.reads_sources:
        raise DeclarationError(
            f"{where}, input={sources[0]}: a {kind} table reads tables; declare an @ingest_table of {sources[0]}, and read that"
        )
    if kind.reads_sources and len(sources) < len(table.inputs):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: an ingest table reads topics only, or one folder, or one Delta or Iceberg table of "
            "others, or one source of your own; join other inputs in a table that reads it"
        )
    if read_files and not kind.is_reference:
        raise DeclarationError(
            f"{where}, input={read_files[0]}: a reference table alone reads files; declare one and read that"
        )
    if kind.is_reference and driving:
        raise DeclarationError(
            f"{where}, input={driving[0]}: it has event time, and a reference table is computed whole; declare a @row_table, "
            "@window_table or @keyed_table"
        )
    if (kind.is_row_by_row or kind.is_windowed) and not driving:
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: a {kind} table needs an input with event time; read one, or use a @reference_table"
        )


def _check_ingest(catalog: "Catalog", table: Table, where: str) -> None:
    topics = catalog.topics_of(table)
    sources = {n: s for n, s in catalog.sources_of(table).items() if not s.is_history}
    if len(topics) < len(sources) and len(sources) > 1:
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: an ingest table reads topics, or one folder, or one Delta or Iceberg table of "
            "others, or one source of your own; declare an ingest table for each, and unite them by unionByName"
        )
    if len({source.address for source in topics.values()}) < len(topics):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: two of them are one topic, so each row would be there twice; name it once"
        )
    if len({bool(source.keys) for source in topics.values()}) > 1:
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: changes of a database follow the order of its log, and other messages have no "
            "place in it; read them by an ingest table of their own"
        )
    source_checks.check_history(table, topics)
    if len({source.isolation for source in topics.values()}) > 1:
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: its topics are read by one consumer, so with one isolation; give all the same"
        )
    for name in ("marker", "watermark_by"):
        if getattr(table, name) and table.event_time == INGESTION:
            raise DeclarationError(
                f"{where}, {name}={getattr(table, name)!r}: it says which rows move event time, and {INGESTION!r} moves by "
                "itself; name a column of event time, or remove the option"
            )


def _check_no_order(catalog: "Catalog", table: Table, driving: Sequence[str], where: str) -> None:
    """Raises DeclarationError for options that need an order of arrival, where rows of windows or several inputs have none."""
    if not catalog.has_no_order(table):
        return
    counts = table.window if table.window and table.window.kind == "count" else None
    for name, value in {"deduplicate": table.deduplicate, "window": counts}.items():
        if value:
            raise DeclarationError(
                f"{where}, {name}={value}, inputs={list(driving)}: it is decided by the order in which rows arrived, and rows of "
                "several inputs or windows have none; declare it on a table of one input before them"
            )
    if len(driving) > 1 and (table.early_results or table.as_of) and not table.kind.is_upserted:
        early = f"early_results={table.early_results}"
        what = early if table.early_results else "a versioned table"
        raise DeclarationError(
            f"{where}, {what}, inputs={list(driving)}: it follows one input with event time; declare it on a table of one input"
        )


def _check_row_by_row(table: Table, where: str) -> None:
    if table.deduplicate and table.late == "update":
        raise DeclarationError(
            f"{where}, deduplicate, late='update': a merged late row may precede its duplicate; use late='side_output' or 'drop'"
        )
    if table.context and table.deduplicate:
        raise DeclarationError(
            f"{where}, context={table.context}: it is for tables without deduplicate=; deduplicate in a table that this one reads"
        )
    if table.ttl:
        option_rules.check_lasting(table)


def _check_upserted(catalog: "Catalog", table: Table, driving: Sequence[str]) -> None:
    where = f"table={table.name}"
    if not table.keys:
        raise DeclarationError(
            f"{where}, keys=[]: a {table.kind} table needs a key; name the columns that identify a row, or, for a single row, "
            "group by a constant: groupBy(F.lit('all').alias('of')) and keys=['of']"
        )
    if table.kind.keeps_latest and not catalog.followed_inputs(table):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: it is kept up to date from tables that streams fill, and these are none; declare a "
            "@reference_table"
        )
    if table.kind.keeps_versions and (
        len(driving) != 1 or not catalog.tables[driving[0]].kind.reads_sources
    ):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: it is computed from every row of one ingest table; read that alone"
        )


def _check_as_of(table: Table, where: str) -> None:
    if table.kind.keeps_latest:
        return  # a keyed table follows the versions
    if not table.kind.is_row_by_row or table.context or table.deduplicate:
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: a versioned table is read row by row, as of each row's event time; do that in a "
            "row table without context= and deduplicate=, and read that"
        )
