"""The stream of the version beside a table (`storage.versions.upgrades`)."""

from dataclasses import replace

from lakehouse.declare.table import Table
from lakehouse.storage.session import Session
from lakehouse.storage.versions import upgrades
from lakehouse.stream import queries


def catch_up(session: Session, table: Table) -> None:
    """Makes the version beside the table read all that its inputs have now."""
    beside_session = replace(session, settings=upgrades.beside(session.settings, table))
    queries.start(beside_session, table, available_now=True).awaitTermination()
