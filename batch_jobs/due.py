"""The reconciliation of all that is due, table after table, as a schedule starts it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from batch_jobs import repair
from batch_jobs.repair import Repaired
from lakehouse.batch import batch_state
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.ranges import Range
from lakehouse.reconcile import coverage, reconciliation
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.disk.publish_lock import reconciling
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.log.reconcile_attempts import brief
from lakehouse.storage.session import Session


@dataclass(frozen=True, slots=True)
class Failed:
    """A table that failed or was refused, with the error. The other tables go on."""

    table: str
    detail: str
    verdict: None = None


Outcome = Certificate | Repaired | Failed
_Work = tuple[Callable[[Lakehouse, Table], object], Callable[[Session, Table], Iterator[Outcome]]]


@dataclass(frozen=True, slots=True)
class Known:
    """A range that was found DIFFERENT, by this run or before, and was not EQUAL since."""

    table: str
    span: Range


def tables(lakehouse: Lakehouse, name: str | None) -> list[Table]:
    """Returns the named table, or all that can be reconciled. Raises UnknownTable, and RangeError without a batch run."""
    if name is None:
        return coverage.reconcilable(lakehouse.catalog)
    table = lakehouse.catalog.table(name)
    if not table.kind.is_upserted:
        lakehouse.catalog.check_derived(table)
    return [table]


def check_repair(settings: Settings, asked: Sequence[Table]) -> None:
    """Raises SettingsError if nothing of these tables may ever be repaired without being named."""
    if not any(table.name in settings.repair and not table.kind.is_upserted for table in asked):
        raise SettingsError(
            f"repair={{}}, tables={', '.join(table.name for table in asked)}: --repair repairs what the setting `repair` allows, "
            "and it names none of these; set LAKEHOUSE_REPAIR__<TABLE>__PARTITIONS and LAKEHOUSE_REPAIR__<TABLE>__ROWS, or "
            "leave --repair out"
        )


def run(
    lakehouse: Lakehouse,
    asked: Sequence[Table],
    session: Callable[[], Session],
    *,
    repairs: bool = False,
) -> Iterator[Outcome]:
    """Reconciles what is due of each table, then repairs what the setting `repair` allows; yields each outcome.

    `session` is called only if there is work, and returns the same session each time.
    """
    works: list[_Work] = [(_is_due, _reconciled)]
    if repairs:
        works.append((repair.allowed, _repaired))
    for is_wanted, work in works:
        for table in asked:
            try:
                wanted = is_wanted(lakehouse, table)
            except Exception as err:
                yield _failed(table, err)
                continue
            if not wanted:
                continue
            opened = session()  # without Spark no table can be reconciled, so the run ends
            try:
                yield from work(opened, table)
            except Exception as err:
                yield _failed(table, err)


def differing(lakehouse: Lakehouse, asked: Iterable[Table]) -> list[Known]:
    """Returns the ranges of these tables that are known to differ."""
    outcomes = Verdicts(lakehouse.settings).now()
    names = [table.name for table in asked if table.name in outcomes]
    return [Known(n, Range(*span)) for n in names for span in sorted(outcomes[n].different)]


def exit_code(outcomes: Iterable[Outcome], known: Sequence[Known]) -> int:
    """Returns 1 if a range is known to differ, else 3 if a verdict is lacking, else 0."""
    lacking = any(each.verdict not in ("EQUAL", "DIFFERENT") for each in outcomes)
    return 1 if known else 3 if lacking else 0


def _is_due(lakehouse: Lakehouse, table: Table) -> bool:
    if coverage.without_frontier(lakehouse.settings, table):
        batch_state.closed_until(lakehouse, table)  # raises, with the remedy
    return bool(coverage.chosen(lakehouse, table).spans)


def _reconciled(session: Session, table: Table) -> Iterator[Certificate]:
    with reconciling(session.settings, table):
        # chosen again, for another process may have given verdicts meanwhile
        for span in coverage.chosen(session, table).spans:
            yield from reconciliation.reconcile_parts(session, table, span)


def _repaired(session: Session, table: Table) -> Iterator[Repaired]:
    return repair.run(session, table.name, unasked=True)


def _failed(table: Table, err: Exception) -> Failed:
    return Failed(table.name, str(err) if isinstance(err, LakehouseError) else brief(err))
