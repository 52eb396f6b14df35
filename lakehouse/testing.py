"""The test kit: feed a table micro-batches, crash between commit points, resume, and ask for the reconciliation.

    def test_views(spark, tmp_path):
        stage = Stage(spark, tmp_path, my_tables)
        stage.feed("ad_events", [{"ad_id": "a", "event_type": "view", "event_time": "1767225600000"}])
        stage.advance("ad_events", {"ad_id": "a", "event_type": "view", "event_time": "1767225700000"})
        stage.run("campaign_views")
        assert_stream_equals_batch(stage, "campaign_views")

Real Spark, real Delta, the same code as in a streaming job; only the topic is left out: a fed row
enters the ingest table as a raw Kafka record of the partition and time that the test chooses.

`assert_exactly_once` tries a target of your own, and `assert_resettable` a source; they need no Spark.
"""

import base64
import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lakehouse.batch import compute, late_merge, reference_tables
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.columns import column_names
from lakehouse.declare.inputs.readers import SourceRecord
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.ranges import BEGINNING, EPOCH, Range
from lakehouse.reconcile import reconciliation
from lakehouse.runtime.resettable import assert_resettable as assert_resettable
from lakehouse.settings import Settings
from lakehouse.sinks.trial import assert_exactly_once as assert_exactly_once
from lakehouse.storage.disk.layout import Side
from lakehouse.storage.disk.root import copy_root
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import table_state
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.engines import ingest
from lakehouse.stream.micro_batch import BatchLog, stream_run
from lakehouse.stream.reading.raw_records import raw_records
from lakehouse.stream.reading.records import OF_HEADERS
from lakehouse.transform import creation
from lakehouse.transform.decoding import decode

COMMIT_POINTS = ("begin", "rows", "quarantine", "commit_log")
Value = Mapping[str, object] | bytes | str | SourceRecord | None
_ANY_KEY = b"key"


class Aborted(Exception):
    """The crash that a test asked for."""


class Stage:
    """A lakehouse in `root` holding the tables of `modules`, driven step by step."""

    def __init__(
        self, spark: SparkSession, root: Path, *modules: ModuleType, **settings: Any
    ) -> None:
        names = tuple(m.__name__ for m in modules)
        self.session = Session(
            Settings(root=root, tables=names, **settings), catalog_of(modules), spark
        )
        for table in self.session.catalog:
            if table.kind.is_reference:
                reference_tables.rebuild(self.session, table)
        catalog = self.session.catalog
        queries.prepare(self.session, [table for table in catalog if table.kind.is_streamed])
        for table in catalog:
            if table.kind.is_report:
                creation.create(self.session, table)
        # (table, commit point): how often it crashed there
        self.crashes: Counter[tuple[str, str]] = Counter()
        # how often a streaming query went on from where an earlier life of it had ended
        self.resumed = 0
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        self._batches: dict[str, int] = {}
        self._now = datetime(2030, 1, 1, tzinfo=UTC)

    def copied(self, root: Path) -> "Stage":
        """Returns a second stage, in a copy of this one's folder, that goes on from here: cheaper than a new one."""
        copy_root(self.session.settings, root)
        other = copy(self)
        other.session = replace(self.session, settings=replace(self.session.settings, root=root))
        for name in ("crashes", "_offsets", "_batches"):
            setattr(other, name, deepcopy(getattr(self, name)))
        return other

    def feed(
        self,
        ingest_table: str,
        values: Iterable[Value | tuple[int, Value]],
        *,
        key: bytes | None = _ANY_KEY,
        sent: datetime | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        source: str = "",
        abort_at: str | None = None,
    ) -> None:
        """Writes one micro-batch into an ingest table: of its input `source`, if it reads several topics.

        A value is a row (sent as JSON, or as a line of CSV), text or bytes as they are, or None (a tombstone); a pair has
        its partition too, which is 0 by default. A `SourceRecord` has its own key. For a database's changes a value is a
        `change_event`, and its key is that of the row, as for a topic with `key=`, unless one is given. `sent` is the
        records' own timestamp, `headers` are those of each record, if some are read. With `abort_at` (one of
        COMMIT_POINTS) the batch crashes there, and the same batch is then resumed, as Spark would.
        """
        table = self.session.catalog.table(ingest_table)
        sources = self.session.catalog.sources_of(table)
        source = source or table.inputs[0]
        progress = self._offsets.setdefault(ingest_table, {})
        offsets = progress.setdefault(sources[source].address, {})
        rows: list[tuple] = []
        for value in values:
            partition, payload = value if isinstance(value, tuple) else (0, value)
            offsets[partition] = offsets.get(partition, 0) + 1
            own = _key(sources[source], payload, key)
            rows.append(
                (
                    own,
                    _payload(payload, sources[source]),
                    partition,
                    offsets[partition] - 1,
                    sent or self._now,
                )
            )
        columns = pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
            ]
        )
        if sources[source].headers:
            columns = columns.append(OF_HEADERS)
            rows = [(*row, [{"key": n, "value": v} for n, v in headers]) for row in rows]
        arrow = pa.Table.from_pylist(
            [dict(zip(columns.names, row, strict=True)) for row in rows], columns
        )
        records: DataFrame | pa.Table = arrow
        self._now += timedelta(seconds=1)
        log = BatchLog(
            BEGINNING,
            self._now,
            {t: {str(p): n for p, n in ends.items()} for t, ends in progress.items()},
        )
        batch_id = self._batches.get(ingest_table, 0)
        if batch_id % 2:  # one file, written without Spark
            log = replace(log, rows=len(rows))
        else:  # two files, written by Spark
            records = self.session.spark.createDataFrame(arrow).repartition(2)
        self._batches[ingest_table] = batch_id + 1
        run = stream_run(self.session, table_state.read(self.session, table))
        none = arrow.schema.empty_table()
        read = {name: records if name == source else none for name in sources}
        if abort_at:
            with suppress(Aborted):
                ingest.ingest_batch(
                    replace(run, reached=self._aborting(ingest_table, abort_at)),
                    raw_records(run, read),
                    batch_id,
                    log,
                )
            run = stream_run(self.session, table_state.read(self.session, table))
        ingest.ingest_batch(run, raw_records(run, read), batch_id, log)

    def advance(self, ingest_table: str, row: Value, *, source: str = "") -> None:
        """Moves the watermark of an ingest table to the event time of `row` less the delay, on every partition it has.

        If the table reads several topics, these are the partitions of its input `source`, and the least of
        all counts. With `watermark_by` time passes first, in which other values become idle.
        """
        table = self.session.catalog.table(ingest_table)
        read = self.session.catalog.sources_of(table)[source or table.inputs[0]]
        topic = read.address
        if table.watermark_by:
            self.wait(read.idle_timeout + timedelta(seconds=1))
        partitions = sorted(self._offsets.get(ingest_table, {}).get(topic) or [0])
        # the first raises the heads, the second carries the watermark that follows from them
        for _ in range(2):
            self.feed(ingest_table, [(p, row) for p in partitions], source=source)

    def quiet(self, ingest_table: str, passed: timedelta) -> None:
        """Records in an ingest table that its topics were silent this long, so that event time goes on (`quiet_timeout`)."""
        self._now += passed
        self._without_rows(ingest_table, quiet=passed)

    def _without_rows(
        self, ingest_table: str, watermark: datetime = BEGINNING, quiet: timedelta | None = None
    ) -> None:
        """Commits a micro-batch of an ingest table that moves its watermark and has no rows."""
        table = self.session.catalog.table(ingest_table)
        ends = {
            topic: {str(p): n for p, n in offsets.items()}
            for topic, offsets in self._offsets[ingest_table].items()
        }
        batch_id = self._batches[ingest_table]
        self._batches[ingest_table] = batch_id + 1
        none = self.session.spark.createDataFrame([], decode.KAFKA_SCHEMA)
        run = stream_run(self.session, table_state.read(self.session, table))
        log = BatchLog(watermark, self._now, ends, 0, quiet)
        read = raw_records(run, dict.fromkeys(run.plan.sources, none))
        ingest.ingest_batch(run, read, batch_id, log)

    def wait(self, time: timedelta) -> None:
        """Lets time pass at the broker: a partition without a message meanwhile is silent for that time."""
        self._now += time

    def refresh(self, reference_table: str) -> bool:
        """Computes a reference table again, as its job does, and returns True if it has other rows now.

        Rows that are fed from then on see these, if the table is declared with `refresh=`.
        """
        table = self.session.catalog.table(reference_table)
        return reference_tables.refresh(self.session, table) is not None

    def run(
        self,
        *tables: str,
        files_per_batch: int = 1_000,
        abort_at: str | None = None,
        by_spark: bool = False,
    ) -> None:
        """Runs streaming queries up to the present, each input commit cut into micro-batches of `files_per_batch` files.

        With `abort_at` each query crashes in its first micro-batch at that commit point, and is
        then resumed. With `by_spark` Spark also writes batches that are small enough to be written without it.
        """
        few = 0 if by_spark else self.session.settings.step_rows
        session = replace(
            self.session,
            settings=replace(
                self.session.settings, max_files_per_trigger=files_per_batch, step_rows=few
            ),
        )
        for name in tables:
            table = session.catalog.table(name)
            before = self._last_batch(name)
            if abort_at:
                try:
                    queries.start(
                        session, table, available_now=True, reached=self._aborting(name, abort_at)
                    ).awaitTermination()
                except (StreamingQueryException, StepFailed) as err:
                    if Aborted.__name__ not in str(err):
                        raise
            query = queries.start(session, table, available_now=True)
            query.awaitTermination()
            dropped = sum(
                o.numRowsDroppedByWatermark for p in query.recentProgress for o in p.stateOperators
            )
            assert not dropped, (
                f"{name}: Spark itself dropped {dropped} rows that the late filter had accepted"
            )
            self.resumed += before is not None and before != self._last_batch(name)
            if session.catalog.sources_of(table):
                self._go_on_behind(name)

    def _go_on_behind(self, ingest_table: str) -> None:
        """Makes the next feed follow what the query itself has read."""
        table = self.session.catalog.table(ingest_table)
        last = next(self.session.commit_log(table).by_stream(), None)
        if last is not None:
            self._batches[ingest_table] = last.batch + 1
            self._offsets[ingest_table] = {
                topic: {int(p): offset for p, offset in ends.items()}
                for topic, ends in last.inputs.items()
            }

    def _last_batch(self, name: str) -> tuple[int, int] | None:
        last = next(self.session.commit_log(self.session.catalog.table(name)).by_stream(), None)
        return (last.generation, last.batch) if last else None

    def _aborting(self, name: str, point: str) -> Callable[[str], None]:
        assert point in COMMIT_POINTS, f"abort_at={point!r}: one of {', '.join(COMMIT_POINTS)}"

        def reached(now: str) -> None:
            if now == point:
                self.crashes[name, point] += 1
                raise Aborted(point)

        return reached

    def sent(self, ingest_table: str) -> dict[int, int]:
        """Returns the number of messages fed to each partition of an ingest table that reads one topic."""
        (offsets,) = self._offsets[ingest_table].values()
        return dict(offsets)

    def rows(self, table: str, side: Side = "") -> DataFrame:
        """Returns the rows of a table or, with side='quarantine', those quarantined."""
        return self.session.read(self.session.catalog.table(table), side=side)

    def frontier(self, table: str) -> datetime | None:
        return frontier(self.session.settings, self.session.catalog.table(table))

    def backfill(self, table: str, span: Range) -> Commit:
        return compute.backfill(self.session, self.session.catalog.table(table), span)

    def update(self, table: str) -> list[Commit]:
        """Rewrites the closed partitions that late rows made dirty (`late="update"`)."""
        return late_merge.update(self.session, self.session.catalog.table(table))


class ChangeEvent(dict[str, object]):
    """A change as Debezium sends it (`change_event`)."""


def change_event(
    op: str, row: Mapping[str, object], *, position: int, sent: datetime, transaction: int = 0
) -> ChangeEvent:
    """Returns a change of a row in PostgreSQL, as Debezium sends it without its schema, to be fed.

        stage.feed("customer_log", [change_event("u", {"id": 1, "name": "Ann"}, position=7, sent=now)])

    :param op: "r" read when the connector began, "c" created, "u" updated, "d" deleted.
    :param row: after the change; before it, if the row is deleted.
    :param position: in the database's log (`lsn`).
    :param sent: when it was committed.
    :param transaction: its number.
    """
    values = {name: _as_sent(value) for name, value in row.items()}
    source = {
        "lsn": position,
        "ts_us": (sent - EPOCH) // timedelta(microseconds=1),
        "snapshot": str(op == "r").lower(),
        "txId": transaction,
    }
    side = "before" if op == "d" else "after"
    return ChangeEvent({"before": None, "after": None, "source": source, "op": op} | {side: values})


def assert_stream_equals_batch(stage: Stage, table: str, span: Range | None = None) -> Certificate:
    """Reconciles `span`, by default all closed partitions. Fails with the rows that differ, or if none was compared."""
    certificate = reconciliation.reconcile(stage.session, stage.session.catalog.table(table), span)
    shown = "\n".join(certificate.examples)
    assert certificate.verdict == "EQUAL", (
        f"{table} {certificate.verdict}: {certificate.detail}\n{shown}"
    )
    assert certificate.rows_recomputed > 0, (
        f"{table}: no row was compared; feed more rows, or advance event time"
    )
    return certificate


def _key(source: RecordSource, value: Value, given: bytes | None) -> bytes | None:
    if isinstance(value, SourceRecord):
        return value.key.encode() if isinstance(value.key, str) else value.key
    if isinstance(value, ChangeEvent):
        row = value["before" if value["op"] == "d" else "after"]
        assert isinstance(row, Mapping)
        return json.dumps({name: row[name] for name in source.keys}).encode()
    if given is _ANY_KEY and source.key and isinstance(value, Mapping):
        return str(value.get(source.key)).encode()
    return given


def _as_sent(value: object) -> object:
    """Returns a column's value as Debezium sends it; types that JSON lacks become text without loss."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):  # with a point it is no number's bytes
        return f"{value:f}" if "." in f"{value:f}" else f"{value:f}."
    return value


def _payload(value: Value, source: RecordSource) -> bytes | None:
    if isinstance(value, SourceRecord):
        value = value.value
    if isinstance(value, Mapping) and source.format == "csv":
        line = io.StringIO()
        fields = (value.get(name) for name in column_names(source.schema))
        null = next(iter(source.nulls), "")
        csv.writer(line).writerow([null if field is None else field for field in fields])
        return line.getvalue().rstrip("\r\n").encode()
    if isinstance(value, Mapping):
        return json.dumps(value, default=str).encode()
    return value.encode() if isinstance(value, str) else value
