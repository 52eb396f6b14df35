"""Refreshed reference tables as the rows of a run saw them: each row with the version in force when it arrived."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
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
from lakehouse.transform.function_inputs import VersionsSeen

References = Mapping[str, DataFrame]
Bounds = tuple[datetime | None, datetime | None]


def met(
    session: Session,
    table: Table,
    arrived: Callable[[], Bounds],
    *,
    after: datetime = EPOCH,
    read: Callable[[Mapping[str, int]], References] | None = None,
) -> list[VersionsSeen]:
    """Returns the versions that rows of the driving input saw; empty if the table reads no refreshed reference table.

    `arrived` returns when the first and the last of the rows arrived. `after` is an instant before which none of them did.
    If no version is newer, `arrived` is not called.
    Raises NotKept for a version that can no longer be read.
    """
    if not session.catalog.refreshed_inputs(table):
        return []
    spans = [
        in_force
        for in_force in reference_versions.of_table(session, table)
        if in_force.until is None or in_force.until > after
    ]
    if len(spans) > 1:
        first, last = arrived()
        spans = [s for s in spans if s.among(first, last)] if first and last else spans[-1:]
    for in_force in spans:
        _check_kept(session, in_force.versions)
    read = read or (lambda versions: session.references(dict(versions)))
    return [
        VersionsSeen(in_force.versions, read(in_force.versions), in_force.since, rows)
        for in_force, rows in zip(spans, _apart(spans), strict=True)
    ]


def seen(met: Sequence[VersionsSeen]) -> dict[str, dict[str, list[int]]]:
    """Returns the versions seen, as a commit records them among its inputs."""
    names = {name for versions_of in met for name in versions_of.versions}
    versions = {
        name: sorted({versions_of.versions[name] for versions_of in met}) for name in sorted(names)
    }
    return {SEEN: versions} if met else {}


def arrival_bounds(rows: DataFrame) -> Bounds:
    """Returns when the first and the last of the rows arrived; None if there are none."""
    first, last = observing.only(rows.agg(F.min(_arrived()), F.max(_arrived())))
    return first and utc(first), last and utc(last)


def few_arrival_bounds(rows: pa.Table) -> Bounds:
    """Returns the same as `arrival_bounds`, of rows in memory."""
    instants = pc.fill_null(pc.struct_field(rows[ARRIVAL], "time"), pa.scalar(EPOCH))
    bounds = pc.min_max(instants)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _arrived() -> Column:
    """Returns the time of a row's arrival; a joined row without one counts as the first."""
    return F.coalesce(F.col(f"{ARRIVAL}.time"), F.lit(EPOCH))


def _apart(spans: Sequence[InForce]) -> list[Column | None]:
    """Returns the conditions that assign each row to one span, also rows before the first span or after the last."""
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
                f"{latest}; keep more (LAKEHOUSE_VERSIONS, LAKEHOUSE_HISTORY)"
            )
