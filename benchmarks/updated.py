"""The job of `benchmarks.updated_ads` up to the present, and the update after it, in one process.

    python -m benchmarks.updated
"""

import os
import sys

from batch_jobs import update
from lakehouse import catalog, session
from lakehouse.lake import Lake
from lakehouse.settings import from_environment
from streaming_jobs import driver

if __name__ == "__main__":
    if code := driver.main(["updated_ads", "--available-now"]):
        sys.exit(code)
    settings = from_environment()
    lake = Lake(session.create(settings, "update"), settings, catalog.load(settings))
    for commit in update.run(lake):
        print(f"{commit.table} [{commit.start}, {commit.end}): {commit.written} rows", flush=True)
    lake.spark.stop()
    sys.stdout.flush()
    os._exit(0)  # as the driver does: a py4j thread that waits for a dead JVM must not keep the process
