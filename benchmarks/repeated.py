"""Measures a function again and again inside one process: how the batch cases are timed, without their start-up."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from benchmarks.measure import Tree
from benchmarks.topic import START_MS
from lakehouse.ranges import Range


def hours(n: int) -> Range:
    """The first `n` whole hours of the topic."""
    start = datetime.fromtimestamp(START_MS / 1000, UTC)
    return Range(start, start + timedelta(hours=n))


def measured(
    call: Callable[[], object], times: int, result: str, before: Callable[[], object] = lambda: None
) -> None:
    """Writes [wall, cpu] of each call to the file `result`, first to last; the first pays for warming up.

    What is done `before` each is not measured.
    """
    tree = Tree(psutil.Process())
    spent = []
    for _ in range(times):
        before()
        began, cpu = time.monotonic(), tree.cpu()
        call()
        spent.append((time.monotonic() - began, tree.cpu() - cpu))
    Path(result).write_text(json.dumps(spent))
