"""The commands of the `lakehouse` command line about the topics of ingest tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console
from lakehouse.cli.console import AsJson

if TYPE_CHECKING:
    from lakehouse.declare.table import Table
    from lakehouse.settings import Settings
    from lakehouse.storage.commits import Commit
    from lakehouse.stream.offsets import Broker

group = console.group("Topics that ingest tables read.")

_Ingest = Annotated[str, typer.Argument(metavar="TABLE", help="An ingest table: it reads a topic")]
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask")]


@group.command("check")
def offsets(table: _Ingest, as_json: AsJson = False) -> None:
    """Compare an ingest table with its topics, message by message: missing, doubled.

    The command compares what the topics still hold, up to the table's last commit, beside the
    stream. Exit code 0 if each message is there once, 1 if not, 2 when refused.
    """
    from lakehouse.declare.catalog import load
    from lakehouse.settings import from_environment
    from lakehouse.stream.topic_check import Checked, check

    settings = from_environment()
    catalog = load(settings)
    with console.working(f"comparing {table} with its topics"):
        found = check(settings, catalog, catalog.table(table))
    if as_json:
        console.print_json([asdict(each) for each in found])
    else:
        console.print_rows(Checked.__dataclass_fields__, (asdict(each).values() for each in found))
    if any(each.missing or each.doubled for each in found):
        raise typer.Exit(1)


@group.command("accept-new")
def new_topic(table: _Ingest, yes: _Yes = False) -> None:
    """Accept that a topic was deleted and created again, and read it from its beginning.

    The table's job must be stopped. A new generation reads the topic; what the table has read of
    the former topic stays. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.errors import RangeError
    from lakehouse.storage import checkpoints
    from lakehouse.stream import offsets as positions

    with _stopped(table) as (settings, declared, last, there):
        present = {topic: each.id for topic, each in there.items()}
        before = positions.known(settings, declared).ids
        changed = {
            topic: identity
            for topic, identity in present.items()
            if before.get(topic, identity) != identity
        }
        if not changed:
            raise RangeError(
                f"table={table}, topic={', '.join(present)}: the topic has the id that the table has read, so "
                "there is nothing to accept; "
                "continue with `lakehouse stream start`"
            )
        for topic, identity in changed.items():
            count = sum(there[topic].end[p] - there[topic].first[p] for p in there[topic].end)
            console.print_text(
                f"{topic}: id {before[topic]} before, {identity} now, {count:,} messages"
            )
        _ask(yes, "read from the beginning?")
        after = (last.generation, last.batch) if last else (0, -1)
        # the generation first: after a crash between the two the topic is still another one, and
        # this is run again
        begun = checkpoints.begin(
            settings,
            declared,
            None,
            f"{', '.join(sorted(changed))} was created again (`lakehouse topic accept-new`)",
        )
        positions.declare_recreated(settings, declared, present, after)
    console.print_text(
        f"{table}: generation {begun.generation} reads from the beginning; `lakehouse stream start {declared.pipeline}`"
    )


@group.command("accept-gap")
def accept_gap(table: _Ingest, yes: _Yes = False) -> None:
    """Accept that messages which the topic no longer has, and the table has not read, are lost.

    The table continues behind them. Its job must be stopped. Exit code 0 when done, 2 when refused.
    """
    from lakehouse.errors import RangeError
    from lakehouse.storage import checkpoints
    from lakehouse.stream import offsets as positions

    with _stopped(table) as (settings, declared, last, there):
        positions.check_ids(settings, declared, {topic: each.id for topic, each in there.items()})
        gaps = positions.lost(settings, declared, there, last) if last else []
        if not gaps:
            raise RangeError(
                f"table={table}: its topics have every message that it has not read, so nothing is lost; start its job"
            )
        for gap in gaps:
            console.print_text(
                f"{gap.topic}, partition {gap.partition}: offsets {gap.since} to {gap.until - 1} are lost"
            )
        _ask(yes, "go on without them?")
        # the generation first: after a crash between the two the messages are not accepted yet, and
        # this is run again
        checkpoints.begin(
            settings,
            declared,
            None,
            "lost messages were accepted (`lakehouse topic accept-gap`)",
        )
        positions.declare_lost(settings, declared, gaps)
    console.print_text(
        f"{table}: it continues behind them; `lakehouse stream start {declared.pipeline}`"
    )


@contextmanager
def _stopped(name: str) -> "Iterator[tuple[Settings, Table, Commit | None, dict[str, Broker]]]":
    """An ingest table whose job does not run and cannot start meanwhile, with its last commit and what the broker says."""
    from lakehouse.declare.catalog import load
    from lakehouse.errors import RangeError
    from lakehouse.settings import from_environment
    from lakehouse.storage.commit_log import CommitLog
    from lakehouse.stream import offsets as positions
    from streaming_jobs import lease

    settings = from_environment()
    catalog = load(settings)
    table = catalog.table(name)
    topics = sorted(source.topic for source in catalog.topics_of(table).values())
    if not topics:
        raise RangeError(
            f"table={name}: a {catalog.kind(table)} table has no topic; name an ingest table, which reads one"
        )
    with lease.held(settings, table.pipeline):
        there = positions.on_broker(positions.admin(settings), topics)
        yield settings, table, next(CommitLog(settings, table).by_stream(), None), there


def _ask(yes: bool, what: str) -> None:
    if not yes:
        typer.confirm(what, abort=True)
