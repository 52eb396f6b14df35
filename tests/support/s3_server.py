"""An S3 server for tests: moto, in memory, as a process of its own. Its bucket is `lake`."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lakehouse.object_paths import ObjectPath, to_path

BUCKET = "lake"
_LIMIT = 60.0  # seconds


@contextmanager
def running() -> Iterator[Mapping[str, str]]:
    """Starts the server, and yields the variables by which clients reach it, which this process has meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "AWS_ACCESS_KEY_ID": "of-a-test",
        "AWS_SECRET_ACCESS_KEY": "of-a-test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = {name: os.environ.get(name) for name in variables}
    try:
        _await(server, port)
        os.environ.update(variables)
        _make_bucket()
        yield variables
    finally:
        server.terminate()
        server.wait()
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


def _make_bucket() -> None:
    import boto3

    boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).create_bucket(Bucket=BUCKET)
