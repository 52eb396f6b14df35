"""Lines of commit logs that tests write themselves."""

from collections.abc import Iterable
from datetime import UTC, datetime

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import NOTHING, Commit

_AT = datetime(2026, 1, 1, tzinfo=UTC)


def note_read(settings: Settings, table: Table, rows: int, inputs: Iterable[str] = ()) -> None:
    """The first step of a table's stream, that has read so many rows of these tables and written none."""
    read = {"tables": dict.fromkeys(inputs)} if inputs else {}
    line = Commit(
        table.name, "stream", 1, 0, NOTHING, _AT, table.code_version, arrived=rows, inputs=read
    )
    CommitLog(settings, table).append(line)
