"""The steps of a row table: its function over the rows that came."""

from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import refreshed
from lakehouse.batch.lookups import StepAnswers, StepLookups
from lakehouse.declare.columns import ORIGIN
from lakehouse.declare.windows import Duplicates
from lakehouse.ranges import BEGINNING, EPOCH, Range
from lakehouse.stream import late_counts
from lakehouse.stream.advance import Take
from lakehouse.stream.engines.table_steps import Due, InputRows, frames
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.prepared_steps import Few
from lakehouse.transform import lateness, observing
from lakehouse.transform.function_inputs import Inputs, VersionsSeen
from lakehouse.transform.lookups import Answers

_INSTANT = timedelta(microseconds=1)
_NEAR, _ANSWERS = "rows near", "answers to rows"  # inputs besides tables, whose names have no space


class RefreshedInputs:
    """The versions of refreshed reference tables that the rows of one step after another see."""

    def __init__(self, run: StreamRun) -> None:
        self.run = run
        # joined rows come when their join was possible, not in the order in which they arrived
        self.in_order = not run.session.catalog.follows_frontiers(run.table)
        self.after = EPOCH  # no row of the next step arrived before
        self.kept: dict[tuple[str, int], DataFrame] = {}

    def met(self, rows: InputRows) -> list[VersionsSeen]:
        """Returns which of the rows saw which versions (`refreshed.met`)."""
        session, table = self.run.session, self.run.table

        def arrived() -> refreshed.Bounds:
            if rows.here is None:
                return refreshed.arrival_bounds(rows.frame)
            return refreshed.few_arrival_bounds(rows.here.filter(pc.field(ORIGIN) == "stream"))

        by_versions = refreshed.met(session, table, arrived, after=self.after, read=self._read)
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
        driving = rows[run.plan.driving]
        answers = looked_up.of(_questions(run, driving), run.app(batch_id)) if looked_up else None
        met = refreshed_inputs.met(driving)
        note["inputs"] |= refreshed.seen(met)
        # other inputs are not observed on the way, and rows that are read several times would count as often
        observes = len(rows) == 1 and not answers and len(met) < 2

        def derived(inputs: Mapping[str, DataFrame], outcome: str | Observation) -> DataFrame:
            timed = {name: inputs[name] for name in rows}
            batch, near = timed.pop(run.plan.driving), inputs.get(_NEAR)
            given = Answers(inputs[_ANSWERS], answers.complete) if answers else None
            of_step = Inputs(batch, references, timed, near, given, met)
            return run.plan.derived(of_step, "stream", outcome if observes else None)

        def counts(passed: Mapping[str, Any]) -> dict[str, Any]:
            seen = late_counts.in_micros(passed) if observes else late_counts.counted(run, rows)
            return _furthest(run, start, log.inputs, by_frontiers, seen)

        if batch_id > run.committed:
            versions = tuple((each.since, *each.versions.items()) for each in met)
            few = _prepared_rows(run, rows, derived, answers, versions)
            # a join with an empty side reads no row, and counts none
            if few and (few.observed.get("arrived") or not observes):
                run.write(few, batch_id, lambda _: counts(few.observed), **note)
                return
        late_filter, inputs = Observation(), frames(rows)
        batch = inputs[run.plan.driving]
        if run.table.deduplicate:
            span = _near(run, driving, run.table.deduplicate)
            near = lateness.between(F.col(session.catalog.event_time(driving.table)), span)
            inputs[_NEAR] = session.read(driving.table).where(near)
        if answers:
            inputs[_ANSWERS] = answers.frame(session.spark)
        run.write(
            derived(inputs, late_filter),
            batch_id,
            lambda _: counts(run.plan.late_filter_counts(late_filter, batch) if observes else {}),
            rows=log.rows,
            **note,
        )

    return step, lambda offset: True, quiet_due


def _questions(run: StreamRun, rows: InputRows) -> pa.Table:
    """Returns the questions for the rows of a step (`Plan.questions`)."""
    name = run.plan.driving

    def questions(inputs: Mapping[str, DataFrame], *_: object) -> DataFrame:
        return run.plan.questions(rows.written_by_stream(inputs[name]), "stream")

    few = run.prepared.few(
        questions, lambda: {name: rows.here}, {name: rows.columns}, name="questions"
    )
    return few.rows if few else run.plan.questions(rows.frame, "stream").toArrow()


def _prepared_rows(
    run: StreamRun,
    rows: Mapping[str, InputRows],
    derived: Callable[[Mapping[str, DataFrame], str | Observation], DataFrame],
    answers: StepAnswers | None,
    versions: Hashable,
) -> Few | None:
    """Returns the rows of a small step by the prepared plan, if there is one. `versions`: those that its rows saw."""
    driving, duplicates = rows[run.plan.driving], run.table.deduplicate
    columns = {name: batch.columns for name, batch in rows.items()}
    if duplicates:
        columns[_NEAR] = driving.columns
    if answers:
        columns[_ANSWERS] = answers.columns

    def prepared(
        inputs: Mapping[str, DataFrame], _: object, outcome: str | Observation
    ) -> DataFrame:
        timed = {name: batch.written_by_stream(inputs[name]) for name, batch in rows.items()}
        return run.due(derived({**inputs, **timed}, outcome))

    def given() -> dict[str, pa.Table | None]:
        here = {name: batch.here for name, batch in rows.items()}
        if duplicates and driving.here is not None:
            span, most = _near(run, driving, duplicates), run.session.settings.step_rows
            here[_NEAR] = run.session.few_spanning(driving.table, span, driving.columns, most)
        return here | ({_ANSWERS: answers.rows} if answers else {})

    return run.prepared.few(
        prepared, given, columns, variant=(answers and answers.complete, versions)
    )


def _furthest(
    run: StreamRun, start: datetime, inputs: Mapping[str, Any], by_frontiers: bool, passed: dict
) -> dict[str, Any]:
    """Returns the counts of the late filter, with the frontier that follows for the table."""
    brought = passed.pop("watermark")
    furthest = start if by_frontiers or not brought else brought
    return passed | {"frontier": max(start, run.complete(inputs) or start, furthest)}


def _near(run: StreamRun, batch: InputRows, duplicates: Duplicates) -> Range:
    """Returns the event times among which duplicates of the batch's rows may be. Rows that arrived later do not count."""
    moment = run.session.catalog.event_time(batch.table)
    if batch.here is None:
        first, last = observing.only(batch.frame.agg(F.min(moment), F.max(moment)))
    else:
        first, last = pc.min_max(batch.here[moment]).as_py().values()
    if first is None:
        return Range(BEGINNING, BEGINNING + timedelta(1))
    return ranges.widened(Range(ranges.utc(first), ranges.utc(last) + _INSTANT), duplicates.within)
