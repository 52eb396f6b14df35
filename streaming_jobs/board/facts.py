"""The parts of the board as plain values, read by the functions that commands, metrics and reconciliation use.

A part is read again once its files have changed. A part that cannot be read says so in its place.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from lakehouse.ranges import text
from lakehouse.reconcile.verdicts import Outcomes, Verdicts
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import files, layout
from lakehouse.storage.lakehouse import Lakehouse
from streaming_jobs.board.lanes import Lane, attempt
from streaming_jobs.command_groups import views
from streaming_jobs.progress import ACTIVE, AT_WORK, JobStatus
from streaming_jobs.supervision import desired, supervisor
from streaming_jobs.supervision.jobs import command, with_followers

_EVENTS = 40
_OF_EVENT = ("at", "what", "of", "why")
_STEP = 16  # megabytes by which memory is shown, or each heartbeat would be news


class Facts:
    """The parts of the board by name, each with the number of the look that has changed it."""

    def __init__(self, lakehouse: Lakehouse, every: float = 0.5) -> None:
        self.lakehouse, self._every, self._looked = lakehouse, every, -every
        self.lanes = {table.name: Lane(lakehouse, table) for table in lakehouse.catalog}
        self._pipelines = lakehouse.catalog.pipelines()
        self._jobs: dict[str, JobStatus | None] = {}
        self._stamps: dict[str, object] = {}
        self._verdicts, self._outcomes = Verdicts(lakehouse.settings), dict[str, Outcomes]()
        # what the declarations say, for a first look that fails
        declared = {f"job/{name}": {"job": name, "state": "unknown"} for name in self._pipelines}
        declared |= {f"target/{name}": {"target": name} for name in lakehouse.catalog.targets()}
        declared |= {f"table/{name}": lane.facts(None, None) for name, lane in self.lanes.items()}
        self._parts: dict[str, tuple[int, Any]] = {
            part: (0, facts) for part, facts in declared.items()
        }
        self._number, self._lock = 0, threading.Lock()

    def since(self, number: int) -> tuple[int, dict[str, Any]]:
        """Returns the number of the last look, and the parts that have changed since that one; all of them since 0.

        Looks at the files unless that was done a moment ago, for another browser.
        """
        with self._lock:
            if time.monotonic() - self._looked >= self._every:
                self._look()
                self._looked = time.monotonic()
            changed = {part: value for part, (at, value) in self._parts.items() if at > number}
            return self._number, changed

    def _look(self) -> None:
        self._number += 1
        for part, read in self._reading():
            before = self._parts.get(part, (0, {}))[1]
            value = attempt(read, before)
            if part not in self._parts or value != before:
                self._parts[part] = (self._number, value)

    def _reading(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        catalog = self.lakehouse.catalog
        yield "certificates", self._certificates
        for name in self._pipelines:
            yield f"job/{name}", partial(self._job, name)
        for table in catalog:
            yield f"table/{table.name}", partial(self._table, table.name)
        for name in catalog.targets():
            yield f"target/{name}", partial(views.target, self.lakehouse, name)
        yield "events", self._events
        yield "lakehouse", self._about

    def _certificates(self) -> dict[str, Any]:
        stamp = files.modified(
            delta_log.folder(layout.log_table(self.lakehouse.settings, "_certificates"))
        )
        if stamp != self._stamps.get("certificates"):
            self._outcomes = self._verdicts.now()
            self._stamps["certificates"] = stamp
        return {}

    def _job(self, name: str) -> dict[str, Any]:
        settings = self.lakehouse.settings
        status = self._jobs[name] = supervisor.status(settings, name)
        before = self._parts.get(f"job/{name}", (0, {}))[1]
        # the folder shows that a file was moved aside, or that such a one is gone
        watched = (
            layout.job_folder(settings, name),
            layout.job_file(settings, name, "status.json"),
            layout.job_file(settings, name, "history.json"),
            layout.job_file(settings, name, "desired.json"),
        )
        stamp = (status and status.state, *map(files.modified, watched))
        if before and "unreadable" not in before and stamp == self._stamps.get(name):
            return before
        wanted, counted = desired.read(settings, name), views.restarts(settings, name)
        of_lanes = {f"table={q.table}: {q.waits}" for q in (status.queries if status else ())}
        facts = {
            "job": name,
            "state": status.state if status else "never ran",
            "wanted": f"{wanted.state} by {wanted.by}" if wanted else "",
            "life": _life(status) if status and status.alive else None,
            "restarts": len(counted),
            "why": counted[-1].why if counted else "",
            "freshness": views.freshness(settings, name),
            "place": views.place(status),
            "stage": status.stage if status and status.state == "starting" else "",
            "troubles": [
                line for line in views.troubles(settings, name, status) if line not in of_lanes
            ],
            "command": command("logs" if status and status.state in ACTIVE else "start", name),
        }
        self._stamps[name] = stamp
        return facts

    def _table(self, name: str) -> dict[str, Any]:
        lane = self.lanes[name]
        outcomes = self._outcomes.get(name)
        lane.look(outcomes.at if outcomes else None)
        job = self._jobs.get(lane.table.pipeline)
        queries = job.queries if job and job.state in AT_WORK else ()
        query = next((query for query in queries if query.table == name), None)
        facts = lane.facts(query, outcomes)
        inputs = (self._parts[f"table/{name}"][1] for name in facts["inputs"])
        return facts | {"inherited": next(filter(None, map(_lag, inputs)), None)}

    def _events(self) -> dict[str, Any]:
        settings, catalog = self.lakehouse.settings, self.lakehouse.catalog
        events: list[tuple[str, ...]] = [
            (event.at, event.what, job, event.why)
            for job in with_followers(catalog, self._pipelines)
            for event in desired.history(settings, job)
        ]
        for given in self._verdicts.last:
            rows = f": {given.rows}" if given.verdict == "DIFFERENT" else ""
            why = f"{_range(given.span)}{rows}"
            events.append((text(given.at), given.verdict, given.table, why))
        for lane in self.lanes.values():
            for commit in lane.commits:
                if commit.role == "batch" and commit.start:
                    why = f"{commit.written:,} rows of {_range((commit.start, commit.end))}"
                    events.append((text(commit.at), "batch run", lane.table.name, why))
        last = sorted(events, key=lambda event: event[0], reverse=True)[:_EVENTS]
        return {"last": [dict(zip(_OF_EVENT, event, strict=True)) for event in last]}

    def _about(self) -> dict[str, Any]:
        root, why = self.lakehouse.settings.root, ""
        if not self._pipelines:
            why = "no table is declared"
        elif all(self._parts[f"job/{name}"][1]["state"] == "never ran" for name in self._pipelines):
            why = f"no job has run yet: {command('start', self._pipelines[0])}"
        return {"root": str(root), "is_there": files.exists(root), "why_empty": why}


def _life(status: JobStatus) -> dict[str, Any]:
    size = (status.python_bytes + status.jvm_bytes) >> 20
    return {"pid": status.pid, "since": status.started_at, "megabytes": size - size % _STEP}


def _lag(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what an input has not read yet, or what it inherits itself."""
    if given.get("unread") or given.get("behind"):
        return {name: given.get(name) for name in ("table", "unread", "unit", "behind")}
    return given.get("inherited")


def _range(span: tuple[Any, Any]) -> str:
    return " to ".join(text(end) for end in span)
