"""The commands backfill, update and reconcile of the `lakehouse` command line."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse import console
from lakehouse.console import AsJson, Commands
from lakehouse.settings import Settings, from_environment

if TYPE_CHECKING:
    from datetime import datetime

    from batch_jobs.backfill import Backfill
    from lakehouse.catalog import Catalog
    from lakehouse.frontier import Certificate, Commit
    from lakehouse.updates import Dirt

app = typer.Typer(cls=Commands, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TABLE", help="A derived table, as `lakehouse tables` lists it")]
Start = Annotated[str | None, typer.Option(help="First instant, ISO 8601, UTC unless it says otherwise")]
End = Annotated[str | None, typer.Option(help="End, not included; at or before the frontier")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be read and replaced; change nothing")]


def main(command: str, arguments: Sequence[str]) -> None:
    """Runs one of the commands alone, for `python -m`."""
    console.run(app, [command, *arguments], "python -m batch_jobs")


@app.command()
def backfill(table: Name, start: Start = None, end: End = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Replace a closed range of a table by its bounded run, in one commit, beside the live stream.

    The range is whole partitions behind the table's frontier. A table without event time is rebuilt whole, without a
    range. Exit code 0 when done, 2 when refused.
    """
    from batch_jobs import backfill as job
    from lakehouse import session
    from lakehouse.lake import Lake

    settings, catalog, first, last = _asked(start, end)
    # a range is refused before a JVM starts: planning reads logs only
    planned = job.plan(Lake(None, settings, catalog), table, first, last)  # type: ignore[arg-type]
    if dry_run:
        _show_plan(table, planned, as_json)
        return
    with console.working("starting Spark") as now, session.opened(settings, f"backfill {table}") as spark:
        now(f"computing {len(planned.partitions)} partitions of {table}" if planned else f"computing {table}")
        commit = job.run(Lake(spark, settings, catalog), table, first, last)
    _show_commit(table, planned, commit, as_json)


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
        _show_waiting(found, as_json)
        return
    commits = []
    if any(d.closed for dirt in found.values() for d in dirt):  # else there is nothing to start Spark for
        with console.working("starting Spark") as now, session.opened(settings, "update") as spark:
            now(f"computing what late rows missed in {', '.join(found)}")
            for commit in job.run(Lake(spark, settings, catalog), table):
                commits.append(commit)
                now(f"rewrote {commit.table} {_range(commit)}")
    _show_updates(commits, as_json)


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
    _show_certificate(certificate, as_json)
    raise typer.Exit(job.exit_code(certificate))


def _asked(start: str | None, end: str | None) -> "tuple[Settings, Catalog, datetime | None, datetime | None]":
    from lakehouse.catalog import load
    from lakehouse.event_time import parse_instant

    settings = from_environment()
    first = parse_instant(start, "start") if start else None
    last = parse_instant(end, "end") if end else None
    return settings, load(settings), first, last


def _show_plan(table: str, planned: "Backfill | None", as_json: bool) -> None:
    if as_json:
        console.print_json([planned or {"table": table, "rebuilt": "whole"}])
    elif planned is None:
        console.print_text(f"{table} would be rebuilt whole: it has no event time")
    else:
        console.print_facts({
            "range": _range(planned),
            "frontier": planned.frontier,
            "partitions": _brief(planned.partitions),
            "rows replaced": planned.rows_replaced,
            "input": planned.input,
            "context": f"[{console.shown(planned.context_start)}, {console.shown(planned.context_end)})",
            "input rows": f"at most {planned.input_rows:,} in {planned.input_files} files, {planned.input_bytes:,} bytes",
            "then pending": ", ".join(planned.downstream) or None,
        })  # fmt: skip
        console.print_note("nothing was changed")


def _show_commit(table: str, planned: "Backfill | None", commit: "Commit | None", as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(commit) if commit else {"table": table, "unchanged": True}])
    elif commit is None:
        console.print_text(f"{table} has these rows already; nothing was written")
    else:
        facts = {"range": _range(planned), "partitions": _brief(planned.partitions)} if planned else {}
        counts = {"arrived": commit.arrived, "late": commit.late} if planned else {}
        done = {"quarantined": commit.quarantined, "written": commit.written, "Delta version": commit.version}
        pending = {"now pending": ", ".join(planned.downstream)} if planned and planned.downstream else {}
        console.print_facts({"table": table} | facts | counts | done | {"seconds": f"{commit.seconds:.1f}"} | pending)


def _show_waiting(found: "dict[str, list[Dirt]]", as_json: bool) -> None:
    rows = [{"table": name, **asdict(d)} for name, dirt in found.items() for d in dirt]
    if as_json:
        console.print_json(rows)
        return
    state = {True: "closed", False: "open: waits until it closes"}
    shown = ((r["table"], r["partition"], state[r["closed"]], "late rows" if r["since"] else "input rewritten") for r in rows)
    if rows:
        console.print_rows(("table", "partition", "is", "because of"), shown)
    else:
        console.print_text("no late row waits to be shown")
    console.print_note("nothing was changed")


def _show_updates(commits: "list[Commit]", as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(c) for c in commits])
        return
    if not commits:
        console.print_text("no closed partition waited for late rows; nothing was written")
        return
    shown = ((c.table, _range(c), c.written, c.quarantined, c.version, f"{c.seconds:.1f}") for c in commits)
    console.print_rows(("table", "range", "rows rewritten", "quarantined", "Delta version", "seconds"), shown)


def _show_certificate(certificate: "Certificate", as_json: bool) -> None:
    if as_json:
        console.print_json([certificate])
        return
    c = certificate
    live, bounded = (digest.partition(":")[2] for digest in (c.digest_live, c.digest_bounded))
    console.print_facts({
        "table": c.table,
        "range": _range(c),
        "rows live": c.rows_live,
        "rows bounded": c.rows_bounded,
        "digest": live if live == bounded else f"{live} live, {bounded} bounded",
        "verdict": c.verdict,
        "seconds": f"{c.seconds:.1f}",
    })  # fmt: skip
    if c.examples:
        console.print_text(f"{c.missing:,} missing, {c.extra:,} extra, {c.changed:,} changed; the first {len(c.examples)}:")
        console.print_text("\n".join(f"  {example}" for example in c.examples))
    if c.rows_by_bounded_runs:
        console.print_text(f"{c.rows_by_bounded_runs:,} rows were written by bounded runs: they prove nothing about the stream")
    if c.detail:
        console.print_text(c.detail)
    if not c.rows_bounded and not c.rows_live:
        console.print_text("no row was compared: that proves nothing")


def _range(of: "Backfill | Certificate | Commit") -> str:
    return f"[{console.shown(of.start)}, {console.shown(of.end)})"


def _brief(partitions: Sequence[str]) -> str:
    return ", ".join(partitions) if len(partitions) <= 4 else f"{partitions[0]} .. {partitions[-1]} ({len(partitions)})"
