"""The rows of a row table on a topic before their commit: from record to message in milliseconds.

A thread beside the table's query reads the records that the table has not committed yet. One prepared plan makes rows of them,
through the ingest table and all row tables up to this one. Its record identifies a message, so that a reader notices a
repetition. What the table then commits decides: a row that is not among it is retracted, one that was not sent is sent.

The topic itself is the record of what was sent. A process that begins reads back the messages whose records are still open.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import InheritableThread
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from lakehouse.backoff import Backoff
from lakehouse.declare.columns import ARRIVAL, ORIGIN
from lakehouse.declare.table import Table
from lakehouse.errors import BrokerError, LakehouseError
from lakehouse.ranges import BEGINNING, EPOCH
from lakehouse.runtime import kafka_topics
from lakehouse.runtime.kafka_options import isolated
from lakehouse.runtime.prepared_plans import (
    Moment,
    NotPreparedError,
    PreparedPlan,
    is_in_one_process,
)
from lakehouse.sinks.formats.encoded import Columns
from lakehouse.sinks.targets.kafka import KafkaTopic
from lakehouse.sinks.targets.kafka_real_time import RealTimeTopic, Record
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit
from lakehouse.stream import positions
from lakehouse.stream.advance import LOOK, StepLoop
from lakehouse.stream.engines.table_steps import InputRows
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.stream.positions import Position
from lakehouse.stream.reading import offset_ranges, offsets
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.records import HELD, OF_HEADERS, dated
from lakehouse.stream.reading.topic_reader import TopicReader
from lakehouse.stream.reading.topic_starts import first_since
from lakehouse.transform.arrival_fields import POSITION
from lakehouse.transform.checks.judged_rows import good
from lakehouse.transform.function_inputs import Inputs
from lakehouse.transform.plan import plan_of

_log = logging.getLogger(__name__)

_OPEN = 100_000  # records whose rows were sent and are not committed: with more, sending waits for a commit
_REST = 3  # times the seconds of a run until the next one, so that the thread takes a fourth of a core at most
# messages of open records were sent within so long before the table's last commit: no step takes longer
_BACK = timedelta(hours=1)
# a process that is killed leaves no commit unsettled that is older
_UNSETTLED = timedelta(minutes=1)
_FILES = 100  # of the table that are read at once
_STOP = 10.0  # seconds
_RETRIES = Backoff(1, 60)


def senders(run: StreamRun) -> list["RealTimeSender"]:
    """Returns the senders of a table's targets that are declared with `latency="real-time"`."""
    targets = (target for target in run.table.publish if isinstance(target, KafkaTopic))
    return [RealTimeSender(run, target) for target in targets if target.real_time]


class RealTimeSender:
    """The thread of one target. Its failures hold nothing up: the target's follower sends each row after its commit."""

    def __init__(self, run: StreamRun, target: KafkaTopic) -> None:
        self.trouble = ""  # why rows are not sent before their commit now
        self._run, self._target = run, target
        self._rows: _OpenRows | None = None  # of the last call of `_send`
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._go_on, name=target.real_time, daemon=True)

    def start(self, loop: StepLoop) -> None:
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP)  # a broker that is away is waited for longer

    def _go_on(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._send()
            except NotPreparedError as err:
                self._say(f"its function has no prepared plan: {err}")
                return
            except Exception as err:
                if self._stopping.is_set():
                    return
                failures = failures + 1 if time.monotonic() - began < _RETRIES.longest else 1
                self._say(str(err) if isinstance(err, LakehouseError) else repr(err))
                self._stopping.wait(_RETRIES.after(failures))

    def _say(self, why: str) -> None:
        trouble = f"topic={self._target.real_time}: no row is sent before its commit: {why}"
        if trouble != self.trouble:
            _log.warning(f"table={self._run.table.name}, {trouble}")
        self.trouble = trouble

    def _send(self) -> None:
        """Sends rows until the query stops. What it raises ends that; the next call goes on from what was settled."""
        run, position = self._run, None
        driving = run.plan.driving
        with closing(_Computation(run)) as computation:
            rows = self._rows = _OpenRows(run, self._target, computation.reader(), self._rows)
            with closing(rows.topic), closing(computation.reader()) as reader:
                reader.place(rows.begins())
                self.trouble = ""
                while not self._stopping.is_set():
                    if self._loop.at is None:  # the query has not resumed yet
                        self._stopping.wait(LOOK)
                        continue
                    if position != self._loop.at[driving]:
                        position = self._loop.at[driving]
                        rows.settle(position.version)
                        if rows.lacks(reader.reached):
                            return  # a topic has more partitions now
                    if len(rows.open) > _OPEN:
                        self._stopping.wait(LOOK)
                        continue
                    reader.wait(LOOK)
                    rows.topic.check()
                    if reader.error:
                        raise BrokerError(f"the broker must hand out its records: {reader.error}")
                    if reader.has_news:
                        reader.gather(0)
                        started = time.monotonic()
                        records = reader.taken(reader.reached)
                        if rows.has_open(reader.reached):
                            rows.send(computation.rows_of(records))
                        self._stopping.wait(_REST * (time.monotonic() - started))


class _Computation:
    """The rows of a table made of records alone, by one prepared plan. Raises NotPreparedError."""

    def __init__(self, run: StreamRun) -> None:
        self._session, self._table = run.session, run.table
        if not is_in_one_process(str(run.session.spark.sparkContext.master)):
            raise NotPreparedError("the executors are other processes")
        [self._ingest] = run.session.catalog.ingest_tables_of(run.table)
        self._topics = run.session.catalog.topics_of(self._ingest)
        self._watermark, self._looked = BEGINNING, float("-inf")
        fields = {
            name: HELD.append(OF_HEADERS) if topic.headers else HELD
            for name, topic in self._topics.items()
        }
        moments = [Moment(run.session.spark), Moment(run.session.spark)]
        self._plan = PreparedPlan(
            run.session.spark,
            lambda records: self._rows(self._table, records, *moments),
            {name: from_arrow_schema(columns) for name, columns in fields.items()},
            moments,
        )

    def reader(self) -> TopicReader:
        """Returns a reader of the topics, which is at no place yet."""
        topics = list(self._topics.values())
        settings = isolated(self._session.settings, topics[0].isolation)  # all have the same
        headers = {topic.address for topic in topics if topic.headers}
        return TopicReader(settings, f"{self._table.name}-real-time", settings.step_rows, headers)

    def rows_of(self, records: Mapping[str, pa.Table]) -> pa.Table:
        """Returns the good rows of records, judged late by the ingest table's frontier."""
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            self._watermark = frontier(self._session.settings, self._ingest) or BEGINNING
        now = datetime.now(UTC)
        given = {name: dated(records[topic.address], now) for name, topic in self._topics.items()}
        return self._plan.run(given, [self._watermark, now])

    def close(self) -> None:
        self._plan.close()

    def _rows(
        self, table: Table, records: Mapping[str, DataFrame], watermark: Moment, at: Moment
    ) -> DataFrame:
        session, step = self._session, plan_of(self._session, table)
        if table.kind.reads_sources:
            return good(step.arrived(step.ingest(records), watermark, at))
        driving = self._rows(session.catalog.driving(table), records, watermark, at)
        pinned = session.catalog.pinned_inputs(table)
        versions = {t.name: delta_writer.version(session.path(t)) for t in pinned}
        references = {n: rows.persist() for n, rows in session.references(versions).items()}
        return good(step.derived(Inputs(driving, references), "stream"))


class _OpenRows:
    """The rows that were sent and are not committed yet, by their records."""

    def __init__(
        self, run: StreamRun, target: KafkaTopic, reader: TopicReader, before: "_OpenRows | None"
    ) -> None:
        self._run, self._target = run, target
        self.topic = RealTimeTopic(run.session.settings, target, run.table.name)
        self.open: dict[Record, list[tuple[str | None, int]]] = defaultdict(list)
        commit = _settled(run)
        # the records before are settled
        self.ends: Offsets = before.ends if before else _read_by(run, commit)
        begin = Position(commit.version + 1) if commit else positions.begins(self._path)
        self._at: Position = before._at if before else begin  # the table's next files
        with closing(reader):
            self._read_back(reader, commit.at - _BACK if commit else EPOCH)

    @property
    def _path(self) -> Path:
        return self._run.session.path(self._run.table)

    def begins(self) -> Offsets:
        """Returns the offset of the first open record of each partition."""
        [ingest] = self._run.session.catalog.ingest_tables_of(self._run.table)
        topics = self._run.session.catalog.topics([ingest])
        client = kafka_topics.admin(self._run.session.settings)
        return {
            topic: {p: self.ends.get(topic, {}).get(p, first) for p, first in of.first.items()}
            for topic, of in offsets.on_broker(client, topics).items()
        }

    def has_open(self, reached: Offsets) -> bool:
        """Returns True if there are records before these offsets that the table has not committed."""
        return any(
            offset > self.ends.get(topic, {}).get(partition, 0)
            for topic, partitions in reached.items()
            for partition, offset in partitions.items()
        )

    def lacks(self, reached: Offsets) -> bool:
        """Returns True if the table has read partitions that these offsets lack."""
        return any(parts.keys() - reached[topic].keys() for topic, parts in self.ends.items())

    def send(self, rows: pa.Table) -> None:
        """Sends the rows of open records that were not sent before."""
        made: dict[Record, list[tuple[str, int]]] = defaultdict(list)
        for record, value, place in self._messages(rows):
            if _is_open(record, self.ends):
                made[record].append((value, place))
        for record, messages in made.items():
            self._send_missing(record, messages)

    def settle(self, version: int) -> None:
        """Compares what was sent with what the table has: retracts what is not there, sends what was not sent.

        `version`: of the driving input, which the table has read up to it.
        """
        committed: dict[Record, list[tuple[str, int]]] = defaultdict(list)
        at = self._at
        while (piece := positions.following(self._path, at, _FILES)).end != at:
            at = piece.end
            if piece.files:
                for record, value, place in self._messages(self._committed(piece)):
                    committed[record].append((value, place))
        ends = _read_up_to(self._run, version)
        settled = {*committed, *(record for record in self.open if not _is_open(record, ends))}
        for record in settled:
            self._send_missing(record, committed[record])
            wanted = [value for value, _ in committed[record]]
            for number, (sent, partition) in enumerate(self.open.get(record, ())):
                if sent in wanted:
                    wanted.remove(sent)
                elif sent is not None:
                    self.topic.send(record, number, None, partition)
        self.topic.flush()  # what follows is not done again
        self.ends, self._at = ends, at
        for record in settled:
            self.open.pop(record, None)

    def _send_missing(self, record: Record, messages: list[tuple[str, int]]) -> None:
        sent = [value for value, _ in self.open.get(record, ())]
        for value, place in messages:
            if value in sent:
                sent.remove(value)
            else:
                self.topic.send(record, len(self.open[record]), value, place)
                self.open[record].append((value, place))

    def _messages(self, rows: pa.Table) -> Iterator[tuple[Record, str, int]]:
        """Yields the record, the value and the partition of the message for each row."""
        arrival = rows[ARRIVAL].combine_chunks()
        fields = (pc.struct_field(arrival, name).to_pylist() for name in POSITION)
        own = rows.select([name for name in rows.column_names if not name.startswith("_")])
        changes = Columns(["insert"] * len(own), own)
        return zip(
            zip(*fields, strict=True),
            changes.values(),
            self._target.places(changes),
            strict=True,
        )

    def _committed(self, piece: positions.Piece) -> pa.Table:
        rows = InputRows(self._run, self._run.table, piece.files)
        if rows.here is None:
            return rows.frame.toArrow()
        return rows.here.filter(pc.field(ORIGIN) == "stream")

    def _read_back(self, reader: TopicReader, since: datetime) -> None:
        """Reads the messages for open records that an earlier process has sent."""
        name = self._target.real_time
        client = kafka_topics.admin(self._run.session.settings)
        broker = offsets.on_broker(client, [name])[name]
        begins = first_since(client, name, broker, since)
        reader.place({name: begins})
        is_read = False
        while not is_read:
            reader.gather(LOOK)
            is_read = not offset_ranges.between(reader.reached, {name: broker.end})
            for message in reader.taken(reader.reached)[name].to_pylist():
                self._add_sent(message)

    def _add_sent(self, message: Mapping) -> None:
        record, number = self.topic.record_of(message["key"])
        if not _is_open(record, self.ends):
            return
        rows, value = self.open[record], message["value"]
        rows += [(None, 0)] * (number + 1 - len(rows))
        rows[number] = (value if value is None else value.decode(), message["partition"])


def _is_open(record: Record, ends: Offsets) -> bool:
    topic, partition, offset = record
    return offset >= ends.get(topic, {}).get(str(partition), 0)


def _settled(run: StreamRun) -> Commit | None:
    """Returns the table's first commit of its last minute: rows of later ones may not be settled yet."""
    commits = run.commit_log.by_stream()
    newest = first = next(commits, None)
    for commit in commits:
        if newest is None or newest.at - commit.at > _UNSETTLED:
            break
        first = commit
    return first


def _read_by(run: StreamRun, commit: Commit | None) -> Offsets:
    """Returns the offsets of the topics up to which the table had read at a commit of its stream."""
    driving = run.plan.driving
    version = commit.inputs["tables"][driving]["reservoirVersion"] if commit else 0
    return _read_up_to(run, version)


def _read_up_to(run: StreamRun, version: int) -> Offsets:
    """Returns the offsets of the topics that the driving input had read before its version."""
    catalog = run.session.catalog
    table = catalog.driving(run.table)
    while True:
        commits = run.session.commit_log(table).by_stream()
        commit = next((commit for commit in commits if commit.version < version), None)
        if commit is None:
            return {}
        if table.kind.reads_sources:
            return commit.inputs
        table = catalog.driving(table)
        version = commit.inputs["tables"][table.name]["reservoirVersion"]
