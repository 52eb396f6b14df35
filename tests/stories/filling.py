"""A stage that puts clicks into the sources of `sources`, and what must be in an ingest table then.

Folders, tables of others and sources of one's own are filled for real, and the ingest table's query
reads them. Topics are left out, as in any stage: their values are those that a producer sends.
"""

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.stream.reading.registry import check
from lakehouse.testing import Stage, Value
from stories import lots, others, tally
from stories.sources import CUT, THERE
from support import schema_registry as registry


def _nothing() -> None:
    """Nobody does anything to the source."""


class Filling(Stage):
    """A stage whose `feed` puts clicks into the source of its ingest table, as its kind has them."""

    def __init__(
        self, spark: SparkSession, root: Path, *modules: ModuleType, **settings: Any
    ) -> None:
        self._serving = registry.served()  # it answers as long as this is kept
        known = self._serving.__enter__()
        for number, avro in lots.AVRO.items():
            known.register(number, avro)
        for number, protobuf in lots.PROTOBUF.items():
            known.register(number, protobuf, schemaType="PROTOBUF")
        super().__init__(spark, root, *modules, registry={"url": known.url}, **settings)
        self._begin()

    def copied(self, root: Path) -> "Filling":
        other = cast(Filling, super().copied(root))
        other._begin()
        return other

    def _begin(self) -> None:
        # of each partition of a source, by offset, whether there is a record for a row
        self.put: dict[tuple[str, int], list[bool]] = defaultdict(list)
        self.good: Counter[tuple[str, int, int | None]] = Counter()
        self.lots = 0
        self.theirs: Any = None  # what the owner of a table of others does it with
        self._is_past = True  # of a history
        # what others do to the source while the query is down
        self._meanwhile: Callable[[], object] = _nothing
        for each in THERE.iterdir():
            shutil.rmtree(each)

    def feed(
        self,
        ingest_table: str,
        values: Iterable[Value | tuple[int, Value]],
        *,
        key: bytes | None = b"key",
        sent: datetime | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        source: str = "",
        abort_at: str | None = None,
    ) -> None:
        """Clicks as mappings; whatever else is given becomes something that is malformed in the source."""
        pairs = (each if isinstance(each, tuple) else (0, each) for each in values)
        lot: lots.Lot = [(p, each if isinstance(each, Mapping) else None) for p, each in pairs]
        self.lots += 1
        lots.FILL[ingest_table.removesuffix("_clicks")](self, ingest_table, lot, abort_at)

    def quiet(self, ingest_table: str, passed: timedelta) -> None:
        """As of any stage; while a history is read, event time does not go on."""
        if ingest_table != "history_clicks" or not self._is_past:
            super().quiet(ingest_table, passed)

    def send(
        self,
        ingest_table: str,
        sent: Sequence[tuple[int, Value]],
        source: str,
        abort_at: str | None,
    ) -> None:
        """Values as they are, into a topic or the history of one."""
        super().feed(ingest_table, sent, source=source, abort_at=abort_at)

    def cut(self, ingest_table: str) -> None:
        """The end of a history, as `History` notes it: the watermark is where the topic begins."""
        self._is_past = False
        self._without_rows(ingest_table, watermark=CUT)

    def read(
        self, ingest_table: str, abort_at: str | None, meanwhile: Callable[[], object] = _nothing
    ) -> None:
        """Has the ingest table read its source up to the present, in short steps or in one, written by Spark or without it.

        `meanwhile`: what others do to the source between the crash and the resume.
        """
        session, self._meanwhile = self.session, meanwhile
        most = 7 if self.lots % 2 else 1_000
        self.session = replace(
            session, settings=replace(session.settings, max_offsets_per_trigger=most)
        )
        try:
            self.run(ingest_table, abort_at=abort_at, by_spark=self.lots % 3 == 0)
        finally:
            self.session, self._meanwhile = session, _nothing
        self._now = datetime.now(UTC)  # its steps have the real time

    def _aborting(self, name: str, point: str) -> Callable[[str], None]:
        crash = super()._aborting(name, point)

        def reached(now: str) -> None:
            if now == point:
                self._meanwhile()
            crash(now)

        return reached

    def note(
        self, source: str, partition: int, click: lots.Click | None, *, counts: bool = True
    ) -> None:
        """That a click, or something malformed, is the next record; `counts`: whether it is to be a good row."""
        self.put[source, partition].append(True)
        if click is not None and counts:
            self.good[click["user"], lots.micros(click), click["value"]] += 1

    def note_none(self, source: str, partition: int) -> None:
        """That the next offset gives no row."""
        self.put[source, partition].append(False)


def assert_all_is_there(stage: Stage, ingest: str) -> None:
    """Each record is in the ingest table or its quarantine once, each click in the table as it was, and the counts agree."""
    assert isinstance(stage, Filling)
    if ingest == "delta_changes_clicks":
        others.assert_followed(stage, ingest)
        return
    table = stage.session.catalog.table(ingest)
    expected = {
        where: [offset for offset, gives_row in enumerate(put) if gives_row]
        for where, put in stage.put.items()
    }
    assert tally.stored_offsets(stage, ingest) == expected
    rows = stage.rows(ingest).select("user", F.unix_micros(table.event_time), "value").collect()
    assert Counter(map(tuple, rows)) == stage.good
    arrived = sum(c.arrived for c in stage.session.commit_log(table).by_stream())
    assert arrived == sum(map(len, expected.values())), f"{ingest}: arrived"
    if not stage.session.catalog.topics_of(table):
        for found in check(stage.session, table):
            assert (found.missing, found.doubled) == (0, 0), found
