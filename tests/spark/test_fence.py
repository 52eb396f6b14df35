"""A writer that slept while another process took its table over is refused, wherever in its commit it slept."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.storage.delta import table_creation

ROUNDS = 50
WRITER = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from lakehouse.errors import CommitError
from lakehouse.storage.delta import committer, delta_writer

path, fenced = Path(sys.argv[1]), sys.argv[2] == "fenced"
points = ("head", "_info", "_create")
unstopped = {point: getattr(committer, point) for point in points}

def sleeping(point):
    def stopped(*arguments, **named):
        setattr(committer, point, unstopped[point])
        os.kill(os.getpid(), signal.SIGSTOP)
        return unstopped[point](*arguments, **named)
    return stopped

for line in sys.stdin:
    act, n, point = line.split()
    if act == "start" and fenced:
        committer.take_over(path, "a pipeline")
    if point != "-":
        setattr(committer, point, sleeping(point))
    # a life of its own for each start, as of a query that begins a new generation
    try:
        if act == "write":
            app = f"t:stream:{n}"
            rows = pa.table({"n": [int(n)]})
            delta_writer.append(rows, path, app, 0, {})
        print("done", flush=True)
    except CommitError as err:
        print("refused" if "has taken it over" in str(err) else err, flush=True)
"""


class Writer:
    def __init__(self, path, way: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, act: str, n: int = 0, point: str = "-") -> None:
        self.process.stdin.write(f"{act} {n} {point}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def asleep(self) -> None:
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)


@pytest.mark.parametrize("way", ["fenced", "not fenced"])
def test_a_writer_that_slept_in_its_commit_is_refused(tmp_path, way):
    table_creation.create(tmp_path / "t", StructType([StructField("n", LongType())]), False, "n")
    awake, other = (Writer(tmp_path / "t", way) for _ in range(2))
    chance, answers, written, points = random.Random(1), [], set(), set()
    try:
        awake.ask("start")
        assert awake.answer() == "done"
        for n in range(ROUNDS):
            point = chance.choice(["head", "_info", "_create"])
            points.add(point)
            awake.ask("write", 2 * n, point)
            awake.asleep()
            other.ask("start")
            assert other.answer() == "done"
            other.ask("write", 2 * n + 1)
            assert other.answer() == "done"
            written.add(2 * n + 1)
            os.kill(awake.process.pid, signal.SIGCONT)
            answers.append(awake.answer())
            awake, other = other, awake
    finally:
        for writer in (awake, other):
            writer.process.kill()
            writer.process.communicate()
    stored = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["n"].to_pylist()
    assert len(stored) == len(set(stored)) and points == {"head", "_info", "_create"}
    if way == "fenced":
        assert answers == ["refused"] * ROUNDS and set(stored) == written
    else:
        assert answers == ["done"] * ROUNDS and len(stored) == 2 * ROUNDS, "the fence it is"
