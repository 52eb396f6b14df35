"""A server of Redis for a test: in a folder of its own, on a port of the loopback that is free."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis


class Server:
    """A server that keeps what it has in a file when it is asked to."""

    def __init__(self, *options: str) -> None:
        assert shutil.which("redis-server"), (
            "no server of Redis is installed (Debian and Ubuntu: apt install redis-server)"
        )
        self.home = Path(tempfile.mkdtemp(prefix="redis-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._options = options
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--dir", str(self.home), *self._options], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < deadline, (self.home / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False


@contextmanager
def running(*options: str) -> Iterator[Server]:
    """A server that runs."""
    server = Server(*options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        server.remove()
