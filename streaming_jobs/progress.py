"""The status of a streaming job, and its log of progress, both written by its process.

<root>/_jobs/<pipeline>/status.json     now (JobStatus), replaced as a whole at every heartbeat
<root>/_jobs/<pipeline>/progress.jsonl  one line a micro-batch: Spark's own progress; `.1` is the file before
<root>/_jobs/<pipeline>/<table>.failure.txt  Spark's text of the last failure of the table's query
<root>/_jobs/<pipeline>/driver.log      the process's output; `.1` to `.3` are earlier ones. Beyond 16 MiB it is
                                        copied to `.1` and emptied

The desired state of the job is in `streaming_jobs.supervision.desired`, its lease in `streaming_jobs.supervision.lease`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil

from lakehouse import processes
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import (
    moved_aside,
    read_value,
    replace_file,
    replace_text,
)
from lakehouse.storage.disk.notes import Notes
from streaming_jobs.supervision import holders
from streaming_jobs.supervision.holders import UNKNOWN, Place, here

State = Literal[
    "starting", "running", "degraded", "stopping", "stopped", "failed", "dead", "crash_loop"
]
QueryState = Literal["running", "restarting", "paused"]
# as long as the process lives
ACTIVE: tuple[State, ...] = ("starting", "running", "degraded", "stopping")
AT_WORK: tuple[State, ...] = ("running", "degraded")
_LOG_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One streaming query: counts since the process started, instants as ISO 8601 UTC."""

    table: str
    active: bool
    batch: int = -1
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int = 0  # a topic: records not read yet; a table: files not read yet
    frontier: str | None = None
    late: int = 0
    quarantined: int = 0
    batch_seconds: float = 0.0
    dropped_by_spark: int = 0  # must stay 0: these rows are missing
    state: QueryState = "running"
    since: str = ""  # of the state
    restarts: int = 0  # alone, the process went on
    error: str = ""  # the last one, or why it is paused
    waits: str = ""  # why its table lags or is empty, looked at each minute
    trouble: str = ""  # why its input cannot be read just now; it goes on by itself
    begun: str = ""  # why this process began a new generation of its checkpoint
    offsets: str = ""  # of a paused query: the range of the batch that it cannot get through
    busy_since: str | None = None  # when the micro-batch now running was first seen to run
    # when its source's class was asked what it has not answered; None before that takes too long
    unanswered_since: str | None = None
    lags: Mapping[str, int] = field(default_factory=dict)  # topic-partition -> records not read yet
    # of the last micro-batch: Spark's phase -> milliseconds
    phases: Mapping[str, int] = field(default_factory=dict)
    # a state read as it was when the query started -> its version
    reads: Mapping[str, str] = field(default_factory=dict)
    # a function of the query whose plan was to be made once -> why Spark plans each step; empty if the plan is there
    plans: Mapping[str, str] = field(default_factory=dict)
    # of a table with a lookup: what its service was asked, by the names of `service.Counts`
    lookups: Mapping[str, float] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceStatus:
    """A reference table that is refreshed while the job runs; instants as ISO 8601 UTC."""

    table: str
    version: int = -1  # in use by rows that arrive now
    made: str = ""  # when that version was
    looked: str = ""  # when its inputs were last found to be these, or it was computed from them
    error: str = ""  # why that failed since; the version stays in use


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One life of a streaming job's process. A reader calls one `dead` that ended without a last status."""

    pipeline: str
    pid: int
    process_started: float  # a pid alone may have been given to another process since
    jvm: int
    jvm_started: float
    state: State
    started_at: str
    heartbeat: str
    queries: tuple[QueryStatus, ...] = ()
    references: tuple[ReferenceStatus, ...] = ()
    error: str = ""
    epoch: int = 0  # of its lease
    python_bytes: int = 0  # resident memory
    jvm_bytes: int = 0
    ui: str = ""  # address of Spark's own pages; empty if the settings do without
    # by which this process runs; one of a schedule ends at the present
    freshness: str = "continuous"
    place: Place = UNKNOWN  # where its pid means something
    well: float = 0.0  # seconds without a failure, up to now or to a micro-batch that has not ended
    # of one that starts: what it does, and since when
    stage: str = ""
    stage_since: str = ""
    computed: float = 0.0  # CPU seconds of the process and its JVM, when this was written
    # module of tables -> the file that it was imported from
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """True if its process lives, or says so elsewhere; `read` calls that one dead once its lease has expired."""
        if self.place.is_here:
            return is_alive(self.pid, self.process_started)
        return self.state in ACTIVE

    @property
    def jvm_alive(self) -> bool:
        """True if its JVM runs here."""
        return bool(self.jvm) and self.place.is_here and is_alive(self.jvm, self.jvm_started)

    def await_end_of_jvm(self, seconds: float) -> bool:
        """Waits for the end of its JVM, at most so many seconds, and returns True if none runs here.

        It ends when it sees the pipe to its parent closed, moments later.
        """
        return not self.jvm_alive or processes.wait(self.jvm, self.jvm_started, seconds)


def of_this_process(pipeline: str, **more: Any) -> JobStatus:
    """Returns the first status of this process, which starts."""
    pid, at = os.getpid(), now()
    born = processes.started(pid)
    return JobStatus(pipeline, pid, born, 0, 0.0, "starting", at, at, place=here(), **more)


def is_alive(pid: int, started: float) -> bool:
    """Returns True if that very process (pid and start) still runs."""
    return processes.running(pid, started) is not None


def memory(pid: int) -> int:
    """Returns the resident bytes of a process; 0 if it is gone."""
    try:
        return psutil.Process(pid).memory_info().rss if pid else 0
    except psutil.NoSuchProcess:
        return 0


def origins(settings: Settings) -> dict[str, str]:
    """Returns the file of each module of tables in this process, which has loaded the catalogue."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in settings.tables}
    return {name: str(file) for name, file in files.items() if file}


def other_origins(settings: Settings, status: JobStatus) -> list[str]:
    """Returns a remark for each module that the job's process imported from another file than this process."""
    ours = origins(settings) if status.alive and status.place.is_here else {}
    return [
        f"tables={name!r}: the job runs {status.code[name]}, and this command has read {file}: one name is one module, or they "
        f"disagree; set PYTHONPATH for both to the folder that is meant, then `lakehouse stream restart {status.pipeline}`"
        for name, file in ours.items()
        if status.code.get(name, file) != file
    ]


def write(settings: Settings, status: JobStatus) -> None:
    """Replaces the status file as a whole, its heartbeat set to now."""
    computed = processes.cpu_seconds(status.pid, status.jvm)
    path = layout.job_file(settings, status.pipeline, "status.json")
    replace_file(path, asdict(replace(status, heartbeat=now(), computed=computed)))


def read(settings: Settings, pipeline: str) -> JobStatus | None:
    """Returns the job's last status, its state `dead` if its process ended without a last one; None if it never ran."""
    status = last_word(settings, pipeline)
    if status is None or status.state not in ACTIVE:
        return status
    if status.alive and (status.place.is_here or holders.left(settings, pipeline, status.place)):
        return status
    ended = tuple(replace(query, active=False) for query in status.queries)
    return replace(status, state="dead", queries=ended)


def last_word(settings: Settings, pipeline: str) -> JobStatus | None:
    """Returns the content of the status file, even if the process no longer runs."""
    meaning = "a job that runs writes it again; of one that does not, counts and paused queries are forgotten"
    path = layout.job_file(settings, pipeline, "status.json")
    return read_value(path, JobStatus, meaning, later=True, check=_check_instants)


def unreadable(settings: Settings, pipeline: str) -> list[Path]:
    """Returns the files of the job that held garbage, and were moved aside."""
    names: Sequence[layout.JobFile] = ("status.json", "desired.json", "history.json", "epoch.json")
    paths = (layout.job_file(settings, pipeline, name) for name in names)
    return [aside for path in paths for aside in moved_aside(path)]


def _check_instants(status: JobStatus) -> None:
    for instant in (status.started_at, status.heartbeat, status.stage_since or status.started_at):
        datetime.fromisoformat(instant)


def note(settings: Settings, pipeline: str, progress: dict) -> None:
    """Adds one micro-batch's progress to `progress.jsonl`. Past 16 MiB the file becomes `.1` and a new one begins."""
    path = layout.job_file(settings, pipeline, "progress.jsonl")
    Notes(path, dict, limit=_LOG_BYTES).append(progress)


def note_failure(settings: Settings, pipeline: str, table: str, text: str) -> None:
    """Keeps Spark's whole text of a query's last failure; the log and the status have the cause alone."""
    with suppress(OSError):  # the disk is full: that failure is reported
        replace_text(layout.failure_text(settings, pipeline, table), f"{now()}\n{text}\n")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
