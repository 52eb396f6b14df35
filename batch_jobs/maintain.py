"""Upkeep of tables: small files made few, the past that nobody needs removed. `python -m batch_jobs.maintain [TABLE]`"""

import sys
from collections.abc import Iterator

from batch_jobs.publisher import publishing
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, JobError
from lakehouse.maintenance import upkeep
from lakehouse.maintenance.upkeep import Upkeep
from lakehouse.settings import Settings
from lakehouse.storage import ledger


def planned(settings: Settings, catalog: Catalog, name: str | None = None) -> list[Upkeep]:
    """What `run` would do, of that table or of all and the ledgers; changes nothing. Raises UnknownTable."""
    found = [place for table in _wanted(catalog, name) for place in upkeep.places(settings, catalog, table)]
    return [upkeep.plan(settings, place) for place in [*found, *([] if name else upkeep.ledgers(settings))]]


def run(settings: Settings, catalog: Catalog, name: str | None = None) -> Iterator[Upkeep]:
    """Looks after one table after the other, beside the streams, as it goes on; needs no session.

    A table that another process is rewriting is left for the next time, and told of by JobError when all others are done.
    """
    refused = []
    for table in _wanted(catalog, name):
        try:
            with publishing(settings, table):
                for place in upkeep.places(settings, catalog, table):
                    yield upkeep.maintain(settings, place)
        except (JobError, CommitError) as err:
            refused.append(str(err))
    if name is None:
        ledger.flush(settings, catalog)
        for place in upkeep.ledgers(settings):
            yield upkeep.maintain(settings, place)
    if refused:
        raise JobError("\n".join(refused))


def _wanted(catalog: Catalog, name: str | None) -> list[Table]:
    return [catalog.table(name)] if name else list(catalog)


if __name__ == "__main__":
    from batch_jobs.commands import main

    main("maintain", sys.argv[1:])
