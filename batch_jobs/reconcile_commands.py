"""The commands of the group `reconcile` in the `lakehouse` command line: run, due, status, repair, sink, diff."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from batch_jobs import reconcile_views as views
from batch_jobs.arguments import DryRun, End, Name, Start, asked_range
from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson

if TYPE_CHECKING:
    from lakehouse.declare.table import Table
    from lakehouse.ranges import Range
    from lakehouse.storage.lakehouse import Lakehouse
    from lakehouse.storage.log.certificates import Certificate

group = console.group("Compare stream and batch, and repair what differs.")


@group.command("run")
def reconcile(table: Name, start: Start = None, end: End = None, as_json: AsJson = False) -> None:
    """Compare a table with its batch run behind the frontier, and record the verdict.

    No rows are changed. Exit code 0: EQUAL; 1: DIFFERENT, or no row compared; 3: no verdict yet
    (PENDING, OPEN, UNVERIFIABLE); 2: refused.
    """
    from lakehouse.reconcile import reconciliation

    lakehouse, span = asked_range(start, end)
    chosen = lakehouse.catalog.table(table)
    _check(lakehouse, chosen, span)  # refused before a JVM starts
    with (
        opening.session(lakehouse, f"reconcile {table}") as session,
        console.working(f"computing and comparing {table}"),
    ):
        certificate = reconciliation.reconcile(session, chosen, span)
    views.show_certificate(certificate, as_json)
    raise typer.Exit(exit_code(certificate))


def _check(lakehouse: "Lakehouse", table: "Table", span: "Range | None") -> None:
    """Raises RangeError for what a reconciliation refuses by the logs alone."""
    from lakehouse.batch import batch_state

    if not table.kind.is_upserted:
        batch_state.closed_until(lakehouse, table)
    elif span is not None:
        lakehouse.catalog.check_derived(table)  # raises: a keyed table has no ranges


def exit_code(certificate: "Certificate") -> int:
    """Returns 0 for EQUAL, 1 for DIFFERENT or nothing compared, 3 for no verdict yet (PENDING, OPEN, UNVERIFIABLE)."""
    if certificate.verdict == "EQUAL":
        return 0 if certificate.rows_recomputed else 1
    return 1 if certificate.verdict == "DIFFERENT" else 3


@group.command()
def due(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="One table; by default all")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Then repair what differs, as far as the setting repair allows"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Reconcile what has closed or was changed since it was reconciled, table after table. One JVM for all.

    The choice is that of Dagster's schedule reconcile_closed_partitions. A table that fails is
    reported, and the others go on. Exit code 0: all EQUAL, or nothing is due; 1: a range is known
    to differ, found now or before; 3: no verdict of some (PENDING, OPEN, UNVERIFIABLE, or failed);
    2: refused.
    """
    from functools import cache

    from batch_jobs import due as job
    from lakehouse.runtime import spark_session
    from lakehouse.storage.session import Session

    lakehouse = opening.lakehouse()
    tables = job.tables(lakehouse, table)
    if repair:
        job.check_repair(lakehouse.settings, tables)
    done: list[job.Outcome] = []
    with ExitStack() as opened:

        @cache
        def session() -> Session:
            spark = spark_session.opened(lakehouse.settings, "reconcile due")
            return Session.on(lakehouse, opened.enter_context(spark))

        run = job.run(lakehouse, tables, session, repairs=repair)
        for outcome in console.awaited("reconciling what is due", run):
            views.show_outcome(outcome, as_json)
            done.append(outcome)
    known = job.differing(lakehouse, tables)
    views.show_due(done, known)
    raise typer.Exit(job.exit_code(done, known))


@group.command("status")
def status(
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="One table; by default all that have ranges"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how much of each table's closed history is reconciled, what differs and why. No JVM needed.

    The command also shows which partitions are to be reconciled next. Exit code 1 if a partition is
    known to differ, or a data file is missing.
    """
    from lakehouse.reconcile import coverage
    from lakehouse.storage.log import table_content

    lakehouse = opening.lakehouse()
    chosen = [lakehouse.catalog.table(table)] if table else lakehouse.catalog.derived
    for each in chosen:
        lakehouse.catalog.check_derived(each)
    timed_inputs = lakehouse.catalog.timed_inputs
    names = {read.name for each in chosen for read in (each, *timed_inputs(each))}
    contents = table_content.contents(lakehouse.settings, map(lakehouse.catalog.table, names))
    coverages = [coverage.coverage(lakehouse, each, contents) for each in chosen]
    views.show_coverage(coverages, lakehouse.settings.since, as_json)
    raise typer.Exit(1 if any(each.different or each.lost for each in coverages) else 0)


@group.command()
def repair(
    table: Name,
    start: Start = None,
    end: End = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite, by batch runs, the partitions of a table that are known to differ, and reconcile each again.

    Partitions of which a data file is missing are among them. With a range, only partitions in it
    are rewritten. The command ends at the first partition that still differs. Exit code 0 if all
    are EQUAL or PENDING, or none differs; 1 if one still differs; 3 if there is no verdict to go
    by; 2 when refused.
    """
    from batch_jobs import repair as job

    lakehouse, span = asked_range(start, end)
    planned = job.plan(lakehouse, table, span)
    if dry_run or not planned:
        unreconciled = job.unreconciled(lakehouse, table, span)
        views.show_differing(planned, unreconciled, as_json)
        raise typer.Exit(3 if unreconciled.verdictless and not planned else 0)
    done = []
    with (
        opening.session(lakehouse, f"repair {table}") as session,
        console.working(f"rewriting {len(planned)} partitions of {table}") as now,
    ):
        for each in job.run(session, table, span):
            done.append(each)
            now(f"rewrote {each.partition}: {each.verdict}")
    views.show_repaired(done, as_json)
    raise typer.Exit(1 if any(each.verdict == "DIFFERENT" for each in done) else 0)


@group.command()
def sink(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A target of `publish=`, such as a topic")
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First make the target equal to the newest version; what is held back is released",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare what a target holds with its table, at the version that the target holds. No JVM needed.

    Exit code 0: EQUAL; 1: DIFFERENT, and the keys that differ are shown, each with why; 2: refused.
    """
    from lakehouse.sinks import comparison

    lakehouse = opening.lakehouse()
    table, chosen = lakehouse.catalog.target(target)
    with console.working(f"comparing {target} with {table.name}") as now:
        if repair:
            sent = comparison.repair(lakehouse, table, chosen)
            now(f"{sent} rows were sent; comparing")
        result = comparison.compare(lakehouse, table, chosen)
    views.show_sink(result, as_json)
    raise typer.Exit(0 if result.verdict == "EQUAL" else 1)


@group.command()
def diff(
    table: Name,
    code: Annotated[
        str,
        typer.Option(
            help="A git ref of the repository of the tables' modules, or the folder of another checkout"
        ),
    ],
    start: Annotated[
        str, typer.Option(help="First instant of the range, ISO 8601; UTC if it names no zone")
    ],
    end: Annotated[
        str, typer.Option(help="End of the range, exclusive; at or before the frontier")
    ],
    as_json: AsJson = False,
) -> None:
    """Show what another version of the code would make of a closed range. Nothing is changed.

    Before is the present code and after is the code of --code, both as batch runs over the same
    input. Exit code 0: no row differs; 1: rows or columns differ; 2: refused.
    """
    from batch_jobs import diff as job
    from lakehouse.ranges import parse_range

    lakehouse = opening.lakehouse()
    with console.working(f"computing {table} by both"):
        difference = job.run(lakehouse, table, parse_range(start, end), code)
    views.show_diff(difference, as_json)
    raise typer.Exit(1 if difference.differs else 0)
