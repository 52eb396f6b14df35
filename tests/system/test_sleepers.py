"""Streams and batch runs that sleep at a commit point, while another process takes their table over, are refused as they wake."""

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

from lakehouse.declare.catalog import load
from lakehouse.examples.sensors import tables as sensors
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.disk.layout import publish_lock, table_path
from support import ROOT

STREAM = ("begin", "_info", "_create", "rows", "_create:2", "quarantine", "commit_log")
BATCH = ("_committed", "_info", "_create", "_info:2", "_create:2")
ALL, THIN = 50, 10  # rounds, of which each takes some seconds


class Sleeper:
    def __init__(self, settings: Settings) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.sleeper"],
            cwd=ROOT / "tests",
            env=os.environ | to_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, act: str, point: str | int = "-") -> None:
        self.process.stdin.write(f"{act} {point}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def does(self, act: str, point: str | int = "-") -> None:
        self.ask(act, point)
        assert self.answer() == "done"

    def asleep(self) -> None:
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            assert self.process.poll() is None
            time.sleep(0.005)


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_who_slept_at_a_commit_point_is_refused(tmp_path, quick_jvm, pytestconfig):
    settings = Settings(
        root=tmp_path,
        tables=(sensors.__name__,),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
    )
    table = load(settings).table("valid_readings")
    path, aside = (table_path(settings, table, side) for side in ("", "quarantine"))
    chance, thin = random.Random(1), pytestconfig.getoption("--turn") is not None
    rounds = [(act, point) for act, points in (("stream", STREAM), ("backfill", BATCH))
              for point in points]  # fmt: skip
    rounds = chance.sample(rounds, THIN) if thin else [*rounds, *chance.choices(rounds, k=ALL - 12)]
    answers, fed = [], 0
    sleepers = []
    try:
        for _ in range(2):
            sleepers.append(Sleeper(settings))
            assert sleepers[-1].answer() == "done"
        for act, point in rounds:
            if act == "stream":
                sleepers[0].does("feed", fed)
                fed += 1
            else:  # what somebody removed by hand is put back
                for each in (path, aside):
                    DeltaTable(str(each)).delete("_partition = '2026-01-01-00'")
            sleepers[0].ask(act, point)
            sleepers[0].asleep()
            publish_lock(settings, table).unlink(missing_ok=True)  # it does not reach the other
            sleepers[1].does(act)
            before = content(path, aside)
            os.kill(sleepers[0].process.pid, signal.SIGCONT)
            answers.append((point, sleepers[0].answer()))
            assert content(path, aside) == before, (act, point)
            sleepers.reverse()
    finally:
        for sleeper in sleepers:
            sleeper.process.kill()
            sleeper.process.communicate()
    # all of its commits were made before it slept
    late = {"rows", "quarantine", "commit_log"}
    assert all(answer == "refused" or point in late for point, answer in answers), answers
    assert [len(rows) for rows in before] == [6 + 2 + fed, 1 + fed]


def content(*paths: Path) -> list[list[tuple]]:
    return [
        sorted(map(str, DeltaTable(str(path)).to_pyarrow_table(filters=None).to_pylist()))
        for path in paths
    ]
