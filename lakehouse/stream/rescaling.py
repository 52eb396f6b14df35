"""Divides the state of Spark's queries again, into as many partitions as the settings say, while their job is stopped.

Spark itself moves the keys, in a copy of the query's checkpoint: neither an input nor the table is
read. The copy begins the table's next generation if it holds what the state held.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from lakehouse.declare.table import Table
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import checkpoint_files, state_partitions, table_state
from lakehouse.storage.session import Session
from lakehouse.stream import generations, queries, state_reader
from lakehouse.stream.strategy import strategy

Verdict = Literal["EQUAL", "DIFFERENT"]


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A table whose state was divided again.

    :param before: partitions of its state until then.
    :param now: partitions asked for.
    :param rows: of the state: one for each key that Spark keeps.
    :param checksum: of these rows.
    :param verdict: EQUAL if they are the rows of before; if DIFFERENT, the state stays as it was.
    """

    table: str
    before: int
    now: int
    rows: int
    checksum: str
    verdict: Verdict


def difference(rescaled: Iterable[Rescaled]) -> str:
    """Returns the message for the tables whose state differs from the original; empty if none does."""
    names = ", ".join(table.table for table in rescaled if table.verdict == "DIFFERENT")
    return names and (
        f"table={names}: the repartitioned state differs from the original, so the job keeps the original; to have it built "
        "from the table's inputs instead, stop the job, remove the table's checkpoint, and start it"
    )


def due(lakehouse: Lakehouse, tables: Iterable[Table]) -> Iterator[tuple[Table, int, int]]:
    """Yields the tables whose state has another number of partitions than the settings say, with both numbers."""
    for table in tables:
        checkpoint = checkpoint_files.newest(lakehouse.settings, table)
        before = state_partitions.divided(checkpoint)
        now = state_partitions.wanted(lakehouse.settings, table)
        if before not in (None, now):
            yield table, before, now


def rescale(session: Session, table: Table, before: int, now: int) -> Rescaled | None:
    """Divides the state of the table again, and compares what it holds before and after.

    The table's job does not run. Killed at any step, this leaves the one checkpoint or the other.

    :returns: None if its state had to be built again: that has as many partitions as the settings say.
    :raises CommitError: as a start of the query does.
    """
    with publishing(session.settings, table):
        session.commit_log(table).read_on()  # what a crash kept from it
        state = table_state.read(session, table)
        generations.fit(session, state, strategy(session, table))
        if _in_flight(session, table):
            queries.start(session, table, available_now=True).awaitTermination()
        checkpoint = checkpoint_files.newest(session.settings, table)
        if checkpoint is None or state_partitions.divided(checkpoint) != before:
            return None
        held = state_reader.checksum(session.spark, checkpoint)
        divided = state_partitions.divide(session.spark, checkpoint, now)
        holds = state_reader.checksum(session.spark, divided)
        if holds == held:
            why = f"its state is divided into {now} partitions and was into {before}"
            generations.go_on_divided(session, table, divided, why)
    verdict: Verdict = "EQUAL" if holds == held else "DIFFERENT"
    return Rescaled(table.name, before, now, holds.rows, str(holds), verdict)


def _in_flight(lakehouse: Lakehouse, table: Table) -> bool:
    """Returns True if the last micro-batch was interrupted: its state is not whole."""
    checkpoint = checkpoint_files.newest(lakehouse.settings, table)
    return (
        checkpoint is not None
        and checkpoint_files.begun(checkpoint)[-1:] != checkpoint_files.done(checkpoint)[-1:]
    )
