"""OpenLineage events of real commit logs, sent to a real server and to a file."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from openlineage.client import OpenLineageClient
from openlineage.client.transport.http import HttpConfig, HttpTransport

from lakehouse.errors import SettingsError
from lakehouse.examples.sensors import tables as sensors
from lakehouse.ranges import Range
from lakehouse.testing import Stage
from stories.suites import START, Event, reading
from streaming_jobs import progress
from streaming_jobs.exporters.lineage import Lineage, client
from streaming_jobs.progress import JobStatus, QueryStatus


@pytest.fixture(scope="module")
def stage(spark, tmp_path_factory) -> Stage:
    stage = Stage(spark, tmp_path_factory.mktemp("lineage"), sensors)
    stage.feed("sensor_readings", [reading(Event(n, 1, 0, 70)) for n in range(30)])
    stage.advance("sensor_readings", reading(Event(7_200, 1, 0, 70)))
    stage.run("valid_readings")
    return stage


@pytest.fixture
def collector() -> Iterator[tuple[str, list[dict]]]:
    """The address of a server that keeps what it is sent."""
    kept: list[dict] = []

    class Keep(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/token":  # it gives none
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")
                return
            kept.append(json.loads(content))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", kept
    server.shutdown()
    thread.join()
    server.server_close()


def say(stage: Stage, state: str, error: str = "") -> JobStatus:
    """The status of a job that this process is, as its driver would write it."""
    me, now = psutil.Process(os.getpid()), progress.now()
    last = next(stage.session.commit_log(stage.session.catalog.table("valid_readings")).by_stream())
    began = (last.at - timedelta(minutes=1)).isoformat()
    queries = (QueryStatus("valid_readings", True, rows=31),)
    status = JobStatus(
        "sensors", me.pid, me.create_time(), 0, 0.0, state, began, now, queries, error=error
    )
    progress.write(stage.session.settings, status)
    return status


def told(events: list[dict], job: str) -> list[dict]:
    return [e for e in events if e["job"]["name"] == job]


def test_a_stream_is_told_from_its_start_to_its_end(stage, collector):
    address, events = collector
    say(stage, "running")
    lineage = Lineage(stage.session.settings, stage.session.catalog, client(address))
    lineage.send()
    started, running = told(events, "valid_readings.stream")
    assert (started["eventType"], running["eventType"]) == ("START", "RUNNING")
    assert started["run"]["runId"] == running["run"]["runId"]
    (source,), (output,) = running["inputs"], running["outputs"]
    path = stage.session.settings.root / "bronze" / "sensor_readings"
    assert (
        source["namespace"] == "file"
        and Path(source["name"]) == path
        and source["facets"]["version"]
    )
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 31
    columns = {f["name"]: f["type"] for f in output["facets"]["schema"]["fields"]}
    assert columns["sensor_id"] == "string" and columns["event_time"] == "timestamp"
    assert running["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (topic,) = told(events, "sensor_readings.stream")[1]["inputs"]
    assert topic["namespace"].startswith("kafka://") and topic["name"] == "sensor-readings"
    assert json.loads(topic["facets"]["version"]["datasetVersion"]) == {"0": 32}
    assert lineage.send() == 0, "nothing new"
    say(stage, "failed", error="no more")
    again = Lineage(stage.session.settings, stage.session.catalog, client(address))
    again.send()
    ended = told(events, "valid_readings.stream")[2:]
    assert [e["eventType"] for e in ended] == ["FAIL"] and ended[0]["run"]["runId"] == started[
        "run"
    ]["runId"]
    assert ended[0]["run"]["facets"]["errorMessage"]["message"] == "no more"


def replaced(stage: Stage) -> None:
    """The first hour of a table by a batch run, after it was lost."""
    DeltaTable(str(stage.session.path(stage.session.catalog.table("valid_readings")))).delete()
    stage.backfill("valid_readings", Range(START, START + timedelta(hours=1)))


def test_a_batch_run_is_told_with_its_range_and_what_it_read(stage, tmp_path):
    file = tmp_path / "events.jsonl"
    lineage = Lineage(stage.session.settings, stage.session.catalog, client(str(file)))
    lineage.send()
    known = len(file.read_text().splitlines()) if file.exists() else 0
    replaced(stage)
    assert lineage.send() == 2
    start, complete = [json.loads(line) for line in file.read_text().splitlines()[known:]]
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert (
        start["run"]["runId"] == complete["run"]["runId"]
        and start["eventTime"] < complete["eventTime"]
    )
    times = complete["run"]["facets"]["nominalTime"]
    assert [datetime.fromisoformat(times[f"nominal{end}Time"]) for end in ("Start", "End")] == [
        START.astimezone(UTC), START + timedelta(hours=1),
    ]  # fmt: skip
    assert complete["job"]["name"] == "valid_readings.batch"
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 30
    assert complete["inputs"][0]["facets"]["version"]["datasetVersion"].isdigit()


def test_what_cannot_be_sent_is_due_again(stage, collector):
    address, events = collector
    replaced(stage)
    nowhere = client("http://127.0.0.1:9")  # the port of `discard`, which nobody serves
    nowhere.transport.config.retry = {}
    with pytest.raises(OSError):
        Lineage(stage.session.settings, stage.session.catalog, nowhere).send()
    assert Lineage(stage.session.settings, stage.session.catalog, client(address)).send() == 2
    assert [e["eventType"] for e in told(events, "valid_readings.batch")] == ["START", "COMPLETE"]


def test_a_token_that_is_not_given_is_waited_for(stage, collector):
    address, events = collector
    replaced(stage)
    endpoint = {"tokenEndpoint": f"{address}/token", "clientId": "ann", "clientSecret": "s3cret"}
    config = HttpConfig.from_dict({"url": address, "auth": {"type": "oauth2"} | endpoint})
    waiting = OpenLineageClient(transport=HttpTransport(config))
    with pytest.raises(OSError, match="Token not found in response"):
        Lineage(stage.session.settings, stage.session.catalog, waiting).send()
    assert Lineage(stage.session.settings, stage.session.catalog, client(address)).send() == 2
    assert [e["eventType"] for e in told(events, "valid_readings.batch")] == ["START", "COMPLETE"]


def test_without_anywhere_to_send_it_is_refused(monkeypatch, tmp_path):
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="events need a receiver"):
        client()
    for given in ("type: http", "type: htp", "type: kafka", "type: http\n  url: nohost"):
        (tmp_path / "openlineage.yml").write_text(f"transport:\n  {given}\n")
        with pytest.raises(SettingsError, match=r"to='': OpenLineage cannot make .*; correct the"):
            client()
    with pytest.raises(SettingsError, match="to='http://': OpenLineage cannot make a sender of it"):
        client("http://")
