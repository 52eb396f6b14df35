"""The commands of the `lakehouse` command line about savepoints. None of them needs a JVM."""

from pathlib import Path
from typing import Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson, Yes

group = console.group("Savepoints: all tables at one moment, to restore, fork or move.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The savepoint's name")]


@group.command()
def create(
    name: _Name,
    note: Annotated[str, typer.Option(help="Why it was made, for whoever lists it")] = "",
    as_json: AsJson = False,
) -> None:
    """Create a savepoint of all tables, at one consistent cut, while jobs go on.

    Data files are linked, not copied. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.storage.versions import savepoints

    lakehouse = opening.lakehouse()
    with console.working(f"creating the savepoint {name}"):
        made = savepoints.create(lakehouse, name, note)
    if as_json:
        console.print_json([made])
        return
    console.print_text(
        f"{name}: {len(made.tables)} tables, {made.files:,} files, {made.bytes:,} bytes"
    )


@group.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List the savepoints, oldest first.

    `held` are the bytes that only this savepoint keeps on the disk: dropping it frees them.
    """
    from lakehouse.storage.versions import savepoints

    settings = opening.lakehouse().settings
    columns = ("name", "at", "tables", "bytes", "held", "note")
    rows = [
        (e.name, e.at, len(e.tables), e.bytes, savepoints.held(settings, e.name), e.note)
        for e in savepoints.savepoints(settings)
    ]
    if as_json:
        console.print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        console.print_rows(columns, rows)
    for half in savepoints.left_half(settings):
        console.print_note(
            f"folder={half}: a command was killed and left it; it is no savepoint, and the next create or drop removes it"
        )


@group.command()
def show(name: _Name, as_json: AsJson = False) -> None:
    """Show the tables of a savepoint, each with its version, rows, frontier and position."""
    from lakehouse.storage.versions import savepoints

    settings = opening.lakehouse().settings
    savepoint = savepoints.savepoint(settings, name)
    if as_json:
        console.print_json([savepoint])
        return
    console.print_facts({key: getattr(savepoint, key) for key in ("name", "at", "note", "library")})
    columns = ("table", "version", "rows", "frontier", "code version")
    console.print_rows(
        columns,
        ((t, s.version, s.rows, s.frontier, s.code_version) for t, s in savepoint.tables.items()),
    )


@group.command()
def verify(name: _Name) -> None:
    """Read each file of a savepoint and compare it with its checksum.

    Exit code 0 if all are as they were, 2 if not.
    """
    from lakehouse.storage.versions import savepoints

    settings = opening.lakehouse().settings
    with console.working(f"reading the savepoint {name}"):
        savepoint = savepoints.verify(settings, name)
    console.print_text(f"{name}: {savepoint.files:,} files, each as it was")


@group.command()
def restore(
    name: _Name,
    discard: Annotated[
        bool, typer.Option("--discard", help="Make no savepoint of what is there now")
    ] = False,
    yes: Yes = False,
) -> None:
    """Put all tables back as they were at a savepoint. All jobs must be stopped.

    What is there now becomes a savepoint first. A restore that was cut off goes on when the command
    is run again; until then nothing starts. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.storage.versions import restoring, savepoints
    from streaming_jobs.supervision import supervisor

    lakehouse = opening.lakehouse()
    savepoint = savepoints.savepoint(lakehouse.settings, name)
    if not yes:
        typer.confirm(f"Put {len(savepoint.tables)} tables back as of {savepoint.at}?", abort=True)
    stopped = supervisor.all_stopped(lakehouse.settings, lakehouse.catalog.pipelines())
    with stopped, console.working(f"restoring the savepoint {name}"):
        before = restoring.restore(lakehouse, name, keep=not discard)
    console.print_text(f"{name}: {len(savepoint.tables)} tables are as they were at {savepoint.at}")
    if before:
        console.print_text(f"what was there is the savepoint {before}")


@group.command()
def fork(
    name: _Name,
    root: Annotated[Path, typer.Argument(metavar="DIR", help="The root of the second lakehouse")],
) -> None:
    """Begin a second lakehouse in another folder, with the tables of a savepoint.

    Its jobs read the same topics and folders from where those of the savepoint were, beside the jobs of this
    one. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.runtime.kafka_address import bootstrap_servers
    from lakehouse.storage.versions import restoring

    lakehouse = opening.lakehouse()
    with console.working(f"forking the savepoint {name}"):
        restoring.fork(lakehouse.settings, name, root)
    console.print_text(f"{name}: forked into {root}; for its commands and jobs set")
    console.print_text(f"  LAKEHOUSE_ROOT={root.absolute()}")
    # the fork has no embedded broker of its own
    if lakehouse.catalog.topics() and not lakehouse.settings.bootstrap_servers:
        console.print_text(f"  LAKEHOUSE_BOOTSTRAP_SERVERS={bootstrap_servers(lakehouse.settings)}")


@group.command()
def export(
    name: _Name, file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write")]
) -> None:
    """Write a savepoint as one file (tar), for another machine. Exit code 0 when done, 2 when refused."""
    from lakehouse.storage.versions import restoring

    settings = opening.lakehouse().settings
    with console.working(f"exporting the savepoint {name}"):
        restoring.export(settings, name, file)
    console.print_text(f"{name}: written to {file}")


@group.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` has written")],
) -> None:
    """Make an exported file a savepoint of this lakehouse. Exit code 0 when done, 2 when refused."""
    from lakehouse.storage.versions import restoring

    settings = opening.lakehouse().settings
    with console.working(f"importing {file}"):
        savepoint = restoring.take_in(settings, file)
    console.print_text(
        f"{savepoint.name}: imported, {len(savepoint.tables)} tables as of {savepoint.at}"
    )


@group.command()
def drop(name: _Name, yes: Yes = False) -> None:
    """Remove a savepoint. Exit code 0 when done, 2 when refused."""
    from lakehouse.storage.versions import savepoints

    settings = opening.lakehouse().settings
    if not yes:
        typer.confirm(f"Remove the savepoint {name}?", abort=True)
    savepoints.drop(settings, name)
    console.print_text(f"{name}: dropped")
