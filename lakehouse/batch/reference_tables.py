"""Reference tables: tables without event time, computed whole.

Keyed and versioned tables are computed by their own jobs.
"""

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import REASON, quoted
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.delta.digest import digests
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import checksum, read_value, replace_file
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import Commit, recorded, unwritten
from lakehouse.storage.position import checkpoints, declared_state
from lakehouse.storage.session import Session
from lakehouse.transform import creation, plan
from lakehouse.transform.checks import judged_rows
from lakehouse.transform.decoding import reference_files
from lakehouse.transform.function_inputs import as_read


def refresh(session: Session, table: Table) -> Commit | None:
    """Rebuilds a reference table unless the table, its declaration, its files and its inputs' versions are unchanged."""
    _make_inputs(session, table)
    recorded = read_value(
        layout.note(session.settings, table, "reference.json"),
        dict[str, Any],
        f"{table.name} is computed again",
    )
    # a user may have removed the table, to have it filled again
    exists = session.exists(table)
    if exists and recorded and recorded == _of(session, table, _inputs(session, table)):
        return None
    return rebuild(session, table)


def rebuild(session: Session, table: Table) -> Commit | None:
    """Computes a reference table whole and replaces it; None if its rows are already these. Raises DeclarationError.

    A keyed or versioned table is computed again by its job, at its next start.
    """
    if table.kind.is_upserted:
        renew(session, table)
        return None
    if not table.kind.is_reference:
        raise RangeError(f"table={table.name}: it has event time; give a range (start and end)")
    _make_inputs(session, table)
    creation.create(session, table)
    # read first, so that the next call notices a file that changes meanwhile
    read = _inputs(session, table)
    commit = _rebuilt(session, table)
    replace_file(layout.note(session.settings, table, "reference.json"), _of(session, table, read))
    return commit


def renew(lakehouse: Lakehouse, table: Table) -> None:
    """Makes the job of a keyed or versioned table compute it again at its next start."""
    checkpoints.renew(lakehouse.settings, table)
    declared_state.keep(lakehouse, table)  # nothing will be left of what it was


def _make_inputs(session: Session, table: Table) -> None:
    """Creates missing input tables: a reference table is computed before any query has run."""
    for name in table.inputs:
        if name in session.catalog.tables and not session.exists(session.catalog.table(name)):
            creation.create(session, session.catalog.table(name))


def _of(lakehouse: Lakehouse, table: Table, inputs: dict[str, object]) -> dict[str, object]:
    return {
        "version": delta_writer.version(lakehouse.path(table)),
        "code_version": table.code_version,
        "inputs": inputs,
    }


def _inputs(lakehouse: Lakehouse, table: Table) -> dict[str, object]:
    """Returns what identifies the inputs: versions of tables, also of others, and checksums of local files.

    Other files have a random value, so they never count as unchanged.
    """
    inputs: dict[str, object] = {}
    files = lakehouse.catalog.files_of(table)
    for name in table.inputs:
        if (source := files.get(name)) is None:
            inputs[name] = delta_writer.version(lakehouse.path(lakehouse.catalog.table(name)))
        elif source.format == "delta" and (creation_of := delta_log.made(Path(source.path))):
            inputs[name] = [source.schema, creation_of[0], delta_log.latest(Path(source.path))]
        elif file_checksum := checksum(Path(source.path)):
            inputs[name] = [source.schema, source.format, source.header, file_checksum]
        else:
            inputs[name] = uuid.uuid4().hex
    return inputs


def _rebuilt(session: Session, table: Table) -> Commit | None:
    started = time.monotonic()
    inputs: dict[str, DataFrame] = {}
    files = session.catalog.files_of(table)
    for name in table.inputs:
        if read := session.catalog.tables.get(name):
            inputs[name] = as_read(read, _present(session, read))
        else:
            inputs[name] = reference_files.file_rows(session.spark, files[name])
    judged = plan.plan_of(session, table).reference(inputs)
    shown = F.to_json(F.struct(*(quoted(name) for name in judged.columns if name != REASON)))
    broken = judged.where(F.col(REASON).isNotNull()).select(REASON, shown.alias("row")).head()
    if broken:
        raise DeclarationError(
            f"table={table.name}: {broken[REASON]} does not hold of {broken['row']}; a reference table is replaced whole "
            "or not at all, so the old one stays; correct its source"
        )
    rows = judged_rows.good(judged)
    new_digest, old_digest = digests(rows, _present(session, table))
    if new_digest == old_digest and delta_writer.version(session.path(table)) > 0:
        return None
    mark = {"run": uuid.uuid4().hex, "code_version": table.code_version}
    commits: list[Commit] = []

    def noted() -> dict[str, Any]:
        commits.append(
            unwritten(
                table,
                "reference",
                written=new_digest.rows,
                seconds=time.monotonic() - started,
            )
        )
        return recorded(commits, mark)

    version = delta_writer.overwrite(rows, session.path(table), noted)
    commit = replace(commits[0], version=version)
    session.commit_log(table).append(commit, recorded=True)
    return commit


def _present(session: Session, table: Table) -> DataFrame:
    """Returns the table's present rows, read through Delta only where that is needed: it would first load what has changed."""
    return session.references({table.name: delta_writer.version(session.path(table))})[table.name]
