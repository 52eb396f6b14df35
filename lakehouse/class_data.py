"""Class data sharing: the JVM maps Spark's classes from an archive instead of reading and checking thousands in their jars.

It takes more than a quarter off the time in which a session starts and runs its first queries. The archive is made once by a
small run of everything (`python -m lakehouse.class_data`, part of `make setup`), for this Python environment and this java; a
JVM that it does not fit ignores it. It holds only what is on the class path: `session` puts Delta and Kafka's client there.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse import jars
from lakehouse.settings import Settings, from_environment, java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIMIT = 600.0  # seconds; a machine with other work takes minutes


def options() -> str:
    """What a JVM of ours is to be told; empty if there is no archive."""
    found = archive()
    return f"-XX:SharedArchiveFile={found} -Xlog:cds=off -Xlog:cds+dynamic=off" if found.exists() else ""


def archive() -> Path:
    """The archive for the java that Spark runs on, of our jars and of what is recorded now, whether it is there or not."""
    program = Path(java()).resolve()
    ours = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    made_of = hashlib.sha256(jars.SUMS.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-{ours}-{made_of}.jsa"


def make() -> bool:
    """Makes the archive if it is not there; False if that did not succeed, and everything is just slower."""
    wanted = archive()
    if wanted.exists():
        return True
    beside = wanted.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [sys.executable, "-m", "lakehouse.class_data", str(beside)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_LIMIT, check=True,
        )  # fmt: skip
        fits(beside)
        for before in wanted.parent.glob(f"{wanted.stem.rpartition('-')[0]}*.jsa"):  # 200 MB each, and of use to nobody
            before.unlink()
        beside.rename(wanted)
    except (subprocess.SubprocessError, OSError):
        beside.unlink(missing_ok=True)
        return False
    return True


def fits(found: Path) -> None:
    """Raises CalledProcessError if a JVM does not stand the archive: one that the disk had no room for would end it."""
    with tempfile.TemporaryDirectory() as folder:  # where a JVM that crashes writes down why
        command = [java(), f"-XX:SharedArchiveFile={found}", "-XX:+VerifySharedSpaces", "-version"]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT, check=True)


def _record(to: Path) -> None:
    """Fills the tables of `sensors` live and by a bounded run, and those of `ads` from a topic, then ends the JVM.

    As it ends it writes the archive.
    """
    from deltalake import DeltaTable
    from pyspark import SparkContext

    from lakehouse import proof, session
    from lakehouse.ranges import parse_range
    from lakehouse.tables import sensors
    from lakehouse.testing import Stage

    with tempfile.TemporaryDirectory() as folder:
        recording = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={to}"}
        settings = Settings(root=Path(folder), jars=from_environment().jars, spark_conf=recording)
        spark = session.create(settings, "class data", ui=True)
        stage = Stage(spark, Path(folder), sensors)
        first, last = (
            {"sensor_id": "a", "event_time": f"2026-01-01T0{hour}:00:00Z", "temperature_f": "50.00"} for hour in (0, 2)
        )
        stage.feed("sensor_readings", [first, b"bad"])
        stage.advance("sensor_readings", last)
        stage.run("valid_readings", "sensor_averages")
        DeltaTable(str(stage.lake.path(stage.lake.catalog.table("valid_readings")))).delete()  # else it would write nothing
        stage.backfill("valid_readings", parse_range("2026-01-01T00:00", "2026-01-01T01:00"))
        proof.reconcile(stage.lake, stage.lake.catalog.table("valid_readings"))
        _from_topic(spark, Path(folder, "topic"))
        gateway = SparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _from_topic(spark: "SparkSession", root: Path) -> None:
    """Fills the tables of `ads` from a topic of a broker of its own, with early results: what only a job does."""
    from lakehouse import broker, early, live
    from lakehouse.kafka_options import client_config
    from lakehouse.producers import producer
    from lakehouse.producers.sender import send
    from lakehouse.tables import ads
    from lakehouse.testing import Stage

    settings, made = Settings(root=root), producer("ads")
    try:
        servers = broker.start(settings, jars.resolve(from_environment().jars)).bootstrap_servers
        stage = Stage(spark, root, ads, bootstrap_servers=servers)
        record, views = (stage.lake.catalog.table(name) for name in ("ad_events", "campaign_views"))
        broker.ensure_topics(stage.lake.settings, {made.topic: made.workload.partitions})
        now = int(time.time() * 1000)
        for ago in (120_000, 60_000):  # milliseconds: a window closes by what is recorded after its last row
            send(made.records(made.workload, now - ago, now - ago + 1_000), made.topic, client_config(stage.lake.settings))
            live.start(stage.lake, record, available_now=True).awaitTermination()
        stage.run(views.name)
        early.settle(stage.lake, views)
    finally:
        broker.stop(settings)


if __name__ == "__main__":
    if sys.argv[1:]:
        _record(Path(sys.argv[1]))
    elif not archive().exists():
        print("archiving Spark's classes, so that it starts faster (once)", flush=True)
        if not make():
            print("that did not succeed; everything works, and starts some seconds later", file=sys.stderr)
