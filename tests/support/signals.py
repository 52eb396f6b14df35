"""A signal that a process sends itself before a call of a step: where a kill or a pause comes from in tests."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signalled_before(owner: Any, name: str, call: int, sent: signal.Signals) -> Iterator[None]:
    """Within it this process sends itself the signal before that call of that step of the owner."""
    left, step = [call], getattr(owner, name)

    def counting(*given: object, **more: object) -> object:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), sent)
        return step(*given, **more)

    setattr(owner, name, counting)
    try:
        yield
    finally:
        setattr(owner, name, step)
