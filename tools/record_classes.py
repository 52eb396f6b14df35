"""The archives of Spark's and Kafka's classes (`runtime.cds_archive`), and the small run that they are recorded from.

The run is a process of its own, with a JVM and a broker. It prints a line for each step. It ends with the process that waits
for it, however that ends, and nothing of it is left.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.examples.ads import tables as ads
from lakehouse.examples.ads.producer import PRODUCER
from lakehouse.examples.sensors import tables as sensors
from lakehouse.producers.sender import send
from lakehouse.ranges import parse_range
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import cds_archive, jars, kafka_broker, spark_session
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.delta import delta_log
from lakehouse.stream import queries
from lakehouse.stream.engines import early_results
from lakehouse.testing import Stage

_STEPS = (
    "Spark starts",
    "tables are filled and compared",
    "a broker starts, and a topic is read",
    "the archives are written (up to 200 MB each)",
)
_ERRORS = "errors"  # in its folder: what it says on standard error
_STEP_LIMIT = 600.0  # seconds for a step: on a machine with other work it takes minutes


def _record(folder: Path, spark_to: Path, kafka_to: Path) -> None:
    """Fills the tables of `sensors` by streams and a batch run, and those of `ads` from a topic, then ends the JVMs.

    As they end they write their archives.
    """
    steps = iter(_STEPS)
    print(next(steps), flush=True)
    recording = {"spark.driver.extraJavaOptions": cds_archive.recording(spark_to)}
    jars_folder = from_environment(required=False).jars
    settings = Settings(root=folder, jars=jars_folder, spark_conf=recording)
    spark = spark_session.create(settings, "class data", ui=True)
    print(next(steps), flush=True)
    stage = Stage(spark, folder, sensors)
    first, last = (
        {"sensor_id": "a", "event_time": f"2026-01-01T0{hour}:00:00Z", "temperature_f": "50.00"}
        for hour in (0, 2)
    )
    stage.feed("sensor_readings", [first, b"bad"])
    stage.advance("sensor_readings", last)
    stage.run("valid_readings", "sensor_averages")
    # else it would write nothing
    delta_log.open_table(stage.session.path(stage.session.catalog.table("valid_readings"))).delete()
    stage.backfill("valid_readings", parse_range("2026-01-01T00:00", "2026-01-01T01:00"))
    reconciliation.reconcile(stage.session, stage.session.catalog.table("valid_readings"))
    print(next(steps), flush=True)
    _from_topic(spark, _topic_root(folder), kafka_to)
    print(next(steps), flush=True)
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _topic_root(folder: Path) -> Path:
    return folder / "topic"


def _from_topic(spark: SparkSession, root: Path, kafka_to: Path) -> None:
    """Fills the tables of `ads` from a topic of a broker of its own, with early results: what only a job does."""
    settings = Settings(root=root)
    try:
        servers = kafka_broker.start(
            settings,
            jars.resolve(from_environment(required=False).jars),
            [cds_archive.recording(kafka_to)],
        ).bootstrap_servers
        stage = Stage(spark, root, ads, bootstrap_servers=servers)
        record, views = (
            stage.session.catalog.table(name) for name in ("ad_events", "campaign_views")
        )
        kafka_broker.ensure_topics(
            stage.session.settings, {PRODUCER.topic: PRODUCER.workload.partitions}
        )
        now = int(time.time() * 1000)
        # milliseconds: a window closes by what is recorded after its last row
        for ago in (
            120_000,
            60_000,
        ):
            send(
                PRODUCER.records(PRODUCER.workload, now - ago, now - ago + 1_000),
                PRODUCER.topic,
                client_config(stage.session.settings),
            )
            queries.start(stage.session, record, available_now=True).awaitTermination()
        stage.run(views.name)
        early_results.settle(stage.session, views)
    finally:
        kafka_broker.stop(settings)


def _end_with_parent(folder: Path) -> None:
    """Ends this process and its broker once the process that waits for it is gone: its end of the pipe closes then."""
    sys.stdin.buffer.read()
    kafka_broker.stop(Settings(root=_topic_root(folder)))
    os.killpg(os.getpgid(0), signal.SIGKILL)


def make() -> str:
    """Makes the archives, unless all are there, and prints each step.

    Why that did not succeed, so that everything is just slower; empty if it did.
    """
    wanted = [cds_archive.archive(of) for of in cds_archive.PROGRAMS]
    if not cds_archive.missing():
        return ""
    beside = [each.with_suffix(f".{os.getpid()}") for each in wanted]
    try:
        with tempfile.TemporaryDirectory() as folder, _recording(Path(folder), beside) as process:
            why = _followed(process, Path(folder, _ERRORS))
        if not why:
            for made in beside:
                cds_archive.fits(made)
            for made, to in zip(beside, wanted, strict=True):
                # up to 200 MB each, and of use to nobody
                for before in to.parent.glob(f"{to.stem.rpartition('-')[0]}*.jsa"):
                    before.unlink()
                made.rename(to)
    except (subprocess.SubprocessError, OSError) as err:
        why = str(err)
    finally:
        for made in beside:
            made.unlink(missing_ok=True)
    return why


@contextmanager
def _recording(folder: Path, beside: list[Path]) -> Iterator[subprocess.Popen]:
    """The run, in a group of its own: of whatever it has started nothing is left behind this."""
    command = [sys.executable, "-m", "tools.record_classes", str(folder), *map(str, beside)]
    with (folder / _ERRORS).open("wb") as errors:
        process = subprocess.Popen(
            command,
            bufsize=0,  # a line that was read ahead would not be waited for
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kafka_broker.stop(Settings(root=_topic_root(folder)))  # in a session of its own


def _followed(process: subprocess.Popen, errors: Path) -> str:
    """Prints each step of the run, and returns why it failed; empty if it has ended well."""
    assert process.stdout is not None
    step = 0
    while select.select([process.stdout], [], [], _STEP_LIMIT)[0]:
        read = process.stdout.readline()
        if not read:
            break
        line = read.decode(errors="replace").strip()
        if line in _STEPS:  # a JVM may print, too
            step = _STEPS.index(line) + 1
            print(f"  {step} of {len(_STEPS)}: {line}", flush=True)
    else:
        return f"step {step} of {len(_STEPS)} did not end within {_STEP_LIMIT:.0f} s"
    if process.wait(_STEP_LIMIT) == 0:
        return ""
    said = errors.read_text(errors="replace").strip().splitlines()
    return f"exit code {process.returncode}; {said[-1] if said else 'no error message'}"


if __name__ == "__main__":
    if sys.argv[1:]:
        given = list(map(Path, sys.argv[1:]))
        threading.Thread(target=_end_with_parent, args=given[:1], daemon=True).start()
        code = 0
        try:
            _record(*given)
        except Exception:
            code = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the thread reads on, and would abort an ordinary end
    elif not all(map(cds_archive.options, cds_archive.PROGRAMS)):
        print(
            "archiving Spark's and Kafka's classes, so that they start faster (once, minutes)",
            flush=True,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        if failure := make():
            print(
                f"the archives were not made, so all starts some seconds later: {failure}",
                file=sys.stderr,
            )
