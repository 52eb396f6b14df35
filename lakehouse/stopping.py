"""The wish to stop, which a signal may utter at any moment."""

import time

_NAP = 0.05  # seconds between two looks


class Stopped(Exception):
    """What takes long ends before it is done, because its process is to stop."""


class Stop:
    """Is set by the handler of a signal or by a thread, and looked at by a loop.

    A `threading.Event` is none for handlers: its lock may be held by the very thread that the signal
    interrupts, which then waits for itself.
    """

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until it is set; whether it is."""
        end = time.monotonic() + seconds
        while not self._set and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _NAP))
        return self._set
