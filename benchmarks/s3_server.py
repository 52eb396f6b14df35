"""An S3 server for tests: moto, in memory, as a process of its own. Its bucket is `lake`.

Between it and its clients there may be a proxy that counts requests, and loses or refuses some.
"""

import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lakehouse.object_paths import ObjectPath, store, to_path

BUCKET = "lake"
_LIMIT = 60.0  # seconds


_CONTROL = "/-/faults"


class Faults:
    """The share of writes whose answer is lost after the server has made them, and that are answered by 503; and the counts.

    The proxy is a process of its own: a client that waits for an answer may hold what a thread beside it needs.

    :param delay: seconds that each request takes longer.
    """

    def __init__(self, lost: float = 0.0, refused: float = 0.0, delay: float = 0.0) -> None:
        self._shares = {"lost": lost, "refused": refused, "delay": delay}
        self.port = 0  # once it runs

    def set(self, **shares: float) -> None:
        self._shares |= shares
        self._ask(self._shares)

    def clear(self) -> None:
        """Begins to count again."""
        self._ask({**self._shares, "clear": True})

    @property
    def counts(self) -> Counter[str]:
        """Returns how many writes were lost, and how many refused."""
        return Counter(self._ask({})["counts"])

    @property
    def requests(self) -> Counter[str]:
        """Returns the requests by their method and the kind of what they ask for."""
        return Counter(self._ask({})["requests"])

    def _ask(self, change: Mapping[str, object]) -> dict[str, dict[str, int]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("PUT", _CONTROL, json.dumps(change).encode())
        try:
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@contextmanager
def running(faults: Faults | None = None) -> Iterator[Mapping[str, str]]:
    """Starts the server, and yields the variables by which clients reach it, which this process has meanwhile."""
    with ExitStack() as started:
        port = _free_port()
        moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        started.enter_context(_process(moto, port))
        _make_bucket(port)
        reached = port
        if faults is not None:
            reached = faults.port = _free_port()
            proxy = [sys.executable, "-m", __name__, str(reached), str(port)]
            started.enter_context(_process(proxy, reached))
            faults.set()
        variables = {
            "AWS_ACCESS_KEY_ID": "of-a-test",
            "AWS_SECRET_ACCESS_KEY": "of-a-test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{reached}",
            "AWS_ALLOW_HTTP": "true",
        }
        started.enter_context(_environment(variables))
        store.cache_clear()
        started.callback(store.cache_clear)
        yield variables


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _process(command: list[str], port: int) -> Iterator[None]:
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1]
    )
    try:
        _await(server, port)
        yield
    finally:
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
    import boto3  # type: ignore[import-untyped]

    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="of-a-test",
        aws_secret_access_key="of-a-test",
    )
    client.create_bucket(Bucket=BUCKET)


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, behind: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.behind, self.dice = behind, random.Random(1)
        self.shares = {"lost": 0.0, "refused": 0.0, "delay": 0.0}
        self.counts, self.requests = Counter[str](), Counter[str]()

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is none of ours."""

    def changed(self, change: dict) -> bytes:
        if change.pop("clear", False):
            self.counts.clear()
            self.requests.clear()
        self.shares |= change
        return json.dumps({"counts": self.counts, "requests": self.requests}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def _pass(self) -> None:
        proxy, body = self.server, self._body()
        if self.path == _CONTROL:
            counted = proxy.changed(json.loads(body))
            self._answer(200, {}, counted, len(counted))
            return
        proxy.requests[f"{self.command} {_kind(self.path)}"] += 1
        time.sleep(proxy.shares["delay"])
        roll = proxy.dice.random() if self.command in ("PUT", "POST") else 1.0
        refused, lost = proxy.shares["refused"], proxy.shares["lost"]
        if roll < refused:
            proxy.counts["refused"] += 1
            self._answer(503, {}, b"", 0)
            return
        server = http.client.HTTPConnection("127.0.0.1", proxy.behind, timeout=60)
        kept = {n: v for n, v in self.headers.items() if n.lower() not in _OF_A_HOP}
        server.request(self.command, self.path, body, kept | {"Content-Length": str(len(body))})
        answer = server.getresponse()
        content, headers = answer.read(), dict(answer.getheaders())
        server.close()
        if roll < refused + lost and answer.status < 300:
            proxy.counts["lost"] += 1
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


if __name__ == "__main__":
    _Proxy(int(sys.argv[1]), int(sys.argv[2])).serve_forever()
