"""Refusals and warnings about tables' functions, found on no rows: no broker is asked and nothing is made."""

from contextlib import closing

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.declare.columns import REASON
from lakehouse.declare.inputs.sources import PythonSource
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError, SettingsError, SourceAway, SourceError
from lakehouse.runtime.own_source import OwnReader
from lakehouse.sinks import column_check
from lakehouse.storage.session import Session
from lakehouse.transform import plan, versions
from lakehouse.transform.analysis import clocks, determinism
from lakehouse.transform.checks import quality
from lakehouse.transform.decoding import schemas


def check(session: Session, table: Table) -> None:
    """Raises DeclarationError if stream and batch may differ by the function or the expectations (`determinism`)."""
    step = plan.plan_of(session, table, judged=False)
    rows = plan.on_no_rows(session, step)
    if step.kind.has_late_rows:
        determinism.check(table, rows, row_preserving=step.kind.is_row_by_row)
    elif step.table.kind.is_upserted or step.kind.is_report:
        determinism.check_whole(table, rows)
    elif table.deterministic:
        clocks.check(f"table={table.name}", rows)
    if table.expectations and table.deterministic:
        stored = session.spark.createDataFrame([], plan.stored_schema(session, table))
        judged = stored.select(
            quality.first_broken(plan.plan_of(session, table).rules).alias(REASON)
        )
        clocks.check(f"table={table.name}, expectations", judged)


def refusal(session: Session, table: Table) -> str:
    """Returns why a start would refuse the table's function, expectations or targets; empty if it would not."""
    checks = (
        lambda: _check_targets(table, plan.stored_schema(session, table)),
        lambda: check(session, table),
        lambda: plan.plan_of(session, table),  # compiles the expectations
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
        column_check.check(table.name, target, columns)


def ties(session: Session, table: Table) -> list[str]:
    """Returns the expressions and operators of the table's function that choose any of several rows which tie."""
    rows = plan.on_no_rows(session, plan.plan_of(session, table, judged=False))
    return determinism.ties(rows)


def unended(session: Session, table: Table) -> str:
    """Returns a warning if a versioned table's function leaves out changes, which then do not end a version; else empty."""
    if not table.kind.keeps_versions:
        return ""
    # without the library's own filter of late rows
    rows = table(**{name: plan.no_rows(session, name) for name in table.inputs})
    dropping = versions.dropping(rows, table.keys)
    if not dropping:
        return ""
    return (
        f"table={table.name}, operators={'; '.join(dropping)}: a change that is left out does not end the version before it, "
        f"which stays valid; keep all changes of {', '.join(table.keys)} and filter where the table is read, unless what it goes "
        "by is the same in all changes of a key"
    )


def unreadable(session: Session, table: Table) -> list[str]:
    """Returns why the newest schemas of an ingest table's topics, or its Python source, cannot be read; empty if they can.

    Raises RegistryAway, SourceAway.
    """
    sources = session.catalog.sources_of(table).values()
    if wrong := [why for s in sources if isinstance(s, PythonSource) and (why := _wrong(table, s))]:
        return wrong
    topics = [topic for topic in session.catalog.topics_of(table).values() if topic.of_registry]
    try:
        return list(filter(None, (schemas.refusal(session, table, topic) for topic in topics)))
    except SettingsError as err:
        return [str(err)]


def _wrong(table: Table, source: PythonSource) -> str:
    """Returns the fault in the offsets of a source of your own; empty if they are right. Raises SourceAway."""
    try:
        with closing(OwnReader(source)) as reader:
            reader.begins(reader.ends())
    except SourceAway:
        raise
    except SourceError as err:
        return f"table={table.name}, {err}"
    return ""
