"""A table of a running job is upgraded and rolled back: the job on new code and on old, a reader beside; commands are killed."""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakehouse.declare import catalog
from lakehouse.examples.sensors import tables as sensors
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.session import Session
from streaming_jobs.supervision import supervisor
from support import ROOT, TESTS
from support.sensors_job import arrived, awaited, every_offset_once, produce

MODULE, TABLE = "sensors_of_ours", "sensor_averages"
BEFORE, AFTER = 5, 10  # seconds of a window


@pytest.fixture
def former(tmp_path, quick_jvm, monkeypatch) -> Iterator[Settings]:
    """The sensors in a module of one's own, with a broker; `changed` has the same module with longer windows."""
    text = Path(sensors.__file__).read_text()
    for seconds in (BEFORE, AFTER):
        module = tmp_path / f"{seconds}" / f"{MODULE}.py"
        module.parent.mkdir()
        module.write_text(text.replace('tumbling("5 seconds")', f'tumbling("{seconds} seconds")'))
    settings = Settings(
        root=tmp_path / "root",
        jars=from_environment().jars,
        tables=(MODULE,),
        module_path=(tmp_path / f"{BEFORE}",),
        spark_conf=quick_jvm,
        max_offsets_per_trigger=3_000,
    )
    monkeypatch.setattr(sys, "path", sys.path.copy())
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, MODULE, now=True)
    kafka_broker.stop(settings)
    sys.modules.pop(MODULE, None)


def upgrade(settings: Settings, *words: str) -> subprocess.Popen:
    return command(settings, "upgrade", *words)


def command(settings: Settings, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "lakehouse", *words],
        env=os.environ | to_environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def done(process: subprocess.Popen, exit_code: int = 0) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == exit_code, output
    return output


def go_on(settings: Settings, sent: list[int]) -> None:
    """A minute more, read by a job that is started with these settings and stopped."""
    loaded(settings)
    sent.append(produce(settings, len(sent), len(sent) + 1))
    supervisor.start(settings, MODULE, wait=240)
    awaited(lambda: arrived(settings, "sensor_readings") == sum(sent), "all messages", 240)
    supervisor.stop(settings, MODULE)


def loaded(settings: Settings) -> catalog.Catalog:
    """The tables as that module declares them, whichever was imported before."""
    sys.modules.pop(MODULE, None)
    sys.path[:] = [folder for folder in sys.path if not (Path(folder) / f"{MODULE}.py").exists()]
    importlib.invalidate_caches()
    return catalog.load(settings)


def compared(settings: Settings, spark, sent: list[int], seconds: int) -> None:
    session = Session(settings, loaded(settings), spark)
    assert session.catalog.table(TABLE).window.size.seconds == seconds
    every_offset_once(session, sum(sent))
    found = reconciliation.reconcile(session, session.catalog.table(TABLE))
    assert found.verdict == "EQUAL" and found.rows_in_table, found


def lengths(path: Path) -> set[int]:
    """The seconds of the windows that the newest version has."""
    rows = QueryBuilder().register("t", DeltaTable(str(path)))
    found = rows.execute("SELECT DISTINCT t.window['end'] - t.window['start'] AS length FROM t")
    return {each.seconds for each in pa.table(found.read_all())["length"].to_pylist()}


def read_again_and_again(path: Path, ended: Event) -> list[set[int]]:
    found: list[set[int]] = []
    while not ended.wait(0.1):
        now = lengths(path)
        if not found or found[-1] != now:
            found.append(now)
    return found


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_table_of_a_job_is_upgraded_and_rolled_back_with_a_reader_beside(former, spark, tmp_path):
    changed = replace(former, module_path=(tmp_path / f"{AFTER}",))
    sent = [produce(former, 0, 1)]
    job = supervisor.start(former, MODULE, wait=240)
    awaited(lambda: arrived(former, TABLE) > 0, "windows have begun", 240)
    filling = upgrade(changed, "fill", TABLE)
    beside_it = former.root / "_upgrades" / TABLE / "beside"
    awaited(
        lambda: any(beside_it.glob("**/*.parquet")) or filling.poll() is not None, "rows beside"
    )
    assert filling.poll() is None, done(filling)
    os.killpg(filling.pid, signal.SIGKILL)
    filling.communicate()
    following = upgrade(changed, "follow", TABLE, "--every", "0.5")
    other = replace(former, root=beside_it)
    noted = beside_it.with_name("upgrade.json")
    awaited(lambda: '"filled"' in noted.read_text() or following.poll() is not None, "filled", 240)
    read = arrived(other, TABLE)
    sent.append(produce(former, 1, 2))
    awaited(
        lambda: arrived(other, TABLE) > read or following.poll() is not None, "it reads on", 240
    )
    following.send_signal(signal.SIGINT)
    shown = done(following)
    assert f"{TABLE}:" in shown and "differ" in shown
    awaited(lambda: arrived(former, "sensor_readings") == sum(sent), "it went on meanwhile")

    path, ended = former.root / "gold" / TABLE, Event()
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(read_again_and_again, path, ended)
        try:
            assert f"{MODULE}: running" in done(upgrade(changed, "promote", TABLE))
            now = supervisor.status(changed, MODULE)
            assert now.alive and now.pid != job.pid, "another process, under the changed code"
            go_on(changed, sent)
            compared(changed, spark, sent, AFTER)
            done(upgrade(former, "roll-back", TABLE))
            assert not supervisor.status(former, MODULE).alive, "one that was stopped stays so"
            go_on(former, sent)
            compared(former, spark, sent, BEFORE)
        finally:
            ended.set()
    assert reading.result() == [{BEFORE}, {AFTER}, {BEFORE}], "each version that was seen is whole"


PROMOTE = ("upgrade", "promote", TABLE)
CUT_OFF = f"its job was ended for `lakehouse {' '.join(PROMOTE)}`, which was cut off before it"


def killed(settings: Settings, step: str) -> None:
    """Promotes the version beside, killed by SIGKILL before that step."""
    path = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS)))}
    ended = subprocess.run(
        [sys.executable, "-m", "support.killed_commands"],
        input=json.dumps([[PROMOTE], [PROMOTE, (step, 1)]]),
        env=os.environ | to_environment(settings) | path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-4_000:]


def said(settings: Settings) -> list[bool]:
    """Whether each of the two commands says that the job is ended, and what goes on with that."""
    shown = [
        done(command(settings, *words)) for words in (("upgrade", "status"), ("stream", "status"))
    ]
    return [f"{MODULE}: {CUT_OFF}" in each for each in shown]


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_promotion_that_was_killed_says_so_and_the_command_run_again_starts_the_job(
    former, spark, tmp_path
):
    changed = replace(former, module_path=(tmp_path / f"{AFTER}",))
    path, sent = former.root / "gold" / TABLE, [produce(former, 0, 1)]
    job = supervisor.start(former, MODULE, wait=240)
    awaited(lambda: arrived(former, TABLE) > 0, "windows have begun", 240)
    done(upgrade(changed, "fill", TABLE))

    killed(changed, "end")
    now = supervisor.status(former, MODULE)
    assert (now.alive, now.pid) == (True, job.pid), "it goes on under the code of before"
    assert said(changed) == [False, False]
    sent.append(produce(former, 1, 2))

    killed(changed, "take_table")
    assert not supervisor.status(former, MODULE).alive and lengths(path) == {BEFORE}
    assert said(changed) == [True, True]
    sent.append(produce(former, 2, 3))

    killed(changed, "forget")  # within the exchange
    assert not supervisor.status(former, MODULE).alive and lengths(path) in ({BEFORE}, {AFTER})
    assert said(changed) == [True, True]
    for settings in (former, changed):
        refused = done(command(settings, "stream", "start", MODULE), exit_code=2)
        assert f"lakehouse upgrade promote {TABLE}" in refused, refused

    killed(changed, "launch")
    assert not supervisor.status(former, MODULE).alive and lengths(path) == {AFTER}
    assert said(changed) == [True, True]

    assert f"{MODULE}: running" in done(upgrade(changed, "promote", TABLE))
    assert said(changed) == [False, False]
    awaited(lambda: arrived(former, "sensor_readings") == sum(sent), "all messages", 240)
    supervisor.stop(changed, MODULE)
    compared(changed, spark, sent, AFTER)
