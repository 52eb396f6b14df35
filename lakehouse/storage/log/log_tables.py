"""The log tables `_commits` and `_certificates`: what commit logs and verdicts hold, in Delta, for people and queries."""

import json
import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.declare.table import Table
from lakehouse.logs import warn_once
from lakehouse.settings import Settings
from lakehouse.storage.delta import committer, delta_log
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import remove
from lakehouse.storage.disk.locks import READ_ONLY, alone
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.log import commit_cache
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

_log = logging.getLogger(__name__)


def flush(settings: Settings, tables: Iterable[Table]) -> int:
    """Copies what is new in the commit logs into the Delta table `_commits`.

    Returns how many lines. Trims long commit logs.

    Idempotent: the position reached in each commit log is recorded in the same Delta commit.
    """
    tables = list(tables)
    if not layout.commit_caches(settings).is_dir():
        return 0
    # two at once would both copy the lines behind one position
    with alone(layout.flush_lock(settings)):
        copied = _flush(layout.log_table(settings, "_commits"), settings, tables)
        for table in tables:
            commit_cache.trim(CommitLog(settings, table))
        return copied


def refresh(settings: Settings, tables: Iterable[Table]) -> None:
    """Flushes for a reader. One who may not write there reads `_commits` as it is, with a warning if that is behind."""
    tables = list(tables)
    try:
        flush(settings, tables)
    except OSError as err:
        if err.errno not in READ_ONLY:
            raise
        path = layout.log_table(settings, "_commits")
        log_table = open_table(path) if delta_log.exists(path) else None
        positions = ((CommitLog(settings, table), _copied(log_table, table)) for table in tables)
        if any(commit_cache.end(log.path) > max(copied, 0) for log, copied in positions):
            warn_once(
                _log,
                f"root={settings.root}: this user may not write there ({err.strerror}), so what the commit logs have since they "
                "were last copied to `_commits` is not counted; a job copies it every 30 seconds, as does this command of a "
                "user who may",
            )


def _copied(log_table: "DeltaTable | None", table: Table) -> int:
    """Returns the position up to which the table's commit log was copied to `_commits`."""
    return (log_table.transaction_version(_app(table)) or 0) if log_table else 0


def _behind(log: CommitLog, log_table: "DeltaTable | None") -> tuple[list[Commit], int] | None:
    return commit_cache.behind(log, _copied(log_table, log.table))


def _app(table: Table) -> str:
    return f"commit log:{table.name}"


def _flush(path: Path, settings: Settings, tables: Iterable[Table]) -> int:
    from deltalake import Transaction

    log_table = open_table(path) if delta_log.exists(path) else None
    rows, reached, copied = [], [], list[CommitLog]()
    # a cache that is read again meanwhile would be copied to another position
    with ExitStack() as writing:
        for log in (CommitLog(settings, table) for table in tables):
            log.read_on()
            if not (log.exists or log.path.exists()):
                continue
            writing.enter_context(log.writing())
            # the cache may be deleted at any moment, and what is not copied may be cut from the table's log next
            while (new := _behind(log, log_table)) is None and log.exists:
                commit_cache.read_again(log)
            if new is None:
                continue
            copied.append(log)
            if new[0]:
                rows += [json.loads(encoded(commit)) for commit in new[0]]
                reached.append(Transaction(_app(log.table), new[1]))
        if rows:
            append(path, rows, Commit, *reached)
        for log in copied:
            remove(log.notes.path)
    return len(rows)


def append(path: Path, rows: list[dict], kind: type, *transactions: "Transaction") -> None:
    # not pyarrow, which imports numpy and pandas, as much CPU as all the rest of `lakehouse table list`
    from arro3.core import Array, DataType, RecordBatch
    from deltalake import write_deltalake

    types: dict[object, DataType] = {int: DataType.int64(), float: DataType.float64()}
    flat = [
        {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()}
        for row in rows
    ]
    names = [f.name for f in fields(kind)]
    columns = [
        Array([row.get(f.name) for row in flat], types.get(f.type, DataType.utf8()))
        for f in fields(kind)
    ]
    if not delta_log.exists(path):
        _create(path, kind)
    with committer.by_deltalake(path, *transactions) as properties:
        write_deltalake(  # merged: a log table that an earlier version began may have fewer columns
            str(path),
            RecordBatch.from_arrays(columns, names=names),
            mode="append",
            schema_mode="merge",
            commit_properties=properties,
        )


def _create(path: Path, kind: type) -> None:
    from pyspark.sql.types import StructType

    from lakehouse.storage.delta import table_creation

    types: dict[object, str] = {int: "long", float: "double"}
    columns = StructType()
    for field in fields(kind):
        columns.add(field.name, types.get(field.type, "string"))
    table_creation.create(path, columns, False, "", {})
