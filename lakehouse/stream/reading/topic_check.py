"""Whether an ingest table and its quarantine have each record of their sources once, as far as topics still reach.

Without Spark: positions from the tables' files, messages from the broker, files from the register, records of a source of
one's own from its class. Offsets that a topic
cannot deliver (markers of transactions, what compaction removed) are not missing: where an offset
is not in the table the topic is read to see. Of changes of a database, what is no change is not missing either.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakehouse.declare.columns import ARRIVAL, PLACE
from lakehouse.declare.inputs.own_sources import PythonSource
from lakehouse.declare.inputs.sources import FilesSource, RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import BrokerError, RangeError
from lakehouse.runtime import kafka_client, kafka_topics
from lakehouse.runtime.kafka_options import client_config, isolated
from lakehouse.runtime.own_source import LOT, OwnReader
from lakehouse.settings import Settings
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.file_register import Register
from lakehouse.storage.foreign.foreign_records import PARTITION
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.stream.reading import offsets, readings
from lakehouse.stream.reading.records import file_sources
from lakehouse.stream.reading.topic_starts import is_history_read

if TYPE_CHECKING:
    import numpy as np

_WITHIN = 30.0  # seconds for the next message
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """One partition of a source: offsets `start` to `end` (exclusive), which a topic still has and the table has read."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int  # of these, in the table and its quarantine
    missing: int
    doubled: int
    passed_over: int  # tombstones and messages among the changes of a database
    # the first offsets missing or doubled; of a folder also files that are not read as they are; of changes of a database,
    # with its last partition, that its table was read again
    examples: str


def check(lakehouse: Lakehouse, table: Table) -> list[Checked]:
    """Each partition of the table's sources.

    Raises RangeError for other tables, SourceError, AccessError, BrokerError.
    """
    sources = lakehouse.catalog.sources_of(table).values()
    if not sources:
        raise RangeError(
            f"table={table.name}: a {table.kind} table has no topic; name an ingest table, which reads one"
        )
    last = next(CommitLog(lakehouse.settings, table).by_stream(), None)
    if last is None:
        raise RangeError(f"table={table.name}: it has read nothing yet; start its job")
    checked = [
        _checked_files(lakehouse.settings, table, each, last) for each in file_sources(sources)
    ]
    for each in sources:
        if isinstance(each, PythonSource):
            checked += _checked_own(lakehouse.settings, table, each, last)
    by_topic = {source.address: source for source in lakehouse.catalog.topics_of(table).values()}
    if not by_topic:
        return checked
    topics = sorted(by_topic)
    reading = isolated(lakehouse.settings, by_topic[topics[0]].isolation)
    on_broker = offsets.on_broker(kafka_topics.admin(reading), topics)
    offsets.check_ids(
        lakehouse.settings, table, {topic: each.id for topic, each in on_broker.items()}
    )
    known = offsets.known(lakehouse.settings, table)
    for topic in topics:
        read = {} if known.begins(topic, last) else last.inputs.get(topic, {})
        since = known.recreated.get(topic, (0, 0, ""))[2]
        stored = _stored(lakehouse.settings, table, topic, since)
        for partition, end in sorted(read.items(), key=lambda each: int(each[0])):
            begins = known.starts.get(topic, {}) if by_topic[topic].history else {}
            first = max(on_broker[topic].first.get(partition, 0), begins.get(partition, 0))
            start = min(first, end)
            own = stored.get(int(partition))
            checked.append(_checked(reading, by_topic[topic], int(partition), start, end, own))
        again = readings.again(*last.readings.get(topic, ("", "")))
        if read and again:
            examples = "; ".join(filter(None, (checked[-1].examples, again)))
            checked[-1] = replace(checked[-1], examples=examples)
    return checked


def _checked_files(
    settings: Settings,
    table: Table,
    source: FilesSource,
    last: Commit,
) -> Checked:
    """A folder or a table of others against the register, whose records have all been there."""
    import numpy as np

    end, topic = last.inputs.get(source.address, {}).get(PARTITION, 0), source.address
    register = Register(settings, table)
    files = foreign_sources.files_of(source, register)
    stored = _stored(settings, table, topic, "").get(int(PARTITION), np.empty(0, np.int64))
    expected = np.ones(end, bool)
    for gap in offsets.known(settings, table).gaps:
        if gap.topic == topic:
            expected[gap.since : gap.until] = False
    once, counts = np.unique(stored[stored < end], return_counts=True)
    expected[once] = False
    missing, doubled = np.flatnonzero(expected), once[counts > 1]

    def shown(number: int) -> str:
        if not register.knows(number):
            return f"{number} (record of a file that was forgotten)"
        file = register.of_record(number)
        return f"{number} (record {number - file.first + 1} of {file.path})"

    examples = _examples(missing, doubled, shown)
    if is_history_read(source, last):
        examples += filter(None, [files.look()])
    else:
        examples += foreign_sources.unread(files, end)
    return Checked(
        topic,
        int(PARTITION),
        0,
        end,
        len(stored),
        len(missing),
        len(doubled),
        0,
        "; ".join(examples),
    )


def _checked_own(
    settings: Settings, table: Table, source: PythonSource, last: Commit
) -> Iterator[Checked]:
    """A source of one's own, read once more from its first offsets on."""
    import numpy as np

    read = last.inputs.get(source.address, {})
    stored = _stored(settings, table, source.address, "")
    with closing(OwnReader(source)) as reader:
        begins = reader.begins(reader.ends())
        for partition, end in sorted(read.items(), key=lambda each: int(each[0])):
            start = min(begins.get(partition, 0), end)
            there = [
                offset
                for first in range(start, end, LOT)
                for offset, *_ in reader.records(partition, first, min(first + LOT, end))
            ]
            own = stored.get(int(partition), np.empty(0, np.int64))
            own = own[(own >= start) & (own < end)]
            once, counts = np.unique(own, return_counts=True)
            doubled = once[counts > 1]
            missing = np.setdiff1d(np.array(there, np.int64), once)
            examples = _examples(missing, doubled, str)
            counts_of = len(own), len(missing), len(doubled), 0
            yield Checked(
                source.address, int(partition), start, end, *counts_of, "; ".join(examples)
            )


def _checked(
    settings: Settings,
    source: RecordSource,
    partition: int,
    start: int,
    end: int,
    stored: "np.ndarray | None",
) -> Checked:
    import numpy as np

    stored = np.empty(0, dtype=np.int64) if stored is None else stored
    stored = stored[(stored >= start) & (stored < end)]
    once, counts = np.unique(stored, return_counts=True)
    doubled = once[counts > 1]
    absent = np.setdiff1d(np.arange(start, end), once, assume_unique=True)
    delivered = _delivered(settings, source.address, partition, absent) if len(absent) else {}
    passed_over = {o for o, no_change in delivered.items() if source.keys and no_change}
    missing = sorted(delivered.keys() - passed_over)
    examples = _examples(missing, doubled, str)
    counts_of = len(stored), len(missing), len(doubled), len(passed_over)
    return Checked(source.address, partition, start, end, *counts_of, "; ".join(examples))


def _examples(
    missing: "Sequence[int] | np.ndarray", doubled: "np.ndarray", shown: Callable[[int], str]
) -> list[str]:
    return [
        f"{name} {', '.join(shown(int(offset)) for offset in which[:_SHOWN])}"
        for name, which in (("missing", missing), ("doubled", doubled))
        if len(which)
    ]


def is_no_change(value: bytes | None) -> bool:
    """Whether a message of Debezium gives no row: a tombstone, or a message of somebody (`transform.decoding.changes`)."""
    try:
        envelope = {} if value is None else json.loads(value)
        return value is None or (envelope.get("payload") or envelope).get("op") == "m"
    except (ValueError, AttributeError):
        return False


def _stored(settings: Settings, table: Table, topic: str, since: str) -> dict[int, "np.ndarray"]:
    """Partition -> the offsets of the topic in the table and its quarantine: once each that is there with all of its rows.

    Those that arrived `since`, if that is given.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: dict[int, list[np.ndarray]] = {}
    for side in ("", "quarantine"):
        rows = open_table(table_path(settings, table, side)).to_pyarrow_dataset()
        has_place = rows.schema.field(ARRIVAL).type.get_field_index(PLACE) >= 0
        place = pc.field("_arrival", PLACE) if has_place else pc.scalar(0)
        columns = {
            name: pc.field("_arrival", name) for name in ("topic", "partition", "offset", "time")
        }
        columns[PLACE] = place
        for batch in rows.to_batches(columns=columns):
            ours = pc.equal(batch["topic"], topic)
            if since:
                ours = pc.and_(
                    ours, pc.greater_equal(batch["time"], pa.scalar(since).cast(batch["time"].type))
                )
            chosen = batch.filter(ours)
            for partition in pc.unique(chosen["partition"]).to_pylist():
                own = chosen.filter(pc.equal(chosen["partition"], partition))
                places = [own[name].to_numpy(zero_copy_only=False) for name in ("offset", PLACE)]
                parts.setdefault(partition, []).append(np.stack(places))
    return {partition: _whole(np.concatenate(each, axis=1)) for partition, each in parts.items()}


def _whole(places: "np.ndarray") -> "np.ndarray":
    """The offsets (first line) of rows at places in messages (second line): none of a message that lacks one before its last."""
    import numpy as np

    offsets, in_message = places
    if not in_message.any():
        return offsets
    once, counts = np.unique(places, axis=1, return_counts=True)
    of_message, first, rows = np.unique(once[0], return_index=True, return_counts=True)
    last = once[1][first + rows - 1]
    times = np.maximum.reduceat(counts, first)
    return np.repeat(of_message, np.where(last + 1 == rows, times, 0))


def _delivered(
    settings: Settings, topic: str, partition: int, absent: "np.ndarray"
) -> dict[int, bool]:
    """Which of the offsets the topic delivers, and whether that is no change of a database."""
    import numpy as np
    from confluent_kafka import Consumer, TopicPartition

    ranges = np.split(absent, np.flatnonzero(np.diff(absent) > 1) + 1)
    config = {"isolation.level": "read_uncommitted", **client_config(settings)}  # as Spark reads it
    own = {
        "group.id": "lakehouse-offsets",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": "0",
    }
    consumer = Consumer(config | own)
    try:
        delivered: dict[int, bool] = {}
        for each in ranges:
            first, end = int(each[0]), int(each[-1]) + 1
            consumer.assign([TopicPartition(topic, partition, first)])
            read = _read(consumer, topic, partition, end)
            delivered |= {o: is_no_change(value) for o, value in read if first <= o < end}
        return delivered
    finally:
        consumer.close()


def _read(consumer, topic: str, partition: int, end: int) -> Iterator[tuple[int, bytes | None]]:
    from confluent_kafka import KafkaError

    while True:
        message = consumer.poll(_WITHIN)
        error = message.error() if message else None
        if error and kafka_client.is_of_group(error):
            continue
        if error and error.code() == KafkaError._PARTITION_EOF:
            return
        what = f"topic={topic}, reading it"
        if error and (refused := kafka_client.denied(error, what, "READ on the topic")):
            raise refused
        if message is None or error:
            raise BrokerError(
                f"topic={topic}, partition={partition}: the next message must come within {_WITHIN:.0f} s and did not "
                f"({error or 'no answer'}); check that the broker runs, and run this again"
            )
        if message.offset() >= end:
            return
        yield message.offset(), message.value()
