"""Sinks that die at a point, by SIGKILL."""

import os
import signal
from collections.abc import Sequence

from lakehouse import Position, RowChange


class Dying:
    """Beside a sink as a base: dies once it is opened, has written, or has committed."""

    point = ""

    def last_words(self) -> None:
        """What is to be at the target before it dies."""

    def _die(self, point: str) -> None:
        if self.point == point:
            self.last_words()
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self) -> None:
        super().open()
        self._die("opened")

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        super().write(version, changes)
        self._die("written")

    def commit(self, position: Position) -> None:
        super().commit(position)
        self._die("committed")
