"""The facts of one table on the board, and what is kept of it between two looks."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice, takewhile
from math import isfinite
from typing import Any

from lakehouse.cli import query, table_status
from lakehouse.declare.columns import PARTITION, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.ranges import past_beginning
from lakehouse.reconcile import coverage
from lakehouse.reconcile.verdicts import GRAVEST, Outcomes
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import files
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Verdict
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit
from lakehouse.stream.lag import unread_since
from lakehouse.stream.waiting import waiting
from streaming_jobs.progress import QueryStatus

_COUNTED = 300  # commits whose rows are counted
_HOURS = 24  # partitions in a lane
_HOURS_OF_PAGE = 96
_POINTS = 400  # of the plot of windows
_ROWS, _COMMITS = 20, 30  # of the quarantine, of the history
# seconds between two looks at all partitions, which take 25 ms of a table with 300 files, and the share of time that they take
_PACE, _AGAIN, _SHARE = 5.0, 60.0, 0.01


class Lane:
    """One table. `look` reads on what its logs have had since the last look; the rest is made of that."""

    def __init__(self, lakehouse: Lakehouse, table: Table) -> None:
        self.table, self._lakehouse = table, lakehouse
        self.commits: list[Commit] = []  # the newest first
        self._inputs = lakehouse.catalog.input_tables(table)
        self._looked_at = [
            path
            for source in (table, *self._inputs)
            for path in (
                delta_log.folder(lakehouse.path(source)),
                lakehouse.commit_log(source).path,
            )
        ]
        self._stamps: Sequence[float | None] = ()
        self._is_changed, self._judged, self._pace = True, 0.0, _PACE
        self._gravest: Verdict = "EQUAL"  # of all partitions
        self._of_logs: dict[str, Any] = {}
        self._of_partitions: dict[str, Any] = {}

    def look(self, verdict_at: datetime | None) -> None:
        """Reads on what is new in the table's logs and its inputs'.

        :param verdict_at: when the table's last verdict was given.
        """
        certified = verdict_at.timestamp() if verdict_at else None
        stamps = [certified, *map(files.modified, self._looked_at)]
        age = time.monotonic() - self._judged
        is_certified, is_new = stamps[:1] != self._stamps[:1], stamps != self._stamps
        self._is_changed |= is_new
        if is_new or age > _AGAIN:
            self._of_logs = attempt(self._counted, self._of_logs)
        if is_certified or age > _AGAIN or (self._is_changed and age > self._pace):
            started = time.monotonic()
            self._of_partitions = attempt(self._judge, self._of_partitions)
            self._judged, self._is_changed = time.monotonic(), False
            self._pace = max(_PACE, (self._judged - started) / _SHARE)
        self._stamps = stamps

    def facts(self, status: QueryStatus | None, outcomes: Outcomes | None) -> dict[str, Any]:
        """Returns the lane as plain values. `status`: of its query, if its job is alive."""
        table = self.table
        verdict: Verdict | None = None
        if outcomes:
            verdict = outcomes.verdict if table.kind.is_upserted else outcomes.in_force
        if verdict == "EQUAL":  # and perhaps changed since
            verdict = self._gravest
        return {
            "table": table.name,
            "kind": table.kind.name,
            "pipeline": table.pipeline,
            "description": table.description,
            "inputs": [source.name for source in self._inputs],
            "reconciled": table.kind.is_derived or table.kind.is_upserted,
            "verdict": verdict,
            "state": status.state if status else None,
            "rate": status.rows_per_second if status else None,
            "unread": status.lag if status else None,
            "unit": "records" if table.kind.reads_sources else "files",
            "dropped": status.dropped_by_spark if status else 0,
            "trouble": status
            and (status.trouble or (status.error if status.state != "running" else "")),
            **self._of_logs,
            **self._of_partitions,
        }

    def _read_on(self) -> None:
        """Puts the commits since the last look first; reads all again if the newest known one is gone."""
        newest, new = self.commits[:1], list[Commit]()
        for commit in islice(self._lakehouse.commit_log(self.table), _COUNTED):
            if [commit] == newest:
                new += self.commits
                break
            new.append(commit)
        self.commits = new[:_COUNTED]

    def _counted(self) -> dict[str, Any]:
        self._read_on()
        settings, table = self._lakehouse.settings, self.table
        stream = [commit for commit in self.commits if commit.role == "stream"]
        ahead = frontier(settings, table)
        same = list(takewhile(lambda c: c.frontier in (ahead, None), stream))
        followed = self._lakehouse.catalog.followed_inputs(table)
        reads_tables = stream and "tables" in stream[0].inputs
        return {
            "version": delta_log.latest(self._lakehouse.path(table)),
            "frontier": past_beginning(ahead),
            "moved": same[-1].at if same else None,
            "behind": unread_since(settings, followed, stream[0]) if reads_tables else None,
            "flow": _flow(table, stream) if table.kind.is_streamed else None,
        }

    def _judge(self) -> dict[str, Any]:
        rows = int(any(commit.written for commit in self.commits))
        hours = self._hours()
        given = (verdict for _, verdict, *_ in hours if verdict and verdict != "OPEN")
        self._gravest = min(given, key=GRAVEST.index, default="EQUAL")
        return {"hours": hours[-_HOURS:], "waits": waiting(self._lakehouse, self.table, rows)}

    def _hours(self) -> list[tuple[str, Verdict | None, str, int]]:
        """Returns the key, the verdict, the writer and the rows of each partition."""
        if not self.table.kind.has_partitions:
            return []
        partitions = coverage.partitions(self._lakehouse, self.table)
        return [
            (part.key, part.verdict, part.stored.origin, part.stored.rows) for part in partitions
        ]

    def page(self) -> dict[str, Any]:
        """Returns what the page of the table has beside its lane."""
        catalog, table = self._lakehouse.catalog, self.table
        page: dict[str, Any] = {
            "declaration": table_status.declaration(catalog, table),
            "commits": [_line(commit) for commit in self.commits[:_COMMITS]],
            "commands": commands(table, ()),
        }
        for read in (self._shape, self._plots, self._quarantine):
            page |= attempt(read, {})
        return page

    def _shape(self) -> dict[str, Any]:
        reads = table_status.reads(self._lakehouse, self.table)
        return {
            "columns": table_status.columns(self._lakehouse.settings, self.table),
            "reads": {name: str(read) for name, read in reads.items()},
            "beside": str(table_status.beside(self._lakehouse, self.table) or ""),
        }

    def _plots(self) -> dict[str, Any]:
        hours = self._hours()
        filled = [key for key, *_, rows in hours if rows]
        windows = self._windows(filled[-3:][0]) if self.table.metrics and filled else None
        chosen = commands(self.table, hours)
        return {"hours": hours[-_HOURS_OF_PAGE:], "windows": windows, "commands": chosen}

    def _quarantine(self) -> dict[str, Any]:
        if not delta_log.exists(self._lakehouse.path(self.table, "quarantine")):
            return {}
        newest = table_status.quarantined(self._lakehouse, self.table, limit=_ROWS)
        reasons = table_status.quarantine_reasons(self._lakehouse, self.table)
        return {"quarantined": newest.records(), "reasons": reasons.rows}

    def _windows(self, since: str) -> dict[str, Any]:
        """Returns the first metric of the last windows, by their end and the values of the table's keys; the last first.

        :param since: the first partition that is read.
        """
        metric = self.table.metrics[0]
        keys = ", ".join(f'"{key}"' for key in self.table.keys)
        last = query.run(
            self._lakehouse,
            f"SELECT {WINDOW}['end'], \"{metric}\", {keys or 1} FROM {self.table.name} "
            f"WHERE {PARTITION} >= '{since}' AND \"{metric}\" IS NOT NULL ORDER BY 1 DESC, 3",
            _POINTS,
        )
        points = [(end, " ".join(map(str, key)), float(value)) for end, value, *key in last.rows]
        # JSON has no number for NaN and infinity
        return {"metric": metric, "points": [point for point in points if isfinite(point[2])]}


def attempt(read: Callable[[], dict[str, Any]], before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is read. What cannot be read leaves what was known before, and says why (`unreadable`)."""
    try:
        return read()
    except Exception as err:
        # an error of Delta has the stack of its library below its first line
        text = f"{type(err).__name__}: {err}".splitlines()[0]
        return {**before, "unreadable": str(err) if isinstance(err, LakehouseError) else text}


def _flow(table: Table, stream: Sequence[Commit]) -> dict[str, Any]:
    """Returns what came of the rows that entered by these commits of its stream.

    A row or ingest table writes, quarantines, filters or calls late each of them. Other tables compute results from those
    that were not late, and it is results that they quarantine.
    """
    arrived, late = sum(c.arrived for c in stream), sum(c.late for c in stream)
    written, quarantined = sum(c.written for c in stream), sum(c.quarantined for c in stream)
    is_by_row = table.kind.is_row_by_row or table.kind.reads_sources
    flow: dict[str, Any] = {"in": arrived, "late": late, "quarantined": quarantined}
    if is_by_row:
        filtered = max(arrived - late - quarantined - written, 0)
        flow |= {"written": written, "filtered": filtered}
    else:
        flow |= {"used": arrived - late, "results": written}
    return flow | {"commits": len(stream), "since": stream[-1].at if stream else None}


def _line(commit: Commit) -> dict[str, Any]:
    span = [commit.start, commit.end] if commit.start else None
    names = ("version", "role", "at", "arrived", "written", "late", "quarantined", "seconds")
    return {name: getattr(commit, name) for name in names} | {
        "frontier": past_beginning(commit.frontier),
        "range": span,
    }


def commands(table: Table, hours: Iterable[Sequence]) -> Mapping[str, str]:
    """Returns what a user may want to do about the table, and the command that does it."""
    name, pipeline, kind = table.name, table.pipeline, table.kind
    chosen = {"rows": f'lakehouse query "SELECT * FROM {name}"'}
    if kind.has_partitions:
        chosen["quarantined rows"] = f"lakehouse table quarantine {name}"
    if table.has_late_rows:
        chosen["late rows"] = f"lakehouse table late {name}"
    if kind.is_streamed:
        chosen |= {
            verb: f"lakehouse stream {verb} {pipeline}" for verb in ("start", "restart", "stop")
        }
    if kind.is_derived or kind.is_upserted:
        chosen["reconcile"] = f"lakehouse reconcile run {name}"
    if kind.is_derived:
        chosen["what differs"] = f"lakehouse reconcile status {name}"
        chosen["repair what differs"] = f"lakehouse reconcile repair {name}"
        closed = [key for key, verdict, *_ in hours if verdict != "OPEN"]
        for key in closed[-1:]:
            span = coverage.partition_range(key, table.partition_by)
            ends = f"--start {span.start:%Y-%m-%dT%H:%MZ} --end {span.end:%Y-%m-%dT%H:%MZ}"
            chosen["backfill the last closed partition"] = f"lakehouse backfill {name} {ends}"
    if not (kind.is_derived or kind.reads_sources):
        chosen["compute it again"] = f"lakehouse backfill {name}"
    return chosen
