"""The re-injection: rows put aside by a record that are good by its present declaration. `python -m batch_jobs.reinject TABLE`"""

import sys
from contextlib import ExitStack

from batch_jobs.publisher import publishing
from lakehouse import following, reinjecting, sinks
from lakehouse.lake import Lake
from lakehouse.reinjecting import Reinjection


def planned(lake: Lake, name: str) -> Reinjection:
    """What `run` would do; changes nothing. Raises UnknownTable, RangeError."""
    return reinjecting.planned(lake, lake.catalog.table(name))


def run(lake: Lake, name: str) -> Reinjection:
    """Puts in what is good now, and has what reads it follow. Raises UnknownTable, RangeError, JobError, DeclarationError."""
    record = lake.catalog.table(name)
    with ExitStack() as held:
        for table in (record, *following.derived(lake, record)):
            held.enter_context(publishing(lake.settings, table))
        sinks.create(lake, record)  # refuses other columns than those on disk
        return reinjecting.reinject(lake, record)


if __name__ == "__main__":
    from batch_jobs.commands import main

    main("reinject", sys.argv[1:])
