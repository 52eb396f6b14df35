"""A server of PostgreSQL for a test: in a folder of its own, on a port of the loopback that is free."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"


@contextmanager
def running() -> Iterator[str]:
    """How to connect to it, as libpq has it."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin"))
    assert found, "no server of PostgreSQL is installed (Debian and Ubuntu: apt install postgresql)"
    binaries = max(found, key=lambda each: int(each.parent.name))
    home = Path(tempfile.mkdtemp(prefix="pg-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if os.getuid() == 0:
        shutil.chown(home, USER)
    data, options = home / "data", f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
    _run(binaries / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync")
    try:
        _run(binaries / "pg_ctl", "-D", data, "-l", home / "log", "-w", "-o", options, "start")
        yield f"host=127.0.0.1 port={port} user={USER} dbname=postgres"
    finally:
        _run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(home, ignore_errors=True)


def _run(*command: object) -> None:
    # the server refuses to run as root
    other = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
    done = subprocess.run([*other, *map(str, command)], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
