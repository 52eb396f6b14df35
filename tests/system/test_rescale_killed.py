"""A command that starts a job on other settings is killed: while the next process waits, and while the state is divided."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.position import checkpoint_files
from streaming_jobs.supervision import supervisor
from support.orders_in_a_folder import NAME, declared, held, put
from support.sensors_job import awaited

TABLE = "per_buyer"


@pytest.fixture
def settings(tmp_path: Path, quick_jvm: dict[str, str]) -> Iterator[Settings]:
    settings = Settings(
        root=tmp_path / "root",
        tables=(NAME,),
        module_path=(tmp_path,),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
        shuffle_partitions=1,
    )
    yield settings
    supervisor.stop(settings, NAME, now=True)


def rescale(settings: Settings) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lakehouse", "stream", "rescale", NAME],
        env=os.environ | to_environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill(command: subprocess.Popen[str]) -> None:
    assert command.poll() is None, command.communicate()[0]
    os.killpg(command.pid, signal.SIGKILL)
    command.communicate()


def waiting(root: Path) -> list[psutil.Process]:
    """The processes of the job that wait for their turn."""
    return [each for each in psutil.process_iter() if _waits(each, root)]


def _waits(process: psutil.Process, root: Path) -> bool:
    with suppress(psutil.Error):
        words = process.cmdline()
        mine = f'"{root}"' in process.environ().get("LAKEHOUSE_SETTINGS", "")
        return mine and NAME in words and "--standby" in words
    return False


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_killed_rescale_leaves_the_job_as_it_was_or_is_finished_by_the_next(tmp_path, settings):
    incoming, wider = declared(tmp_path), replace(settings, shuffle_partitions=3)
    put(incoming, "first", "aabc")
    job = supervisor.start(settings, NAME, wait=240)
    table = catalog.load(settings).table(TABLE)
    awaited(lambda: delta_log.rows_from(table_path(settings, table)) is not None, "rows", 240)
    assert held(settings) == {"a": 2, "b": 1, "c": 1}

    command = rescale(wider)
    awaited(lambda: waiting(settings.root), "the next process comes up", 60)
    kill(command)
    awaited(lambda: not waiting(settings.root), "it ends with the command", 120)
    now = supervisor.status(settings, NAME)
    assert now.alive and now.pid == job.pid, "the job is as it was"

    command = rescale(wider)
    divided = layout.query_checkpoints(settings, TABLE) / ".1.divided"
    awaited(divided.exists, "the state is being divided", 120)
    kill(command)
    assert checkpoint_files.generations(settings, table) == [1]
    awaited(lambda: not waiting(settings.root), "the next process ends with the command", 120)

    command = rescale(wider)
    shown, _ = command.communicate(timeout=240)
    assert command.returncode == 0 and "EQUAL" in shown, shown
    put(incoming, "second", "acd")
    awaited(lambda: held(wider) == {"a": 3, "b": 1, "c": 2, "d": 1}, "it counts on", 240)
