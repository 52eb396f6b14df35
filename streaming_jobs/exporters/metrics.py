"""What is written of jobs, tables, reconciliations and results, as OpenMetrics, read when Prometheus asks: of dead jobs, too.

The exporter is a process of its own that no job knows of. It reads status files, the ends of commit
logs, and new certificates: no Spark, no broker, and nothing that takes longer as the lakehouse
grows.
"""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lakehouse import own_host
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError, JobError, SettingsError
from lakehouse.ranges import parse_instant, past_beginning
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from streaming_jobs import progress
from streaming_jobs.exporters.metric_families import NEVER_RAN, Families
from streaming_jobs.exporters.results import LastWindows
from streaming_jobs.progress import JobStatus, QueryStatus, ReferenceStatus
from streaming_jobs.supervision import scheduled

_log = logging.getLogger(__name__)

_SERIES = 100  # keys of a table's last window that are shown: the greatest
_LABEL = 200  # characters of a key


class LakehouseCollector(Collector):
    """Everything there is to say, again at each scrape.

    What cannot be read is counted and costs its own part only.

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
                self._try("table", partial(self._progress_of, families, table))
                if table.metrics:
                    self._try("results", partial(self._results, families, table))
            self._try("certificates", partial(self._certificates, families))
            for part, errors in self._errors.items():
                families.add("lakehouse_scrape_errors_total", (part,), errors)
            families.add("lakehouse_scrape_duration_seconds", (), time.monotonic() - started)
        yield from families

    def _try(self, part: str, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as err:
            self._errors[part] += 1
            _log.warning(f"metrics of {part}: {type(err).__name__}: {err}")

    def _job(self, found: Families, pipeline: str) -> None:
        status = progress.read(self._settings, pipeline)
        found.add_state("lakehouse_job_state", (pipeline,), status.state if status else NEVER_RAN)
        found.add("lakehouse_job_up", (pipeline,), bool(status and status.alive))
        due = scheduled.next_run(self._settings, pipeline)
        found.add(
            "lakehouse_job_next_run_timestamp_seconds", (pipeline,), _epoch(due) if due else None
        )
        found.add(
            "lakehouse_job_interval_seconds", (pipeline,), _interval(self._settings, pipeline)
        )
        if status is None:
            return
        heartbeat = _epoch(parse_instant(status.heartbeat))
        found.add(
            "lakehouse_job_start_time_seconds",
            (pipeline,),
            _epoch(parse_instant(status.started_at)),
        )
        found.add("lakehouse_job_heartbeat_timestamp_seconds", (pipeline,), heartbeat)
        found.add(
            "lakehouse_job_heartbeat_age_seconds", (pipeline,), max(time.time() - heartbeat, 0.0)
        )
        _processes(found, status)
        queries = [q for q in status.queries if q.table in self._catalog.tables]
        for query in queries:
            _counts(found, status, query)
        for reference in status.references:
            _reference(found, pipeline, reference)
        if not status.alive:
            return  # how fast it was says nothing about now
        for query in queries:
            is_ingest = self._catalog.table(query.table).kind.reads_sources
            if is_ingest:
                since = query.unanswered_since
                waited = time.time() - _epoch(parse_instant(since)) if since else 0.0
                name = "lakehouse_table_source_unanswered_seconds"
                found.add(name, (pipeline, query.table), waited)
            _last_batch(found, pipeline, query, of_topic=is_ingest)

    def _check_files(self, pipeline: str) -> None:
        """Raises JobError as long as a file that was unreadable lies there, so that an alert fires."""
        if unreadable := progress.unreadable(self._settings, pipeline):
            raise JobError(
                f"file={unreadable[-1]}: it was unreadable; look what became of the disk, then remove it"
            )

    def _progress_of(self, found: Families, table: Table) -> None:
        if not table.kind.is_streamed:
            return  # no stream: its whole commit log would be searched for one
        commit_log = CommitLog(self._settings, table)
        last = next(commit_log.by_stream(), None)
        if last is None:
            return
        labels = (table.pipeline, table.name)
        if with_rows := commit_log.last_arrival():
            found.add("lakehouse_table_commit_timestamp_seconds", labels, _epoch(with_rows.at))
        if last.readings:
            again = any(first != later for first, later in last.readings.values())
            found.add("lakehouse_table_second_reading", labels, again)
        if ahead := past_beginning(last.frontier):
            found.add("lakehouse_table_frontier_timestamp_seconds", labels, _epoch(ahead))
            found.add("lakehouse_table_frontier_delay_seconds", labels, time.time() - _epoch(ahead))

    def _certificates(self, found: Families) -> None:
        for name, outcomes in self._verdicts.now().items():
            if name not in self._catalog.tables or not outcomes.verdict or not outcomes.at:
                continue
            labels = (self._catalog.table(name).pipeline, name)
            found.add_state("lakehouse_certificate_verdict", labels, outcomes.verdict)
            found.add("lakehouse_certificate_timestamp_seconds", labels, _epoch(outcomes.at))
            until = outcomes.reconciled_until
            found.add(
                "lakehouse_certificate_reconciled_until_timestamp_seconds",
                labels,
                _epoch(until) if until else None,
            )
            found.add("lakehouse_certificate_ranges_different", labels, len(outcomes.different))
            for verdict, count in outcomes.counts.items():
                found.add("lakehouse_certificates_total", (*labels, verdict), count)

    def _results(self, found: Families, table: Table) -> None:
        window = self._windows.of(table)
        if window is None:
            return
        labels = (table.pipeline, table.name)
        found.add("lakehouse_results_window_end_timestamp_seconds", labels, _epoch(window.end))
        # by their names once shortened, since a series may occur only once
        series = {tuple(key[:_LABEL] for key in keys): values for keys, values in window.rows}
        found.add("lakehouse_results_left_out", labels, max(len(series) - _SERIES, 0))
        for i, column in enumerate(table.metrics):
            help = f"{column} of {table.name}, of the window that closed last"
            family = found.results(_result(table, column), help, table.keys)
            points = [(v, keys) for keys, values in series.items() if (v := values[i]) is not None]
            for value, keys in sorted(points, reverse=True)[:_SERIES]:
                family.add_metric(keys, value)


def _result(table: Table, column: str) -> str:
    return f"lakehouse_result_{table.name}_{column}"


def _interval(settings: Settings, pipeline: str) -> float | None:
    return None if settings.freshness_of(pipeline).cron else settings.pace(pipeline).total_seconds()


def _processes(found: Families, status: JobStatus) -> None:
    for name, pid, started in (
        ("driver", status.pid, status.process_started),
        ("jvm", status.jvm, status.jvm_started),
    ):
        if pid and status.place.is_here and progress.is_alive(pid, started):
            with suppress(psutil.Error):  # it may end between the two looks
                process = psutil.Process(pid)
                memory, cpu = process.memory_info().rss, process.cpu_times()
                found.add("lakehouse_job_resident_memory_bytes", (status.pipeline, name), memory)
                found.add(
                    "lakehouse_job_cpu_seconds_total",
                    (status.pipeline, name),
                    cpu.user + cpu.system,
                    started,
                )


def _counts(found: Families, status: JobStatus, query: QueryStatus) -> None:
    labels = (status.pipeline, query.table)
    counted = {
        "rows": query.rows,
        "late_rows": query.late,
        "quarantined_rows": query.quarantined,
        "dropped_by_spark": query.dropped_by_spark,
    }
    for name, value in counted.items():
        found.add(
            f"lakehouse_table_{name}_total", labels, value, _epoch(parse_instant(status.started_at))
        )
    found.add("lakehouse_table_query_active", labels, query.active)
    _lookups(found, status, query)


def _reference(found: Families, pipeline: str, reference: ReferenceStatus) -> None:
    labels = (pipeline, reference.table)
    for name, moment in (("version", reference.made), ("looked", reference.looked)):
        value = _epoch(parse_instant(moment)) if moment else None
        found.add(f"lakehouse_reference_{name}_timestamp_seconds", labels, value)
    found.add("lakehouse_reference_refresh_failed", labels, bool(reference.error))


def _last_batch(found: Families, pipeline: str, query: QueryStatus, *, of_topic: bool) -> None:
    labels = (pipeline, query.table)
    found.add("lakehouse_table_rows_per_second", labels, query.rows_per_second)
    found.add("lakehouse_table_batch_duration_seconds", labels, query.batch_seconds)
    for phase, milliseconds in query.phases.items():
        if phase != "triggerExecution":  # all of them together
            found.add("lakehouse_table_batch_phase_seconds", (*labels, phase), milliseconds / 1000)
    if query.state_bytes:
        found.add("lakehouse_table_state_rows", labels, query.state_rows)
        found.add("lakehouse_table_state_bytes", labels, query.state_bytes)
    if not of_topic:
        found.add("lakehouse_table_lag_files", labels, query.lag)
        return
    for key, lag in (query.lags or {"-": query.lag}).items():
        topic, _, partition = key.rpartition("-")
        found.add("lakehouse_table_lag_records", (*labels, topic, partition), lag)


def _lookups(found: Families, status: JobStatus, query: QueryStatus) -> None:
    if not query.lookups:
        return
    labels, counts = (status.pipeline, query.table), query.lookups
    started = _epoch(parse_instant(status.started_at))
    outcomes = {
        "answered": counts["asked"] - counts["failed"],
        "failed": counts["failed"],
        "cached": counts["cached"],
    }
    for outcome, value in outcomes.items():
        found.add("lakehouse_table_lookups_total", (*labels, outcome), value, started)
    found.add("lakehouse_table_lookups_waiting", labels, counts["waiting"])
    for quantile, name in (("0.5", "p50"), ("0.99", "p99")):
        found.add("lakehouse_table_lookup_seconds", (*labels, quantile), counts[name])


def _epoch(instant: datetime) -> float:
    return instant.astimezone(UTC).timestamp()


def registry(lakehouse: Lakehouse) -> CollectorRegistry:
    """A registry that holds this lakehouse and nothing else."""
    registry = CollectorRegistry()
    registry.register(LakehouseCollector(lakehouse.settings, lakehouse.catalog))
    return registry


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing of a request."""


def serve(lakehouse: Lakehouse) -> tuple[_Server, threading.Thread]:
    """Serves `/metrics` at the host and port of the settings, in a thread: (server, thread).

    Raises SettingsError.
    """
    from prometheus_client import make_wsgi_app

    metrics = registry(lakehouse)
    # the first scrape reads every certificate there is; it need not be Prometheus that waits
    list(metrics.collect())
    try:
        server = make_server(
            lakehouse.settings.metrics_host,
            lakehouse.settings.metrics_port,
            own_host.guarded(make_wsgi_app(metrics), lakehouse.settings.metrics_host),
            _Server6 if ":" in lakehouse.settings.metrics_host else _Server,
            handler_class=_QuietHandler,
        )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        return server, thread
    except OSError as err:
        raise SettingsError(
            f"metrics_host={lakehouse.settings.metrics_host}, metrics_port={lakehouse.settings.metrics_port}: cannot "
            f"listen there ({err}); another exporter may run, or take another port"
        ) from err
