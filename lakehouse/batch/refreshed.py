"""Refreshed reference tables as the rows of a run saw them: each row with the version in force when it arrived."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import ARRIVAL
from lakehouse.declare.table import Table
from lakehouse.ranges import EPOCH, utc
from lakehouse.storage.delta import delta_log
from lakehouse.storage.position import reference_versions
from lakehouse.storage.position.reference_versions import SEEN, InForce, NotKept
from lakehouse.storage.session import Session
from lakehouse.transform import observing
from lakehouse.transform.function_inputs import Met

References = Mapping[str, DataFrame]


def met(
    session: Session,
    table: Table,
    rows: Callable[[], DataFrame],
    *,
    after: datetime = EPOCH,
    read: Callable[[Mapping[str, int]], References] | None = None,
) -> list[Met]:
    """Which of the rows of its driving input saw which versions; empty if the table reads no refreshed reference table.

    `after`: none of the rows arrived before, if that is known. Where nothing was taken up since, they are not looked at.

    Raises NotKept for a version that cannot be read any more.
    """
    if not session.catalog.refreshed_inputs(table):
        return []
    spans = [
        each
        for each in reference_versions.of_table(session, table)
        if each.until is None or each.until > after
    ]
    if len(spans) > 1:
        first, last = observing.only(rows().agg(F.min(_arrived()), F.max(_arrived())))
        spans = [s for s in spans if s.among(utc(first), utc(last))] if first else spans[-1:]
    for each in spans:
        _check_kept(session, each.versions)
    read = read or (lambda versions: session.references(dict(versions)))
    return [
        Met(each.versions, read(each.versions), each.since, rows)
        for each, rows in zip(spans, _apart(spans), strict=True)
    ]


def seen(met: Sequence[Met]) -> dict[str, dict[str, list[int]]]:
    """What a commit notes of it, among its inputs."""
    names = {name for each in met for name in each.versions}
    versions = {name: sorted({each.versions[name] for each in met}) for name in sorted(names)}
    return {SEEN: versions} if met else {}


def _arrived() -> Column:
    """When a row arrived; of one that a join made without any, before all others."""
    return F.coalesce(F.col(f"{ARRIVAL}.time"), F.lit(EPOCH))


def _apart(spans: Sequence[InForce]) -> list[Column | None]:
    """Which rows are of each of the spans: every row is of one, also one before the first or behind the last."""
    if len(spans) == 1:
        return [None]
    first, last = (_arrived() < F.lit(spans[0].until)), (_arrived() >= F.lit(spans[-1].since))
    between = [(_arrived() >= F.lit(s.since)) & (_arrived() < F.lit(s.until)) for s in spans[1:-1]]
    return [first, *between, last]


def _check_kept(session: Session, versions: Mapping[str, int]) -> None:
    for name, version in versions.items():
        path = session.path(session.catalog.table(name))
        oldest, latest = delta_log.oldest(path), delta_log.latest(path)
        if not oldest <= version <= latest:
            raise NotKept(
                f"table={name}, version={version}: rows saw it when they arrived, and the table has versions {oldest} to "
                f"{latest}, so they cannot be computed as they were; keep more (LAKEHOUSE_VERSIONS, LAKEHOUSE_HISTORY)"
            )
