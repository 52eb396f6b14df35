"""A Delta table sent to a topic as one writes it by Spark's documentation, until SIGTERM.

    python -m benchmarks.publish_plain TABLE TOPIC        (broker from the environment, as everywhere)

At least once: Spark's sink has no transactions, so a batch that was cut off is sent again.
"""

import signal
import sys
from pathlib import Path

from pyspark.sql import functions as F

from benchmarks import plain
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.stopping import Stop

COLUMNS = ("n", "account", "cents", "at")


def main(table: str, topic: str) -> None:
    settings, stopping = from_environment(), Stop()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = spark_session.create(settings, "publish")
    key, value = (
        F.col("n").cast("string").alias("key"),
        F.to_json(F.struct(*COLUMNS)).alias("value"),
    )
    rows = spark.readStream.format("delta").load(table).select(key, value)
    query = (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(settings.root / f"{topic}_checkpoint"))
        .start()
    )
    (settings.root / plain.READY).touch()
    while not stopping.wait(0.2) and query.isActive:
        pass
    failed = query.exception()
    query.stop()
    spark.stop()
    if failed:
        raise failed


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), sys.argv[2])
