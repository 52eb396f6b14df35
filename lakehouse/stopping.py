"""The request to stop, which a signal may make at any moment."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_NAP = 0.05  # seconds between two looks


class Stopped(Exception):
    """Long work ends before it is done, because its process is to stop."""


class Stop:
    """A flag that the handler of a signal or a thread sets, and a loop reads.

    A `threading.Event` is unsafe in handlers: the thread that the signal interrupts may hold its lock,
    and would then wait for itself.
    """

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        """Waits this long, or until it is set, and returns True if it is."""
        end = time.monotonic() + seconds
        while not self._set and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _NAP))
        return self._set


@contextmanager
def by_signals() -> Iterator[Stop]:
    """Yields a request that the first SIGINT or SIGTERM sets; a second one has its usual effect."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask_to_stop(number: int, frame: object) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, ask_to_stop)
    try:
        yield stop
    finally:
        restore()
