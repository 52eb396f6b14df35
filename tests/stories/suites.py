"""The tables that stories are told about, how a story is played on them, and what must hold of each in the end."""

import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

from deltalake import DeltaTable
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from benchmarks import operators
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import tables as sensors
from lakehouse.object_paths import ObjectPath
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.disk.files import remove_tree
from lakehouse.stream.strategy import strategy
from lakehouse.testing import Stage
from lakehouse.transform import ranges_of
from stories import held_back, marked, sources, tally
from stories.filling import Filling, assert_all_is_there
from stories.story import START, STARTS, Event, Story, stories
from support.deleted_logs import deleting_commit_logs

_ADS = tuple(
    line.partition(",")[0]
    for line in (Path(ads.__file__).parent / "ad_campaigns.csv").read_text().splitlines()[1:30]
)
_HOUR = 3700  # seconds that close the hour of an event, and what its delay takes of the next
_DAYS = timedelta(days=3)


def moment(event: Event) -> datetime:
    return START + timedelta(seconds=event.at)


def reading(event: Event) -> dict:
    return {
        "sensor_id": f"sensor-{event.key}",
        "event_time": moment(event).isoformat(),
        "temperature_f": event.value,
    }


def ad_event(event: Event) -> dict:
    """Two of three events of a key are views."""
    milliseconds = str(int(moment(event).timestamp() * 1000))
    kind = ("view", "view", "click")[(event.key + event.value) % 3]
    return {"ad_id": _ADS[event.value % len(_ADS)], "event_type": kind, "event_time": milliseconds}


def click(event: Event) -> dict:
    return {
        "id": event.at,
        "user": f"user-{event.key}",
        "at": moment(event).isoformat(),
        "value": event.value,
    }


def assert_every_offset_is_there_once(stage: Stage, ingest: str) -> None:
    """Of each partition the offsets from 0 on, each once, in the table and its quarantine together."""
    (source,) = stage.session.catalog.sources_of(stage.session.catalog.table(ingest)).values()
    assert tally.stored_offsets(stage, ingest) == {
        (source.address, p): list(range(count)) for p, count in stage.sent(ingest).items()
    }


@dataclass(frozen=True)
class Suite:
    """The tables of a module, and how an event becomes a message of the source that their ingest table reads."""

    name: str
    module: ModuleType
    message: Callable[[Event], Mapping[str, object]]
    # each story chooses among these, an ingest table with all that read it; none: it plays all that `always` names
    chosen: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    most: int = 3
    starts: tuple[datetime, ...] = STARTS  # of the event times of a story
    stage: type[Stage] = Stage  # whose `feed` puts messages into their source
    assert_complete: Callable[[Stage, str], None] = assert_every_offset_is_there_once

    @property
    def shown(self) -> tuple[str, ...]:
        """The tables of which some are to have rows in a run of many stories."""
        return self.chosen or self.always

    @property
    def stories(self) -> st.SearchStrategy[Story]:
        return stories(self.chosen, self.most, self.starts)

    def tables_of(self, story: Story, catalog: Catalog) -> list[Table]:
        """Those that take part, inputs first: what the story chose, and what these read."""
        wanted = set(story.tables or self.shown)
        known = list(catalog)
        for each in known:
            if each.name in wanted and catalog.sources_of(each):
                wanted |= set(catalog.downstream(each))
        for each in reversed(known):
            if each.name in wanted:
                wanted |= set(each.inputs)
        return [t for t in known if t.name in wanted]


SUITES = {
    suite.name: suite
    for suite in (
        Suite("sensors", sensors, reading, always=("valid_readings", "sensor_averages")),
        # milliseconds since 1970, and no negative ones
        Suite("ads", ads, ad_event, always=("campaign_views",), starts=(START,)),
        Suite("markers", marked, click, always=("by_ten_seconds", "marked_sessions")),
        Suite("windows", held_back, click, always=("sliding_sums", "user_sessions", "shifted")),
        Suite(
            "operators",
            operators,
            click,
            # sampled_from: who is named twice takes part twice as often; those that call Python or keep state are slow
            chosen=(
                "tumbling_windows", "sessions", "deduplicated", "interval_joins", "window_joins", "as_of_joins",
                "windows_of_windows", "joins_of_tables", "unions_of_tables", "rows_of_windows",
                "updated_windows", "sliding_windows", "ranks_in_windows",
                "count_windows", "sliding_count_windows", "keyed_tables", "refreshed_references", "unbounded_joins",
                "keyed_of_keyed", "single_rows", "windows_in_sql", "long_windows", "days_of_a_zone", "versioned_tables",
                "patterns", "repeated_patterns", "lasting_states", "looked_up", "expiring_keys", "final_keys",
                "merged_keys",
            ),
        ),
        Suite(
            "sources",
            sources,
            click,
            chosen=sources.INGEST,
            most=1,
            stage=Filling,
            assert_complete=assert_all_is_there,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grounds:
    """Folders for roots: `within` a folder of an object store, or on a disk."""

    within: ObjectPath | None = None

    def new(self) -> Path:
        if self.within is None:
            return Path(tempfile.mkdtemp(prefix="stories-"))
        return self.within / uuid.uuid4().hex[:12]


class Player:
    """Plays stories in one session: the tables of a suite are made once, and copied for each story."""

    def __init__(self, spark: SparkSession, grounds: Grounds = Grounds()) -> None:
        self.spark, self.grounds = spark, grounds
        # of roots in an object store: their caches
        self.local = Path(tempfile.mkdtemp(prefix="stories-"))
        self._empty: dict[tuple[ModuleType, bool], Stage] = {}

    def close(self) -> None:
        for stage in self._empty.values():
            remove_tree(stage.session.settings.root)
        remove_tree(self.local)

    def empty(self, module: ModuleType, kind: type[Stage] = Stage, *, early: bool = False) -> Stage:
        """A stage of the tables of a module, without a row, to be copied: to make tables and plans takes longer.

        `early`: whether its sources take event times of earlier centuries.
        """
        if (module, early) not in self._empty:
            stage = kind(self.spark, self.grounds.new(), module, local=self.local)
            if early:
                stage.session = replace(stage.session, catalog=_early(stage.session.catalog))
            self._empty[module, early] = stage
        return self._empty[module, early]

    def play(self, suite: Suite, story: Story) -> Counter[str]:
        """Plays the story and asserts all that must hold.

        Gives what occurred in it, which tables had rows, and how many rows were compared.
        """
        root = self.grounds.new()
        try:
            empty = self.empty(suite.module, suite.stage, early=story.is_early)
            stage = empty.copied(root)
            with deleting_commit_logs(stage.session.settings, story.deletes) as deleted:
                occurred = _played(stage, suite, story)
            return occurred + Counter({tally.DELETED: deleted[0] > 0})
        finally:
            remove_tree(root)


def _early(catalog: Catalog) -> Catalog:
    sources = {
        name: replace(source, min_event_time=datetime(1700, 1, 1, tzinfo=UTC))
        if isinstance(source, RecordSource)
        else source
        for name, source in catalog.sources.items()
    }
    return replace(catalog, sources=sources)


def _played(stage: Stage, suite: Suite, story: Story) -> Counter[str]:
    catalog = stage.session.catalog
    taking_part = suite.tables_of(story, catalog)
    (ingest,) = (t.name for t in taking_part if t.kind.reads_sources)
    tables = [t for t in taking_part if not (t.kind.reads_sources or t.kind.is_reference)]
    names = [t.name for t in tables]
    references = [t for t in taking_part if t.kind.is_reference]
    refreshed = [t for t in references if t.refresh]
    first, last = story.crashes
    # a history ends at an instant of its own
    shift = 0 if ingest == "history_clicks" else int((story.start - START).total_seconds())

    def message(event: Event) -> Mapping[str, object]:
        return suite.message(replace(event, at=event.at + shift))

    for number, batch in enumerate(story.batches, 1):
        stage.wait(timedelta(seconds=batch.silence))
        if batch.quiet:
            stage.quiet(ingest, timedelta(seconds=batch.quiet))
        messages = [(e.partition, message(e)) for e in batch.events]
        stage.feed(ingest, messages + [(0, b"\xff junk")] * batch.junk, abort_at=batch.crash)
        for each in refreshed:  # what the rows of the next batch see
            stage.run(*each.inputs)
            stage.refresh(each.name)
        if number == story.early:
            stage.run(*names, files_per_batch=story.files, abort_at=first, by_spark=True)
    end = max((e.at for e in story.events), default=0)
    stage.advance(ingest, message(Event(end + _HOUR, 1, 0, 70)))
    if any(t.partition_by == "day" for t in tables):
        stage.advance(ingest, message(Event(end + int(_DAYS.total_seconds()), 1, 0, 70)))
    stage.run(*names, files_per_batch=story.files, abort_at=last)
    # no further row: what the input closes all the same is there as well
    stage.quiet(ingest, timedelta(seconds=_HOUR))
    stage.run(*names, files_per_batch=story.files, abort_at=first)
    for table in tables:
        assert_as_far_as_its_input(stage, table, ingest)
    suite.assert_complete(stage, ingest)
    rows = {table.name: _agreeing(stage, table) for table in tables}
    engines = {
        f"filled by {strategy(stage.session, t)}" for t in taking_part if t not in references
    }
    early = [tally.EARLY] if shift else []
    seen = Counter([ingest, *(name for name, count in rows.items() if count), *engines, *early])
    return (
        tally.occurred(stage, story, ingest, names)
        + seen
        + Counter({tally.COMPARED: sum(rows.values())})
    )


def assert_as_far_as_its_input(stage: Stage, table: Table, ingest: str) -> None:
    """The table is complete up to where its ingest table is; Spark's queries know milliseconds."""
    reached, ahead = stage.frontier(table.name), stage.frontier(ingest)
    assert reached is not None and ahead is not None, f"{table.name}: frontier {reached}"
    if reached < ahead and table.partition_by == "day":
        # the input may go on by less than a day: where no window ends, a step has nothing to write
        ahead = ahead if ranges_of.closes(table, Range(reached, ahead)) else reached
    assert reached > ahead - table.after - timedelta(milliseconds=1), (
        f"{table.name}: complete up to {reached}, its input up to {ahead}"
    )


def _agreeing(stage: Stage, table: Table) -> int:
    """How many rows of the table were compared; fails with those that differ."""
    if table.late == "update":
        stage.update(table.name)
    inputs = stage.session.catalog.timed_inputs(table)
    if inputs and not any(_rows(stage, each) for each in inputs):
        assert not _rows(stage, table), f"{table.name}: rows of nothing"
        return 0  # a reconciliation would refuse: no row came, as behind windows that hold none
    certificate = reconciliation.reconcile(stage.session, table)
    shown = "\n".join(certificate.examples)
    assert certificate.verdict == "EQUAL", (
        f"{table.name} {certificate.verdict}: {certificate.detail}\n{shown}"
    )
    if not table.kind.is_upserted and table.late != "update":
        assert_counts_add_up(stage, table)
    return certificate.rows_recomputed


def assert_counts_add_up(stage: Stage, table: Table) -> None:
    """Rows in = written + quarantined + late + filtered, each counted once however often its micro-batch was replayed."""
    inputs = stage.session.catalog.timed_inputs(table)
    commits = list(stage.session.commit_log(table).by_stream())
    if table.kind.is_row_by_row or table.window.kind in ("tumbling", "session"):
        there = sum(_rows(stage, each) for each in inputs)
        assert sum(c.arrived for c in commits) == there, f"{table.name}: arrived"
    assert sum(c.written for c in commits) == _rows(stage, table), f"{table.name}: written"
    assert sum(c.quarantined for c in commits) == _rows(stage, table, "quarantine"), (
        f"{table.name}: quarantined"
    )
    # a join or a process function may make several rows of one
    if table.kind.is_row_by_row and not table.context and not table.ttl:
        # of all commits together: a row that waits for the watermark is written by a later one than it arrived with
        assert sum(c.filtered for c in commits) >= 0, (
            f"{table.name}: more rows came out than went in"
        )
    if table.name == "valid_readings":  # every reading is valid or in quarantine
        assert all(c.filtered == 0 for c in commits), f"{table.name}: rows are missing"


def _rows(stage: Stage, table: Table, side: str = "") -> int:
    return DeltaTable(str(stage.session.path(table, side))).to_pyarrow_dataset().count_rows()  # type: ignore[arg-type]
