"""The steps of a row table: its function over the rows that came."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import refreshed
from lakehouse.batch.lookups import StepLookups
from lakehouse.declare.windows import Duplicates
from lakehouse.ranges import BEGINNING, EPOCH, Range
from lakehouse.storage.session import Session
from lakehouse.stream import late_counts
from lakehouse.stream.advance import Take
from lakehouse.stream.engines.table_steps import Due, InputRows, frames
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.prepared_steps import Few
from lakehouse.transform import lateness, observing
from lakehouse.transform.function_inputs import Inputs, VersionsSeen

_INSTANT = timedelta(microseconds=1)


class RefreshedInputs:
    """The versions of refreshed reference tables that the rows of one step after another see."""

    def __init__(self, run: StreamRun) -> None:
        self.run = run
        # joined rows come when their join was possible, not in the order in which they arrived
        self.in_order = not run.session.catalog.follows_frontiers(run.table)
        self.after = EPOCH  # no row of the next step arrived before
        self.kept: dict[tuple[str, int], DataFrame] = {}

    def met(self, rows: DataFrame) -> list[VersionsSeen]:
        """Returns which of the rows saw which versions (`refreshed.met`)."""
        session, table = self.run.session, self.run.table
        by_versions = refreshed.met(session, table, lambda: rows, after=self.after, read=self._read)
        if by_versions and self.in_order:
            self.after = by_versions[0].since
        needed = {each for met in by_versions for each in met.versions.items()}
        for each in self.kept.keys() - needed:
            self.kept.pop(each).unpersist()
        return by_versions

    def _read(self, versions: Mapping[str, int]) -> Mapping[str, DataFrame]:
        for name, version in versions.items():
            if (name, version) not in self.kept:
                rows = self.run.session.references({name: version})[name]
                self.kept[name, version] = rows.persist()
        return {name: self.kept[name, version] for name, version in versions.items()}


def append_steps(run: StreamRun) -> tuple[Take, Due, Due]:
    session = run.session
    references = run.references()
    by_frontiers = session.catalog.follows_frontiers(run.table)
    looked_up = StepLookups(session, run.plan, run.service) if run.service else None
    refreshed_inputs = RefreshedInputs(run)

    def quiet_due(offset: Mapping[str, Any]) -> bool:
        complete = run.complete(offset)
        before = next(run.commit_log.by_stream(), None)
        return complete is not None and complete > run.frontier_after(before)

    prepares = not (
        run.table.deduplicate or looked_up or session.catalog.refreshed_inputs(run.table)
    )

    def step(rows: Mapping[str, InputRows], batch_id: int, log: BatchLog) -> None:
        before = run.commit_log.before(run.generation, batch_id)
        start = run.frontier_after(before)
        note: dict[str, Any] = {
            "watermark": start,
            "inputs": {"tables": log.inputs, "references": run.pinned},
        }
        if log.quiet is not None:
            ahead = max(start, run.complete(log.inputs) or start)
            run.skip(batch_id, before, frontier=ahead, **note)
            return
        furthest_of = partial(_furthest, run, start, log.inputs, by_frontiers)
        new = batch_id > run.committed
        if few := _prepared_rows(run, references, rows) if prepares and new else None:
            seen = late_counts.in_micros(few.observed) if few.observed else None
            run.write(
                few,
                batch_id,
                lambda _: furthest_of(seen or late_counts.counted(run, rows)),
                **note,
            )
            return
        timed = frames(rows)
        batch, late_filter = timed.pop(run.plan.driving), Observation()
        duplicates = run.table.deduplicate
        near = _near(session, run, batch, duplicates) if duplicates else None
        answers = looked_up.of(batch, run.app(batch_id)) if looked_up else None
        met = refreshed_inputs.met(batch)
        note["inputs"] |= refreshed.seen(met)
        # other inputs are not observed on the way, and rows that are read for several versions would count twice
        observed = None if timed or answers or len(met) > 1 else late_filter
        given = Inputs(batch, references, timed, near, answers, met)
        judged = run.plan.derived(given, "stream", observed)

        def counts(_: Mapping[str, Any]) -> dict[str, Any]:
            if observed is None:
                return furthest_of(late_counts.counted(run, rows))
            return furthest_of(
                late_counts.in_micros(run.plan.late_filter_counts(late_filter, batch))
            )

        run.write(judged, batch_id, counts, rows=log.rows, **note)

    return step, lambda offset: True, quiet_due


def _prepared_rows(
    run: StreamRun, references: Mapping[str, DataFrame], rows: Mapping[str, InputRows]
) -> Few | None:
    """Returns the rows of a small step by the prepared plan, if there is one."""
    alone = len(rows) == 1

    def prepared(
        inputs: Mapping[str, DataFrame], _: object, outcome: str | Observation
    ) -> DataFrame:
        timed = {name: batch.written_by_stream(inputs[name]) for name, batch in rows.items()}
        driving = timed.pop(run.plan.driving)
        observed = outcome if alone else None  # other inputs are not observed on the way
        return run.due(run.plan.derived(Inputs(driving, references, timed), "stream", observed))

    few = run.prepared.few(
        prepared,
        lambda: {name: batch.here for name, batch in rows.items()},
        {name: batch.columns for name, batch in rows.items()},
    )
    # a join with an empty side reads no row, and counts none
    return few if few and (few.observed.get("arrived") or not alone) else None


def _furthest(
    run: StreamRun, start: datetime, inputs: Mapping[str, Any], by_frontiers: bool, passed: dict
) -> dict[str, Any]:
    """Returns the counts of the late filter, with the frontier that follows for the table."""
    brought = passed.pop("watermark")
    furthest = start if by_frontiers or not brought else brought
    return passed | {"frontier": max(start, run.complete(inputs) or start, furthest)}


def _near(session: Session, run: StreamRun, batch: DataFrame, duplicates: Duplicates) -> DataFrame:
    """Returns the input's rows among which duplicates of the batch's rows may be.

    Rows that arrived after the batch do not count.
    """
    moment = session.catalog.event_time(session.catalog.table(run.plan.driving))
    first, last = observing.only(batch.agg(F.min(moment), F.max(moment)))
    span = (
        Range(ranges.utc(first), ranges.utc(last) + _INSTANT)
        if first
        else Range(BEGINNING, BEGINNING + timedelta(1))
    )
    within = lateness.between(F.col(moment), ranges.widened(span, duplicates.within))
    return session.read(session.catalog.table(run.plan.driving)).where(within)
