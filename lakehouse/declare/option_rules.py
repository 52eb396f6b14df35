"""The rules of single options: `ttl`, `final_rows`, `lookup`, `refresh`, `publish`, `metrics`; and those of reports."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from lakehouse.declare.inputs.sources import OF_REGISTRY
from lakehouse.declare.windows import Window
from lakehouse.errors import DeclarationError
from lakehouse.ranges import PARTITION_LENGTHS

if TYPE_CHECKING:
    from lakehouse.declare.catalog import Catalog
    from lakehouse.declare.table import Table

SOONEST_REFRESH = timedelta(seconds=1)
_LABEL = re.compile("[a-zA-Z][a-zA-Z0-9_]*")


def check_lasting(table: "Table") -> None:
    where = f"table={table.name}, ttl={table.ttl}"
    if table.context or table.deduplicate:
        raise DeclarationError(
            f"{where}: a table with a lasting state takes no context= or deduplicate=; do these in another table"
        )
    if table.late == "update":
        raise DeclarationError(
            f"{where}, late='update': a late row would change the state that all later rows saw; use late='side_output' or 'drop'"
        )


def check_ttl_inputs(catalog: "Catalog", table: "Table", timed: Sequence[str], where: str) -> None:
    if table.kind.keeps_latest:
        if not timed:
            raise DeclarationError(
                f"{where}, ttl={table.ttl}, inputs={list(table.inputs)}: rows expire by event time, and these tables have none; "
                "declare ttl= on the keyed tables before it"
            )
        return
    if others := [name for name in table.inputs if name not in timed]:
        raise DeclarationError(
            f"{where}, ttl={table.ttl}, input={others[0]}: a state outlives the version of a table that it was computed with; "
            "join the input in a row table before, and read that"
        )
    if len(timed) > 2:
        raise DeclarationError(
            f"{where}, ttl={table.ttl}, inputs={list(timed)}: a process function reads one input, or two (KeyedCoProcess); unite "
            "some of them in a row table, and read that"
        )


def check_final_rows(catalog: "Catalog", table: "Table", timed: Sequence[str], where: str) -> None:
    """Raises DeclarationError where nothing says when a row of an input is final."""
    if not table.final_rows:
        return
    where = f"{where}, final_rows=True"
    for t in catalog.followed_inputs(table):
        if t.name in timed:
            continue
        instead = f"read what {t.name} reads"
        if t.kind.keeps_latest and not timed:
            instead = (
                f"declare it on {t.name} instead: this table is then whole because that one is"
            )
        raise DeclarationError(
            f"{where}, input={t.name}: its rows have no event time, so the frontier does not say which are final; {instead}"
        )


def check_lookup(catalog: "Catalog", table: "Table", where: str) -> None:
    if table.lookup is None:
        return
    several = len(catalog.timed_inputs(table)) > 1
    neighbours = table.context or table.as_of or table.deduplicate or table.ttl
    if several or neighbours or catalog.refreshed_inputs(table):
        raise DeclarationError(
            f"{where}, lookup={table.lookup.name}: a service is asked for rows of one input with event time, without context=, "
            "deduplicate=, ttl=, versioned and refreshed tables; declare it on such a row table, and read that"
        )


def check_refreshed(catalog: "Catalog", table: "Table", where: str) -> None:
    """Raises DeclarationError where the version of a refreshed reference table that a row saw would be undefined."""
    kind = table.kind
    if table.refresh and table.refresh < SOONEST_REFRESH:
        raise DeclarationError(
            f"{where}, refresh={table.refresh}: at least {SOONEST_REFRESH}; raise it"
        )
    read = [t for t in catalog.input_tables(table) if t.refresh]
    whole = kind.is_reference or kind.keeps_latest  # computed with one version of each input
    if not read or whole:
        return
    name = read[0].name
    saw = f"{where}, input={name}, refresh={read[0].refresh}: each row sees the version in force when it arrived"
    if not kind.is_row_by_row or table.context or len(catalog.ingest_tables_of(table)) > 1:
        several = "a table whose rows are made of several rows"
        what = several if kind.is_row_by_row else f"a {kind} table"
        raise DeclarationError(
            f"{saw}, and this is {what}; join {name} in a row table of one input before it, and read that"
        )
    if catalog.has_no_order(table):
        raise DeclarationError(
            f"{saw}, and results of windows have no arrival; join {name} in a row table before the window"
        )


def check_report(catalog: "Catalog", table: "Table") -> None:
    where = f"table={table.name}"
    inputs = catalog.input_tables(table)
    if ingests := [t.name for t in inputs if t.kind.reads_sources]:
        raise DeclarationError(
            f"{where}, input={ingests[0]}: late rows may come at any time, so it never closes; declare a row table, and read that"
        )
    if not any(t.kind.has_late_rows for t in inputs):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: a report waits until they close, and none of these does; read a row or window table"
        )
    length = PARTITION_LENGTHS[table.partition_by]
    timed = catalog.timed_inputs(table)
    if longer := [t.name for t in timed if PARTITION_LENGTHS[t.partition_by] > length]:
        raise DeclarationError(
            f"{where}, partition_by={table.partition_by!r}, input={longer[0]}: its days close whole; declare partition_by='day'"
        )
    if not any(t.kind.is_streamed for t in catalog if t.pipeline == table.pipeline):
        raise DeclarationError(
            f"{where}, pipeline={table.pipeline!r}: its module has reports only, and no stream; declare it in an input's module"
        )


def check_targets(catalog: "Catalog", table: "Table", where: str) -> None:
    """Raises DeclarationError for a target in which rows would replace each other, or that is read to compute the table."""
    identity = set(table.keys) if table.kind.is_upserted or table.window else set()
    identity |= {"valid_from"} if table.kind.keeps_versions else set()
    identity |= {"window"} if table.window else set()
    read = catalog.topics(catalog.ingest_tables_of(table))
    for target in table.publish:
        if target.real_time and (why := _not_of_one_record(catalog, table)):
            raise DeclarationError(
                f"{where}, target={target.name}, latency='real-time': each of its rows must be made of one record of a topic, "
                f"and {why}; leave latency= out"
            )
        if missing := sorted(identity - set(target.key)):
            raise DeclarationError(
                f"{where}, target={target.name}, key={list(target.key)}: it holds one row for each key, and a row is known by "
                f"{', '.join(sorted(identity))}; add {missing[0]} to the key"
            )
        if target.name in read:
            raise DeclarationError(
                f"{where}, target={target.name}: the table reads that topic, so it would read what it publishes; name another"
            )


def _not_of_one_record(catalog: "Catalog", table: "Table") -> str:
    """Returns why a row of the table is not made of one record of a topic alone; empty if each is."""
    name = table.name
    if table.kind.reads_sources:
        for source in catalog.sources_of(table).values():
            if source.address not in catalog.topics([table]):
                return f"{name} reads {source.label}"
            registered = {source.format, source.key_format} & {*OF_REGISTRY}
            if source.keys or registered:
                return f"{source.label} has format={min(registered, default=source.format)!r}"
        return ""
    if not table.kind.is_row_by_row:
        return f"{name} is a {table.kind} table"
    by_others = {
        "context": table.context,
        "deduplicate": table.deduplicate,
        "lookup": table.lookup,
        "ttl": table.ttl,
        "as-of join": table.as_of,
        "refreshed reference table": catalog.refreshed_inputs(table),
        "second input with event time": len(catalog.timed_inputs(table)) > 1,
    }
    if having := next((option for option, has in by_others.items() if has), ""):
        return f"{name} has a {having}"
    return _not_of_one_record(catalog, catalog.driving(table))


def check_metrics(metrics: Sequence[str], window: Window, keys: Sequence[str]) -> None:
    if not metrics:
        return
    if not window.regular:
        raise DeclarationError(
            f"metrics={list(metrics)}, window={window}: only windows of fixed size close for all keys; use tumbling or sliding"
        )
    if unusable := [name for name in (*metrics, *keys) if not _LABEL.fullmatch(name)]:
        raise DeclarationError(
            f"metrics={list(metrics)}, column={unusable[0]!r}: letters, digits and '_', a letter first; rename it"
        )
