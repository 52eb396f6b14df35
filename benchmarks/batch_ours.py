"""Our batch run of campaign_views over whole hours of the record, again and again in one process.

python -m benchmarks.batch_ours HOURS TIMES RESULT        (RESULT: a JSON file of [wall, cpu] per time)
"""

import sys

from benchmarks import repeated
from lakehouse.batch import compute
from lakehouse.declare import catalog
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.session import Session

if __name__ == "__main__":
    settings = from_environment()
    session = Session(settings, catalog.load(settings), spark_session.create(settings, "batch"))
    table, span = session.catalog.table("campaign_views"), repeated.hours(int(sys.argv[1]))
    hours = ", ".join(repr(p) for p in span.partitions(table.partition_by))
    # where the rows are the same nothing is written; the plain job, too, finds its partitions filled and replaces them
    other = f"DELETE FROM delta.`{session.path(table)}` WHERE _partition IN ({hours}) AND views > 1"
    repeated.measured(
        lambda: compute.backfill(session, table, span),
        int(sys.argv[2]),
        sys.argv[3],
        before=lambda: session.spark.sql(other),
    )
    session.spark.stop()
