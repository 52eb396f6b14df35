"""A wish to stop may come while the same thread looks whether there is one."""

import os
import signal
import time
from collections.abc import Iterator
from threading import Timer

import pytest

from lakehouse.stopping import Stop


@pytest.fixture
def stop() -> Iterator[Stop]:
    """Set by SIGUSR1."""
    stop = Stop()
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    yield stop
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_at_any_moment_ends_the_wait(stop):
    """Many short waits: a lock that the wait held would sooner or later be held when the signal comes."""
    for _ in range(200):
        stop._set = False
        Timer(0.001, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        began = time.monotonic()
        while not stop.wait(0.0001):
            assert time.monotonic() < began + 30, "the signal was not heard"
        assert stop.is_set()


def test_without_a_wish_the_wait_ends_by_itself(stop):
    assert not stop.wait(0.06)
    assert not stop.is_set()
