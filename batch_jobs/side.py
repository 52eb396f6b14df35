"""One side of a comparison of code: a range, computed by the tables' code that this process imports. `python -m batch_jobs.side`

`other_code` starts it as a process of its own, so that two versions of the same modules never meet.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from lakehouse.batch import batch_state, compute
from lakehouse.cli import table_status
from lakehouse.declare.catalog import Catalog, load
from lakehouse.declare.columns import PARTITION, REASON, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError, UnknownTable
from lakehouse.ranges import PartitionBy, Range, parse_range
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.delta.digest import reconciled_columns
from lakehouse.storage.session import Session
from lakehouse.transform import arrival_fields, lateness
from lakehouse.transform.analysis import validation
from lakehouse.transform.checks import judged_rows

# topic, partition and offset of a row, by which the rows of row tables are paired
ARRIVED = "arrived as"


@dataclass(frozen=True, slots=True)
class Side:
    """The code and the inputs of one side's rows, as plain JSON."""

    declared: Mapping[str, object]
    columns: Mapping[str, str]  # column -> type
    code_versions: Mapping[str, str]  # the code version of every table of that code
    quarantined: int
    inputs: Mapping[str, Mapping[str, int]]  # as `compute.compute` names them


def write(
    session: Session,
    name: str,
    span: Range,
    length: PartitionBy,
    place: Path,
    inputs: Mapping[str, Mapping[str, int]] | None = None,
) -> Side:
    """Writes the rows of `span` as Parquet to `place`, with their partition by `partition_by`.

    `inputs`: the versions to read.

    Raises UnknownTable, RangeError, DeclarationError.
    """
    table, catalog = session.catalog.table(name), session.catalog
    batch_state.check_range(table, span, batch_state.closed_until(session, table))
    validation.check(session, table)
    names = [each.name for each in catalog.timed_inputs(table)]
    read = inputs or {"tables": {}, "references": {}}
    versions = {name: v for name, v in read["tables"].items() if name in names}
    computed = compute.compute(session, table, span, versions, references=read["references"])
    outcome = Observation()
    rows = judged_rows.good(computed.judged.observe(outcome, F.count(REASON).alias("bad")))
    rows.select(*compared_columns(rows, table, catalog, length)).write.parquet(str(place))
    return Side(
        declared=table_status.declaration(catalog, table),
        columns={
            name: rows.schema[name].dataType.simpleString() for name in reconciled_columns(rows)
        },
        code_versions={each.name: each.code_version for each in catalog},
        quarantined=outcome.get["bad"],
        inputs=computed.inputs,
    )


def compared_columns(
    rows: DataFrame, table: Table, catalog: Catalog, length: PartitionBy
) -> list[Column | str]:
    """Returns the columns of two versions that are compared: the table's own, those that pair the rows, and the partition."""
    moment = lateness.instant_of(table.window, catalog.event_time(table))
    columns: list[Column | str] = [*reconciled_columns(rows)]
    if table.kind.is_row_by_row:
        places = arrival_fields.places(rows, arrival_fields.POSITION)
        columns.append(F.concat_ws(":", *places).alias(ARRIVED))
    return [*columns, lateness.partition_of(moment, length).alias(PARTITION)]


def pairing(table: Table) -> list[str]:
    """Returns the columns that pair the rows of two versions."""
    return [WINDOW, *table.keys] if table.window else [ARRIVED]


def _answered(asked: Mapping) -> Side:
    settings = from_environment()
    catalog = load(settings)
    _check_origin(asked["modules"], Path(asked["folder"]))
    catalog.table(asked["table"])  # refused before a JVM starts
    with spark_session.opened(settings, f"diff {asked['table']}") as spark:
        span = parse_range(asked["start"], asked["end"])
        session, place = Session(settings, catalog, spark), Path(asked["place"])
        return write(session, asked["table"], span, asked["partition_by"], place)


def _check_origin(modules: Sequence[str], folder: Path) -> None:
    """Refuses a module that the other code does not have: it would be imported from the present code, so nothing would differ."""
    for module in modules:
        if not Path(sys.modules[module].__file__ or "").resolve().is_relative_to(folder):
            raise UnknownTable(
                f"module={module}: the other code does not have this module; name code that has it"
            )


def main() -> None:
    """Writes the answer that `other_code` waits for to a file: the Side, or the reason of a refusal."""
    asked = json.loads(sys.argv[1])
    try:
        answer = asdict(_answered(asked))
    except LakehouseError as err:
        answer = {"refused": str(err)}
    Path(asked["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
