"""The state of Spark's queries is divided again, into as many partitions as the settings say, while their job is stopped."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lakehouse.declare.table import Table
from lakehouse.storage import checkpoint_files, checkpoints, state_partitions
from lakehouse.storage.digest import Digest, digest, reconciled_columns
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.publish_lock import publishing
from lakehouse.storage.session import Session
from lakehouse.stream import generations, queries

Verdict = Literal["EQUAL", "DIFFERENT", "READ ON"]


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A table whose state was divided again.

    :param before: partitions of its state until then.
    :param now: partitions that it has.
    :param rows: of the table, afterwards.
    :param checksum: of these rows.
    :param verdict: whether they are the rows of before; READ ON if its inputs went on meanwhile.
    """

    table: str
    before: int
    now: int
    rows: int
    checksum: str
    verdict: Verdict


def due(lakehouse: Lakehouse, tables: Iterable[Table]) -> Iterator[tuple[Table, int, int]]:
    """The tables whose state is in another number of partitions than the settings say, with both numbers.

    Also one whose new generation has begun and written nothing: a command that was killed left it.
    """
    for table in tables:
        number = checkpoints.standing(lakehouse.settings, table).number
        generation = number[0] if number else checkpoints.generation(lakehouse.settings, table)
        folder = checkpoint_files.folder_of(lakehouse.settings, table, generation)
        before = state_partitions.divided(folder)
        now = state_partitions.wanted(lakehouse.settings, table)
        if before not in (None, now):
            yield table, before, now


def rescale(session: Session, table: Table, before: int, now: int) -> Rescaled:
    """Builds the state of the table again, behind its last commit, and compares its rows before and after.

    The table's job does not run.

    :raises CommitError: if the input does not go back as far as the state does.
    """
    with publishing(session.settings, table):
        if not _has_begun(session, table):
            _catch_up(session, table)
        held, read = _held(session, table)
        if not _has_begun(session, table):
            why = f"its state is divided into {now} partitions and was into {before}"
            generations.begin_next(session, table, why)
        _catch_up(session, table)
        holds, has_read = _held(session, table)
    verdict: Verdict = "EQUAL" if holds == held else "DIFFERENT"
    if has_read != read:
        verdict = "READ ON"
    return Rescaled(table.name, before, now, holds.rows, str(holds), verdict)


def _has_begun(session: Session, table: Table) -> bool:
    number = checkpoints.standing(session.settings, table).number
    return number is not None and checkpoints.generation(session.settings, table) > number[0]


def _catch_up(session: Session, table: Table) -> None:
    queries.start(session, table, available_now=True).awaitTermination()


def _held(session: Session, table: Table) -> tuple[Digest, Mapping[str, int]]:
    """The checksum of the table's rows, and the versions of its inputs that they come from."""
    rows, last = session.read(table), next(session.commit_log(table).by_stream(), None)
    read = {name: last.version_read(name) for name in last.inputs["tables"]} if last else {}
    return digest(rows.select(reconciled_columns(rows))), read
