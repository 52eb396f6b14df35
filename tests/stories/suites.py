"""The tables that stories are told about, how a story is played on them, and what must hold of each in the end."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import ModuleType

from deltalake import DeltaTable
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from benchmarks import operators
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.table import Table
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import tables as sensors
from lakehouse.reconcile import reconciliation
from lakehouse.testing import Stage
from stories import marked, tally, windows
from stories.story import Event, Story, stories

# stories begin two hours later, at a midnight of Berlin before its clocks change
START = datetime(2026, 3, 28, 21, tzinfo=UTC)
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


@dataclass(frozen=True)
class Suite:
    """The tables of a module over one ingest table, and how an event becomes a message of its topic."""

    name: str
    module: ModuleType
    message: Callable[[Event], Mapping[str, object]]
    # each story chooses among these; none: it plays all that `always` names
    chosen: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    most: int = 3

    @cached_property
    def ingest(self) -> str:
        catalog = catalog_of([self.module])
        return next(t.name for t in catalog if catalog.topics_of(t))

    @property
    def stories(self) -> st.SearchStrategy[Story]:
        return stories(self.chosen, self.most)

    def tables_of(self, story: Story, catalog: Iterable[Table]) -> list[Table]:
        """Those that take part, inputs first: what the story chose, and what these read."""
        wanted = set(story.tables or self.chosen or self.always)
        known = list(catalog)
        for each in reversed(known):
            if each.name in wanted:
                wanted |= set(each.inputs)
        return [t for t in known if t.name in wanted and t.name != self.ingest]


SUITES = {
    suite.name: suite
    for suite in (
        Suite("sensors", sensors, reading, always=("valid_readings", "sensor_averages")),
        Suite("ads", ads, ad_event, always=("campaign_views",)),
        Suite("markers", marked, click, always=("by_ten_seconds", "marked_sessions")),
        Suite("windows", windows, click, always=("sliding_sums", "user_sessions", "shifted")),
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
                "keyed_of_keyed", "row_table", "windows_in_sql", "long_windows", "days_of_a_zone", "versioned_tables", "patterns",
                "repeated_patterns", "lasting_states", "looked_up", "expiring_keys", "final_keys",
            ),
        ),
    )
}  # fmt: skip


class Player:
    """Plays stories in one session: the tables of a suite are made once, and copied for each story."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.folder = Path(tempfile.mkdtemp(prefix="stories-"))
        self._empty: dict[ModuleType, Stage] = {}

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def empty(self, module: ModuleType) -> Stage:
        """A stage of the tables of a module, without a row, to be copied: to make tables and plans takes longer."""
        if module not in self._empty:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self._empty[module] = Stage(self.spark, folder, module)
        return self._empty[module]

    def play(self, suite: Suite, story: Story) -> Counter[str]:
        """Plays the story and asserts all that must hold; what occurred in it, and how many rows were compared."""
        root = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            return _played(self.empty(suite.module).copied(root), suite, story)
        finally:
            shutil.rmtree(root)


def _played(stage: Stage, suite: Suite, story: Story) -> Counter[str]:
    tables = [
        t
        for t in suite.tables_of(story, stage.session.catalog)
        if stage.session.catalog.kind(t) != "reference"
    ]
    names = [t.name for t in tables]
    refreshed = [t for t in suite.tables_of(story, stage.session.catalog) if t.refresh]
    first, last = story.crashes
    for number, batch in enumerate(story.batches, 1):
        stage.wait(timedelta(seconds=batch.silence))
        if batch.quiet:
            stage.quiet(suite.ingest, timedelta(seconds=batch.quiet))
        messages = [(e.partition, suite.message(e)) for e in batch.events]
        stage.feed(suite.ingest, messages + [(0, b"\xff junk")] * batch.junk, abort_at=batch.crash)
        for each in refreshed:  # what the rows of the next batch see
            stage.run(*each.inputs)
            stage.refresh(each.name)
        if number == story.early:
            stage.run(*names, files_per_batch=story.files, abort_at=first, by_spark=True)
    end = max((e.at for e in story.events), default=0)
    stage.advance(suite.ingest, suite.message(Event(end + _HOUR, 1, 0, 70)))
    if any(t.partition_by == "day" for t in tables):
        stage.advance(
            suite.ingest, suite.message(Event(end + int(_DAYS.total_seconds()), 1, 0, 70))
        )
    stage.run(*names, files_per_batch=story.files, abort_at=last)
    assert_every_offset_is_there_once(stage, suite.ingest)
    rows = sum(_agreeing(stage, table) for table in tables)
    return tally.occurred(stage, story, suite.ingest, names) + Counter({tally.COMPARED: rows})


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
    if not table.keeps and table.late != "update":
        assert_counts_add_up(stage, table)
    return certificate.rows_recomputed


def assert_every_offset_is_there_once(stage: Stage, ingest: str) -> None:
    """Of each partition the offsets from 0 on, each once, in the table and its quarantine together."""
    offsets: dict[int, list[int]] = {}
    for side in ("", "quarantine"):
        path = str(stage.session.path(stage.session.catalog.table(ingest), side))  # type: ignore[arg-type]
        for arrival in (
            DeltaTable(path).to_pyarrow_table(columns=["_arrival"])["_arrival"].to_pylist()
        ):
            offsets.setdefault(arrival["partition"], []).append(arrival["offset"])
    sent = stage.sent(ingest)
    assert {p: sorted(found) for p, found in offsets.items()} == {
        p: list(range(count)) for p, count in sent.items()
    }


def assert_counts_add_up(stage: Stage, table: Table) -> None:
    """Rows in = written + quarantined + late + filtered, each counted once however often its micro-batch was replayed."""
    inputs = stage.session.catalog.timed_inputs(table)
    commits = list(stage.session.commit_log(table).by_stream())
    if stage.session.catalog.kind(table) == "row" or table.window.kind in ("tumbling", "session"):
        there = sum(_rows(stage, each) for each in inputs)
        assert sum(c.arrived for c in commits) == there, f"{table.name}: arrived"
    assert sum(c.written for c in commits) == _rows(stage, table), f"{table.name}: written"
    assert sum(c.quarantined for c in commits) == _rows(stage, table, "quarantine"), (
        f"{table.name}: quarantined"
    )
    # a join or a process function may make several rows of one
    if stage.session.catalog.kind(table) == "row" and not table.context and not table.ttl:
        # of all commits together: a row that waits for the watermark is written by a later one than it arrived with
        assert sum(c.filtered for c in commits) >= 0, (
            f"{table.name}: more rows came out than went in"
        )
    if table.name == "valid_readings":  # every reading is valid or in quarantine
        assert all(c.filtered == 0 for c in commits), f"{table.name}: rows are missing"


def _rows(stage: Stage, table: Table, side: str = "") -> int:
    return DeltaTable(str(stage.session.path(table, side))).to_pyarrow_dataset().count_rows()  # type: ignore[arg-type]
