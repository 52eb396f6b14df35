"""A server on the loopback interface answers no page of somebody else."""

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest
from starlette.testclient import TestClient

from lakehouse import own_host
from lakehouse.cli import serve
from lakehouse.errors import RegistryAway
from lakehouse.runtime.schema_registry import Registry
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import load
from streaming_jobs.exporters import metrics

OURS = [
    "localhost",
    "localhost:9464",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.8.9.1",
    "[::1]",
    "[::1]:80",
    "",
]
OTHERS = [
    "evil.example", "evil.example:9464", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[",
    "localhost@evil.example", "evil.example:80:80", "0.0.0.0", "2130706433",
]  # fmt: skip


@pytest.mark.parametrize("header", OURS)
def test_a_host_of_this_machine_is_answered(header: str):
    assert own_host.answers("127.0.0.1", header) and own_host.answers("::1", header)


@pytest.mark.parametrize("header", OTHERS)
def test_a_host_of_others_is_refused(header: str):
    assert not own_host.answers("127.0.0.1", header) and not own_host.answers("localhost", header)
    assert own_host.answers("0.0.0.0", header)  # opened by a setting, whose page says so


def test_serve_answers_its_own_host_alone(tmp_path: Path):
    lakehouse = load(Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",)))
    client = TestClient(serve.application(lakehouse), base_url="http://127.0.0.1")
    assert client.get("/tables").status_code == 200
    refused = client.get("/tables", headers={"Host": "evil.example"})
    assert refused.status_code == 421 and "loopback" in refused.text


def test_metrics_answer_their_own_host_alone(tmp_path: Path):
    tables = ("lakehouse.examples.sensors.tables",)
    server, _ = metrics.serve(load(Settings(root=tmp_path, tables=tables, metrics_port=0)))
    address = f"http://127.0.0.1:{server.server_port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert b"lakehouse" in answer.read()
    with pytest.raises(HTTPError, match="421"):
        urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}))
    server.shutdown()
    server.server_close()


class _Redirect(BaseHTTPRequestHandler):
    asked: list[tuple[int, str | None]] = []
    to = ""

    def do_GET(self) -> None:
        self.asked.append((self.server.server_port, self.headers.get("Authorization")))
        self.send_response(302)
        self.send_header("Location", self.to)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_password_of_the_registry_follows_no_redirect():
    servers = [HTTPServer(("127.0.0.1", 0), _Redirect) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    registry, other = servers
    _Redirect.to = f"http://127.0.0.1:{other.server_port}/schemas/ids/1"
    url = f"http://127.0.0.1:{registry.server_port}"
    with pytest.raises(RegistryAway, match=f"HTTP 302.*{other.server_port}"):
        Registry(url, {"basic.auth.user.info": "user:word"}).schema(1)
    assert [port for port, _ in _Redirect.asked] == [registry.server_port]
    for server in servers:
        server.shutdown()
        server.server_close()
