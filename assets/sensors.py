"""Sensors: they report to Dagster, as events without runs, what the streams did.

They read commit logs and Delta logs, and start no Spark. Each event is reported at least once: it
is stored before the cursor that passes it, so a crash in between repeats it word for word.
"""

import json
import reprlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import dagster as dg

from assets import automation, partitions, staleness
from assets.metadata import column_schema, instant, of_commit, of_partition, of_report
from assets.resources import sensor
from assets.streams import observed
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, Range, partition_range
from lakehouse.reconcile import coverage
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.disk.typed_values import checked
from lakehouse.storage.log import table_content
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.log.commits import NOTHING, Commit
from streaming_jobs.exporters import notifications
from streaming_jobs.exporters.notifications import Notice
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import control_loop, desired, supervisor
from streaming_jobs.supervision.jobs import with_followers

_MOST = 100  # events a tick: SQLite takes 5 ms for each
_MINUTE = timedelta(minutes=1)
_LOOK_BACK = timedelta(hours=1)  # into an ingest table's commit log, when Dagster was away


def sensors(settings: Settings, catalog: Catalog) -> list[dg.SensorDefinition]:
    return [
        closed_partitions(settings, catalog),
        report_written_tables(settings, catalog),
        streaming_job_states(settings, catalog),
        supervise_streaming_jobs(settings, catalog),
        send_notifications(settings, catalog),
        automation.sensor(),
    ]


def closed_partitions(settings: Settings, catalog: Catalog) -> dg.SensorDefinition:
    """Reports a partition once the frontier has passed its end. Cursor: the last partition reported, by table."""

    @sensor(
        name="closed_partitions",
        minimum_interval_seconds=15,
        description="Reports the partitions of derived tables that the stream has completed.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        reported: dict[str, str] = _reported(context, "closed_partitions", dict[str, str])
        events: list[dg.AssetMaterialization] = []
        for table in (t for t in catalog.derived if t.kind.is_streamed):
            last, left = reported.get(table.name), _MOST - len(events)
            for event in _closings(settings, catalog, table, last, left):
                events.append(event)
                reported[table.name] = str(event.partition)
        return _result(events, reported)

    return evaluate


def _closings(
    settings: Settings, catalog: Catalog, table: Table, reported: str | None, limit: int
) -> list[dg.AssetMaterialization]:
    ahead = frontier(settings, table)
    last = partition_range(reported, table.partition_by) if reported else None
    # a frontier never moves back, so the table was removed and made again
    if last and ahead and ahead < last.end:
        last = None
    if limit == 0 or ahead is None or (last and ahead < last.end + (last.end - last.start)):
        return []  # the usual tick: nothing to report, and no Delta log to read
    span = coverage.closed(settings, table)
    if span is None or (last and span.end <= last.end):
        return []
    span = Range(max(span.start, last.end), span.end) if last else span
    content = table_content.content(settings, table)
    stored = content.partitions
    ahead, offsets = partitions.reached(settings, catalog, table)
    shared: dict[str, Any] = {"delta_version": content.version, "code_version": table.code_version}
    shared |= {"offsets": dg.MetadataValue.json(offsets)} | instant("frontier", ahead)
    shared |= column_schema(settings, table)
    events = []
    keys = list(islice(span.partitions(table.partition_by), limit))
    quarantined = coverage.reasons(settings, table, keys)
    for key in keys:
        metadata = of_partition(stored.get(key, table_content.Stored()), quarantined[key]) | shared
        events.append(dg.AssetMaterialization(table.name, partition=key, metadata=metadata))
    return events


def report_written_tables(settings: Settings, catalog: Catalog) -> dg.SensorDefinition:
    """Reports writes that no run of Dagster's has reported: those of streams into ingest tables, and of batch runs
    from the command line.

    Cursor: the instant of the last commit reported, by table.
    """

    @sensor(
        name="report_written_tables",
        minimum_interval_seconds=60,
        description="Reports how ingest tables grow, minute by minute, and what runs replaced that Dagster did not start.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        reported: dict[str, datetime] = _reported(
            context, "report_written_tables", dict[str, datetime]
        )
        events: list[dg.AssetMaterialization] = []
        for table in catalog:
            # rows that were erased from it or replayed into it are no growth
            ingest = table.kind.reads_sources or table.kind.is_upserted
            commit_log = CommitLog(settings, table)
            last = commit_log.last_arrival() if ingest else next(iter(commit_log), None)
            if last is None or reported.get(table.name) == last.at:
                continue
            before = reported.get(table.name)
            reported[table.name] = last.at
            if ingest:
                events.append(_growth(settings, table, last, before))
            else:
                events += _replacements(settings, table, before, context.instance)
        return _result(events, reported)

    return evaluate


def _growth(
    settings: Settings, table: Table, last: Commit, before: datetime | None
) -> dg.AssetMaterialization:
    since = max(last.at - _LOOK_BACK, before or BEGINNING)
    commits = list(takewhile(lambda c: c.at > since, CommitLog(settings, table).by_stream()))
    seconds = (last.at - (since if before else commits[-1].at)).total_seconds()
    metadata: dict[str, Any] = {
        "origin": "stream",
        "rows_written": sum(c.written for c in commits),
        "rows_quarantined": sum(c.quarantined for c in commits),
        "rows_per_second": round(sum(c.arrived for c in commits) / seconds, 1) if seconds else 0.0,
        "delta_version": last.version,
        "code_version": last.code_version,
    }
    behind = instant("frontier", last.frontier)
    if last.frontier and behind:
        metadata["frontier_behind_seconds"] = round((last.at - last.frontier).total_seconds(), 1)
    return dg.AssetMaterialization(
        table.name, metadata=metadata | behind | column_schema(settings, table)
    )


def _replacements(
    settings: Settings, table: Table, before: datetime | None, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization]:
    """Yields the replaced partitions since `before`, else of the last commit only: `closed_partitions` reports older ones."""
    commit_log = CommitLog(settings, table)
    newer = takewhile(lambda c: c.at > before, commit_log) if before else islice(commit_log, 1)
    commits = [c for c in newer if c.role != "stream" and c.version != NOTHING]
    stored = table_content.content(settings, table).partitions if commits else {}
    for commit in commits:
        span = Range(commit.start, commit.end) if commit.start and commit.end else None
        keys = list(span.partitions(table.partition_by)) if span else [None]
        if _version_reported(instance, table, keys[0]) == commit.version:
            continue
        quarantined = coverage.reasons(settings, table, [key or "" for key in keys])
        for key in keys:
            rows = of_partition(
                stored.get(key or "", table_content.Stored()), quarantined[key or ""]
            )
            metadata = rows | of_commit(commit) | (of_report(settings, table, key) if key else {})
            yield dg.AssetMaterialization(table.name, partition=key, metadata=metadata)


def _version_reported(instance: dg.DagsterInstance, table: Table, partition: str | None) -> object:
    partitions = [partition] if partition else None
    query = dg.AssetRecordsFilter(dg.AssetKey(table.name), asset_partitions=partitions)
    for record in instance.fetch_materializations(query, limit=1).records:
        event = record.asset_materialization
        version = event.metadata.get("delta_version") if event else None
        return version.value if version else None
    return None


@dataclass(frozen=True, slots=True)
class JobsReported:
    """The state of each pipeline that was reported last, and the time of the report."""

    what: dict[str, str] = field(default_factory=dict)
    when: dict[str, datetime] = field(default_factory=dict)


def streaming_job_states(settings: Settings, catalog: Catalog) -> dg.SensorDefinition:
    """Reports a change of a streaming job at once, and its numbers once a minute while it runs.

    Cursor: what was reported last, and when, by pipeline.
    """

    @sensor(
        name="streaming_job_states",
        minimum_interval_seconds=15,
        description="Reports when a streaming job starts, stops, fails or is healed, and its numbers each minute.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        reported: JobsReported = _reported(context, "streaming_job_states", JobsReported)
        events, now = [], datetime.now(UTC)
        for job in with_followers(catalog, catalog.pipelines()):
            status = supervisor.status(settings, job)
            if status is None:
                continue
            what = _signature(settings, status)
            due = reported.when.get(job, BEGINNING) + _MINUTE <= now
            if reported.what.get(job) != what or (due and status.alive):
                events.append(observed(settings, status))
                reported.what[job] = what
                reported.when[job] = now
        return _result(events, asdict(reported))

    return evaluate


def _signature(settings: Settings, status: JobStatus) -> str:
    """Returns a text of the job's state; a change of it is reported on the job's node at once."""
    job = (f"{status.pid}", status.started_at, status.state, status.error)
    queries = [f"{q.table} {q.state} {q.restarts}" for q in status.queries]
    done = [event.at for event in desired.history(settings, status.pipeline)[-1:]]
    return " ".join([*job, *queries, *done])


def supervise_streaming_jobs(settings: Settings, catalog: Catalog) -> dg.SensorDefinition:
    """Brings the streaming jobs to their desired state. No cursor: all it needs is in the jobs' folders."""

    @sensor(
        name="supervise_streaming_jobs",
        minimum_interval_seconds=10,
        description="Starts streaming jobs and followers that are to run and do not, replaces those that hang, ends crash loops.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        jobs = with_followers(catalog, catalog.pipelines())
        decisions = {job: control_loop.step(settings, job) for job in jobs}
        shown = (f"{name}: {d.action} ({d.why})" for name, d in decisions.items())
        return dg.SkipReason("; ".join(shown)[:2000])

    return evaluate


def send_notifications(settings: Settings, catalog: Catalog) -> dg.SensorDefinition:
    """Has no cursor: what was sent is kept beside the tables, because `lakehouse stream supervise` may send, too."""
    verdicts = Verdicts(settings)

    @sensor(
        name="send_notifications",
        minimum_interval_seconds=30,
        description="Sends notifications of what went wrong to LAKEHOUSE_NOTIFICATION_COMMAND and "
        "LAKEHOUSE_NOTIFICATION_URLS, each once.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if not notifications.wanted(settings):
            return dg.SkipReason(
                "no notifications: neither LAKEHOUSE_NOTIFICATION_COMMAND nor LAKEHOUSE_NOTIFICATION_URLS is set"
            )
        jobs = with_followers(catalog, catalog.pipelines())
        all_notices = [notice for job in jobs for notice in notifications.of_job(settings, job)]
        all_notices += _different(catalog, verdicts)
        all_notices += staleness.stale(settings, catalog, context.instance)
        failures = notifications.send(settings, all_notices)
        for failure in failures:
            context.log.warning(failure)
        return dg.SkipReason("; ".join(failures) or "every notification is sent")

    return evaluate


def _different(catalog: Catalog, verdicts: Verdicts) -> Iterator[Notice]:
    by_table = verdicts.now()
    for table in [table for table in catalog if table.name in by_table]:
        for (start, end), diff in by_table[table.name].different.items():
            yield Notice(
                "verdict_different", table.pipeline, diff.rows, diff.at, table.name, start, end
            )


def _reported(context: dg.SensorEvaluationContext, name: str, kind: Any) -> Any:
    """Returns the cursor's content as a value of this type; an empty one, with a warning, if it holds anything else."""
    try:
        return checked(kind, json.loads(context.cursor or "{}"), "cursor")
    except (ValueError, TypeError) as err:
        given = f"sensor={name}, cursor={reprlib.repr(context.cursor)}"
        why = f"it must be JSON of what was reported last ({err}); it is set again, and all is reported once more"
        context.log.warning(f"{given}: {why}")
        return checked(kind, {})


def _result(events: list, reported: dict) -> dg.SensorResult:
    cursor = json.dumps(reported, default=datetime.isoformat)
    if not events:
        return dg.SensorResult(skip_reason="nothing new", cursor=cursor)
    return dg.SensorResult(asset_events=events, cursor=cursor)
