"""Maintenance of tables: compaction of small files, removal of old versions."""

from collections.abc import Iterator

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, JobError
from lakehouse.maintenance import retention
from lakehouse.maintenance.retention import Maintenance
from lakehouse.runtime import kafka_broker
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import log_tables, report_files


def planned(lakehouse: Lakehouse, name: str | None = None) -> list[Maintenance]:
    """Returns what `run` would do, for the named table or for all tables and the log tables. Changes nothing.

    Raises UnknownTable.
    """
    tables = _wanted(lakehouse.catalog, name)
    places = [place for table in tables for place in retention.places(lakehouse, table)]
    places += [] if name else retention.log_tables(lakehouse.settings)
    return [retention.plan(lakehouse.settings, place) for place in places]


def run(lakehouse: Lakehouse, name: str | None = None) -> Iterator[Maintenance]:
    """Maintains one table after the other, beside the streams, and yields what was done. Needs no session.

    A table that another process is rewriting is left for the next run. JobError names it when all
    others are done.
    """
    refused, tables = [], _wanted(lakehouse.catalog, name)
    log_tables.flush(lakehouse.settings, tables)  # before what records commits is cut
    for table in tables:
        try:
            with publishing(lakehouse.settings, table):
                for place in retention.places(lakehouse, table):
                    yield retention.maintain(lakehouse.settings, place)
                if table.kind.is_report:
                    report_files.tidy(lakehouse.settings, table)
        except (JobError, CommitError) as err:
            refused.append(str(err))
    if name is None:
        kafka_broker.shorten_log(lakehouse.settings)
        for place in retention.log_tables(lakehouse.settings):
            yield retention.maintain(lakehouse.settings, place)
    if refused:
        raise JobError("\n".join(refused))


def _wanted(catalog: Catalog, name: str | None) -> list[Table]:
    return [catalog.table(name)] if name else list(catalog)
