"""A server of another program for a test: in a folder of its own, on a port of the loopback that is free."""

import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class OwnServer(ABC):
    """A process that can be killed and started again, with the same folder and port."""

    name: str
    up = 30.0  # seconds until it answers

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.port = free_port()
        self._process: subprocess.Popen | None = None

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def answers(self) -> bool: ...

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + self.up
        while not self.answers():
            ended = self._process.poll() is not None or time.monotonic() > deadline
            assert not ended, (self.home / "log").read_text()[-5000:]
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """It runs until the end of the block, and then its folder is removed."""
        try:
            self.start()
            yield self
        finally:
            self.kill()
            shutil.rmtree(self.home, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
