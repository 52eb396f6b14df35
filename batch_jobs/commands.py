"""The commands of batch jobs in the `lakehouse` command line.

Those of the reconciliation are in `reconcile_commands`.
"""

from typing import Annotated, Literal

import typer

from batch_jobs import reconcile_commands, upgrade_commands, views
from batch_jobs.arguments import DryRun, End, Name, Start, asked
from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson
from lakehouse.errors import RangeError

tables = console.group("Tables: what they hold, what was quarantined or late.")
groups = {"reconcile": reconcile_commands.group, "table": tables, "upgrade": upgrade_commands.group}
app = console.group(groups=groups)

_Ingest = Annotated[str, typer.Argument(metavar="TABLE", help="An ingest table: it reads a topic")]


@app.command()
def backfill(
    table: Name,
    start: Start = None,
    end: End = None,
    dry_run: DryRun = False,
    cascade: Annotated[
        bool,
        typer.Option(
            "--cascade", help="Also compute again what changes in the tables that read it"
        ),
    ] = False,
    all_or_nothing: Annotated[
        bool, typer.Option("--all-or-nothing", help="Publish all partitions in one commit")
    ] = False,
    ask_again: Annotated[
        Literal["failed", "all"] | None,
        typer.Option(
            help="Of a table with a lookup: ask its service again for rows whose lookup had failed, or for all, and record the "
            "new answers"
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Also compute partitions that are unchanged since they were reconciled"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a closed range of a table hold its batch run, one commit per partition.

    The command runs beside the stream. The range consists of whole partitions behind the table's
    frontier. Partitions that have these rows already stay as they are. One that is unchanged since
    it was reconciled is not computed. A killed backfill continues when it is run again. A table
    without event time is rebuilt whole, without a range; a keyed or versioned table is rebuilt by
    its own job. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import backfill as job

    lakehouse, first, last = asked(start, end)
    # a range is refused before a JVM starts: planning reads logs only
    ask = ask_again or "missing"
    planned = job.plan(lakehouse, table, first, last, whole=all_or_nothing, ask=ask, again=again)
    if lakehouse.catalog.table(table).kind.is_upserted:
        if not dry_run:
            job.renew(lakehouse, table)
        views.show_renewed(table, dry_run, as_json)
        return
    if dry_run:
        views.show_plan(table, planned, as_json)
        return
    total = len(planned.partitions) - len(planned.done) if planned and not all_or_nothing else 1
    commits = []
    with (
        opening.session(lakehouse, f"backfill {table}") as session,
        console.counting(f"backfill {table}", total) as done,
    ):
        runs = (
            job.run(session, planned, cascade=cascade, ask=ask, again=again)
            if planned
            else job.rebuild(session, table)
        )
        for commit in runs:
            commits.append(commit)
            done(commit.written)
    pending = job.pending(lakehouse, planned) if planned else {}
    views.show_backfill(table, planned, commits, pending, as_json)


@app.command()
def bootstrap(table: Name, as_json: AsJson = False) -> None:
    """Begin a new table over existing history: a batch run up to the handover, then the stream.

    The handover is a frontier of the input, and the stream begins exactly there. Run the command
    before the table's streaming job runs with it. If the input's log was cut, the job sets the
    handover itself, and the command may run beside it. A killed command continues when it is run
    again. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import backfill as job
    from lakehouse.storage.position.handovers import handover_of

    lakehouse = opening.lakehouse()
    lakehouse.catalog.check_streamed(lakehouse.catalog.table(table))  # refused before a JVM starts
    commits = []
    with opening.session(lakehouse, f"handover {table}") as session:
        with console.working(f"looking where {table} is to begin"):
            planned = job.begin(session, table)
        if planned:
            left = len(planned.partitions) - len(planned.done)
            with console.counting(f"history of {table}", left) as done:
                for commit in job.run(session, planned):
                    commits.append(commit)
                    done(commit.written)
    handover = handover_of(lakehouse.settings, lakehouse.catalog.table(table))
    assert handover is not None  # the plan has set it
    views.show_handover(handover, planned, commits, as_json)


@app.command()
def update(
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="One table; by default all with late='update'"),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Merge late rows into the closed partitions of tables declared late="update".

    The windows that late rows missed are computed again, many partitions in one commit, beside the
    stream. A partition that is still open waits until it closes. Exit code 0 when done, 2 when
    refused.
    """
    from batch_jobs import update as job

    lakehouse = opening.lakehouse()
    dirty = job.waiting(lakehouse, table)
    for line in job.withheld(lakehouse, table):
        console.print_note(line)
    if dry_run:
        views.show_waiting(dirty, as_json)
        return
    commits = []
    # else there is nothing to start Spark for
    if any(d.closed for dirt in dirty.values() for d in dirt):
        computing = console.working(f"computing what late rows missed in {', '.join(dirty)}")
        with opening.session(lakehouse, "update") as session, computing as now:
            for commit in job.run(session, table):
                commits.append(commit)
                now(f"rewrote {commit.table} {views.range_of(commit)}")
    views.show_updates(commits, as_json)


@app.command()
def erase(
    table: _Ingest,
    where: Annotated[
        str, typer.Option(help="Which rows: a condition on the table's columns, in Spark's SQL")
    ],
    dry_run: DryRun = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before erasing; needed in a script")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove rows for good: from an ingest table, its quarantine, what was computed from them, and old versions.

    The command shows what would go and asks, unless --yes is given. It erases only what is closed,
    beside the streams. Exit code 0 when done, 1 when the answer is no, 2 when refused.
    """
    from lakehouse.maintenance import erasure as job
    from lakehouse.storage.versions import savepoints, upgrades

    lakehouse = opening.lakehouse()
    ingest = lakehouse.catalog.table(table)  # an unknown name is refused before a JVM starts
    if as_json and not (dry_run or yes):
        raise RangeError(
            f"table={table}, where={where!r}: erased rows cannot be brought back, so the command asks first, and --json "
            "cannot ask; look with --dry-run, then add --yes"
        )
    with opening.session(lakehouse, f"erase {table}") as session:
        with console.working(f"looking for the rows in {table} and what was computed from them"):
            run = job.erase if yes and not dry_run else job.planned
            erasure = run(session, ingest, where)
        views.show_erasure(erasure, as_json)
        if names := [savepoint.name for savepoint in savepoints.savepoints(lakehouse.settings)]:
            console.print_note(
                f"savepoints={', '.join(names)}: they hold the tables as they were, with these rows; "
                "`lakehouse savepoint drop` removes one"
            )
        if names := list(upgrades.of_all(lakehouse)):
            console.print_note(
                f"tables={', '.join(names)}: the version beside each holds rows as they were, with these; "
                "`lakehouse upgrade drop` removes it"
            )
        if dry_run:
            console.print_note("nothing was changed")
        elif not yes and (erasure.arrivals or erasure.follow):
            if not typer.confirm("Erase this for good? It cannot be brought back"):
                console.print_note("nothing was changed")
                raise typer.Exit(1)
            with console.working(f"erasing from {table} and what was computed from it"):
                job.erase(session, ingest, where)
            console.print_text("erased")


@tables.command()
def replay(
    table: _Ingest,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Judge the quarantined rows of an ingest table again, and write those that are good now to the table.

    Use it after a parser was corrected or an expectation changed. Rows keep their arrival, so a row
    that was late then is late now. Tables that read the ingest table follow. Exit code 0 when done,
    2 when refused.
    """
    from lakehouse.maintenance import replay_quarantine as job

    lakehouse = opening.lakehouse()
    ingest = lakehouse.catalog.table(table)  # an unknown name is refused before a JVM starts
    with (
        opening.session(lakehouse, f"replay {table}") as session,
        console.working(f"judging again what {table} has quarantined"),
    ):
        outcome = job.planned(session, ingest) if dry_run else job.replay(session, ingest)
    views.show_replay(outcome, as_json)
    if dry_run:
        console.print_note("nothing was changed")


@app.command()
def maintain(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE]", help="One table; by default all tables and the log tables"
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compact closed partitions and remove old versions that no reader needs, beside the streams.

    Rows stay. So do the last LAKEHOUSE_VERSIONS versions within LAKEHOUSE_HISTORY, and what a
    stream has still to read. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import maintain as job

    lakehouse = opening.lakehouse()
    if dry_run:
        views.show_maintenance(job.planned(lakehouse, table), as_json)
        console.print_note("nothing was changed")
        return
    done = []
    try:
        with console.working("maintaining tables") as now:
            for maintenance in job.run(lakehouse, table):
                done.append(maintenance)
                now(f"maintained {maintenance.table}")
    finally:  # also if a table is left out: the others are shown
        views.show_maintenance(done, as_json)
