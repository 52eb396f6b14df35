"""An S3 server for tests: moto, in memory, as a process of its own. Its bucket is `lake`.

Between it and its clients there may be a proxy that counts requests, and loses or refuses some.
"""

import http.client
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lakehouse.object_paths import ObjectPath, store, to_path

BUCKET = "lake"
_LIMIT = 60.0  # seconds


@dataclass
class Faults:
    """The share of writes whose answer is lost after the server has made them, and that are answered by 503; and the counts.

    `requests`: by method and by the kind of what is asked for.
    """

    lost: float = 0.0
    refused: float = 0.0
    delay: float = 0.0  # seconds, of each request
    counts: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    dice: random.Random = field(default_factory=lambda: random.Random(1))


@contextmanager
def running(faults: Faults | None = None) -> Iterator[Mapping[str, str]]:
    """Starts the server, and yields the variables by which clients reach it, which this process has meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(server, port)
        with _proxy(port, faults) if faults else _none(port) as reached:
            variables = {
                "AWS_ACCESS_KEY_ID": "of-a-test",
                "AWS_SECRET_ACCESS_KEY": "of-a-test",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{reached}",
                "AWS_ALLOW_HTTP": "true",
            }
            with _environment(variables):
                _make_bucket(port)
                store.cache_clear()
                yield variables
    finally:
        store.cache_clear()
        server.terminate()
        server.wait()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def folder(name: str) -> ObjectPath:
    """Returns a folder in the bucket."""
    path = to_path(f"s3://{BUCKET}/{name}")
    assert isinstance(path, ObjectPath)
    return path


def _await(server: subprocess.Popen, port: int) -> None:
    end = time.monotonic() + _LIMIT
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"moto does not answer on port {port} (exit code {server.poll()})")


def _make_bucket(port: int) -> None:
    import boto3

    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket=BUCKET)


@contextmanager
def _none(port: int) -> Iterator[int]:
    yield port


@contextmanager
def _proxy(port: int, faults: Faults) -> Iterator[int]:
    class Handler(_Handler):
        server_port, disturbed = port, faults

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hangs up is none of ours."""

    proxy = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy.server_port
    finally:
        proxy.shutdown()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_port: int
    disturbed: Faults

    def _pass(self) -> None:
        faults, body = self.disturbed, self._body()
        faults.requests[f"{self.command} {_kind(self.path)}"] += 1
        time.sleep(faults.delay)
        roll = faults.dice.random() if self.command in ("PUT", "POST") else 1.0
        if roll < faults.refused:
            faults.counts["refused"] += 1
            self._answer(503, {}, b"", 0)
            return
        server = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        kept = {n: v for n, v in self.headers.items() if n.lower() not in _OF_A_HOP}
        server.request(self.command, self.path, body, kept | {"Content-Length": str(len(body))})
        answer = server.getresponse()
        content, headers = answer.read(), dict(answer.getheaders())
        server.close()
        if roll < faults.refused + faults.lost and answer.status < 300:
            faults.counts["lost"] += 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        size = int(headers.get("Content-Length", 0)) if self.command == "HEAD" else len(content)
        self._answer(answer.status, headers, content, size)

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes, size: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _OF_A_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def log_message(self, *_: object) -> None:
        """Nothing is written for a request."""


_OF_A_HOP = ("connection", "transfer-encoding", "expect", "content-length")


def _kind(path: str) -> str:
    """Returns the kind of object, or listing, that a request asks for."""
    path, _, query = path.partition("?")
    if "list-type" in query:
        return "list"
    if "_delta_log" in path:
        return "log"
    return (
        "data"
        if path.endswith(".parquet")
        else re.sub(r"[0-9a-f-]{12,}", "", path.rsplit("/", 1)[-1])
    )
