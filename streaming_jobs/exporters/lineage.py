"""What was written, sent as OpenLineage events: of streams while they go on, of batch runs once they are done.

The sender is a process of its own that no job knows of: it reads status files and commit logs,
without Spark. An event may be sent twice, after a crash between sending and noting; runs have the
same id then. A batch run that failed wrote nothing and is not sent. Run states and facets:
OpenLineage's specification, version 2.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
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
from lakehouse.storage.disk.typed_values import checked
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
    """Sends to a URL or adds to a file, an event a line.

    By default to what OpenLineage's own configuration names.

    Raises SettingsError if that names nothing, or cannot be used.
    """
    set_producer(PRODUCER)
    if to and not to.startswith(("http://", "https://")):
        return OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=to, append=True)))
    try:
        if to:
            return OpenLineageClient(transport=HttpTransport(HttpConfig.from_dict({"url": to})))
        configured = OpenLineageClient()
    except Exception as err:  # OpenLineage raises what its code happens to come to
        raise SettingsError(
            f"to={to!r}: OpenLineage cannot make a sender of it ({type(err).__name__}: {err}); correct the URL, or the file or "
            "the variables OPENLINEAGE_... that configure it, or give --to a URL or a file"
        ) from err
    if configured.transport.kind == "console":  # what it falls back to: a logger that nobody reads
        raise SettingsError(
            "to='': events need a receiver, and OpenLineage's own configuration names none; give --to a URL or a file, "
            "or set OPENLINEAGE_URL"
        )
    return configured


class Lineage:
    """Sends what is new since it last did; remembers how far in `<root>/_lineage.json`."""

    def __init__(self, settings: Settings, catalog: Catalog, to: OpenLineageClient) -> None:
        self.settings, self.catalog, self.to = settings, catalog, to
        self._noted = layout.lineage(settings)

    def send(self) -> int:
        """Sends the events that are due, and returns how many.

        Raises OSError for one that cannot be sent: it is due again.
        """
        noted = read_value(self._noted, _noted, "all is sent again, with the same ids") or {}
        sent = 0
        for table in self.catalog:
            of_table = noted.setdefault(
                table.name, {"batch": "", "run": "", "ended": True, "stream": ""}
            )
            events = [*self._batch(table, of_table), *self._stream(table, of_table)]
            for event in events:
                self._emit(event)
            if events:
                replace_file(self._noted, noted)
            sent += len(events)
        return sent

    def _emit(self, event: RunEvent) -> None:
        try:
            self.to.emit(event)
        except OSError:
            raise
        # each transport has exceptions of its own: a token that is not given, a broker that is away
        except Exception as err:
            raise OSError(f"{type(err).__name__}: {err}") from err

    def _batch(self, table: Table, known: dict) -> Iterator[RunEvent]:
        after = parse_instant(known["batch"]) if known["batch"] else BEGINNING
        commit_log = (
            c
            for c in CommitLog(self.settings, table)
            if c.role != "stream" and c.version != NOTHING
        )
        for commit in reversed(list(takewhile(lambda c: c.at > after, commit_log))):
            run = str(uuid5(NAMESPACE_URL, f"{table.name} {commit.role} {commit.at.isoformat()}"))
            facets: dict = {}
            if commit.start and commit.end:
                facets["nominalTime"] = facet_v2.nominal_time_run.NominalTimeRunFacet(
                    text(commit.start), text(commit.end)
                )
            began = commit.at - timedelta(seconds=commit.seconds)
            yield self._event(RunState.START, began, table, "batch", run, facets, None)
            yield self._event(
                RunState.COMPLETE,
                commit.at,
                table,
                "batch",
                run,
                facets,
                commit,
                rows=commit.written,
            )
            known["batch"] = commit.at.isoformat()

    def _stream(self, table: Table, known: dict) -> Iterator[RunEvent]:
        status = progress.read(self.settings, table.pipeline)
        if status is None or not table.kind.is_streamed:
            return
        started = parse_instant(status.started_at)
        run = str(uuid5(NAMESPACE_URL, f"{table.name} {status.pid} {status.started_at}"))
        if known["run"] != run:
            if not known["ended"]:  # replaced between two looks, by a process that found it dead
                yield self._event(RunState.ABORT, started, table, "stream", known["run"], {}, None)
            known |= {"run": run, "ended": False, "stream": ""}
            yield self._event(RunState.START, started, table, "stream", run, {}, None)
        if known["ended"]:
            return
        last = next(
            (c for c in CommitLog(self.settings, table).by_stream() if c.at >= started), None
        )
        rows = sum(q.rows - q.late - q.quarantined for q in status.queries if q.table == table.name)
        if state := _ENDED.get(status.state):
            known |= {"ended": True}
            yield self._event(
                state,
                parse_instant(status.heartbeat),
                table,
                "stream",
                run,
                _error(status),
                last,
                rows,
            )
        elif status.state in AT_WORK and last and last.at.isoformat() != known["stream"]:
            known["stream"] = last.at.isoformat()
            yield self._event(RunState.RUNNING, last.at, table, "stream", run, {}, last, rows)

    def _event(
        self,
        state: RunState,
        at: datetime,
        table: Table,
        mode: str,
        run: str,
        facets: dict,
        commit: Commit | None,
        rows: int = 0,
    ) -> RunEvent:
        engine = facet_v2.processing_engine_run.ProcessingEngineRunFacet(
            version("pyspark"), "spark"
        )
        output = self._dataset(table, table.name, commit.version if commit else None)
        past = [n for n, s in self.catalog.sources_of(table).items() if s.is_history]
        counted = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=rows
        )
        return RunEvent(
            eventType=state,
            eventTime=text(at),
            run=Run(run, {"processing_engine": engine, **facets}),
            job=_job(table, mode),
            inputs=[
                InputDataset(**self._dataset(table, name, _read(table, self.catalog, name, commit)))
                for name in (*table.inputs, *past)
            ],
            outputs=[
                OutputDataset(
                    **output, outputFacets={"outputStatistics": counted} if commit else {}
                )
            ],
        )

    def _dataset(self, of: Table, name: str, version: object) -> dict[str, Any]:
        """An input or the output of a table: a topic, a folder, a source of one's own, files or a table, as they are named.

        `version`: of a topic or a folder its offsets.
        """
        facets: dict = {}
        if version is not None:
            facets["version"] = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(
                str(version)
            )
        source = self.catalog.sources_of(of).get(name) or self.catalog.sources.get(name)
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


def _noted(given: Any) -> dict[str, dict]:
    noted: dict[str, dict] = checked(dict[str, dict[str, str | bool]], given)
    for of_table in noted.values():
        if not {"batch", "run", "ended", "stream"} <= of_table.keys():
            raise TypeError("no object of what was sent for each table")
    return noted


def _job(table: Table, mode: str) -> Job:
    facets = {
        "jobType": facet_v2.job_type_job.JobTypeJobFacet(
            "STREAMING" if mode == "stream" else "BATCH", "SPARK", "JOB"
        ),
        "documentation": facet_v2.documentation_job.DocumentationJobFacet(table.description),
        "sourceCode": facet_v2.source_code_job.SourceCodeJobFacet(
            "SQL" if table.sql else "PYTHON", table.code
        ),
    }
    if table.owner:
        facets["ownership"] = facet_v2.ownership_job.OwnershipJobFacet(
            [facet_v2.ownership_job.Owner(table.owner)]
        )
    return Job(NAMESPACE, f"{table.name}.{mode}", facets)


def _read(table: Table, catalog: Catalog, name: str, commit: Commit | None) -> object:
    """What the commit had read of an input: offsets of a topic or a folder, the version of a table.

    None where it does not say.
    """
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
