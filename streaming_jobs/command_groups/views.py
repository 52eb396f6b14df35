"""Streaming jobs for a terminal: their queries, and all that is known of them at one glance."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.ranges import BEGINNING, parse_instant, text
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from streaming_jobs import progress
from streaming_jobs.progress import ACTIVE, JobStatus, QueryStatus
from streaming_jobs.supervision import desired, origins, scheduled, supervisor

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_COLOURS = {
    "running": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "degraded": "yellow",
    "stopped": "dim",
}


def queries_table(
    found: Iterable[tuple[str, JobStatus | None]], certificates: Mapping[str, str] | None = None
) -> "Table":
    """Jobs and their queries; with `certificates` (table -> text) a column of them."""
    table = _table(
        "job, table",
        (),
        ("rows/s", "rows", "lag", "late", "quarantined", "batch s"),
        ("frontier", "last certificate") if certificates is not None else ("frontier",),
    )
    for name, status in found:
        table.add_row(f"{name} {_coloured(status.state) if status else 'never ran'}")
        for q in status.queries if status else ():
            late = f"{q.late:,}" + (
                f" [red](Spark dropped {q.dropped_by_spark})[/red]" if q.dropped_by_spark else ""
            )
            counts = (
                f"{q.rows_per_second:,.0f}",
                f"{q.rows:,}",
                f"{q.lag:,}",
                late,
                f"{q.quarantined:,}",
            )
            table.add_row(
                _named(q),
                *counts,
                f"{q.batch_seconds:.1f}",
                _second(q.frontier),
                *([certificates.get(q.table, "")] if certificates is not None else []),
            )
    return table


def _second(instant: str | None) -> str:
    """An instant of a status to the second, as all of them are shown."""
    return text(parse_instant(instant).replace(microsecond=0)) if instant else ""


def top(settings: Settings, pipelines: Iterable[str]) -> "Group":
    """The jobs, their queries, the lag of each partition of their topics, and what is wrong, as of now."""
    from rich.console import Group
    from rich.text import Text

    statuses = [(name, supervisor.status(settings, name)) for name in pipelines]
    knobs = [Text(line) for name, _ in statuses if (line := freshness(settings, name))]
    jobs = [status for _, status in statuses if status]
    lags = [
        f"{partition} {lag:,}"
        for status in jobs
        for q in status.queries
        for partition, lag in sorted(q.lags.items())
    ]
    asked = [Text(line) for status in jobs for line in lookups(status)]
    trouble = [
        Text(f"{name}: {line}", style="red")
        for name, status in statuses
        for line in troubles(settings, name, status)
    ]
    return Group(
        _processes(settings, statuses),
        "",
        queries_table(statuses),
        "",
        Text(f"lag: {', '.join(lags) or 'none known'}"),
        *knobs,
        *asked,
        *trouble,
    )


def freshness(settings: Settings, pipeline: str) -> str:
    """How fresh a pipeline is kept that is not continuous, in a line; empty for one that is."""
    return (
        f"{pipeline}: {scheduled.summary(settings, pipeline)}"
        if pipeline in settings.freshness
        else ""
    )


def troubles(settings: Settings, pipeline: str, status: JobStatus | None) -> list[str]:
    """What is wrong with a job, in a line each; of a paused query also what to do."""
    lost = desired.lost(settings, pipeline)
    unreadable = [
        f"file={path}: it was unreadable and moved aside; look what became of the disk, then remove it"
        for path in progress.unreadable(settings, pipeline)
    ]
    ended = ended_for(settings, pipeline)
    files = [*([lost] if lost else []), *unreadable, *([ended] if ended else [])]
    if status is None:
        return files
    remedy = f"; remove the cause, then `lakehouse stream restart {status.pipeline}`"
    failed = [
        f"table={q.table} is {q.state} since {q.since}"
        + (f" at {q.offsets}" if q.offsets else "")
        + (f"; {q.error}" if q.error else "")
        + (remedy if q.state == "paused" else "")
        for q in status.queries
        if q.state in ("paused", "restarting")
    ]
    waiting = [q.trouble for q in status.queries if q.trouble and status.state in ACTIVE]
    waiting += [
        f"table={q.table}: {q.waits}" for q in status.queries if q.waits and status.state in ACTIVE
    ]
    stale = [
        f"table={r.table}: it could not be refreshed since {r.looked or 'the start'}, and version {r.version} stays in use; "
        f"{r.error}"
        for r in status.references
        if r.error
    ]
    begun = [f"table={q.table} is in a new {q.begun}" for q in status.queries if q.begun]
    return [
        *([status.error] if status.error else []),
        *failed,
        *waiting,
        *stale,
        *begun,
        *origins.differing(settings, status),
        *files,
    ]


def ended_for(settings: Settings, pipeline: str, table: str = "") -> str:
    """That the job is stopped in the middle of an exchange of versions, and what goes on with that; empty if it is not.

    `table`: of that table alone.
    """
    command = desired.ended_for(settings, pipeline)
    of = command.split(" ")[-1]
    if not command or table not in ("", of) or supervisor.lives(settings, pipeline):
        return ""
    if pid := locks.holder(layout.upgrade_lock(settings, of)):
        return f"its job is ended for `{command}` (pid={pid}), which starts it again"
    return (
        f"its job was ended for `{command}`, which was cut off before it started the job again; run that command again, which "
        "does the rest and starts the job"
    )


def lookups(status: JobStatus | None) -> list[str]:
    """What the services of its tables' lookups were asked since the job started, in a line each."""
    return [
        "lookups of {}: {asked:,.0f} asked, {failed:,.0f} failed, {cached:,.0f} from the cache, {waiting:,.0f} waiting, "
        "median {p50:.3f} s, p99 {p99:.3f} s".format(q.table, **q.lookups)
        for q in (status.queries if status else ())
        if q.lookups
    ]


def place(status: JobStatus | None) -> str:
    """Where the job's process runs, if not here; empty if it does."""
    if status is None or status.place.is_here:
        return ""
    return f"pid {status.pid} is elsewhere: {status.place}"


def _processes(settings: Settings, found: Iterable[tuple[str, JobStatus | None]]) -> "Table":
    from rich.text import Text

    table = _table(
        "job",
        ("state", "wanted"),
        ("pid", "up", "Python", "JVM", "restarts"),
        ("the last because",),
    )
    for name, status in found:
        wanted, done = desired.read(settings, name), desired.history(settings, name)
        restarts = desired.restarts(done, parse_instant(wanted.since) if wanted else BEGINNING)
        asked = f"{wanted.state} by {wanted.by}" if wanted else "–"
        shown = ("never ran", asked) if status is None else (_coloured(status.state), Text(asked))
        process = (
            (
                f"{status.pid}",
                _age(status.started_at),
                _mib(status.python_bytes),
                _mib(status.jvm_bytes),
            )
            if status and status.alive
            else ("", "", "", "")
        )
        table.add_row(
            name,
            *shown,
            *process,
            f"{len(restarts)}",
            Text(restarts[-1].why[:100] if restarts else ""),
        )
    return table


def _table(name: str, words: Iterable[str], numbers: Iterable[str], more: Iterable[str]) -> "Table":
    """Where a terminal is narrow words go on in the next line; names and numbers stay whole."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    table.add_column(name, no_wrap=True)
    for column in words:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    for column in more:
        table.add_column(column, overflow="fold")
    return table


def _named(query: QueryStatus) -> str:
    marks: list[str] = [query.state] if query.state in ("paused", "restarting") else []
    marks += [f"reads {name} as of {version}" for name, version in query.reads.items()]
    marks += [f"restarted {query.restarts}x"] if query.restarts else []
    return f"  {query.table}" + (f"\n    [yellow]{', '.join(marks)}[/yellow]" if marks else "")


def _age(since: str) -> str:
    return str(datetime.now(UTC) - datetime.fromisoformat(since)).partition(".")[0]


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state, "red")
    return f"[{colour}]{state}[/{colour}]"
