"""The commands that read a lakehouse, and `accept`.

Only `late` and `state` need a JVM.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson
from lakehouse.errors import RangeError, SettingsError

if TYPE_CHECKING:
    from lakehouse.cli.query import Answer
    from lakehouse.declare.table import Table
    from lakehouse.storage.lakehouse import Lakehouse

TableName = Annotated[
    str, typer.Argument(help="A table's name, as `lakehouse table list` shows it")
]
Limit = Annotated[int, typer.Option(min=0, help="Show at most this many rows; 0 for all")]
_CELL = 200  # characters of a value that a table on the screen shows; JSON has the whole value


def tables(as_json: AsJson = False) -> None:
    """List every table with its rows, version, frontier, late and quarantined rows, and verdict.

    Late and quarantined rows are counted from the beginning of the table. The verdict is the
    gravest of the last verdicts of all its ranges: EQUAL only if no range has another.
    """
    from lakehouse.cli.table_status import overview

    lakehouse = opening.lakehouse()
    states = [asdict(state) for state in overview(lakehouse)]
    shown = [{k: state[k] for k in state if k not in ("why", "waits")} for state in states]
    console.print_records(states if as_json else shown, as_json)
    _note_states(states)
    _remark(lakehouse, list(lakehouse.catalog))
    _note_lost(lakehouse)


def show(table: TableName, as_json: AsJson = False) -> None:
    """Show one table: its declaration, columns, state and last certificate."""
    lakehouse = opening.lakehouse()
    _table(lakehouse, table, as_json)
    _remark(lakehouse, [lakehouse.catalog.table(table)])
    _note_lost(lakehouse, table)


def _remark(lakehouse: "Lakehouse", tables: "list[Table]") -> None:
    """Prints, beside the result, the declarations that have no effect, and those that a start would refuse."""
    from lakehouse.declare import rules
    from lakehouse.storage.position import declared_state

    for line in rules.warnings(lakehouse.catalog, tables):
        console.print_note(f"warning: {line}")
    for line in declared_state.refusals(lakehouse, tables):
        console.print_error(line)


def accept(table: TableName) -> None:
    """Let a table continue as it is declared now; its rows so far stay as they are.

    Use it after the function of a table, or the delay of an ingest table, was changed. The change
    is refused if one table cannot hold rows of both declarations. Exit code 2 when refused.
    """
    from lakehouse.storage.position import declared_state

    lakehouse = opening.lakehouse()
    for change in declared_state.accept(lakehouse, lakehouse.catalog.table(table)):
        console.print_text(f"{table} continues, though {change}")
        for line in change.diff:
            console.print_text(f"  {line}")


def _note_lost(lakehouse: "Lakehouse", name: str = "") -> None:
    from lakehouse.cli.table_status import lost_quarantines

    for table, rows in lost_quarantines(lakehouse, refreshed=True).items():
        if name in ("", table):
            console.print_note(
                f"table={table}: {rows:,} quarantined rows are gone, because its quarantine was removed; restore it from a copy"
            )


def _note_states(states: list[dict]) -> None:
    """Prints the verdicts that no longer hold, and then the tables that wait."""
    for state in states:
        if state["why"]:
            remedy = f"`lakehouse reconcile run {state['table']}` reconciles them again"
            console.print_note(
                f"table={state['table']}, verdict={state['verdict']}: {state['why']}; {remedy}"
            )
    for state in states:
        if state["waits"] and state["version"] is not None:
            console.print_note(f"table={state['table']}: {state['waits']}")


def _table(lakehouse: "Lakehouse", name: str, as_json: bool) -> None:
    from lakehouse.cli import table_status
    from lakehouse.storage.log import certificates

    table = lakehouse.catalog.table(name)
    declared = table_status.declaration(lakehouse.catalog, table)
    columns = table_status.columns(lakehouse.settings, table)
    state = next(asdict(s) for s in table_status.overview(lakehouse) if s.table == name)
    reads = table_status.reads(lakehouse, table)
    steps = table_status.steps(lakehouse.settings, table)
    beside = table_status.beside(lakehouse, table)
    certified = [*certificates.certificates(lakehouse.settings, table)]
    certificate = asdict(certified[-1]) if certified else None
    if as_json:
        facts = {
            "description": table.description,
            "declaration": declared,
            "columns": columns,
            "state": state,
            "reads": {name: asdict(version) for name, version in reads.items()},
            "steps": steps,
            "beside": beside and asdict(beside),
            "certificate": certificate,
        }
        console.print_json([facts])
        return
    console.print_text(f"\n{name}\n{table.description}\n")
    listed = {key: "\n".join(v) if isinstance(v, list) else v for key, v in declared.items()}
    console.print_facts(listed)
    console.print_rows(("column", "type"), columns.items())
    names = ("rows", "version", "frontier", "late", "quarantined", "verdict")
    stands = {key: state[key] for key in names}
    last = None
    if certificate:
        span = {end: certificate[end] for end in ("start", "end")}
        last = f"{certificate['verdict']} {console.shown(span)}"
    seen = {f"reads {read}" if read != name else "in use": str(v) for read, v in reads.items()}
    if table.kind.is_streamed:
        ways = "\n".join(f"{name}: {how}" for name, how in steps.items())
        seen["small steps"] = ways or "unknown until its job runs"
    seen |= {"version beside": str(beside)} if beside else {}
    console.print_facts(stands | seen | {"last certificate": last})
    _note_states([state])


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT")],
    limit: Limit = 50,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Run the query in Spark; a query of a late view always does"),
    ] = False,
    as_of: Annotated[
        str,
        typer.Option(
            metavar="INSTANT|VERSION",
            help="Read tables as they were then; a version, if it is one table",
        ),
    ] = "",
    file_format: Annotated[
        Literal["csv", "parquet"] | None,
        typer.Option("--format", help="Write a file of that format to standard output"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Query all tables in SQL.

    The query can name tables, TABLE__quarantine, TABLE__early, TABLE__late, TABLE__beside (the
    version beside a table), and the log tables _commits and _certificates. Of a table, * stands for its
    own columns; name _arrival or another column of the library to see it.
    """
    from lakehouse.cli import query as engine
    from lakehouse.cli import row_files

    if file_format and as_json:
        raise SettingsError(
            f"format={file_format}, json=True: each is a form of the output; leave one out"
        )
    if file_format == "parquet":
        row_files.check_no_terminal()
    lakehouse = opening.lakehouse()
    convert: Callable = engine.as_arrow if file_format == "parquet" else engine.as_answer
    if spark or engine.named(sql, engine.late_views(lakehouse.catalog)):
        result = _in_spark(lakehouse, sql, limit, as_of, convert)
    else:
        result = engine.select(lakehouse, sql, limit or None, as_of, convert)
    if file_format == "parquet":
        row_files.write_parquet(result.slice(0, limit or len(result)))
        _note_more(bool(limit) and len(result) > limit, limit)
    elif file_format == "csv":
        row_files.write_csv(result.columns, result.rows)
        _note_more(result.more, limit)
    else:
        _print(result, as_json)


def get(
    table: TableName,
    key: Annotated[
        list[str], typer.Argument(help="The key's values, in the order of the declared keys")
    ],
    as_json: AsJson = False,
) -> None:
    """Show the row of a key of a keyed table, or all versions of a key of a versioned table. Needs no scan."""
    from lakehouse.cli.query import Answer
    from lakehouse.storage.keyed import point_reads

    lakehouse = opening.lakehouse()
    chosen = lakehouse.catalog.table(table)
    keys = chosen.keys if chosen.kind.is_upserted else ()
    rows = point_reads.get(lakehouse.path(chosen), keys, *key)
    if not rows:
        shown = ", ".join(f"{name}={value}" for name, value in zip(chosen.keys, key, strict=True))
        raise RangeError(
            f"table={table}, {shown}: no row has this key now; look for other keys with `lakehouse query`"
        )
    _print(Answer(tuple(rows[0]), [tuple(row.values()) for row in rows], False), as_json)


def quarantine(
    table: TableName,
    limit: Limit = 20,
    reason: Annotated[str, typer.Option(help="Only rows whose reason contains this text")] = "",
    as_json: AsJson = False,
) -> None:
    """Show quarantined rows: how many for each reason, then the newest.

    Each row has its offset, or its file and line, its time of arrival and its value.
    """
    from lakehouse.cli import table_status

    lakehouse = opening.lakehouse()
    if not (chosen := lakehouse.catalog.table(table)).kind.has_partitions:
        raise RangeError(
            f"table={table}: a {chosen.kind} table quarantines no rows; name an ingest, row or window table"
        )
    _note_lost(lakehouse, table)
    if not as_json:
        counts = table_status.quarantine_reasons(lakehouse, chosen, reason)
        if reason and not counts.rows:
            console.print_note(f"reason={reason!r}: no quarantined row has a reason with that text")
        console.print_rows(counts.columns, counts.rows)
    _print(table_status.quarantined(lakehouse, chosen, reason, limit), as_json)


def late(table: TableName, limit: Limit = 20, as_json: AsJson = False) -> None:
    """Show the rows that came after their window or partition had closed, the newest first.

    Starts Spark if there are any.
    """
    from lakehouse.cli import query as engine
    from lakehouse.cli.table_status import late_counts
    from lakehouse.storage.position.handovers import handover_of

    lakehouse = opening.lakehouse()
    view = f"{lakehouse.catalog.table(table).name}__late"
    if view not in engine.late_views(lakehouse.catalog):
        raise RangeError(
            f"table={table}: `lakehouse table list` counts its late rows, if it has any; name a row or window table"
        )
    if handover_of(lakehouse.settings, lakehouse.catalog.table(table)) is None:
        counts = late_counts(lakehouse)
        if not counts.get(table):  # no stream has counted the late rows from before a handover
            console.print_note(
                f"table={table}: no row came too late for it{_late_before(lakehouse, table, counts)}"
            )
            return
    arrival = "_arrival.watermark, _arrival.partition, _arrival.offset, _arrival.time AS arrived"
    columns = f"* EXCEPT (_arrival, _origin, _partition), {arrival}"
    newest = f"SELECT {columns} FROM {view} ORDER BY _arrival.time DESC, _arrival.partition, _arrival.offset DESC"
    _print(_in_spark(lakehouse, newest, limit), as_json)


def _late_before(lakehouse: "Lakehouse", table: str, counts: dict[str, int]) -> str:
    """Returns, for each table with late rows that `table` is computed from, their number and the command that shows them."""
    catalog = lakehouse.catalog
    before = (t.name for t in catalog if counts.get(t.name) and table in catalog.downstream(t))
    return "".join(
        f"; {counts[name]:,} came too late for {name}, from which it is computed: `lakehouse table late {name}` shows them"
        for name in before
    )


def lateness(table: TableName, as_json: AsJson = False) -> None:
    """Show how late rows come, and what another delay would cost.

    For each delay the report shows how many rows it would call late at most, and how long results
    would wait. Each row is compared with the rows before it in its partition of the topic, however
    micro-batches were cut.
    """
    from lakehouse.cli.lateness_report import histogram

    lakehouse = opening.lakehouse()
    ingest, buckets = histogram(lakehouse, lakehouse.catalog.table(table))
    if as_json:
        console.print_json([asdict(b) | {"behind": b.behind.total_seconds()} for b in buckets])
        return
    console.print_columns(
        buckets,
        {
            "delay: results wait": lambda b: f"{b.behind}",
            "rows this far behind": lambda b: b.rows,
            "rows late with this delay, at most": lambda b: b.late,
            "share late": lambda b: f"{b.share:.4%}",
            "": lambda b: "declared" if b.declared else "",
        },
        title=f"{ingest.name}, delay {ingest.delay}",
    )
    console.print_text(
        "The numbers are upper bounds, as if each row were a micro-batch of its own. Fewer rows are late where "
        "micro-batches hold many rows, or where a partition of the topic lags behind the others."
    )


def state(
    table: TableName,
    key: Annotated[
        list[str] | None, typer.Option(help="Only this key: column=value, once for each column")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show the state that a table's streaming query keeps between micro-batches, by key. Starts Spark.

    The command works while the job runs and when it is stopped.
    """
    from lakehouse.cli import query as engine
    from lakehouse.stream.state_reader import state as kept

    lakehouse = opening.lakehouse()
    declared = lakehouse.catalog.table(table)  # an unknown name is refused before a JVM starts
    pairs = [given.partition("=") for given in key or []]
    if unusable := next((name for name, equals, _ in pairs if not equals), None):
        raise RangeError(f"key={unusable!r}: a column and its value; write column=value")
    with (
        opening.session(lakehouse, f"state {table}") as session,
        console.working(f"reading the state of {table}"),
    ):
        asked = {name: value for name, _, value in pairs}
        answer = engine.answer(kept(session, declared, asked), limit or None)
    _print(answer, as_json)


def _in_spark(
    lakehouse: "Lakehouse", sql: str, limit: int, as_of: str = "", convert: Callable | None = None
) -> Any:
    from lakehouse.cli import query as engine

    with opening.session(lakehouse, "query") as session, console.working("running the query"):
        rows_as = convert or engine.as_answer
        return engine.select_in_spark(session, sql, limit or None, as_of, rows_as)


def _print(answer: "Answer", as_json: bool) -> None:
    if as_json:
        console.print_json(answer.records())
    else:
        console.print_rows(answer.columns, ([_cut(value) for value in row] for row in answer.rows))
    _note_more(answer.more, len(answer.rows))


def _note_more(more: bool, limit: int) -> None:
    if more:
        console.print_note(f"the first {limit} rows; --limit 0 shows all")


def _cut(value: object) -> object:
    text = console.shown(value) if isinstance(value, str | bytes) else ""
    return f"{text[: _CELL - 1]}…" if len(text) > _CELL else value
