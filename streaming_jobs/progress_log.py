"""The lines of a running job in its log, one for each table and minute, so that a log without news is no silence."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lakehouse.ranges import BEGINNING, parse_instant, text
from lakehouse.stream.waiting import waiting
from streaming_jobs.progress import QueryStatus
from streaming_jobs.queries import SupervisedQuery
from streaming_jobs.supervision.job_logs import PROGRESS

_log = logging.getLogger(__name__)

_EVERY = 60.0  # seconds


class ProgressLog:
    """The lines of one job; the first ones show its tables as it starts."""

    def __init__(self) -> None:
        self._due = 0.0

    def note(self, queries: Iterable[SupervisedQuery], *, last: bool = False) -> None:
        """Logs a line for each query, if a minute has passed or it is the `last` time, and renews `waits` in its status."""
        now = time.monotonic()
        if now < self._due and not last:
            return
        self._due = now + _EVERY
        for query in queries:
            commit_log = query.session.commit_log(query.table)
            line = next(commit_log.by_stream(), None)
            rows = int(any(commit.written for commit in commit_log))
            waits = waiting(query.session, query.table, rows)
            query.status = replace(query.status, waits=waits)
            _log.info(_line(query.status, line.inputs if line else {}))


def _line(status: QueryStatus, inputs: Mapping[str, Any]) -> str:
    reached = parse_instant(status.frontier) if status.frontier else BEGINNING
    facts = [
        status.state,
        f"{status.rows:,} rows since the start",
        f"{status.late:,} late",
        f"{status.quarantined:,} quarantined",
        f"complete up to {text(reached) if reached > BEGINNING else 'nothing'}",
        f"read {_position(inputs)}",
        f"{status.lag:,} to be read",
        *filter(None, (status.waits, status.trouble)),
    ]
    return f"{PROGRESS}table={status.table}: {', '.join(facts)}"


def _position(inputs: Mapping[str, Any]) -> str:
    """Returns the position of the last commit in its inputs: versions of tables, offsets of other sources."""
    if not inputs:
        return "nothing"
    if "tables" in inputs:
        versions = ((name, at["reservoirVersion"]) for name, at in inputs["tables"].items())
        return " and ".join(f"{name} up to version {version}" for name, version in versions)
    offsets = (
        f"{name} up to " + " ".join(f"{part}:{offset}" for part, offset in sorted(parts.items()))
        for name, parts in inputs.items()
    )
    return " and ".join(offsets)
