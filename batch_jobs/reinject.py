"""The re-injection: rows put aside by a record that are good by its present declaration. `python -m batch_jobs.reinject TABLE`"""

import sys
from contextlib import ExitStack

from batch_jobs.publisher import publishing
from lakehouse.maintenance import propagate, replay_quarantine
from lakehouse.maintenance.replay_quarantine import Reinjection
from lakehouse.storage.lake import Lake
from lakehouse.transform import creation


def planned(lake: Lake, name: str) -> Reinjection:
    """What `run` would do; changes nothing. Raises UnknownTable, RangeError."""
    return replay_quarantine.planned(lake, lake.catalog.table(name))


def run(lake: Lake, name: str) -> Reinjection:
    """Puts in what is good now, and has what reads it follow. Raises UnknownTable, RangeError, JobError, DeclarationError."""
    record = lake.catalog.table(name)
    with ExitStack() as held:
        for table in (record, *propagate.derived(lake, record)):
            held.enter_context(publishing(lake.settings, table))
        creation.create(lake, record)  # refuses other columns than those on disk
        return replay_quarantine.reinject(lake, record)


if __name__ == "__main__":
    from batch_jobs.commands import main

    main("reinject", sys.argv[1:])
