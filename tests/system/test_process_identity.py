"""Which process is meant, whatever a clock does meanwhile."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lakehouse import processes
from lakehouse.runtime import kafka_address
from lakehouse.runtime.kafka_address import Broker
from lakehouse.settings import Settings
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, lease, supervisor
from streaming_jobs.supervision.holders import here
from support.observed import status_of


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def step_clock(monkeypatch, seconds: float) -> None:
    """As the kernel shows that a clock was set: another time of the boot, and the same ticks since."""
    import psutil._pslinux as linux

    booted, before = linux.boot_time(), psutil.Process().create_time()
    monkeypatch.setattr(linux, "boot_time", lambda: booted + seconds)
    monkeypatch.setattr(linux, "BOOT_TIME", None, raising=False)
    moved = psutil.Process().create_time() - before
    assert abs(moved - seconds) < 0.1, "else nothing is shown here"


@pytest.mark.parametrize("seconds", [-86_400.0, -3.0, 3.0, 3_600.0])
def test_a_job_that_runs_lives_whatever_the_clock_does(tmp_path, sleeper, monkeypatch, seconds):
    settings = Settings(root=tmp_path)
    progress.write(settings, status_of(sleeper, processes.started(sleeper), place=here()))
    with lease.acquire(settings, "sensors"):
        broker = Broker(sleeper, processes.started(sleeper), "x:1", "log", processes.boot_id())
        kafka_address.write(settings, broker)
        step_clock(monkeypatch, seconds)
        assert supervisor.lives(settings, "sensors")
        assert control_loop.observe(settings, "sensors").alive
        assert kafka_address.running(settings) == broker
    supervisor.kill(settings, "sensors", "a test")
    assert not supervisor.lives(settings, "sensors"), "and it is found to be ended"


def test_the_start_is_that_of_the_kernel_since_the_boot(sleeper):
    up = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < processes.started(sleeper) <= up + 1
    assert processes.running(sleeper, processes.started(sleeper))
    assert processes.running(sleeper, processes.started(sleeper) + 0.01) is None
    assert processes.started(2**22 + 1) == 0.0 and processes.running(2**22 + 1, 0.0) is None


def test_the_end_of_that_very_process_is_waited_for(sleeper):
    start = processes.started(sleeper)
    assert not processes.wait(sleeper, start, 0.1)
    assert processes.wait(sleeper, start - 1, 60), "another has its pid"
    psutil.Process(sleeper).kill()
    assert processes.wait(sleeper, start, 10)
    assert psutil.Process(sleeper).status() == psutil.STATUS_ZOMBIE, "which is not waited for"


def test_a_program_may_have_any_name(tmp_path):
    program = tmp_path / ") S 1 (2 3"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert processes.running(process.pid, processes.started(process.pid))
    finally:
        process.communicate(b"\n")


def test_what_an_earlier_version_wrote_is_read(tmp_path, sleeper):
    settings, born = Settings(root=tmp_path), psutil.Process(sleeper).create_time()
    progress.write(settings, status_of(sleeper, born))
    assert supervisor.lives(settings, "sensors")
    progress.write(settings, status_of(sleeper, born - 100))
    assert not supervisor.lives(settings, "sensors")
    kafka_address.write(settings, Broker(sleeper, born, "x:1", "log"))
    assert kafka_address.running(settings)


def test_a_process_of_an_earlier_boot_is_none_of_now(tmp_path):
    settings, pid = Settings(root=tmp_path), os.getpid()
    broker = Broker(pid, processes.started(pid), "x:1", "log", "another boot")
    kafka_address.write(settings, broker)
    assert kafka_address.running(settings) is None
    earlier = replace(here(), boot="another boot")
    status = status_of(pid, processes.started(pid), place=earlier)
    progress.write(settings, status)
    assert progress.read(settings, "sensors").state == "dead"
