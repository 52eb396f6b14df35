"""Commits sent as OpenLineage events: those of streams while they go on, those of batch runs once they are done.

The sender is a process of its own that no job knows of: it reads status files and commit logs, without Spark. After a
crash between sending and noting it may send an event twice; its run has the same id then. A batch run that failed wrote
nothing and is not sent. Run states and facets: OpenLineage's specification, version 2.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from openlineage.client import OpenLineageClient, facet_v2
from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    set_producer,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.errors import BrokerError, SettingsError
from lakehouse.ranges import BEGINNING, parse_instant, text
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_tables
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.position.reference_versions import SEEN
from streaming_jobs import progress
from streaming_jobs.progress import AT_WORK, JobStatus

NAMESPACE = "lakehouse"
PRODUCER = "urn:unified-lakehouse"
_ENDED = {
    "stopped": RunState.COMPLETE,
    "failed": RunState.FAIL,
    "crash_loop": RunState.FAIL,
    "dead": RunState.ABORT,
}


def client(to: str = "") -> OpenLineageClient:
    """Returns a client that sends to a URL, or to a file, an event a line; by default to OpenLineage's own configuration.

    Raises SettingsError if that names nothing, or cannot be used.
    """
    set_producer(PRODUCER)
    if to and not to.startswith(("http://", "https://")):
        return OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=to, append=True)))
    try:
        if to:
            return OpenLineageClient(transport=HttpTransport(HttpConfig.from_dict({"url": to})))
        configured = OpenLineageClient()
    except Exception as err:  # OpenLineage raises any error
        raise SettingsError(
            f"to={to!r}: OpenLineage cannot make a sender of it ({type(err).__name__}: {err}); correct the URL, or the file or "
            "the variables OPENLINEAGE_... that configure it, or give --to a URL or a file"
        ) from err
    if configured.transport.kind == "console":  # what it falls back to: a logger that nobody reads
        raise SettingsError(
            "to='': events need a receiver; give --to a URL or a file, set OPENLINEAGE_URL, or configure OpenLineage"
        )
    return configured


@dataclass(slots=True)
class Sent:
    """The events of a table that were sent: the last batch commit, and the last run of its stream with its last commit."""

    batch: str
    run: str
    ended: bool
    stream: str


class Lineage:
    """Sends what is new since it last did, by its notes in `<root>/_lineage.json`."""

    def __init__(self, settings: Settings, catalog: Catalog, to: OpenLineageClient) -> None:
        self.settings, self.catalog, self.to = settings, catalog, to
        self._notes = layout.lineage(settings)

    def send(self) -> int:
        """Sends the events that are due, and returns how many. Raises OSError for one that cannot be sent: it is due again."""
        meaning = "all is sent again, with the same ids"
        notes = read_value(self._notes, dict[str, Sent], meaning, later=True) or {}
        count = 0
        for table in self.catalog:
            sent = notes.setdefault(table.name, Sent("", "", True, ""))
            events = [*self._batch(table, sent), *self._stream(table, sent)]
            for event in events:
                self._emit(event)
            if events:
                replace_file(self._notes, {name: asdict(value) for name, value in notes.items()})
            count += len(events)
        return count

    def _emit(self, event: RunEvent) -> None:
        try:
            self.to.emit(event)
        except OSError:
            raise
        # each transport has exceptions of its own: a token that is not given, a broker that is away
        except Exception as err:
            raise OSError(f"{type(err).__name__}: {err}") from err

    def _batch(self, table: Table, sent: Sent) -> Iterator[RunEvent]:
        after = parse_instant(sent.batch) if sent.batch else BEGINNING
        log = CommitLog(self.settings, table)
        commits = (c for c in log if c.role != "stream" and c.version != NOTHING)
        for commit in reversed([*takewhile(lambda c: c.at > after, commits)]):
            run = str(uuid5(NAMESPACE_URL, f"{table.name} {commit.role} {commit.at.isoformat()}"))
            event = partial(self._event, table, "batch", run)
            facets: dict = {}
            if commit.start and commit.end:
                facets["nominalTime"] = facet_v2.nominal_time_run.NominalTimeRunFacet(
                    text(commit.start), text(commit.end)
                )
            yield event(RunState.START, commit.at - timedelta(seconds=commit.seconds), facets)
            yield event(RunState.COMPLETE, commit.at, facets, commit, commit.written)
            sent.batch = commit.at.isoformat()

    def _stream(self, table: Table, sent: Sent) -> Iterator[RunEvent]:
        status = progress.read(self.settings, table.pipeline)
        if status is None or not table.kind.is_streamed:
            return
        started = parse_instant(status.started_at)
        run = str(uuid5(NAMESPACE_URL, f"{table.name} {status.pid} {status.started_at}"))
        if sent.run != run:
            if not sent.ended:  # replaced between two looks, by a process that found it dead
                yield self._event(table, "stream", sent.run, RunState.ABORT, started)
            sent.run, sent.ended, sent.stream = run, False, ""
            yield self._event(table, "stream", run, RunState.START, started)
        if sent.ended:
            return
        event = partial(self._event, table, "stream", run)
        commits = CommitLog(self.settings, table).by_stream()
        last = next((commit for commit in commits if commit.at >= started), None)
        rows = sum(q.rows - q.late - q.quarantined for q in status.queries if q.table == table.name)
        if state := _ENDED.get(status.state):
            sent.ended = True
            yield event(state, parse_instant(status.heartbeat), _error(status), last, rows)
        elif status.state in AT_WORK and last and last.at.isoformat() != sent.stream:
            sent.stream = last.at.isoformat()
            yield event(RunState.RUNNING, last.at, {}, last, rows)

    def _event(
        self,
        table: Table,
        mode: str,
        run: str,
        state: RunState,
        at: datetime,
        facets: Mapping[str, Any] = MappingProxyType({}),
        commit: Commit | None = None,
        rows: int = 0,
    ) -> RunEvent:
        engine = facet_v2.processing_engine_run.ProcessingEngineRunFacet(
            version("pyspark"), "spark"
        )
        output = self._dataset(table, table.name, commit.version if commit else None)
        past = [n for n, s in self.catalog.sources_of(table).items() if s.is_history]
        count = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows)
        statistics: dict = {"outputStatistics": count} if commit else {}
        return RunEvent(
            eventType=state,
            eventTime=text(at),
            run=Run(run, {"processing_engine": engine, **facets}),
            job=_job(table, mode),
            inputs=[
                InputDataset(**self._dataset(table, name, _read(table, self.catalog, name, commit)))
                for name in (*table.inputs, *past)
            ],
            outputs=[OutputDataset(**output, outputFacets=statistics)],
        )

    def _dataset(self, table: Table, name: str, version: object) -> dict[str, Any]:
        """Returns an input or the output of a table as OpenLineage names it; the `version` of a topic is its offsets."""
        facets: dict = {}
        if version is not None:
            facet = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(str(version))
            facets["version"] = facet
        source = self.catalog.sources_of(table).get(name) or self.catalog.sources.get(name)
        if source:
            namespace, address = source.dataset(self._broker)
            return {"namespace": namespace, "name": address, "facets": facets}
        path = layout.table_path(self.settings, self.catalog.table(name))
        return {"namespace": "file", "name": str(path), "facets": facets | _columns(path)}

    def _broker(self) -> str:
        try:
            return str(client_config(self.settings)["bootstrap.servers"]).split(",")[0]
        except BrokerError:  # the embedded one, which is not running now
            return "embedded"


def _job(table: Table, mode: str) -> Job:
    kind, language = "STREAMING" if mode == "stream" else "BATCH", "SQL" if table.sql else "PYTHON"
    facets = {
        "jobType": facet_v2.job_type_job.JobTypeJobFacet(kind, "SPARK", "JOB"),
        "documentation": facet_v2.documentation_job.DocumentationJobFacet(table.description),
        "sourceCode": facet_v2.source_code_job.SourceCodeJobFacet(language, table.code),
    }
    if table.owner:
        owners = [facet_v2.ownership_job.Owner(table.owner)]
        facets["ownership"] = facet_v2.ownership_job.OwnershipJobFacet(owners)
    return Job(NAMESPACE, f"{table.name}.{mode}", facets)


def _read(table: Table, catalog: Catalog, name: str, commit: Commit | None) -> object:
    """Returns the position of an input at the commit: offsets, or the version of a table; None where it does not say."""
    if commit is None:
        return None
    if source := catalog.sources_of(table).get(name):
        offsets = commit.inputs.get(source.address)
        return json.dumps(offsets) if offsets else None
    seen = {n: versions[-1] for n, versions in commit.inputs.get(SEEN, {}).items()}
    kinds = (commit.inputs.get(kind, {}) for kind in ("tables", "references", "versioned tables"))
    position = next((read[name] for read in (seen, *kinds) if name in read), None)
    return position.get("reservoirVersion") if isinstance(position, dict) else position


def _columns(path: Path) -> dict:
    field = facet_v2.schema_dataset.SchemaDatasetFacetFields
    fields = [
        field(name=f["name"], type=json.dumps(f["type"], separators=(",", ":")).strip('"'))
        for f in delta_tables.fields(path)
    ]
    if not fields:
        return {}
    return {"schema": facet_v2.schema_dataset.SchemaDatasetFacet(fields=fields)}


def _error(status: JobStatus) -> dict:
    if not status.error:
        return {}
    return {"errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet(status.error, "PYTHON")}
