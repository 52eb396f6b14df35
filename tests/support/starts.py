"""What the start of a stream does first, for tests that start none."""

from lakehouse.declare.table import Table
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state, table_state
from lakehouse.storage.session import Session
from lakehouse.stream import generations
from lakehouse.stream.strategy import strategy


def begin(lakehouse: Lakehouse, table: Table) -> None:
    """Keeps the declaration that the table's stream begins with."""
    declared_state.begin(lakehouse, table_state.read(lakehouse, table))


def fit(session: Session, table: Table) -> bool:
    """Returns True if the table's stream goes on in a new generation."""
    session.commit_log(table).read_on()
    state = table_state.read(session, table)
    return generations.fit(session, state, strategy(session, table)) is not state
