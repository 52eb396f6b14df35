"""Metrics of jobs, also dead ones, of tables, reconciliations and results, as OpenMetrics, read when Prometheus asks.

The exporter is a process of its own that no job knows of. It reads status files, the ends of commit logs, and new
certificates: no Spark, no broker, and nothing that takes longer as the lakehouse grows. The results of a table are those of
the window that closed last, from the files of the one Delta commit that closed it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import chain, takewhile
from typing import Any
from wsgiref.simple_server import WSGIServer

import psutil
from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lakehouse import own_host
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError, JobError, SettingsError
from lakehouse.ranges import BEGINNING, parse_instant, past_beginning
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, delta_tables
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from streaming_jobs import progress
from streaming_jobs.exporters.metric_families import NEVER_RAN, Families
from streaming_jobs.progress import JobStatus, QueryStatus, ReferenceStatus
from streaming_jobs.supervision import scheduled

_log = logging.getLogger(__name__)

_SERIES = 100  # keys of a table's last window that are shown: the greatest
_LABEL = 200  # characters of a key


class LakehouseCollector(Collector):
    """Everything there is to say, again at each scrape. An unreadable part is counted, and only that is missing.

    Raises DeclarationError if two tables' `metrics` would have one name.
    """

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings, self._catalog = settings, catalog
        names = Counter(_result(table, column) for table in catalog for column in table.metrics)
        if twice := [name for name, times in names.items() if times > 1]:
            raise DeclarationError(
                f"metrics={twice[0]!r}: two columns would have that name, <table>_<column>; rename one of the columns"
            )
        self._verdicts, self._windows = Verdicts(settings), LastWindows(settings)
        self._errors: Counter[str] = Counter(job=0, table=0, certificates=0, results=0)
        self._lock = threading.Lock()  # two scrapes at once share what was read before

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            started, families = time.monotonic(), Families()
            for pipeline in self._catalog.pipelines():
                self._try("job", partial(self._job, families, pipeline))
                self._try("job", partial(self._check_files, pipeline))
            for table in self._catalog:
                self._try("table", partial(self._table, families, table))
                if table.metrics:
                    self._try("results", partial(self._results, families, table))
            self._try("certificates", partial(self._certificates, families))
            for part, errors in self._errors.items():
                families.add((part,), {"lakehouse_scrape_errors_total": errors})
            duration = time.monotonic() - started
            families.add((), {"lakehouse_scrape_duration_seconds": duration})
        yield from families

    def _try(self, part: str, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as err:
            self._errors[part] += 1
            _log.warning(f"metrics of {part}: {type(err).__name__}: {err}")

    def _job(self, families: Families, pipeline: str) -> None:
        settings, labels = self._settings, (pipeline,)
        status = progress.read(settings, pipeline)
        families.add_state("lakehouse_job_state", labels, status.state if status else NEVER_RAN)
        # first, as all that follows may fail
        families.add(labels, {"lakehouse_job_up": bool(status and status.alive)})
        is_scheduled = settings.freshness_of(pipeline).cron is not None
        families.add(
            labels,
            {
                "lakehouse_job_next_run_timestamp_seconds": _epoch(
                    scheduled.next_run(settings, pipeline)
                ),
                "lakehouse_job_interval_seconds": (
                    None if is_scheduled else settings.pace(pipeline).total_seconds()
                ),
            },
        )
        if status is None:
            return
        heartbeat = parse_instant(status.heartbeat).timestamp()
        families.add(
            labels,
            {
                "lakehouse_job_start_time_seconds": _epoch(status.started_at),
                "lakehouse_job_heartbeat_timestamp_seconds": heartbeat,
                "lakehouse_job_heartbeat_age_seconds": max(time.time() - heartbeat, 0.0),
            },
        )
        _processes(families, status)
        queries = [query for query in status.queries if query.table in self._catalog.tables]
        for query in queries:
            _counts(families, status, query)
        for reference in status.references:
            _reference(families, pipeline, reference)
        for query in queries if status.alive else ():  # else its speed says nothing about now
            is_ingest = self._catalog.table(query.table).kind.reads_sources
            _last_batch(families, pipeline, query, is_ingest)

    def _check_files(self, pipeline: str) -> None:
        """Raises JobError as long as a file that was unreadable lies there, so that an alert fires."""
        if unreadable := progress.unreadable(self._settings, pipeline):
            raise JobError(
                f"file={unreadable[-1]}: it was unreadable; look what became of the disk, then remove it"
            )

    def _table(self, families: Families, table: Table) -> None:
        if not table.kind.is_streamed:
            return  # no stream: its whole commit log would be searched for one
        commit_log = CommitLog(self._settings, table)
        last = next(commit_log.by_stream(), None)
        if last is None:
            return
        arrival = commit_log.last_arrival()
        readings = [first != later for first, later in last.readings.values()]
        frontier = _epoch(past_beginning(last.frontier))
        families.add(
            (table.pipeline, table.name),
            {
                "lakehouse_table_commit_timestamp_seconds": _epoch(arrival.at if arrival else None),
                "lakehouse_table_second_reading": any(readings) if readings else None,
                "lakehouse_table_frontier_timestamp_seconds": frontier,
                "lakehouse_table_frontier_delay_seconds": (
                    None if frontier is None else time.time() - frontier
                ),
            },
        )

    def _certificates(self, families: Families) -> None:
        for name, outcomes in self._verdicts.now().items():
            if name not in self._catalog.tables or not outcomes.verdict or not outcomes.at:
                continue
            labels = (self._catalog.table(name).pipeline, name)
            until = _epoch(outcomes.reconciled_until)
            families.add_state("lakehouse_certificate_verdict", labels, outcomes.verdict)
            families.add(
                labels,
                {
                    "lakehouse_certificate_timestamp_seconds": _epoch(outcomes.at),
                    "lakehouse_certificate_reconciled_until_timestamp_seconds": until,
                    "lakehouse_certificate_ranges_different": len(outcomes.different),
                },
            )
            for verdict, count in outcomes.counts.items():
                families.add((*labels, verdict), {"lakehouse_certificates_total": count})

    def _results(self, families: Families, table: Table) -> None:
        window = self._windows.last(table)
        if window is None:
            return
        # by their names once shortened, since a series may occur only once
        series = {tuple(key[:_LABEL] for key in keys): values for keys, values in window.rows}
        families.add(
            (table.pipeline, table.name),
            {
                "lakehouse_results_window_end_timestamp_seconds": _epoch(window.end),
                "lakehouse_results_left_out": max(len(series) - _SERIES, 0),
            },
        )
        for i, column in enumerate(table.metrics):
            help = f"{column} of {table.name}, of the window that closed last"
            family = families.results(_result(table, column), help, table.keys)
            points = [(v, keys) for keys, values in series.items() if (v := values[i]) is not None]
            for value, keys in sorted(points, reverse=True)[:_SERIES]:
                family.add_metric(keys, value)


def _result(table: Table, column: str) -> str:
    return f"lakehouse_result_{table.name}_{column}"


def _epoch(instant: datetime | str | None) -> float | None:
    """Returns the seconds of an instant; None for no instant, or an empty text."""
    if not instant:
        return None
    return (parse_instant(instant) if isinstance(instant, str) else instant).timestamp()


def _processes(families: Families, status: JobStatus) -> None:
    for name, pid, started in (
        ("driver", status.pid, status.process_started),
        ("jvm", status.jvm, status.jvm_started),
    ):
        if pid and status.place.is_here and progress.is_alive(pid, started):
            with suppress(psutil.Error):  # it may end between the two looks
                process, labels = psutil.Process(pid), (status.pipeline, name)
                memory, cpu = process.memory_info().rss, process.cpu_times()
                families.add(labels, {"lakehouse_job_resident_memory_bytes": memory})
                seconds = cpu.user + cpu.system
                families.add(labels, {"lakehouse_job_cpu_seconds_total": seconds}, started)


def _counts(families: Families, status: JobStatus, query: QueryStatus) -> None:
    labels, started = (status.pipeline, query.table), _epoch(status.started_at)
    families.add(labels, {"lakehouse_table_query_active": query.active})
    families.add(
        labels,
        {
            "lakehouse_table_rows_total": query.rows,
            "lakehouse_table_late_rows_total": query.late,
            "lakehouse_table_quarantined_rows_total": query.quarantined,
            "lakehouse_table_dropped_by_spark_total": query.dropped_by_spark,
        },
        started,
    )
    if counts := query.lookups:
        answered = counts["asked"] - counts["failed"]
        outcomes = {"answered": answered, "failed": counts["failed"], "cached": counts["cached"]}
        for outcome, value in outcomes.items():
            families.add((*labels, outcome), {"lakehouse_table_lookups_total": value}, started)
        families.add(labels, {"lakehouse_table_lookups_waiting": counts["waiting"]})
        for quantile, name in (("0.5", "p50"), ("0.99", "p99")):
            families.add((*labels, quantile), {"lakehouse_table_lookup_seconds": counts[name]})


def _reference(families: Families, pipeline: str, reference: ReferenceStatus) -> None:
    families.add(
        (pipeline, reference.table),
        {
            "lakehouse_reference_version_timestamp_seconds": _epoch(reference.made),
            "lakehouse_reference_looked_timestamp_seconds": _epoch(reference.looked),
            "lakehouse_reference_refresh_failed": bool(reference.error),
        },
    )


def _last_batch(families: Families, pipeline: str, query: QueryStatus, is_ingest: bool) -> None:
    labels = (pipeline, query.table)
    asked = _epoch(query.unanswered_since)
    waited = time.time() - asked if asked else 0.0
    families.add(
        labels,
        {
            "lakehouse_table_source_unanswered_seconds": waited if is_ingest else None,
            "lakehouse_table_rows_per_second": query.rows_per_second,
            "lakehouse_table_batch_duration_seconds": query.batch_seconds,
            "lakehouse_table_state_rows": query.state_rows if query.state_bytes else None,
            "lakehouse_table_state_bytes": query.state_bytes or None,
            "lakehouse_table_lag_files": None if is_ingest else query.lag,
        },
    )
    for phase, milliseconds in query.phases.items():
        if phase != "triggerExecution":  # all of them together
            seconds = milliseconds / 1000
            families.add((*labels, phase), {"lakehouse_table_batch_phase_seconds": seconds})
    if is_ingest:
        for key, lag in (query.lags or {"-": query.lag}).items():
            topic, _, partition = key.rpartition("-")
            families.add((*labels, topic, partition), {"lakehouse_table_lag_records": lag})


def registry(lakehouse: Lakehouse) -> CollectorRegistry:
    """Returns a registry that holds this lakehouse and nothing else."""
    registry = CollectorRegistry()
    registry.register(LakehouseCollector(lakehouse.settings, lakehouse.catalog))
    return registry


def serve(lakehouse: Lakehouse) -> tuple[WSGIServer, threading.Thread]:
    """Serves `/metrics` at the host and port of the settings, and returns the server and its thread. Raises SettingsError."""
    host, port = lakehouse.settings.metrics_host, lakehouse.settings.metrics_port
    metrics = CollectorRegistry()
    collector = LakehouseCollector(lakehouse.settings, lakehouse.catalog)
    # the first scrape reads every certificate there is; it need not be Prometheus that waits
    list(collector.collect())
    try:
        server, thread = start_http_server(port, host, metrics)
    except OSError as err:
        raise SettingsError(
            f"metrics_host={host}, metrics_port={port}: cannot listen there ({err}); take another port"
        ) from err
    server.set_app(own_host.guarded(make_wsgi_app(metrics), host))
    metrics.register(collector)  # once the guard is there
    return server, thread


@dataclass(frozen=True, slots=True)
class LastWindow:
    """The window that closed last, [.., end): of each of its rows the values of the table's keys and of its metrics."""

    end: datetime
    rows: tuple[tuple[tuple[str, ...], tuple[float | None, ...]], ...]


class LastWindows:
    """The last window of each table, read again only when the stream has written another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # up to which commit it is known
        self._known: dict[str, tuple[datetime, LastWindow | None]] = {}

    def last(self, table: Table) -> LastWindow | None:
        """Returns None before the first window has closed. Raises DeclarationError if `metrics` names no column of numbers."""
        seen, window = self._known.get(table.name, (BEGINNING, None))
        newer = takewhile(lambda c: c.at > seen, CommitLog(self._settings, table).by_stream())
        if (last := next(newer, None)) is None:
            return window
        if (wrote := next((c for c in chain([last], newer) if c.written), None)) is not None:
            window = _read(self._settings, table, wrote) or window
        self._known[table.name] = last.at, window
        return window


def _read(settings: Settings, table: Table, commit: Commit) -> LastWindow | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    path = table_path(settings, table)
    changed = delta_log.moved(path, commit.version)
    if changed is None:  # cut since
        return None
    files = [delta_log.data_file(path, file) for kind, file in changed if kind == "add"]
    if delta_log.missing(files):  # compacted since, and vacuumed
        return None
    stored = delta_tables.rows_of(files)
    if unknown := [name for name in table.metrics if name not in stored.schema.names]:
        raise DeclarationError(
            f"table={table.name}, metrics={unknown[0]!r}: it has no such column; one of {', '.join(stored.schema.names)}"
        )
    # a window closes for all of its keys in one micro-batch, which may close several
    rows = stored.to_table([WINDOW, *table.keys, *table.metrics])
    ends = pc.struct_field(rows[WINDOW], "end").cast(pa.timestamp("us", "UTC"))
    last = rows.filter(pc.equal(ends, pc.max(ends))).to_pylist()
    return LastWindow(
        pc.max(ends).as_py(), tuple((_keys(table, row), _values(table, row)) for row in last)
    )


def _keys(table: Table, row: Mapping[str, object]) -> tuple[str, ...]:
    return tuple("" if row[name] is None else str(row[name]) for name in table.keys)


def _values(table: Table, row: Mapping[str, Any]) -> tuple[float | None, ...]:
    for name in table.metrics:
        if not isinstance(row[name], int | float | Decimal | None):
            raise DeclarationError(
                f"table={table.name}, metrics={name!r}: {type(row[name]).__name__} is no number; name a column of numbers"
            )
    return tuple(None if row[name] is None else float(row[name]) for name in table.metrics)
