"""The commands of bounded jobs in the `lakehouse` command line: backfill, seam, update, the proof, erase and others."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from batch_jobs import views
from lakehouse import console
from lakehouse.console import AsJson, Commands
from lakehouse.settings import Settings, from_environment

if TYPE_CHECKING:
    from datetime import datetime

    from lakehouse.catalog import Catalog

app = typer.Typer(cls=Commands, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TABLE", help="A derived table, as `lakehouse tables` lists it")]
Start = Annotated[str | None, typer.Option(help="First instant, ISO 8601, UTC unless it says otherwise")]
End = Annotated[str | None, typer.Option(help="End, not included; at or before the frontier")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be read and replaced; change nothing")]


def main(command: str, arguments: Sequence[str]) -> None:
    """Runs one of the commands alone, for `python -m`."""
    console.run(app, [command, *arguments], "python -m batch_jobs")


@app.command()
def backfill(
    table: Name,
    start: Start = None,
    end: End = None,
    dry_run: DryRun = False,
    cascade: Annotated[bool, typer.Option("--cascade", help="Have tables that read it follow, where rows changed")] = False,
    all_or_nothing: Annotated[bool, typer.Option("--all-or-nothing", help="All partitions at once, in one commit")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a closed range of a table hold its bounded run, one commit a partition, beside the live stream.

    The range is whole partitions behind the table's frontier; those that have these rows already stay as they are. Killed
    and run again, it goes on where it was. A table without event time is rebuilt whole, without a range. Exit code 0 when
    done, 2 when refused.
    """
    from batch_jobs import backfill as job
    from lakehouse import session
    from lakehouse.lake import Lake

    settings, catalog, first, last = _asked(start, end)
    # a range is refused before a JVM starts: planning reads logs only
    offline = Lake(None, settings, catalog)  # type: ignore[arg-type]
    planned = job.plan(offline, table, first, last, whole=all_or_nothing)
    if dry_run:
        views.show_plan(table, planned, as_json)
        return
    commits, total = [], len(planned.partitions) - len(planned.done) if planned and not all_or_nothing else 1
    with ExitStack() as opened:
        with console.working("starting Spark"):
            spark = opened.enter_context(session.opened(settings, f"backfill {table}"))
        with console.counting(f"backfill {table}", total) as done:
            for commit in job.run(Lake(spark, settings, catalog), table, first, last, whole=all_or_nothing, cascade=cascade):
                commits.append(commit)
                done(commit.written)
    views.show_backfill(table, planned, commits, job.pending(offline, planned) if planned else {}, as_json)


@app.command()
def seam(table: Name, as_json: AsJson = False) -> None:
    """Begin a new table over existing history: a bounded run up to a frontier of its input, the live run from exactly there.

    Before its streaming job runs with the table, or beside it if the input's log was cut, when that sets the seam itself.
    Killed and run again, it goes on where it was. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import seam as job
    from lakehouse import session
    from lakehouse.frontier import seam_of
    from lakehouse.lake import Lake

    settings, catalog, _, _ = _asked(None, None)
    catalog.check_derived(catalog.table(table))  # refused before a JVM starts
    commits = []
    with ExitStack() as opened:
        with console.working("starting Spark") as now:
            lake = Lake(opened.enter_context(session.opened(settings, f"seam {table}")), settings, catalog)
            now(f"looking where {table} is to begin")
            planned = job.plan(lake, table)
        if planned:
            with console.counting(f"history of {table}", len(planned.partitions) - len(planned.done)) as done:
                for commit in job.run(lake, planned):
                    commits.append(commit)
                    done(commit.written)
    views.show_seam(seam_of(settings, catalog.table(table)), planned, commits, as_json)


@app.command()
def update(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table; all that are updated, if not given")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let late rows into the closed partitions of tables declared late="update": the windows they missed, computed again.

    One commit a partition, beside the live stream; a partition still open waits until it has closed. Exit code 0 when
    done, 2 when refused.
    """
    from batch_jobs import update as job
    from lakehouse import session
    from lakehouse.lake import Lake

    settings, catalog, _, _ = _asked(None, None)
    found = job.waiting(settings, catalog, table)
    if dry_run:
        views.show_waiting(found, as_json)
        return
    commits = []
    if any(d.closed for dirt in found.values() for d in dirt):  # else there is nothing to start Spark for
        with console.working("starting Spark") as now, session.opened(settings, "update") as spark:
            now(f"computing what late rows missed in {', '.join(found)}")
            for commit in job.run(Lake(spark, settings, catalog), table):
                commits.append(commit)
                now(f"rewrote {commit.table} {views.range_of(commit)}")
    views.show_updates(commits, as_json)


@app.command()
def reconcile(table: Name, start: Start = None, end: End = None, as_json: AsJson = False) -> None:
    """Compare a table with its bounded run, behind the frontier; change nothing, record the verdict.

    Exit code 0 EQUAL, 1 DIFFERENT or no row compared, 3 no verdict yet (PENDING, NOT_YET, UNPROVABLE), 2 refused.
    """
    from batch_jobs import reconcile as job
    from lakehouse import session
    from lakehouse.lake import Lake

    settings, catalog, first, last = _asked(start, end)
    catalog.table(table)  # an unknown name is refused before a JVM starts
    with console.working("starting Spark") as now, session.opened(settings, f"reconcile {table}") as spark:
        now(f"computing and comparing {table}")
        certificate = job.run(Lake(spark, settings, catalog), table, first, last)
    views.show_certificate(certificate, as_json)
    raise typer.Exit(job.exit_code(certificate))


@app.command("proof")
def show_proof(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table; all that have ranges, if not given")] = None,
    as_json: AsJson = False,
) -> None:
    """How much of each table's closed history is proven, what differs and why, what is to be proven next. No JVM needed.

    Exit code 1 if a partition is known to differ.
    """
    from lakehouse import coverage

    settings, catalog, _, _ = _asked(None, None)
    chosen = [catalog.table(table)] if table else catalog.derived
    for each in chosen:
        catalog.check_derived(each)
    found = [coverage.coverage(settings, catalog, each) for each in chosen]
    views.show_coverage(found, {each.name: each.grain for each in chosen}, as_json)
    raise typer.Exit(1 if any(each.different for each in found) else 0)


@app.command()
def repair(table: Name, start: Start = None, end: End = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Rewrite the partitions of a table that are known to differ, by their bounded runs, and prove each again.

    With a range only those in it. It ends at one that differs still. Exit code 0 if all are EQUAL or PENDING, or there was
    nothing to repair, 1 if one differs still, 2 when refused.
    """
    from batch_jobs import repair as job
    from lakehouse import session
    from lakehouse.event_time import optional_range
    from lakehouse.lake import Lake

    settings, catalog, first, last = _asked(start, end)
    span = optional_range(first, last)
    planned = job.plan(settings, catalog, table, span)
    if dry_run or not planned:
        views.show_differing(planned, as_json)
        return
    done = []
    with console.working("starting Spark") as now, session.opened(settings, f"repair {table}") as spark:
        now(f"rewriting {len(planned)} partitions of {table}")
        for each in job.run(Lake(spark, settings, catalog), table, span):
            done.append(each)
            now(f"rewrote {each.partition}: {each.verdict}")
    views.show_repaired(done, as_json)
    raise typer.Exit(1 if any(each.verdict == "DIFFERENT" for each in done) else 0)


@app.command()
def diff(
    table: Name,
    code: Annotated[str, typer.Option(help="A git ref of the repository that the tables' modules are in, or a folder like it")],
    start: Annotated[str, typer.Option(help="First instant, ISO 8601, UTC unless it says otherwise")],
    end: Annotated[str, typer.Option(help="End, not included; at or before the frontier")],
    as_json: AsJson = False,
) -> None:
    """Say what another version of the code would make of a closed range: rows missing, extra, changed; change nothing.

    Before is the present code, after is that of --code, both as bounded runs over the same input. Exit code 0 no row
    differs, 1 rows or columns differ, 2 refused.
    """
    from batch_jobs import diff as job
    from lakehouse.event_time import parse_range

    settings, catalog, _, _ = _asked(None, None)
    with console.working(f"computing {table} by both"):
        found = job.run(settings, catalog, table, parse_range(start, end), code)
    views.show_diff(found, as_json)
    raise typer.Exit(1 if found.differs else 0)


@app.command()
def erase(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A record: a table read straight from a topic")],
    where: Annotated[str, typer.Option(help="Which rows: a condition on the record's columns, as Spark's SQL writes it")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove rows for good: from a record, its quarantine, all that was computed from them, and their histories.

    Only where everything is closed; beside the live stream. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import erase as job
    from lakehouse import session
    from lakehouse.lake import Lake

    settings, catalog, _, _ = _asked(None, None)
    catalog.table(table)  # an unknown name is refused before a JVM starts
    with console.working("starting Spark") as now, session.opened(settings, f"erase {table}") as spark:
        lake = Lake(spark, settings, catalog)
        now(f"looking for the rows in {table} and what was computed from them")
        found = job.planned(lake, table, where) if dry_run else job.run(lake, table, where)
    views.show_erasure(found, as_json)
    if dry_run:
        console.print_note("nothing was changed")


@app.command()
def reinject(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A record: a table read straight from a topic")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put in what a record has put aside and what is good by its present declaration; what reads it follows.

    After a parser was mended, or an expectation changed. Rows keep their arrival, so they are as late as they were. Exit code
    0 when done, 2 when refused.
    """
    from batch_jobs import reinject as job
    from lakehouse import session
    from lakehouse.lake import Lake

    settings, catalog, _, _ = _asked(None, None)
    catalog.table(table)  # an unknown name is refused before a JVM starts
    with console.working("starting Spark") as now, session.opened(settings, f"reinject {table}") as spark:
        lake = Lake(spark, settings, catalog)
        now(f"judging again what {table} has put aside")
        found = job.planned(lake, table) if dry_run else job.run(lake, table)
    views.show_reinjection(found, as_json)
    if dry_run:
        console.print_note("nothing was changed")


@app.command()
def maintain(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table; all and the ledgers, if not given")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the small files of closed partitions few, and remove the past that nobody needs any more; beside the streams.

    Rows, versions within LAKEHOUSE_HISTORY, and what a stream has still to read stay. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import maintain as job

    settings, catalog, _, _ = _asked(None, None)
    if dry_run:
        views.show_upkeep(job.planned(settings, catalog, table), as_json)
        console.print_note("nothing was changed")
        return
    done = []
    try:
        with console.working("looking after the tables") as now:
            for each in job.run(settings, catalog, table):
                done.append(each)
                now(f"looked after {each.table}")
    finally:  # of a table that is left out the others are told all the same
        views.show_upkeep(done, as_json)


def _asked(start: str | None, end: str | None) -> "tuple[Settings, Catalog, datetime | None, datetime | None]":
    from lakehouse.catalog import load
    from lakehouse.event_time import parse_instant

    settings = from_environment()
    first = parse_instant(start, "start") if start else None
    last = parse_instant(end, "end") if end else None
    return settings, load(settings), first, last
