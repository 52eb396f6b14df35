"""`lakehouse produce`: events for a topic, those of a pipeline's producer or your own."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakehouse.cli import console
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError, SettingsError
from lakehouse.settings import Settings, from_environment

if TYPE_CHECKING:
    from lakehouse.producers.sender import Summary
    from lakehouse.producers.workload import Producer, Record, Workload

_MILLISECOND = timedelta(milliseconds=1)


def produce(
    pipeline: Annotated[
        str | None, typer.Argument(help="A pipeline with a producer; none with --topic")
    ] = None,
    history: Annotated[
        str | None, typer.Option(help="First send events of the past, at full speed: '2 hours'")
    ] = None,
    live: Annotated[
        bool | None, typer.Option(help="Then send events of now; the default without --history")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Seconds to send events of now; else until Ctrl-C")
    ] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Events per second of event time")] = None,
    disorder: Annotated[
        str | None, typer.Option(help="How late ordinary events are sent at most: '2 seconds'")
    ] = None,
    late_share: Annotated[
        float | None, typer.Option(help="Share of events later than that")
    ] = None,
    late_by: Annotated[
        str | None, typer.Option(help="How late these are sent at most: '1 minute'")
    ] = None,
    duplicates: Annotated[float | None, typer.Option(help="Share of events sent twice")] = None,
    malformed: Annotated[
        float | None, typer.Option(help="Share of malformed events, one kind after the other")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed, settings and start give the same bytes")
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            help="Send the lines of a log, plain or .gz, instead of made-up events; - reads stdin"
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="A topic of your own, for the JSON lines of --file")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="With --topic: the field of each line that is the message's key"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one line of JSON, without a bar")
    ] = False,
) -> None:
    """Send events to a topic: of a pipeline's producer (made up, or lines of a log), or your own with --topic and --file.

    The producer is `PRODUCER` of the module `producer` beside the pipeline's module `tables`.
    Ctrl-C ends the command cleanly.
    """
    from lakehouse.producers.registry import ensure_topics, producer

    options: dict[str, Any] = {
        "seed": seed,
        "rate": rate,
        "disorder_ms": _ms(disorder, "disorder"),
        "late_share": late_share,
        "late_by_ms": _ms(late_by, "late_by"),
        "duplicate_share": duplicates,
        "malformed_share": malformed,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if topic or key:
        of_made_up = {"pipeline": pipeline, "history": history, "live": live, "seconds": seconds}
        _refuse_beside_files(file or [], options | of_made_up)
        return _send_own(topic, file, key, as_json)
    settings = from_environment()
    chosen = producer(settings, pipeline)
    workload = replace(chosen.workload, **options)
    if file:
        _refuse_beside_files(file, options | {"history": history, "live": live, "seconds": seconds})
        records, total = _of_files(pipeline, chosen, file), None
    else:
        records, total = _made_up(chosen, workload, history, live, seconds)
    ensure_topics(settings, chosen, workload.partitions)
    _send(settings, records, chosen.topic, total, as_json)


def _send_own(topic: str | None, file: list[str] | None, key: str | None, as_json: bool) -> None:
    from lakehouse.producers.files import lines, messages
    from lakehouse.runtime import kafka_topics

    if not (topic and file):
        raise SettingsError(
            f"topic={topic}, file={file}: your own events are the lines of a file for a topic; give both"
        )
    settings, records = from_environment(), messages(lines(file), key)
    # raises BrokerError: a misspelt topic must not become a new one
    kafka_topics.ids(kafka_topics.admin(settings), [topic])
    _send(settings, records, topic, None, as_json)


def _send(
    settings: Settings, records: "Iterator[Record]", topic: str, total: int | None, as_json: bool
) -> None:
    from lakehouse.producers.sender import send
    from lakehouse.runtime.kafka_options import client_config
    from lakehouse.stopping import by_signals

    with by_signals() as stop, _shown(total, hidden=as_json) as progress:
        summary = send(records, topic, client_config(settings), stop, progress)
    _report(summary, as_json)


def _made_up(
    chosen: "Producer",
    workload: "Workload",
    history: str | None,
    live: bool | None,
    seconds: float | None,
) -> "tuple[Iterator[Record], int | None]":
    """Returns the records, and how many there are; None if they are endless."""
    live = history is None if live is None else live
    if history is None and not live:
        raise SettingsError(
            "live=False (history=None): nothing is left to send; add --history or leave out --no-live"
        )
    if seconds is not None and not live:
        raise SettingsError(
            f"seconds={seconds:g}: the time for events of now, and only history is sent; add --live"
        )
    # past and present are one stream: it runs at full speed as long as it lags the clock, and so reaches
    # the present without a gap
    now = int(time.time() * 1000)
    start = now - (_ms(history, "history") or 0)
    end = None if seconds is None else now + int(seconds * 1000)
    end = end if live else now
    total = None if end is None else (end - start) * workload.rate // 1000
    return chosen.records(workload, start, end), total


def _of_files(pipeline: str | None, chosen: "Producer", files: list[str]) -> "Iterator[Record]":
    from lakehouse.producers.files import lines

    if chosen.lines is None:
        raise SettingsError(
            f"pipeline={pipeline!r}, topic={chosen.topic}, file={', '.join(files)}: its producer makes events up and reads no "
            "lines; leave out --file"
        )
    return chosen.lines(lines(files), chosen.workload.partitions)


def _refuse_beside_files(files: list[str], given: dict[str, object]) -> None:
    if others := [name for name, value in given.items() if value is not None]:
        raise SettingsError(
            f"file={', '.join(files)}, {', '.join(others)}: lines are sent as they are; leave out the options of made-up events"
        )


def _ms(span: str | None, field: str) -> int | None:
    try:
        return None if span is None else duration(span, field) // _MILLISECOND
    except DeclarationError as error:
        raise SettingsError(str(error)) from error


@contextmanager
def _shown(total: int | None, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr; yields a function that takes the number of records sent."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda sent: bar.update(task, completed=sent)


def _report(summary: "Summary", as_json: bool) -> None:
    from lakehouse.ranges import text

    if as_json:
        console.print_json([summary])
        return
    speed = summary.sent / max(summary.seconds, 0.001)
    typer.echo(
        f"{summary.sent:,} records to {summary.topic} in {summary.seconds:.1f} s ({speed:,.0f}/s):"
        f" {summary.late:,} late, {summary.duplicates:,} duplicates, {summary.malformed:,} malformed"
    )
    if summary.first_event and summary.last_event:
        typer.echo(f"event times {text(summary.first_event)} to {text(summary.last_event)}")
