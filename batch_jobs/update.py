"""The update: merges late rows into the tables that declare `late="update"`."""

from collections.abc import Iterator

from lakehouse.batch import batch_state, late_merge
from lakehouse.batch.batch_state import Dirt
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.rules import withholding
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.session import Session


def wanted(catalog: Catalog, name: str | None) -> list[Table]:
    """Returns the named table, or all that are updated, inputs first. Raises RangeError for another policy, UnknownTable."""
    if name is None:
        return [t for t in catalog.derived if t.late == "update"]
    table = catalog.table(name)
    if table.late != "update" or not table.kind.is_derived:
        raise RangeError(
            f"table={name}, late={table.late!r}: late rows are not merged into this table, so there is nothing to update; "
            'declare late="update", or backfill a range'
        )
    return [table]


def waiting(lakehouse: Lakehouse, name: str | None = None) -> dict[str, list[Dirt]]:
    """Returns, by table, the partitions that an update would look at. Reads commit logs, without a session."""
    by_table = {
        t.name: batch_state.read(lakehouse, t).dirty for t in wanted(lakehouse.catalog, name)
    }
    return {name: dirt for name, dirt in by_table.items() if dirt}


def withheld(lakehouse: Lakehouse, name: str | None = None) -> list[str]:
    """Returns a line for each table that an update cannot complete, because a table that it reads keeps late rows out."""
    from lakehouse.cli.table_status import late_counts

    catalog = lakehouse.catalog
    nearest = [(table, withholding(catalog, table)) for table in wanted(catalog, name)]
    kept_out = [(table, upstream) for table, upstream in nearest if upstream]
    late = late_counts(lakehouse) if kept_out else {}
    return [
        f"table={table.name}, late='update': late rows cannot reach it, because {upstream.name}, which it reads, keeps them out "
        f"(late={upstream.late!r}; {late.get(upstream.name, 0):,} rows so far); declare {upstream.name} late='update', too"
        for table, upstream in kept_out
    ]


def run(session: Session, name: str | None = None) -> Iterator[Commit]:
    """Rewrites the closed partitions that late rows made dirty, and yields the commits. Raises RangeError, JobError."""
    for table in wanted(session.catalog, name):
        with publishing(session.settings, table):
            yield from late_merge.update(session, table)
