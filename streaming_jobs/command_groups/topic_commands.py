"""The commands of the `lakehouse` command line about what ingest tables read: topics, folders, tables, sources of one's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson, Yes

if TYPE_CHECKING:
    from lakehouse.declare.catalog import Catalog
    from lakehouse.declare.table import Table
    from lakehouse.errors import RangeError
    from lakehouse.storage.lakehouse import Lakehouse
    from lakehouse.storage.log.commits import Commit
    from lakehouse.stream.reading.offsets import Broker, Gap

group = console.group("Topics, folders and other sources that ingest tables read.")

_Ingest = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="An ingest table: it reads a topic, a folder or another source"
    ),
]


@group.command("check")
def offsets(table: _Ingest, as_json: AsJson = False) -> None:
    """Compare an ingest table with what it reads, record by record: missing, doubled.

    The command compares what the topics still hold, all records that were registered of the folder's
    files, or what a source of your own gives when it is read once more. It does so up to the table's
    last commit, beside the stream. Exit code 0 if each is there once, 1 if not, 2 when refused.
    """
    from lakehouse.stream.reading.registry import check

    lakehouse = opening.lakehouse()
    with console.working(f"comparing {table} with what it reads"):
        checks = check(lakehouse, lakehouse.catalog.table(table))
    console.print_records(checks, as_json)
    if any(compared.missing or compared.doubled for compared in checks):
        raise typer.Exit(1)


@group.command("accept-new")
def new_topic(table: _Ingest, yes: Yes = False) -> None:
    """Accept that a topic was deleted and created again, and read it from its beginning.

    The table's job must be stopped. A new generation reads the topic; what the table has read of
    the former topic stays. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.errors import RangeError
    from lakehouse.storage.position import checkpoints
    from lakehouse.stream.reading import offsets as positions

    with _lock_job(table) as (lakehouse, declared, last):
        topics = _on_broker(lakehouse, declared)
        present = {name: topic.id for name, topic in topics.items()}
        before = positions.known(lakehouse.settings, declared).ids
        changed = sorted(name for name, id in present.items() if before.get(name, id) != id)
        if not changed:
            raise RangeError(
                f"table={table}, topic={', '.join(present)}: it has the id that was read; go on by `lakehouse stream start`"
            )
        for name in changed:
            topic = topics[name]
            count = sum(end - topic.first[p] for p, end in topic.end.items())
            console.print_text(
                f"{name}: id {before[name]} before, {topic.id} now, {count:,} messages"
            )
        _ask(yes, "read from the beginning?")
        after = (last.generation, last.batch) if last else (0, -1)
        # the generation first: after a crash between the two the topic is still another one, and
        # this is run again
        why = f"{', '.join(changed)} was created again (`lakehouse topic accept-new`)"
        generation = checkpoints.begin(lakehouse.settings, declared, None, why)
        positions.declare_recreated(lakehouse.settings, declared, present, after)
    console.print_text(
        f"{table}: generation {generation.generation} reads from the beginning; `lakehouse stream start {declared.pipeline}`"
    )


@group.command("accept-gap")
def accept_gap(table: _Ingest, yes: Yes = False) -> None:
    """Accept that records which the source no longer has, and the table has not read, are lost.

    A version of a Delta or Iceberg table of others that removes rows, or that its log has lost, is not
    read. The table continues after them. Its job must be stopped. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.stream.reading import topic_starts
    from lakehouse.stream.reading.records import file_sources
    from lakehouse.stream.reading.registry import check_of

    with _lock_job(table) as (lakehouse, declared, last):
        sources = lakehouse.catalog.sources_of(declared)
        files = file_sources(sources.values())
        if files and not files[0].is_history:
            _accept_files(lakehouse, declared, last, yes)
            return
        gaps = check_of(lakehouse.settings, declared, sources.values()).lost(last)
        if files and last and not gaps and not topic_starts.is_history_read(files[0], last):
            _accept_files(lakehouse, declared, last, yes)
            return
        lines = [
            f"{gap.topic}, partition {gap.partition}: offsets {gap.since} to {gap.until - 1} are lost"
            for gap in gaps
        ]
        _ask_about(lines, table, "what it reads", yes)
        _accept(lakehouse, declared, gaps, "messages")
    _show_accepted(declared)


def _accept_files(lakehouse: "Lakehouse", table: "Table", last: "Commit | None", yes: bool) -> None:
    """Does the work of `accept-gap` for a table that reads a folder or a table of others. Raises RangeError."""
    from lakehouse.stream.reading.files import FileCheck, Files
    from lakehouse.stream.reading.records import file_sources

    sources = file_sources(lakehouse.catalog.sources_of(table).values())
    reader = Files(lakehouse.settings, table, sources)
    gaps, passed, topic = FileCheck(reader).lost(last), reader.files.passed_over(), reader.address
    lines = [
        f"{topic}, file {file.path}: records {gap.since} to {gap.until - 1} are lost"
        for gap in gaps
        if (file := reader.register.of_record(gap.since))
    ]
    if passed is not None:
        lines.append(
            f"{topic}: {reader.files.passing(passed)} are not read, with the rows that they add"
        )
    _ask_about(lines, table.name, topic, yes)
    if gaps:
        _accept(lakehouse, table, gaps, "records")
    if passed is not None:
        reader.register.add([], passed)
    _show_accepted(table)


def _ask_about(lines: list[str], table: str, source: str, yes: bool) -> None:
    """Shows what is lost and asks. Raises RangeError if nothing is."""
    from lakehouse.errors import RangeError

    if not lines:
        raise RangeError(
            f"table={table}: {source} has every record that it has not read, so nothing is lost; start its job"
        )
    for line in lines:
        console.print_text(line)
    _ask(yes, "go on without them?")


def _accept(lakehouse: "Lakehouse", table: "Table", gaps: "list[Gap]", records: str) -> None:
    from lakehouse.storage.position import checkpoints
    from lakehouse.stream.reading import offsets as positions

    # the generation first: after a crash between the two nothing is accepted yet, and this is run again
    why = f"lost {records} were accepted (`lakehouse topic accept-gap`)"
    checkpoints.begin(lakehouse.settings, table, None, why)
    positions.declare_lost(lakehouse.settings, table, gaps)


def _show_accepted(table: "Table") -> None:
    console.print_text(
        f"{table.name}: it continues after them; `lakehouse stream start {table.pipeline}`"
    )


@contextmanager
def _lock_job(name: str) -> "Iterator[tuple[Lakehouse, Table, Commit | None]]":
    """Holds the lease of a table's job, which must not run, and yields the table and its last commit."""
    from streaming_jobs.supervision import lease

    lakehouse = opening.lakehouse()
    table = lakehouse.catalog.table(name)
    if not lakehouse.catalog.sources_of(table):
        raise _no_source(lakehouse.catalog, table)
    with lease.acquire(lakehouse.settings, table.pipeline):
        yield lakehouse, table, next(lakehouse.commit_log(table).by_stream(), None)


def _on_broker(lakehouse: "Lakehouse", table: "Table") -> "dict[str, Broker]":
    """Returns the topics of an ingest table as the broker has them. Raises RangeError if it reads none."""
    from lakehouse.runtime import kafka_topics
    from lakehouse.stream.reading import offsets as positions

    topics = sorted(source.address for source in lakehouse.catalog.topics_of(table).values())
    if not topics:
        raise _no_source(lakehouse.catalog, table)
    return positions.on_broker(kafka_topics.admin(lakehouse.settings), topics)


def _no_source(catalog: "Catalog", table: "Table") -> "RangeError":
    from lakehouse.errors import RangeError

    reads = ", ".join(source.address for source in catalog.sources_of(table).values())
    what = f"it reads {reads}, which is no topic" if reads else f"a {table.kind} table"
    return RangeError(f"table={table.name}: {what}; name an ingest table that reads a topic")


def _ask(yes: bool, what: str) -> None:
    if not yes:
        typer.confirm(what, abort=True)
