"""Streaming jobs for a terminal: their queries, processes and troubles."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.ranges import BEGINNING, parse_instant, text
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.lakehouse import Lakehouse
from streaming_jobs import progress
from streaming_jobs.progress import ACTIVE, JobStatus, QueryStatus
from streaming_jobs.supervision import desired, scheduled, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.jobs import follower_of

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
    statuses: Iterable[tuple[str, JobStatus | None]], certificates: Mapping[str, str] | None = None
) -> "Table":
    """Returns jobs and their queries; with `certificates` (table -> text) a column of them."""
    table = _table(
        "job, table",
        (),
        ("rows/s", "rows", "lag", "late", "quarantined", "batch s"),
        ("frontier", "last certificate") if certificates is not None else ("frontier",),
    )
    for name, status in statuses:
        table.add_row(f"{name} {_coloured(status.state) if status else 'never ran'}")
        for q in status.queries if status else ():
            dropped = f" [red](Spark dropped {q.dropped_by_spark})[/red]"
            frontier = parse_instant(q.frontier).replace(microsecond=0) if q.frontier else None
            table.add_row(
                _named(q),
                f"{q.rows_per_second:,.0f}",
                f"{q.rows:,}",
                f"{q.lag:,}",
                f"{q.late:,}{dropped if q.dropped_by_spark else ''}",
                f"{q.quarantined:,}",
                f"{q.batch_seconds:.1f}",
                text(frontier) if frontier else "",
                *([certificates.get(q.table, "")] if certificates is not None else []),
            )
    return table


def top(settings: Settings, pipelines: Iterable[str]) -> "Group":
    """Returns the jobs, their queries, the lag of each partition of their topics, and their troubles, as of now."""
    from rich.console import Group
    from rich.text import Text

    statuses = [(name, supervisor.status(settings, name)) for name in pipelines]
    lines = [Text(line) for name, _ in statuses if (line := freshness(settings, name))]
    lags = []
    for _, status in statuses:
        lines += map(Text, lookups(status))
        for q in status.queries if status else ():
            lags += [f"{partition} {lag:,}" for partition, lag in sorted(q.lags.items())]
    for name, status in statuses:
        lines += [Text(f"{name}: {line}", style="red") for line in troubles(settings, name, status)]
    shown_lags = Text(f"lag: {', '.join(lags) or 'none known'}")
    return Group(
        _processes(settings, statuses), "", queries_table(statuses), "", shown_lags, *lines
    )


def target(lakehouse: Lakehouse, name: str) -> dict[str, object]:
    """Returns which version of its table a target holds, its follower's state, and why that waits or ended."""
    table, _ = lakehouse.catalog.target(name)
    follower = supervisor.status(lakehouse.settings, follower_of(name))
    query = follower.queries[0] if follower and follower.queries else None
    version, newest = query.batch if query else -1, delta_log.latest(lakehouse.path(table))
    return {
        "target": name,
        "table": table.name,
        "state": follower.state if follower else "never ran",
        "version": version if version >= 0 else None,
        "table_version": newest if newest >= 0 else None,
        "rows_sent": query.rows if query else 0,
        "remarks": (query.trouble if query else "") or (follower.error if follower else ""),
    }


def is_down(settings: Settings, target: str) -> bool:
    """Returns True if the target's follower is to run and does not."""
    follower = supervisor.status(settings, follower_of(target))
    wanted = desired.read(settings, follower_of(target))
    return bool(wanted and wanted.state == "running" and not (follower and follower.alive))


def restarts(settings: Settings, pipeline: str) -> list[Event]:
    """Returns the restarts of the job that nobody asked for, since the last wish for it."""
    wanted = desired.read(settings, pipeline)
    since = parse_instant(wanted.since) if wanted else BEGINNING
    return desired.restarts(desired.history(settings, pipeline), since)


def freshness(settings: Settings, pipeline: str) -> str:
    """Returns the freshness of a pipeline that is not continuous, in a line; empty for one that is."""
    if pipeline not in settings.freshness:
        return ""
    return f"{pipeline}: {scheduled.summary(settings, pipeline)}"


def troubles(settings: Settings, pipeline: str, status: JobStatus | None) -> list[str]:
    """Returns the troubles of a job, in a line each; of a paused query also the remedy."""
    lines = _troubles_of(status) + progress.other_origins(settings, status) if status else []
    lines.append(desired.lost(settings, pipeline))
    lines += [
        f"file={path}: it was unreadable and moved aside; look what became of the disk, then remove it"
        for path in progress.unreadable(settings, pipeline)
    ]
    lines.append(ended_for(settings, pipeline))
    return [line for line in lines if line]


def _troubles_of(status: JobStatus) -> list[str]:
    lines = [status.error]
    remedy = f"; remove the cause, then `lakehouse stream restart {status.pipeline}`"
    for q in status.queries:
        if q.state in ("paused", "restarting"):
            at = f" at {q.offsets}" if q.offsets else ""
            error = f"; {q.error}" if q.error else ""
            last = remedy if q.state == "paused" else ""
            lines.append(f"table={q.table} is {q.state} since {q.since}{at}{error}{last}")
    if status.state in ACTIVE:
        lines += [q.trouble for q in status.queries]
        lines += [f"table={q.table}: {q.waits}" for q in status.queries if q.waits]
    lines += [
        f"table={r.table}: it could not be refreshed since {r.looked or 'the start'}, and version {r.version} stays in use; "
        f"{r.error}"
        for r in status.references
        if r.error
    ]
    lines += [f"table={q.table} is in a new {q.begun}" for q in status.queries if q.begun]
    return lines


def ended_for(settings: Settings, pipeline: str, table: str = "") -> str:
    """Returns a remark if the job is stopped in the middle of an exchange of versions, of that table or any; else empty."""
    command = desired.ended_for(settings, pipeline)
    exchanged = command.split(" ")[-1]
    if not command or table not in ("", exchanged) or supervisor.lives(settings, pipeline):
        return ""
    if pid := locks.holder(layout.upgrade_lock(settings, exchanged)):
        return f"its job is ended for `{command}` (pid={pid}), which starts it again"
    return (
        f"its job was ended for `{command}`, which was cut off before it started the job again; run that command again, which "
        "does the rest and starts the job"
    )


def lookups(status: JobStatus | None) -> list[str]:
    """Returns the questions to the services of its tables' lookups since the job started, in a line each."""
    return [
        "lookups of {}: {asked:,.0f} asked, {failed:,.0f} failed, {cached:,.0f} from the cache, {waiting:,.0f} waiting, "
        "median {p50:.3f} s, p99 {p99:.3f} s".format(q.table, **q.lookups)
        for q in (status.queries if status else ())
        if q.lookups
    ]


def place(status: JobStatus | None) -> str:
    """Returns the place of the job's process; empty if it is here."""
    if status is None or status.place.is_here:
        return ""
    return f"pid {status.pid} is elsewhere: {status.place}"


def _processes(settings: Settings, statuses: Iterable[tuple[str, JobStatus | None]]) -> "Table":
    from rich.text import Text

    numbers = ("pid", "up", "Python", "JVM", "restarts")
    table = _table("job", ("state", "wanted"), numbers, ("the last because",))
    for name, status in statuses:
        wanted, counted = desired.read(settings, name), restarts(settings, name)
        process = ["", "", "", ""]
        if status and status.alive:
            age = str(datetime.now(UTC) - datetime.fromisoformat(status.started_at))
            sizes = (f"{b / 2**20:,.0f} MiB" for b in (status.python_bytes, status.jvm_bytes))
            process = [f"{status.pid}", age.partition(".")[0], *sizes]
        table.add_row(
            name,
            _coloured(status.state) if status else "never ran",
            Text(f"{wanted.state} by {wanted.by}" if wanted else "–"),
            *process,
            f"{len(counted)}",
            Text(counted[-1].why[:100] if counted else ""),
        )
    return table


def _table(name: str, words: Iterable[str], numbers: Iterable[str], more: Iterable[str]) -> "Table":
    """Returns a table in which words go on in the next line of a narrow terminal; names and numbers stay whole."""
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
    from rich.markup import escape

    marks: list[str] = [query.state] if query.state in ("paused", "restarting") else []
    marks += [f"reads {name} as of {version}" for name, version in query.reads.items()]
    refused = ((name, why) for name, why in query.plans.items() if why)
    marks += [escape(f"Spark plans each step ({name}): {why}") for name, why in refused]
    marks += [f"restarted {query.restarts}x"] if query.restarts else []
    return f"  {query.table}" + (f"\n    [yellow]{', '.join(marks)}[/yellow]" if marks else "")


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state, "red")
    return f"[{colour}]{state}[/{colour}]"
