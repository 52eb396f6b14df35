"""No test of this room starts a process, and so none starts a JVM or a broker: it fails when it tries to."""

import sys
from collections.abc import Iterator

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
_watched = False  # an audit hook cannot be removed, and other rooms run in the same process


@pytest.hookimpl(tryfirst=True)  # before the fixtures, those of the whole session too
def pytest_runtest_setup() -> None:
    global _watched
    _watched = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    global _watched
    try:
        return (yield)
    finally:
        _watched = False


def _refuse(event: str, arguments: tuple) -> None:
    if _watched and event in STARTS:
        raise RuntimeError(
            f"event={event}, command={arguments[0]!r}: a test in tests/unit starts no process; "
            "move it to tests/spark or tests/system"
        )


sys.addaudithook(_refuse)
