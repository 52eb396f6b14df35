"""What a streaming job stands on is taken away, for real: Dagster's daemon, all of Dagster, the broker for a minute."""

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_address, kafka_broker
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.session import Session
from streaming_jobs.supervision import desired, supervisor
from support.dagster_dev import DOCS, UI, dagster_dev, ended, until
from support.sensors_job import (
    arrived,
    awaited,
    every_offset_once,
    go_on,
    produce,
    the_oracle_agrees,
)

pytestmark = [pytest.mark.slow, pytest.mark.parallel, pytest.mark.turn(1), pytest.mark.timeout(900)]
LOT, OUTAGE = 35, 60  # minutes of event time, of which two lots close an hour; seconds


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",), spark_conf=quick_jvm,
        max_offsets_per_trigger=20_000,  # a lot is several micro-batches, so that the last closes what the others brought
    )  # fmt: skip
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


def test_the_stream_goes_on_without_dagster_and_its_broker_and_dagster_catches_up(settings, spark):
    sent = produce(settings, 0, LOT)
    with dagster_dev(settings) as ui:
        assert ended(ui, ui.ask(DOCS["Launch"], job="start_sensors")["launchRun"]) == "SUCCESS"
        awaited(lambda: arrived(settings, "sensor_readings") == sent, "the first lot", 240)
        (daemon,) = [p for p in dagsters(settings) if "_daemon" in " ".join(p.cmdline())]
        daemon.kill()
        awaited(lambda: not dagsters(settings), "dagster dev ends without its daemon", 60)
    first = supervisor.status(settings, "sensors")
    sent += go_on(settings, LOT, 2 * LOT)
    awaited(
        lambda: arrived(settings, "sensor_readings") == sent,
        "the stream goes on without Dagster",
        240,
    )

    os.kill(kafka_address.running(settings).pid, signal.SIGKILL)
    gone = time.monotonic()
    with dagster_dev(settings) as ui:
        until(
            lambda: closed(ui, "sensor_averages") == 1,
            "Dagster learns of the hour that closed meanwhile",
        )
        for process in dagsters(settings):
            process.kill()
        awaited(lambda: not dagsters(settings), "all of Dagster is gone", 60)
    # what is tested is that it is away for so long
    time.sleep(max(OUTAGE - (time.monotonic() - gone), 0))
    assert supervisor.status(settings, "sensors").alive, "it waits"
    kafka_broker.start(settings, jars.resolve(settings.jars))
    sent += go_on(settings, 2 * LOT, 3 * LOT)
    awaited(
        lambda: arrived(settings, "sensor_readings") == sent,
        "it goes on when the broker is back",
        240,
    )
    assert supervisor.status(settings, "sensors").pid == first.pid, (
        "the same process through all of it"
    )

    os.kill(first.pid, signal.SIGKILL)
    awaited(lambda: not supervisor.status(settings, "sensors").alive, "nobody is there to heal it")
    with dagster_dev(settings) as ui:
        until(
            lambda: supervisor.status(settings, "sensors").state == "running",
            "Dagster brings it back",
        )
        assert ended(ui, ui.ask(DOCS["Launch"], job="stop_sensors")["launchRun"]) == "SUCCESS"
        assert closed(ui, "sensor_averages") == 1, "told once"
    assert [e.what for e in desired.history(settings, "sensors")] == [
        "started",
        "restarted",
        "stopping",
    ]
    stopped = supervisor.status(settings, "sensors")
    assert (stopped.state, stopped.epoch, {q.dropped_by_spark for q in stopped.queries}) == (
        "stopped",
        2,
        {0},
    ), "one writer each"

    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session, LOT)
    assert (
        reconciliation.reconcile(session, session.catalog.table("sensor_averages")).verdict
        == "EQUAL"
    )


def dagsters(settings: Settings) -> list[psutil.Process]:
    """All processes of the Dagster that was started on this lakehouse; a streaming job that it started is none of them."""
    home, found = str(layout.dagster_home(settings)), []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DAGSTER_HOME") == home and "dagster" in " ".join(
                process.cmdline()
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def closed(ui: UI, table: str) -> int:
    """How many partitions Dagster has been told of."""
    return ui.ask(DOCS["Table"], table=table)["assetNodeOrError"]["partitionStats"][
        "numMaterialized"
    ]
