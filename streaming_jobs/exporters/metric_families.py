"""The metrics that `lakehouse metrics` shows, declared, and the families of one scrape, filled sample by sample.

Names follow Prometheus: base units, `_total` for what only grows. A name decides its type and its labels: `_total` is a
counter, a name with `_STATES` a state set (a series a state, 1 for the one that holds), all others are gauges.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    StateSetMetricFamily,
)

from lakehouse.storage.log.certificates import Verdict
from streaming_jobs.progress import State

NEVER_RAN = "never_ran"
_UNITS = ("seconds", "bytes")
_HELP = {
    "lakehouse_job_state": "State of the streaming job; dead: its process ended without an error message",
    "lakehouse_job_up": "1 if the process of the streaming job is alive",
    "lakehouse_job_start_time_seconds": "When the job's process started, in seconds since the epoch",
    "lakehouse_job_heartbeat_timestamp_seconds": "When the job last wrote its status",
    "lakehouse_job_heartbeat_age_seconds": "How long ago the job last wrote its status",
    "lakehouse_job_interval_seconds": "The least time between two micro-batches that read a topic; none if scheduled",
    "lakehouse_job_next_run_timestamp_seconds": "When the run after the last one is due; of scheduled jobs only",
    "lakehouse_job_resident_memory_bytes": "Memory of the job's driver and of its JVM",
    "lakehouse_job_cpu_seconds_total": "CPU time of the job's driver and of its JVM",
    "lakehouse_table_query_active": "1 if the streaming query of the table runs",
    "lakehouse_table_rows_total": "Rows taken in since the job started; of window tables pairs of row and window",
    "lakehouse_table_late_rows_total": "Late rows among those taken in",
    "lakehouse_table_quarantined_rows_total": "Rows quarantined among those taken in",
    "lakehouse_table_dropped_by_spark_total": "Rows that Spark itself dropped as late; must be 0, for these rows are missing",
    "lakehouse_table_rows_per_second": "Rows a second that came in before the last micro-batch",
    "lakehouse_table_lag_records": "Records of the topic that the last micro-batch left unread",
    "lakehouse_table_lag_files": "Files of the input table that the last micro-batch left unread",
    "lakehouse_table_batch_duration_seconds": "How long the last micro-batch took",
    "lakehouse_table_batch_phase_seconds": "How long each phase of the last micro-batch took",
    "lakehouse_table_lookups_total": "Questions to the service of the table's lookup since the job started, by what came of them",
    "lakehouse_table_lookups_waiting": "Questions of the step under way without an answer yet",
    "lakehouse_table_lookup_seconds": "How long the last thousand questions took, each its last attempt",
    "lakehouse_table_source_unanswered_seconds": (
        "How long the class of the table's source has not answered, once that is more than a minute; 0 before"
    ),
    "lakehouse_table_state_rows": "Rows of state after the last micro-batch",
    "lakehouse_table_state_bytes": "Memory of the state store after the last micro-batch",
    "lakehouse_table_commit_timestamp_seconds": "When the stream last committed what came of rows",
    "lakehouse_table_frontier_timestamp_seconds": "The event time up to which the table is complete",
    "lakehouse_table_frontier_delay_seconds": "How far the frontier lies behind the present",
    "lakehouse_table_second_reading": "1 if Debezium has read the database's table more than once; of tables of its changes only",
    "lakehouse_reference_version_timestamp_seconds": "When the version of the refreshed reference table that is in use was made",
    "lakehouse_reference_looked_timestamp_seconds": (
        "When the inputs of the refreshed reference table were last read without an error"
    ),
    "lakehouse_reference_refresh_failed": "1 if the reference table could not be refreshed when that was last tried",
    "lakehouse_certificate_verdict": "The last verdict of the reconciliation",
    "lakehouse_certificate_timestamp_seconds": "When the last verdict was given",
    "lakehouse_certificate_reconciled_until_timestamp_seconds": "The latest end of a range that was found EQUAL",
    "lakehouse_certificate_ranges_different": "Ranges found DIFFERENT, and not EQUAL since",
    "lakehouse_certificates_total": "Certificates ever made",
    "lakehouse_results_window_end_timestamp_seconds": "The end of the window whose results are shown",
    "lakehouse_results_left_out": "Keys of the last window beyond the most that are shown",
    "lakehouse_scrape_errors_total": "What could not be read, since the exporter started",
    "lakehouse_scrape_duration_seconds": "How long this scrape took",
}
_STATES: dict[str, tuple[str, ...]] = {
    "lakehouse_job_state": (*get_args(State), NEVER_RAN),
    "lakehouse_certificate_verdict": get_args(Verdict),
}
_LABELS = {"lakehouse_job": ("pipeline",), "lakehouse_scrape": ()}
_MORE_LABELS = {
    "lakehouse_job_resident_memory_bytes": ("process",),
    "lakehouse_job_cpu_seconds_total": ("process",),
    "lakehouse_table_lag_records": ("topic", "partition"),
    "lakehouse_table_batch_phase_seconds": ("phase",),
    "lakehouse_table_lookups_total": ("outcome",),
    "lakehouse_table_lookup_seconds": ("quantile",),
    "lakehouse_certificates_total": ("verdict",),
    "lakehouse_scrape_errors_total": ("part",),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: its name, its description, its labels, its states."""

    name: str
    help: str
    labels: tuple[str, ...]
    states: tuple[str, ...]

    def family(self) -> Metric:
        if self.states:
            return StateSetMetricFamily(self.name, self.help, labels=self.labels)
        bare = self.name.removesuffix("_total")
        unit = next((unit for unit in _UNITS if bare.endswith(f"_{unit}")), "")
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return kind(bare, self.help, labels=self.labels, unit=unit)


def _declared(name: str, help: str) -> Declared:
    subject = "_".join(name.split("_")[:2])
    labels = _LABELS.get(subject, ("pipeline", "table"))
    return Declared(name, help, (*labels, *_MORE_LABELS.get(name, ())), _STATES.get(name, ()))


DECLARED = tuple(_declared(name, help) for name, help in _HELP.items())


class Families:
    """The samples of one scrape, by family; a value of None is no sample."""

    def __init__(self) -> None:
        self._declared = {metric.name: metric for metric in DECLARED}
        self._made: dict[str, Any] = {}  # families: of each kind add_metric takes another value

    def add(
        self,
        labels: Iterable[str],
        values: Mapping[str, float | None],
        created: float | None = None,
    ) -> None:
        """Adds a sample with these labels for each metric; `created` is when its counter began."""
        since = {} if created is None else {"created": created}
        for name, value in values.items():
            if value is not None:
                self._family(name).add_metric(tuple(labels), value, **since)

    def add_state(self, name: str, labels: Iterable[str], state: str) -> None:
        states = {one: one == state for one in _STATES[name]}
        self._family(name).add_metric(tuple(labels), states)

    def results(self, name: str, help: str, keys: Iterable[str]) -> GaugeMetricFamily:
        """Returns a family for a column of a table, whatever its name ends with."""
        return self._made.setdefault(name, GaugeMetricFamily(name, help, labels=tuple(keys)))

    def _family(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._declared[name].family()
        return self._made[name]

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._made.values())
