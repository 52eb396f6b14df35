"""A server of PostgreSQL for a benchmark or a test: in a folder of its own, on a port of the loopback that is free."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"
_PROGRAMS = "/usr/lib/postgresql/*/bin"
MISSING = "no server of PostgreSQL is installed (Debian and Ubuntu: apt install postgresql)"


def installed() -> Path | None:
    """The programs of the newest server that is installed."""
    found = Path("/").glob(_PROGRAMS.lstrip("/"))
    return max(found, key=lambda each: int(each.parent.name), default=None)


class Server:
    """A server in a folder of its own."""

    def __init__(self, options: str = "") -> None:
        found = installed()
        assert found is not None, MISSING
        self._binaries = found
        self._home = Path(tempfile.mkdtemp(prefix="pg-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        if os.getuid() == 0:
            shutil.chown(self._home, USER)
        self.dsn = f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"
        self._options = f"-p {self.port} -k {self._home} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._options += f" {options}"
        self._do("initdb", "-U", USER, "--auth=trust", "--no-sync")

    def start(self) -> None:
        self._do("pg_ctl", "-l", self._home / "log", "-w", "-o", self._options, "start")

    def kill(self) -> None:
        """As by a crash: open transactions end, connections are gone."""
        self._do("pg_ctl", "-m", "immediate", "stop")

    def remove(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def _do(self, program: str, *arguments: object) -> None:
        _run(self._binaries / program, "-D", self._home / "data", *arguments)


@contextmanager
def running(options: str = "") -> Iterator[Server]:
    """A server that runs, with these options of the command line besides."""
    server = Server(options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        server.remove()


def _run(*command: object) -> None:
    # the server refuses to run as root
    other = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
    done = subprocess.run([*other, *map(str, command)], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
