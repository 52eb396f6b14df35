"""The erasure: rows of a record removed for good, and what was computed from them. `python -m batch_jobs.erase TABLE`"""

import sys
from contextlib import ExitStack

from batch_jobs.publisher import publishing
from lakehouse.maintenance import erasure, propagate
from lakehouse.maintenance.erasure import Erasure
from lakehouse.storage.lake import Lake


def planned(lake: Lake, name: str, where: str) -> Erasure:
    """What `run` would do, refusing what it would refuse; changes nothing."""
    return erasure.planned(lake, lake.catalog.table(name), where)


def run(lake: Lake, name: str, where: str) -> Erasure:
    """Erases the rows of that record which meet the condition. Raises UnknownTable, RangeError, JobError."""
    record = lake.catalog.table(name)
    with ExitStack() as held:
        for table in (record, *propagate.derived(lake, record)):
            held.enter_context(publishing(lake.settings, table))
        return erasure.erase(lake, record, where)


if __name__ == "__main__":
    from batch_jobs.commands import main

    main("erase", sys.argv[1:])
