"""Runs a command and measures it: seconds by the clock, CPU seconds of its whole process tree (Python and JVM)."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK = 0.2  # seconds between two readings of the CPU clocks: the most of a process's end that is missed
_CENSUS = 1.0  # seconds between two looks for new children, which costs more
_END = 20.0  # seconds for a JVM to end after the Python process that started it


class BenchmarkError(Exception):
    """A run that cannot be counted: it failed, took too long, or gave a wrong count."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took."""

    wall: float
    cpu: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.wall - other.wall, self.cpu - other.cpu)


class Tree:
    """A process and what it started, each known by pid and start time."""

    def __init__(self, root: psutil.Process | psutil.Popen) -> None:
        self.root, self.counted = root, 0.0
        self.members = {psutil.Process(root.pid)}
        self.spent: dict[psutil.Process, float] = {}

    def cpu(self) -> float:
        """CPU seconds, user and system, so far; those of members that ended are kept."""
        if time.monotonic() - self.counted > _CENSUS:
            self.counted = time.monotonic()
            with suppress(psutil.NoSuchProcess):
                self.members |= set(psutil.Process(self.root.pid).children(recursive=True))
        for member in self.members:
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                self.spent[member] = max(times.user + times.system, self.spent.get(member, 0.0))
        return sum(self.spent.values())

    def end(self, grace: float) -> None:
        """Waits for every member; kills what is left after `grace` seconds."""
        # only those that run: a pid may be another's thread by now, which cannot be waited for
        _, alive = psutil.wait_procs(
            [member for member in self.members if member.is_running()], timeout=grace
        )
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_END)


def own_cpu(spark: "SparkSession") -> float:
    """CPU seconds, user and system, of this process and of the JVM that it talks to, so far."""
    jvm: Any = spark._jvm
    times = psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).cpu_times()
    return time.process_time() + times.user + times.system


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Tree]:
    """The command as a running process, its output in `log`; what is left of it is killed at the end of the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = psutil.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | dict(environment),
            start_new_session=True,
        )
    tree = Tree(process)
    try:
        yield tree
    finally:
        tree.end(0)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    limit: float,
    begun: Callable[[], bool] = lambda: True,
) -> tuple[Cost, Cost]:
    """Runs the command to its end: what it took until `begun`, and from then on.

    Raises BenchmarkError, with the end of its log, if it fails or exceeds `limit` s.
    """
    began, start_up = time.monotonic(), None
    with started(command, environment, log) as tree:
        while tree.root.poll() is None and time.monotonic() < began + limit:
            spent = tree.cpu()
            if start_up is None and begun():
                start_up = Cost(time.monotonic() - began, spent)
            time.sleep(_LOOK)
        wall, code = time.monotonic() - began, tree.root.poll()
        tree.end(0 if code is None else _END)
    if code != 0:
        why = f"no end within {limit:.0f} s" if code is None else f"exit code {code}"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise BenchmarkError(f"{' '.join(command[1:])}: {why}\n{tail}")
    start_up = start_up or Cost(wall, tree.cpu())
    return start_up, Cost(wall, tree.cpu()) - start_up
