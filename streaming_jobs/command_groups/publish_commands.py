"""The commands of the group `publish` in the `lakehouse` command line: start, stop, status, refused, retry, run."""

from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson
from lakehouse.errors import DeclarationError
from streaming_jobs.supervision.jobs import follower_of

if TYPE_CHECKING:
    from lakehouse.storage.lakehouse import Lakehouse

group = console.group("Publish tables to targets, such as topics of Kafka.")

_NOTHING = (
    "no table is published; declare publish= on one, in the modules that LAKEHOUSE_TABLES names"
)
_TARGETS = Annotated[list[str] | None, typer.Argument(help="Targets; by default all")]


@group.command()
def start(targets: _TARGETS = None) -> None:
    """Start a follower for each target: a process of its own, which goes on when this command ends."""
    from streaming_jobs.supervision import job_logs, supervisor

    lakehouse, named = _chosen(targets)
    if not named:
        raise DeclarationError(_NOTHING)
    for target in named:
        with console.working(f"starting {target}"):
            job, by = follower_of(target), "lakehouse publish start"
            status = supervisor.start(lakehouse.settings, job, by=by)
        log = job_logs.log_path(lakehouse.settings, job)
        console.print_text(f"{target}: {status.state}, pid {status.pid}, log {log}")


@group.command()
def stop(
    targets: _TARGETS = None,
    timeout: Annotated[float, typer.Option(help="Seconds to end the version it is at")] = 60,
) -> None:
    """Stop followers, each after the version that it is at."""
    from streaming_jobs.supervision import supervisor

    lakehouse, named = _chosen(targets)
    for target in named:
        with console.working(f"stopping {target}"):
            job, by = follower_of(target), "lakehouse publish stop"
            status = supervisor.stop(lakehouse.settings, job, timeout=timeout, by=by)
        console.print_text(f"{target}: {status.state if status else 'never ran'}")


@group.command()
def status(targets: _TARGETS = None, as_json: AsJson = False) -> None:
    """Show which version of its table each target holds, what is held back, and why a follower ended.

    Exit code 1 if a follower that is to run does not.
    """
    from streaming_jobs.command_groups import views

    lakehouse, named = _chosen(targets)
    rows = [views.target(lakehouse, name) for name in named]
    console.print_records(rows, as_json)
    if not (rows or as_json):
        console.print_text(_NOTHING)
    if any(views.is_down(lakehouse.settings, name) for name in named):
        raise typer.Exit(1)


@group.command()
def logs(
    target: Annotated[str, typer.Argument(help="The target")],
    lines: Annotated[int, typer.Option(help="The number of lines")] = 40,
) -> None:
    """Print the end of a follower's log."""
    from streaming_jobs.supervision import job_logs

    lakehouse, _ = _chosen([target])
    print(job_logs.log_tail(lakehouse.settings, follower_of(target), lines))


@group.command()
def refused(
    target: Annotated[str, typer.Argument(help="A target that acts on rows")],
    as_json: AsJson = False,
) -> None:
    """Show the actions that were refused, and what was answered."""
    from lakehouse.ranges import text
    from lakehouse.sinks import actions

    lakehouse = opening.lakehouse()
    lines = actions.refused(lakehouse.settings, lakehouse.catalog.target(target)[1])
    rows = [
        {
            "id": line.action.id,
            "at": text(line.at.replace(microsecond=0)),
            "version": line.action.version,
            "change": line.action.change,
            "key": line.action.key,
            "answer": line.said,
        }
        | ({"row": line.action.row} if as_json else {})
        for line in lines
    ]
    console.print_records(rows, as_json)


@group.command()
def retry(
    target: Annotated[str, typer.Argument(help="A target that acts on rows")],
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of refused actions; by default all")
    ] = None,
) -> None:
    """Perform actions again that were refused, beside the follower. Exit code 1 if one is refused again."""
    from lakehouse.sinks import actions

    lakehouse = opening.lakehouse()
    with console.working(f"performing what {target} refused"):
        counts = actions.retry(lakehouse.settings, lakehouse.catalog.target(target)[1], ids or ())
    console.print_text(f"{target}: {counts['done']} done, {counts['refused']} refused again")
    if counts["refused"]:
        raise typer.Exit(1)


@group.command()
def run(target: Annotated[str, typer.Argument(help="The target")]) -> None:
    """Publish to one target in this process, until Ctrl-C or SIGTERM; what a container runs."""
    from streaming_jobs.supervision import foreground

    lakehouse, _ = _chosen([target])
    raise typer.Exit(foreground.run(lakehouse.settings, follower_of(target)))


def _chosen(targets: list[str] | None) -> "tuple[Lakehouse, list[str]]":
    lakehouse = opening.lakehouse()
    for name in targets or ():
        lakehouse.catalog.target(name)
    return lakehouse, targets or list(lakehouse.catalog.targets())
