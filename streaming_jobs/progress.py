"""What a streaming job says of itself: an atomic status file, an append-only progress journal.

<root>/_jobs/<pipeline>/status.json     now (JobStatus), replaced as a whole at every heartbeat
<root>/_jobs/<pipeline>/progress.jsonl  one line a micro-batch: Spark's own progress; `.1` is the file before
<root>/_jobs/<pipeline>/driver.log      the process's output; `.1` to `.3` those of earlier processes
<root>/_jobs/<pipeline>/lease           locked by the one process that runs the pipeline
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psutil

from lakehouse.frontier import append_line
from lakehouse.settings import Settings

State = Literal["starting", "running", "stopping", "stopped", "failed", "dead"]
_JOURNAL_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One live query: counts since the process started, instants as ISO 8601 UTC."""

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
    dropped_by_spark: int = 0  # must stay 0: else the ranges are unproven


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One life of a streaming job's process; `dead` is what a reader calls one that ended without saying so."""

    pipeline: str
    pid: int
    process_started: float  # a pid alone may have been given to another process since
    jvm: int
    jvm_started: float
    state: State
    started_at: str
    heartbeat: str
    queries: tuple[QueryStatus, ...] = ()
    error: str = ""

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.process_started)


def is_alive(pid: int, started: float) -> bool:
    """Whether that very process (pid and start time) still runs."""
    try:
        process = psutil.Process(pid)
        # a zombie with threads left is a killed JVM that may still be writing
        ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        return abs(process.create_time() - started) < 2 and not ended
    except psutil.NoSuchProcess:
        return False


def job_folder(settings: Settings, pipeline: str) -> Path:
    return settings.root / "_jobs" / pipeline


def write(settings: Settings, status: JobStatus) -> None:
    """Replaces the status file as a whole, its heartbeat set to now."""
    path = job_folder(settings, status.pipeline) / "status.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(asdict(replace(status, heartbeat=now())), indent=1))
    beside.replace(path)


def read(settings: Settings, pipeline: str) -> JobStatus | None:
    """The job's last word, its state `dead` if its process ended without one; None if it never ran."""
    path = job_folder(settings, pipeline) / "status.json"
    if not path.exists():
        return None
    given = json.loads(path.read_text())
    given["queries"] = tuple(QueryStatus(**q) for q in given["queries"])
    status = JobStatus(**given)
    if status.state in ("starting", "running", "stopping") and not status.alive:
        return replace(status, state="dead", queries=tuple(replace(q, active=False) for q in status.queries))
    return status


def note(settings: Settings, pipeline: str, progress: dict) -> None:
    """Adds one micro-batch's progress to the journal; past 16 MiB the file becomes `.1` and a new one begins."""
    path = job_folder(settings, pipeline) / "progress.jsonl"
    if path.exists() and path.stat().st_size > _JOURNAL_BYTES:
        path.replace(path.with_suffix(".jsonl.1"))
    append_line(path, json.dumps(progress, default=str))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
