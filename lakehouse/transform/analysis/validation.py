"""Refusals and warnings about tables' functions, found on no rows: no broker is asked and nothing is made."""

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.declare.columns import REASON
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.sinks import base
from lakehouse.storage.session import Session
from lakehouse.transform import plan, versions
from lakehouse.transform.analysis import clocks, determinism
from lakehouse.transform.checks import quality


def check(session: Session, table: Table) -> None:
    """Raises DeclarationError if stream and batch may differ by the function or the expectations, which are compiled."""
    step = plan.plan_of(session, table)
    rows = step.on_no_rows()
    kind = table.kind
    if kind.has_late_rows or kind.is_upserted or kind.is_report:
        determinism.check(table, rows)
    elif table.deterministic:
        clocks.check(f"table={table.name}", rows)
    rules = step.rules
    if rules and table.deterministic:
        stored = session.spark.createDataFrame([], step.schema)
        judged = stored.select(quality.first_broken(rules).alias(REASON))
        clocks.check(f"table={table.name}, expectations", judged)


def refusal(session: Session, table: Table) -> str:
    """Returns why a start would refuse the table's function, expectations or targets; empty if it would not."""
    step = plan.plan_of(session, table)
    checks = (
        lambda: _check_targets(table, step.schema),
        lambda: check(session, table),
        lambda: step.rules,
    )
    remarks: list[str] = []
    failures: list[str] = []  # of Spark's: said last, for a remark is often their cause
    for make in checks:
        try:
            make()
        except LakehouseError as err:
            remarks += str(err).splitlines()
        except PySparkException as err:  # a column that is not there, say
            cause = str(err).splitlines()[0]
            failures.append(
                f"table={table.name}: its function, or one before it, cannot be run: {cause}"
            )
    return "\n".join(dict.fromkeys(remarks + failures))


def _check_targets(table: Table, stored: StructType) -> None:
    """Raises SinkError for a target that cannot hold the table's columns."""
    if not table.publish:
        return
    published = StructType([field for field in stored if field.name[0] != "_"])
    columns = to_arrow_schema(published, timezone="UTC")
    for target in table.publish:
        base.check_columns(table.name, target, columns)


def ties(session: Session, table: Table) -> list[str]:
    """Returns the expressions and operators of the table's function that choose any of several rows which tie."""
    return determinism.ties(plan.plan_of(session, table).on_no_rows())


def unended(session: Session, table: Table) -> str:
    """Returns a warning if a versioned table's function leaves out changes, which then do not end a version; else empty."""
    if not table.kind.keeps_versions:
        return ""
    step = plan.plan_of(session, table)
    # without the library's own filter of late rows
    rows = table(**{name: step.no_rows(name) for name in table.inputs})
    dropping = versions.dropping(rows, table.keys)
    if not dropping:
        return ""
    return (
        f"table={table.name}, operators={'; '.join(dropping)}: a change that is left out does not end the version before it, "
        f"which stays valid; keep all changes of {', '.join(table.keys)} and filter where the table is read, unless what it goes "
        "by is the same in all changes of a key"
    )
