"""The ledger tables `_commits` and `_certificates`: what journals and verdicts hold, in Delta, for people and queries."""

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.commits import LEDGER, Commit
from lakehouse.storage.files import alone
from lakehouse.storage.journal import Journal


def flush(settings: Settings, tables: Iterable[Table]) -> int:
    """Copies what is new in the journals into the Delta table `_commits`; returns how many lines. Trims long journals.

    Idempotent: the position reached in each journal is recorded in the same Delta commit.
    """
    from lakehouse.storage import journal_trimming

    ledger, tables = settings.root / LEDGER, list(tables)
    if not ledger.is_dir():
        return 0
    with alone(ledger / ".flush.lock"):  # two at once would both copy the lines behind one position
        copied = _flush(ledger / "_commits", settings, tables)
        for table in tables:
            journal_trimming.trim(Journal(settings, table))
        return copied


def _flush(path: Path, settings: Settings, tables: Iterable[Table]) -> int:
    from deltalake import CommitProperties, Transaction

    from lakehouse.storage import journal_repair, journal_trimming

    known = opened(path)
    rows, reached = [], []
    for table in tables:
        journal = Journal(settings, table).path
        app = f"journal:{table.name}"
        position = (known.transaction_version(app) or 0) if known else 0
        journal_repair.mend_if_cut(settings, table, position)
        moved = journal_trimming.shift(journal)
        position = max(position, moved)  # `_commits` was removed: what had been trimmed from the journal by then is not known
        size = journal.stat().st_size + moved if journal.exists() else 0
        if size <= position:
            continue
        with journal.open("rb") as file:
            file.seek(position - moved)
            whole = file.read(size - position).rpartition(b"\n")[0]
        rows += journal_repair.whole_lines(journal, whole)
        reached.append(Transaction(app, position + len(whole) + 1))
    if rows:
        append(path, rows, Commit, CommitProperties(app_transactions=reached))
    return len(rows)


def opened(path: Path):
    from deltalake import DeltaTable

    return DeltaTable(str(path)) if (path / "_delta_log").exists() else None


def append(path: Path, rows: list[dict], kind: type, properties) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    types = {int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(f.name, types.get(f.type, pa.string())) for f in fields(kind)])
    flat = [{k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(  # merged: a ledger that an earlier version began may have fewer columns
        str(path), pa.Table.from_pylist(flat, schema), mode="append", schema_mode="merge", commit_properties=properties
    )
