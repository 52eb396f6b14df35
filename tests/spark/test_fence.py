"""A writer that slept while another process took its table over is refused, wherever in its commit it slept."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from lakehouse.declare.catalog import load
from lakehouse.examples.sensors import tables as sensors
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.delta import table_creation
from lakehouse.storage.disk.layout import publish_lock, table_path

ROUNDS = 50
WRITER = """
import os, signal, sys
from contextlib import nullcontext
import pyarrow as pa
from lakehouse.declare.catalog import load
from lakehouse.errors import CommitError
from lakehouse.settings import from_environment
from lakehouse.storage.delta import committer, delta_writer, housekeeping, small_commits
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.publish_lock import publishing

fenced = sys.argv[1] == "fenced"
settings = from_environment()
table = load(settings).table("valid_readings")
path = table_path(settings, table)
owners = {"_compact": housekeeping, "move": small_commits, "replace": delta_writer}
unstopped = {}

def sleeping(point):
    owner = owners.get(point, committer)
    unstopped[point] = owner, getattr(owner, point)
    def stopped(*arguments, **named):
        wake()
        os.kill(os.getpid(), signal.SIGSTOP)
        return getattr(owner, point)(*arguments, **named)
    setattr(owner, point, stopped)

def wake():
    for point, (owner, step) in unstopped.items():
        setattr(owner, point, step)
    unstopped.clear()

def act(kind, n):
    rows = pa.table({"n": [n], "_partition": ["p"]})
    if kind == "write":
        # a life of its own for each start, as of a query that begins a new generation
        delta_writer.append(rows, path, f"t:stream:{n}", 0, {})
    elif kind == "rewrite":
        delta_writer.replace(rows, path, ["p"], {"run": str(n)})
    elif kind == "compact":
        housekeeping.compact(path, ["p"])

for line in sys.stdin:
    kind, n, point = line.split()
    if kind == "start" and fenced:
        committer.take_over(path, "a pipeline")
    locked = publishing(settings, table) if fenced and kind in ("rewrite", "compact", "lock") else nullcontext()
    try:
        with locked:
            if point != "-":
                sleeping(point)
            act(kind, int(n))
        print("done", flush=True)
    except CommitError as err:
        words = "has taken it over", "another run rewrote what was being compacted"
        print("refused" if any(each in str(err) for each in words) else err, flush=True)
    wake()
"""


class Writer:
    def __init__(self, settings: Settings, way: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, way],
            env=os.environ | to_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, act: str, n: int = 0, point: str = "-") -> None:
        self.process.stdin.write(f"{act} {n} {point}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def does(self, act: str, n: int = 0) -> None:
        self.ask(act, n)
        assert self.answer() == "done"

    def asleep(self) -> None:
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)


class Two:
    """Two processes that write one table in turn: one sleeps, the other takes the table over, and the first wakes up."""

    def __init__(self, root: Path, way: str) -> None:
        self.settings = Settings(root=root, tables=(sensors.__name__,))
        table = load(self.settings).table("valid_readings")
        self.path, self.lock = table_path(self.settings, table), publish_lock(self.settings, table)
        columns = StructType().add("n", "long").add("_partition", "string")
        table_creation.create(self.path, columns, True, "n")
        self.awake, self.other = (Writer(self.settings, way) for _ in range(2))
        self.points: set[str] = set()  # at which one of them slept

    def __enter__(self) -> "Two":
        return self

    def __exit__(self, *_) -> None:
        for writer in (self.awake, self.other):
            writer.process.kill()
            writer.process.communicate()

    def overtaken(self, act: str, n: int, point: str, by: str) -> str:
        """Returns the answer of the process that slept at the point, and gives the other the next turn."""
        self.awake.ask(act, n, point)
        self.awake.asleep()
        self.points.add(point)
        self.lock.unlink(missing_ok=True)  # which no longer reaches both, as between two hosts
        if act == "write":
            self.other.does("start")
        self.other.does(by, n + 1)
        os.kill(self.awake.process.pid, signal.SIGCONT)
        answer = self.awake.answer()
        self.awake, self.other = self.other, self.awake
        return answer

    @property
    def rows(self) -> list[int]:
        return sorted(DeltaTable(str(self.path)).to_pyarrow_table()["n"].to_pylist())


@pytest.mark.parametrize("way", ["fenced", "not fenced"])
def test_a_writer_that_slept_in_its_commit_is_refused(tmp_path, way):
    chance, answers, points = random.Random(1), [], ("head", "_info", "_create")
    with Two(tmp_path, way) as two:
        two.awake.does("start")
        for n in range(ROUNDS):
            answers.append(two.overtaken("write", 2 * n, chance.choice(points), "write"))
        rows = two.rows
        assert two.points == {*points}
    if way == "fenced":
        assert answers == ["refused"] * ROUNDS and rows == [2 * n + 1 for n in range(ROUNDS)]
    else:
        assert answers == ["done"] * ROUNDS and rows == [*range(2 * ROUNDS)], "the fence it is"


@pytest.mark.parametrize("way", ["fenced", "not fenced"])
def test_a_batch_run_that_slept_before_its_commit_is_refused(tmp_path, way):
    chance, answers, points = random.Random(2), [], ("replace", "head", "_info", "_create")
    with Two(tmp_path, way) as two:
        two.awake.does("rewrite")
        for n in range(0, 2 * ROUNDS, 2):
            point = chance.choice(points) if way == "fenced" else "replace"
            answers.append(two.overtaken("rewrite", n, point, "rewrite"))
            assert two.rows == [n + 1 if way == "fenced" else n], "what is in the table last"
        assert two.points == ({*points} if way == "fenced" else {"replace"})
    assert answers == [{"fenced": "refused", "not fenced": "done"}[way]] * ROUNDS


@pytest.mark.parametrize("way", ["fenced", "not fenced"])
def test_maintenance_that_slept_before_its_commit_is_refused(tmp_path, way):
    chance, answers, points = random.Random(3), [], ("_compact", "move", "_info", "_create")
    with Two(tmp_path, way) as two:
        for n in range(0, 2 * ROUNDS, 2):
            for row in (n, n + 1):
                two.awake.does("write", row)
            by = chance.choice(("lock", "compact"))
            answers.append((by, two.overtaken("compact", n, chance.choice(points), by)))
            assert two.rows == [*range(n + 2)]
        assert two.points == {*points}
    not_moved_meanwhile = {answer for by, answer in answers if by == "lock"}
    assert {answer for by, answer in answers if by == "compact"} == {"refused"}
    assert not_moved_meanwhile == {{"fenced": "refused", "not fenced": "done"}[way]}
