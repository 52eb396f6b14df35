"""Tables without event time, computed whole: reference tables.

A keyed or versioned table its own job computes.
"""

import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import REASON
from lakehouse.declare.sources import FileSource
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.storage import begun_with, checkpoints, delta_log, delta_writer, layout
from lakehouse.storage.commits import Commit
from lakehouse.storage.digest import digests
from lakehouse.storage.files import checksum, read_value, replace_file
from lakehouse.storage.lakehouse import Lakehouse, Session
from lakehouse.transform import creation, decode, judged_rows, plan
from lakehouse.transform.function_inputs import as_read


def refresh(lake: Session, table: Table) -> Commit | None:
    """As `rebuild`.

    Computes nothing if the table, its declaration, its files and the versions of its inputs are as
    then.
    """
    _make_inputs(lake, table)
    noted = read_value(
        layout.note(lake.settings, table, "reference.json"), dict, f"{table.name} is computed again"
    )
    # it may have been removed, to be filled again
    there = lake.exists(table)
    if there and noted and noted == _of(lake, table, _inputs(lake, table)):
        return None
    return rebuild(lake, table)


def rebuild(lake: Session, table: Table) -> Commit | None:
    """Computes a reference table whole and replaces it; None if its rows are already these.

    Raises DeclarationError.

    The job of a keyed or versioned table computes it again when it is started the next time.
    """
    if table.keeps:
        renew(lake, table)
        return None
    if lake.catalog.kind(table) != "reference":
        raise RangeError(f"table={table.name}: it has event time; give a range (start and end)")
    _make_inputs(lake, table)
    creation.create(lake, table)
    # looked at first: of a file that changes meanwhile the next look sees another
    read = _inputs(lake, table)
    commit = _rebuilt(lake, table)
    replace_file(layout.note(lake.settings, table, "reference.json"), _of(lake, table, read))
    return commit


def renew(lake: Lakehouse, table: Table) -> None:
    """Has the job of a keyed or versioned table compute it again when it is started the next time."""
    checkpoints.renew(lake.settings, table)
    begun_with.keep(lake.settings, lake.catalog, table)  # nothing will be left of what it was


def _make_inputs(lake: Session, table: Table) -> None:
    """A reference table is computed before any query runs: a state that it reads has no rows then, and was perhaps never made."""
    for name in table.inputs:
        if name in lake.catalog.tables and not lake.exists(lake.catalog.table(name)):
            creation.create(lake, lake.catalog.table(name))


def _of(lake: Lakehouse, table: Table, inputs: dict[str, object]) -> dict[str, object]:
    return {
        "version": delta_writer.version(lake.path(table)),
        "code_version": table.code_version,
        "inputs": inputs,
    }


def _inputs(lake: Lakehouse, table: Table) -> dict[str, object]:
    """By which one sees whether the inputs are the same: versions of tables, also of others, digests of local files.

    Of others never.
    """
    found: dict[str, object] = {}
    for name in table.inputs:
        source = lake.catalog.sources.get(name)
        if not isinstance(source, FileSource):
            found[name] = delta_writer.version(lake.path(lake.catalog.table(name)))
        elif source.format == "delta" and (made := delta_log.made(Path(source.path))):
            found[name] = [source.schema, made[0], delta_log.latest(Path(source.path))]
        elif known := checksum(Path(source.path)):
            found[name] = [source.schema, source.format, source.header, known]
        else:
            found[name] = uuid.uuid4().hex
    return found


def _rebuilt(lake: Session, table: Table) -> Commit | None:
    started = time.monotonic()
    inputs: dict[str, DataFrame] = {}
    for name in table.inputs:
        source, read = lake.catalog.sources.get(name), lake.catalog.tables.get(name)
        if read:
            inputs[name] = as_read(read, _present(lake, read))
        else:
            assert isinstance(source, FileSource), name  # a topic is an ingest table's
            inputs[name] = decode.file_rows(lake.spark, source)
    judged = plan.plan_of(lake, table).reference(inputs)
    if broken := judged.where(F.col(REASON).isNotNull()).head():
        raise DeclarationError(
            f"table={table.name}: {broken[REASON]} does not hold of {broken.asDict()}; a reference table is replaced whole "
            "or not at all, and the old one stays; correct its source"
        )
    rows = judged_rows.good(judged)
    made, there = digests(rows, _present(lake, table))
    if made == there and delta_writer.version(lake.path(table)) > 0:
        return None
    run = uuid.uuid4().hex
    version = delta_writer.overwrite(
        rows, lake.path(table), {"run": run, "code_version": table.code_version}
    )
    commit = Commit(
        table=table.name,
        role="reference",
        generation=0,
        batch=0,
        version=version,
        at=datetime.now(UTC),
        code_version=table.code_version,
        written=made.rows,
        seconds=time.monotonic() - started,
    )
    lake.commit_log(table).append(commit)
    return commit


def _present(lake: Session, table: Table) -> DataFrame:
    """The rows that a table has now: through Delta, which has to load what has just changed, only where it must be."""
    return lake.references({table.name: delta_writer.version(lake.path(table))})[table.name]
