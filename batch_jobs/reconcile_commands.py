"""The commands of the reconciliation in the `lakehouse` command line: reconcile, reconciliation, repair, diff."""

from typing import Annotated

import typer

from batch_jobs import views
from batch_jobs.arguments import DryRun, End, Name, Start, asked
from lakehouse.cli import console
from lakehouse.cli.console import AsJson

group = console.group("Compare stream and batch, and repair what differs.")


@group.command("run")
def reconcile(table: Name, start: Start = None, end: End = None, as_json: AsJson = False) -> None:
    """Compare a table with its batch run, behind the frontier; change nothing, record the verdict.

    Exit code 0 EQUAL, 1 DIFFERENT or no row compared, 3 no verdict yet (PENDING, OPEN,
    UNVERIFIABLE), 2 refused.
    """
    from batch_jobs import reconcile as job
    from lakehouse.runtime import session
    from lakehouse.storage.lake import Lake

    settings, catalog, first, last = asked(start, end)
    catalog.table(table)  # an unknown name is refused before a JVM starts
    with (
        console.working("starting Spark") as now,
        session.opened(settings, f"reconcile {table}") as spark,
    ):
        now(f"computing and comparing {table}")
        certificate = job.run(Lake(spark, settings, catalog), table, first, last)
    views.show_certificate(certificate, as_json)
    raise typer.Exit(job.exit_code(certificate))


@group.command("status")
def status(
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="One table; all that have ranges, if not given"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How much of each table's closed history is reconciled, what differs and why, what is to be reconciled next. No JVM needed.

    Exit code 1 if a partition is known to differ, or a data file is missing.
    """
    from lakehouse.reconcile import coverage

    settings, catalog, _, _ = asked(None, None)
    chosen = [catalog.table(table)] if table else catalog.derived
    for each in chosen:
        catalog.check_derived(each)
    found = [coverage.coverage(settings, catalog, each) for each in chosen]
    views.show_coverage(found, settings.since, as_json)
    raise typer.Exit(1 if any(each.different or each.lost for each in found) else 0)


@group.command()
def repair(
    table: Name,
    start: Start = None,
    end: End = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite the partitions of a table that are known to differ, by their batch runs, and reconcile each again.

    Those of which a data file is missing are among them. With a range only those in it. It ends at
    one that differs still. Exit code 0 if all are EQUAL or PENDING, or none differs, 1 if one
    differs still, 3 if there is no verdict to go by, 2 when refused.
    """
    from batch_jobs import repair as job
    from lakehouse.ranges import optional_range
    from lakehouse.runtime import session
    from lakehouse.storage.lake import Lake

    settings, catalog, first, last = asked(start, end)
    span = optional_range(first, last)
    planned = job.plan(settings, catalog, table, span)
    if dry_run or not planned:
        unreconciled = job.unreconciled(settings, catalog, table, span)
        views.show_differing(planned, unreconciled, as_json)
        raise typer.Exit(3 if unreconciled.verdictless and not planned else 0)
    done = []
    with (
        console.working("starting Spark") as now,
        session.opened(settings, f"repair {table}") as spark,
    ):
        now(f"rewriting {len(planned)} partitions of {table}")
        for each in job.run(Lake(spark, settings, catalog), table, span):
            done.append(each)
            now(f"rewrote {each.partition}: {each.verdict}")
    views.show_repaired(done, as_json)
    raise typer.Exit(1 if any(each.verdict == "DIFFERENT" for each in done) else 0)


@group.command()
def diff(
    table: Name,
    code: Annotated[
        str,
        typer.Option(
            help="A git ref of the repository that the tables' modules are in, or a folder like it"
        ),
    ],
    start: Annotated[
        str, typer.Option(help="First instant, ISO 8601, UTC unless it says otherwise")
    ],
    end: Annotated[str, typer.Option(help="End, not included; at or before the frontier")],
    as_json: AsJson = False,
) -> None:
    """Say what another version of the code would make of a closed range: rows missing, extra, changed; change nothing.

    Before is the present code, after is that of --code, both as batch runs over the same input.
    Exit code 0 no row differs, 1 rows or columns differ, 2 refused.
    """
    from batch_jobs import diff as job
    from lakehouse.ranges import parse_range

    settings, catalog, _, _ = asked(None, None)
    with console.working(f"computing {table} by both"):
        found = job.run(settings, catalog, table, parse_range(start, end), code)
    views.show_diff(found, as_json)
    raise typer.Exit(1 if found.differs else 0)
