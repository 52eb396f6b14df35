"""A live `dagster dev` on the definitions of the docs: hours close while it is down; it follows, and its notification tells."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import psutil
import pytest

from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.log import commit_cache
from streaming_jobs import progress
from streaming_jobs.supervision import desired
from streaming_jobs.supervision.desired import Event
from support import ROOT
from support.dagster_dev import default_signals, end, until

pytestmark = [pytest.mark.slow, pytest.mark.parallel, pytest.mark.turn(2), pytest.mark.timeout(600)]
HOURS = [f"2026-01-01-0{hour}:00" for hour in range(3)]


def test_an_asset_runs_when_its_hours_have_closed_though_dagster_was_killed_and_a_hook_is_told(
    filled, tmp_path, quick_jvm
):
    home, root, told = tmp_path / "home", tmp_path / "root", tmp_path / "told"
    home.mkdir()
    shutil.copytree(filled, root)
    shutil.copy(ROOT / "assets" / "dagster.yaml", home)
    (shown,) = re.findall(
        r"```python\n(# my_company/definitions.py\n.*?)```",
        (ROOT / "docs" / "how-to" / "automation.md").read_text(),
        re.DOTALL,
    )
    (tmp_path / "my_definitions.py").write_text(shown)
    settings = Settings(
        root=root,
        tables=("lakehouse.examples.sensors.tables",),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
        notification_command=f"tee -a {told}",
    )
    commit_log = root / "_commit_log" / "sensor_averages.jsonl"
    closed = commit_log.read_text()
    commit_log.write_bytes(commit_cache.first_line(0))  # nothing has closed yet
    desired.wish(settings, "sensors", "stopped", "a test")
    desired.note(
        settings, "sensors", Event(progress.now(), "crash_loop", "given up, for it failed")
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = (
        os.environ | to_environment(settings) | {"DAGSTER_HOME": str(home), "PYTHONPATH": paths}
    )
    log = tmp_path / "dagster.log"
    with dg.DagsterInstance.from_config(str(home)) as instance:
        with dagster_dev(environment, log) as process:
            until(lambda: looked(instance, "automation"), "the conditions are evaluated", log)
            (daemon,) = [
                p
                for p in psutil.Process(process.pid).children(recursive=True)
                if "_daemon" in " ".join(p.cmdline())
            ]
            daemon.kill()
            process.wait(60)  # it leaves no UI without its daemon
        commit_log.write_text(closed)  # while nothing of Dagster runs
        with dagster_dev(environment, log):
            asset = dg.AssetKey("hottest_sensors")
            until(
                lambda: instance.get_materialized_partitions(asset) == set(HOURS),
                "the asset has run",
                log,
            )
            derived = {"sensor_averages", "valid_readings"}
            until(lambda: fresh(instance) == derived, "the daemon judges what was told", log)
    (document,) = [json.loads(line) for line in told.read_text().splitlines()]
    assert (document["what"], document["why"]) == ("job_crash_loop", "given up, for it failed")


@contextmanager
def dagster_dev(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """The UI and the daemon on `my_definitions`, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-m", "my_definitions", "-h", "127.0.0.1", "-p", str(port)],
            env=environment, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=default_signals,
        )  # fmt: skip
    try:
        yield process
    finally:
        end(process)


def fresh(instance: dg.DagsterInstance) -> set[str]:
    """Of the derived tables those whose freshness policy passes."""
    keys = [dg.AssetKey(name) for name in ("valid_readings", "sensor_averages", "sensor_trends")]
    records = instance.get_freshness_state_records(keys)
    return {
        key.to_user_string() for key, record in records.items() if record.freshness_state == "PASS"
    }


def looked(instance: dg.DagsterInstance, sensor: str) -> bool:
    """Whether a tick of the sensor has ended."""
    states = [s for s in instance.all_instigator_state() if s.instigator_name == sensor]
    return any(
        tick.status.value in ("SUCCESS", "SKIPPED")
        for state in states
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
    )
