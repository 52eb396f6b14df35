"""The metrics that `lakehouse metrics` shows, declared.

And the families of one scrape, filled sample by sample.

Names follow Prometheus: base units, `_total` for what only grows. A name decides its type: `_total`
is a counter, one with `states` a state set (a series a state, 1 for the one that holds), the others
gauges.
"""

from collections.abc import Iterable, Iterator
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

_JOB = ("pipeline",)
_TABLE = ("pipeline", "table")
_UNITS = ("seconds", "bytes")


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: its name, what it says, its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = _TABLE
    states: tuple[str, ...] = ()

    def family(self) -> Metric:
        if self.states:
            return StateSetMetricFamily(self.name, self.help, labels=self.labels)
        bare = self.name.removesuffix("_total")
        unit = next((unit for unit in _UNITS if bare.endswith(f"_{unit}")), "")
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return kind(bare, self.help, labels=self.labels, unit=unit)


NEVER_RAN = "never_ran"
DECLARED = (
    Declared(
        "lakehouse_job_state",
        "State of the streaming job; dead: its process ended without an error message",
        _JOB,
        (*get_args(State), NEVER_RAN),
    ),
    Declared("lakehouse_job_up", "1 if the process of the streaming job is alive", _JOB),
    Declared(
        "lakehouse_job_start_time_seconds",
        "When the job's process started, in seconds since the epoch",
        _JOB,
    ),
    Declared(
        "lakehouse_job_heartbeat_timestamp_seconds", "When the job last wrote its status", _JOB
    ),
    Declared(
        "lakehouse_job_heartbeat_age_seconds", "How long ago the job last wrote its status", _JOB
    ),
    Declared(
        "lakehouse_job_interval_seconds",
        "The least time between two micro-batches that read a topic; none if scheduled",
        _JOB,
    ),
    Declared(
        "lakehouse_job_next_run_timestamp_seconds",
        "When the run after the last one is due; of scheduled jobs only",
        _JOB,
    ),
    Declared(
        "lakehouse_job_resident_memory_bytes",
        "Memory of the job's driver and of its JVM",
        (*_JOB, "process"),
    ),
    Declared(
        "lakehouse_job_cpu_seconds_total",
        "CPU time of the job's driver and of its JVM",
        (*_JOB, "process"),
    ),
    Declared("lakehouse_table_query_active", "1 if the streaming query of the table runs"),
    Declared(
        "lakehouse_table_rows_total",
        "Rows taken in since the job started; of window tables pairs of row and window",
    ),
    Declared("lakehouse_table_late_rows_total", "Late rows among those taken in"),
    Declared("lakehouse_table_quarantined_rows_total", "Rows quarantined among those taken in"),
    Declared(
        "lakehouse_table_dropped_by_spark_total",
        "Rows that Spark itself dropped as late; must be 0, for these rows are missing",
    ),
    Declared(
        "lakehouse_table_rows_per_second", "Rows a second that came in before the last micro-batch"
    ),
    Declared(
        "lakehouse_table_lag_records",
        "Records of the topic that the last micro-batch left unread",
        (*_TABLE, "topic", "partition"),
    ),
    Declared(
        "lakehouse_table_lag_files",
        "Files of the input table that the last micro-batch left unread",
    ),
    Declared("lakehouse_table_batch_duration_seconds", "How long the last micro-batch took"),
    Declared(
        "lakehouse_table_batch_phase_seconds",
        "How long each phase of the last micro-batch took",
        (*_TABLE, "phase"),
    ),
    Declared(
        "lakehouse_table_lookups_total",
        "Questions to the service of the table's lookup since the job started, by what came of them",
        (*_TABLE, "outcome"),
    ),
    Declared(
        "lakehouse_table_lookups_waiting", "Questions of the step under way without an answer yet"
    ),
    Declared(
        "lakehouse_table_lookup_seconds",
        "How long the last thousand questions took, each its last attempt",
        (*_TABLE, "quantile"),
    ),
    Declared(
        "lakehouse_table_source_unanswered_seconds",
        "How long the class of the table's source has not answered, once that is more than a minute; 0 before",
    ),
    Declared("lakehouse_table_state_rows", "Rows of state after the last micro-batch"),
    Declared("lakehouse_table_state_bytes", "Memory of the state store after the last micro-batch"),
    Declared(
        "lakehouse_table_commit_timestamp_seconds",
        "When the stream last committed what came of rows",
    ),
    Declared(
        "lakehouse_table_frontier_timestamp_seconds",
        "The event time up to which the table is complete",
    ),
    Declared(
        "lakehouse_table_frontier_delay_seconds", "How far the frontier lies behind the present"
    ),
    Declared(
        "lakehouse_table_second_reading",
        "1 if Debezium has read the database's table more than once; of tables of its changes only",
    ),
    Declared(
        "lakehouse_reference_version_timestamp_seconds",
        "When the version of the refreshed reference table that is in use was made",
    ),
    Declared(
        "lakehouse_reference_looked_timestamp_seconds",
        "When the inputs of the refreshed reference table were last read without an error",
    ),
    Declared(
        "lakehouse_reference_refresh_failed",
        "1 if the reference table could not be refreshed when that was last tried",
    ),
    Declared(
        "lakehouse_certificate_verdict",
        "The last verdict of the reconciliation",
        _TABLE,
        get_args(Verdict),
    ),
    Declared("lakehouse_certificate_timestamp_seconds", "When the last verdict was given"),
    Declared(
        "lakehouse_certificate_reconciled_until_timestamp_seconds",
        "The latest end of a range that was found EQUAL",
    ),
    Declared(
        "lakehouse_certificate_ranges_different", "Ranges found DIFFERENT, and not EQUAL since"
    ),
    Declared("lakehouse_certificates_total", "Certificates ever made", (*_TABLE, "verdict")),
    Declared(
        "lakehouse_results_window_end_timestamp_seconds",
        "The end of the window whose results are shown",
    ),
    Declared(
        "lakehouse_results_left_out", "Keys of the last window beyond the most that are shown"
    ),
    Declared(
        "lakehouse_scrape_errors_total",
        "What could not be read, since the exporter started",
        ("part",),
    ),
    Declared("lakehouse_scrape_duration_seconds", "How long this scrape took", ()),
)


class Families:
    """The samples of one scrape, by family; a value of None is no sample."""

    def __init__(self) -> None:
        self._declared = {each.name: each for each in DECLARED}
        self._made: dict[str, Any] = {}  # families: of each kind add_metric takes another value

    def add(
        self, name: str, labels: Iterable[str], value: float | None, created: float | None = None
    ) -> None:
        if value is None:
            return
        family = self._family(name)
        if created is None:
            family.add_metric(tuple(labels), value)
        else:
            family.add_metric(tuple(labels), value, created=created)

    def add_state(self, name: str, labels: Iterable[str], state: str) -> None:
        self._family(name).add_metric(
            tuple(labels), {s: s == state for s in self._declared[name].states}
        )

    def results(self, name: str, help: str, keys: Iterable[str]) -> GaugeMetricFamily:
        """A family for a column of a table, whatever its name ends with."""
        return self._made.setdefault(name, GaugeMetricFamily(name, help, labels=tuple(keys)))

    def _family(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._declared[name].family()
        return self._made[name]

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._made.values())
