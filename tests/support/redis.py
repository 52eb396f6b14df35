"""A server of Redis for a test."""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager

import redis

from support.own_server import OwnServer


class Server(OwnServer):
    """A server that keeps what it has in a file when it is asked to."""

    name = "redis"

    def __init__(self, *options: str) -> None:
        assert shutil.which("redis-server"), (
            "no server of Redis is installed (Debian and Ubuntu: apt install redis-server)"
        )
        super().__init__()
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def command(self) -> Sequence[str]:
        at = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.home)]
        return ["redis-server", *at, "--save", "", *self._options]

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False


def running(*options: str) -> AbstractContextManager[Server]:
    """A server that runs."""
    return Server(*options).running()
