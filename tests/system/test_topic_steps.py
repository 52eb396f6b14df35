"""The steps of an ingest table on a real broker: what a range of offsets holds, however the broker hands it out."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions, NewTopic
from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.inputs.changes import changes
from lakehouse.errors import BrokerError, TopicError
from lakehouse.runtime import jars, kafka_address, kafka_broker, kafka_topics
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_options import client_config
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading import offsets, source_input, topic_reader, topics
from lakehouse.stream.reading.registry import check
from lakehouse.testing import change_event
from streaming_jobs.exporters.metrics import LakehouseCollector
from support import schema_registry as registry
from support.sensors_job import awaited

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL"

plain_topic = kafka("plain", schema=SCHEMA)
other_topic = kafka("other", schema=SCHEMA)
committed_topic = kafka("plain", schema=SCHEMA, isolation="read_committed")
marked_topic = kafka("marked", schema=SCHEMA, isolation="read_committed")
grown_topic = kafka("grown", schema=SCHEMA)
coded_topic = kafka("coded", schema=SCHEMA, format="avro")
change_topic = changes("changed", key="id", schema="id BIGINT")
large_topic = kafka("large", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL, text STRING")


traced_topic = kafka(
    "traced", schema=SCHEMA, framing="concatenated", metadata={"trace": "header:trace-id"}
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def traced(traced_topic: DataFrame) -> DataFrame:
    return traced_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def plain(plain_topic: DataFrame) -> DataFrame:
    return plain_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def committed(committed_topic: DataFrame) -> DataFrame:
    return committed_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def united(plain_topic: DataFrame, other_topic: DataFrame) -> DataFrame:
    return plain_topic.unionByName(other_topic)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def marked(marked_topic: DataFrame) -> DataFrame:
    return marked_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def grown(grown_topic: DataFrame) -> DataFrame:
    return grown_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def large(large_topic: DataFrame) -> DataFrame:
    return large_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def coded(coded_topic: DataFrame) -> DataFrame:
    return coded_topic


@ingest_table(layer="bronze", event_time="sent", delay="5 seconds")
def changed(change_topic: DataFrame) -> DataFrame:
    return change_topic


@pytest.fixture
def session(served, tmp_path, spark) -> Iterator[Session]:
    settings = replace(
        served,
        root=tmp_path,
        tables=(__name__,),
        step_rows=100,
        bootstrap_servers=bootstrap_servers(served),
    )
    session = Session(settings, catalog_of([HERE]), spark)
    queries.prepare(session, list(session.catalog))
    yield session
    client = kafka_topics.admin(settings)
    topics = [
        topic
        for topic in session.catalog.topics()
        if topic in client.list_topics(timeout=10).topics
    ]
    for future in client.delete_topics(topics).values() if topics else ():
        future.result()
    awaited(
        lambda: not set(topics) & set(client.list_topics(timeout=10).topics), "no topic is left"
    )


def send(session: Session, topic: str, numbers, partitions: int = 2, **config) -> None:
    """Message n to partition n modulo their number, n seconds of event time."""
    producer = Producer(
        client_config(session.settings) | {"acks": "all", "log_level": "0"} | config
    )
    transactional = "transactional.id" in config
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    for n in numbers:
        row = {"n": n, "at": (START + timedelta(seconds=n)).isoformat()}
        producer.produce(topic, json.dumps(row), b"key", partition=n % partitions)
        producer.poll(0)
    assert producer.flush(30) == 0
    if transactional:
        producer.commit_transaction(30)


def query(session: Session, name: str, **how):
    return queries.start(session, session.catalog.table(name), **how)


def numbers(session: Session, name: str) -> list[int]:
    return sorted(r.n for r in session.read(session.catalog.table(name)).select("n").collect())


def commits(session: Session, name: str) -> list:
    return list(CommitLog(session.settings, session.catalog.table(name)).by_stream())[::-1]


def all_once(session: Session, name: str) -> None:
    found = check(session, session.catalog.table(name))
    assert found and not any(each.missing or each.doubled for each in found), found


def test_short_ranges_are_handed_out_and_long_ones_read_by_spark(session, monkeypatch):
    read = []
    monkeypatch.setattr(
        topics.decode,
        "topic_rows",
        lambda *given, of=topics.decode.topic_rows: read.append(1) or of(*given),
    )
    kafka_broker.ensure_topics(session.settings, {"plain": 2, "other": 2})
    send(session, "plain", range(500))
    steps = query(session, "plain")
    try:
        steps.processAllAvailable()
        assert numbers(session, "plain") == list(range(500)) and read == [1], (
            "of 500 at once Spark reads"
        )
        for n in range(500, 506):
            send(session, "plain", [n])
            steps.processAllAvailable()
        assert numbers(session, "plain") == list(range(506)) and read == [1], (
            "of one at a time the broker's own are taken"
        )
        reports = [r for r in steps.recentProgress if r.batchId >= 0]
        assert sum(r.numInputRows for r in reports) == 506
        assert json.loads(reports[-1].sources[0].latestOffset) == {"plain": {"0": 253, "1": 253}}
    finally:
        steps.stop()
    all_once(session, "plain")
    made = commits(session, "plain")
    assert [c.arrived for c in made] == [500, *[1] * 6] and [c.batch for c in made] == list(
        range(7)
    )


def test_one_process_reads_a_topic_with_two_isolations(session):
    """Both by Spark, which keeps its consumers for the next step."""
    kafka_broker.ensure_topics(session.settings, {"plain": 2})
    for last in (500, 1_000):
        send(session, "plain", range(last - 500, last))
        for name in ("plain", "committed"):
            query(session, name, available_now=True).awaitTermination()
            assert numbers(session, name) == list(range(last))


def test_a_second_reading_of_a_database_is_remarked_also_by_the_next_life(session):
    kafka_broker.ensure_topics(session.settings, {"changed": 2})
    producer = Producer(client_config(session.settings) | {"log_level": "0"})

    def read(position: int) -> None:
        for n in range(2):
            event = change_event("r", {"id": n}, position=position, sent=START)
            producer.produce("changed", json.dumps(event), json.dumps({"id": n}), partition=n)
        assert producer.flush(30) == 0

    read(10)
    steps = query(session, "changed")
    try:
        steps.processAllAvailable()
        assert not steps.remark
        read(30)
        steps.processAllAvailable()
        assert (
            "table=changed, topic=changed: Debezium has read the database's table again"
            in steps.remark
        )
    finally:
        steps.stop()
    again = query(session, "changed")
    awaited(lambda: again.remark == steps.remark, "the remark")
    again.stop()
    first, last = check(session, session.catalog.table("changed"))
    assert not first.examples and "(first at 10/10, later at 30/30)" in last.examples
    assert (last.rows, last.missing, last.doubled) == (2, 0, 0)
    assert metric(session, "lakehouse_table_second_reading") == {"changed": 1}


def metric(session: Session, name: str) -> dict[str, float]:
    """By table."""
    families = LakehouseCollector(session.settings, session.catalog).collect()
    samples = (sample for family in families for sample in family.samples)
    return {each.labels["table"]: each.value for each in samples if each.name == name}


def test_a_step_takes_the_same_share_of_each_partition(session, monkeypatch):
    """Else those of a partition that is read later would be late only because of that."""
    kafka_broker.ensure_topics(session.settings, {"plain": 2, "other": 2})
    # one partition far ahead, as the broker hands it out first
    send(session, "plain", range(0, 200, 2))
    send(session, "plain", range(1, 200, 2))
    send(session, "other", range(200))
    few = replace(session, settings=replace(session.settings, max_offsets_per_trigger=80))
    query(few, "united", available_now=True).awaitTermination()
    made = commits(session, "united")
    assert len(made) == 5 and {c.arrived for c in made} == {80} and {c.late for c in made} == {0}
    assert made[0].inputs == {"plain": {"0": 20, "1": 20}, "other": {"0": 20, "1": 20}}
    all_once(session, "united")


def test_a_catch_up_of_many_steps_leaves_no_consumer_behind_for_each(session):
    """One holds what it has fetched ahead, tens of megabytes, and Spark keeps it for five minutes."""
    kafka_broker.ensure_topics(session.settings, {"plain": 2, "other": 2})
    send(session, "plain", range(600))
    jvm = psutil.Process(session.spark._jvm.java.lang.ProcessHandle.current().pid())
    port = int(session.settings.bootstrap_servers.rpartition(":")[2])

    def connections() -> int:
        return sum(bool(c.raddr) and c.raddr.port == port for c in jvm.net_connections())

    few = replace(session, settings=replace(session.settings, max_offsets_per_trigger=120))
    before = connections()
    query(few, "plain", available_now=True).awaitTermination()
    assert [c.arrived for c in commits(session, "plain")] == [120] * 5, "all read by Spark"
    # two for the consumer of each partition, none if one is there from before; one left behind by
    # each step would have ten and more
    assert connections() - before <= 4
    all_once(session, "plain")


def test_headers_and_objects_of_a_message_are_read_alike_by_short_and_long_steps(session):
    kafka_broker.ensure_topics(session.settings, {"traced": 2})
    producer = Producer(client_config(session.settings) | {"log_level": "0"})

    def send_traced(numbers: range) -> None:
        for n in numbers:
            two = "".join(json.dumps({"n": m, "at": START.isoformat()}) for m in (n, 1000 + n))
            headers = [("trace-id", b"before"), ("trace-id", f"t{n}".encode())] if n % 3 else None
            producer.produce("traced", two, headers=headers, partition=n % 2)
        assert producer.flush(30) == 0

    send_traced(range(120))  # more than a short step has
    query(session, "traced", available_now=True).awaitTermination()
    send_traced(range(120, 140))
    query(session, "traced", available_now=True).awaitTermination()
    assert [c.arrived for c in commits(session, "traced")] == [240, 40]
    rows = session.read(session.catalog.table("traced")).select("n", "trace", "_arrival.place")
    assert {tuple(row) for row in rows.collect()} == {
        (n + 1000 * place, f"t{n}" if n % 3 else None, place)
        for n in range(140)
        for place in (0, 1)
    }
    all_once(session, "traced")
    assert [each.rows for each in check(session, session.catalog.table("traced"))] == [70, 70]


@pytest.mark.slow
@pytest.mark.parallel
def test_marks_of_transactions_and_aborted_messages_are_passed_over(session):
    settings = session.settings
    kafka_broker.ensure_topics(settings, {"marked": 2})
    steps = query(session, "marked")
    try:
        for n in range(5):
            send(session, "marked", [2 * n, 2 * n + 1], **{"transactional.id": "whole"})
            steps.processAllAvailable()
        producer = Producer(
            client_config(settings) | {"transactional.id": "half", "log_level": "0"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for n in (100, 101):
            producer.produce(
                "marked", json.dumps({"n": n, "at": START.isoformat()}), b"key", partition=n % 2
            )
        producer.flush(30)
        send(session, "marked", [10, 11], **{"transactional.id": "whole"})
        steps.processAllAvailable()  # up to the transaction that is open
        assert numbers(session, "marked") == list(range(10))
        producer.abort_transaction(30)
        awaited(
            lambda: numbers(session, "marked") == list(range(12)),
            "what lies behind it, once it has ended",
        )
    finally:
        steps.stop()
    again = query(session, "marked", available_now=True)
    again.awaitTermination()
    assert numbers(session, "marked") == list(range(12))
    found = check(session, session.catalog.table("marked"))
    assert not any(each.missing or each.doubled for each in found)


def test_partitions_that_are_added_are_read_from_their_beginning(session, monkeypatch):
    monkeypatch.setattr(topics, "IDLE", 1.0)
    client = kafka_topics.admin(session.settings)
    client.create_topics([NewTopic("grown", 1, 1)])["grown"].result()
    steps = query(session, "grown")
    try:
        send(session, "grown", range(10), partitions=1)
        steps.processAllAvailable()
        client.create_partitions([NewPartitions("grown", 3)])["grown"].result()
        awaited(
            lambda: len(client.list_topics("grown", 10).topics["grown"].partitions) == 3,
            "three partitions",
        )
        send(session, "grown", range(10, 40), partitions=3)
        awaited(
            lambda: numbers(session, "grown") == list(range(40)),
            "messages of partitions that are new",
        )
    finally:
        steps.stop()
    all_once(session, "grown")


def test_more_bytes_than_are_held_are_read_by_spark(session, monkeypatch):
    monkeypatch.setattr(topic_reader, "_BYTES", 64 << 10)
    kafka_broker.ensure_topics(session.settings, {"large": 2})
    steps = query(session, "large")
    producer = Producer(client_config(session.settings) | {"log_level": "0"})
    try:
        for n in range(60):
            row = {"n": n, "at": (START + timedelta(seconds=n)).isoformat(), "text": "x" * 20_000}
            producer.produce("large", json.dumps(row), b"key", partition=n % 2)
        assert producer.flush(30) == 0
        steps.processAllAvailable()
        assert numbers(session, "large") == list(range(60))
    finally:
        steps.stop()
    all_once(session, "large")


def test_what_compaction_took_away_is_not_waited_for(session, monkeypatch):
    client = kafka_topics.admin(session.settings)
    quickly = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0"}
    client.create_topics([NewTopic("plain", 2, 1, config=quickly)])["plain"].result()
    for n in range(0, 40, 2):
        send(session, "plain", [n, n + 1])  # of one key: all but the last of each partition may go
        time.sleep(0.15)
    query(session, "plain", available_now=True).awaitTermination()
    found = numbers(session, "plain")
    assert found[-1] == 39 and commits(session, "plain")[-1].inputs == {"plain": {"0": 20, "1": 20}}
    all_once(session, "plain")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_broker_that_is_away_is_said_and_waited_for(session, served, capsys, monkeypatch):
    monkeypatch.setattr(kafka_topics, "_WITHIN", 2.0)
    monkeypatch.setattr(topics, "IDLE", 1.0)
    kafka_broker.ensure_topics(session.settings, {"plain": 2})
    send(session, "plain", range(10))
    steps = query(session, "plain")
    try:
        steps.processAllAvailable()
        os.kill(kafka_address.running(served).pid, signal.SIGKILL)
        awaited(lambda: "the broker must" in steps.trouble, "it notices")
        assert steps.isActive
        with pytest.raises(BrokerError):
            query(session, "plain", available_now=True)
        second = query(session, "plain")  # a start waits as well
        awaited(lambda: second.trouble, "it says so")
        second.stop()
        assert second.exception() is None
        kafka_broker.start(served, jars.resolve(served.jars))
        send(session, "plain", range(10, 20))
        awaited(lambda: numbers(session, "plain") == list(range(20)), "it goes on by itself")
        assert not steps.trouble and capsys.readouterr().err.count("it waits for the broker") >= 2
    finally:
        steps.stop()
    all_once(session, "plain")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_registry_is_waited_for_and_a_crashed_step_is_finished_by_what_it_had_answered(
    session, capsys
):
    """Rows of an id that was unknown are quarantined, also if it is known by the time at which that is written."""
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    schemas = {number: registry.record(("n", "long"), ("at", millis)) for number in (1, 2)}
    at = int(START.timestamp() * 1000)

    def send_coded(*pairs: tuple[int, int]) -> None:
        producer = Producer(client_config(session.settings) | {"acks": "all", "log_level": "0"})
        for number, n in pairs:
            producer.produce("coded", registry.avro(number, schemas[number], n, at + n * 1000))
        assert producer.flush(30) == 0

    def crash(point: str) -> None:
        if point == "rows":
            raise KeyboardInterrupt

    with registry.served() as known:
        known.register(1, schemas[1])
        known.away = True
        given = {"registry": {"url": known.url}, "step_rows": 5}
        session = replace(session, settings=replace(session.settings, **given))
        kafka_broker.ensure_topics(session.settings, {"coded": 2})
        send_coded((1, 0), (1, 1))
        steps = query(session, "coded")
        awaited(lambda: "/schemas/ids/1" in steps.trouble, "it says what it waits for")
        assert numbers(session, "coded") == [] and steps.isActive
        known.away = False
        awaited(lambda: numbers(session, "coded") == [0, 1], "it goes on by itself")
        steps.stop()
        assert "HTTP 503" in capsys.readouterr().err and not steps.trouble
        send_coded((1, 2), (2, 3), *((1, n) for n in range(4, 12)))  # more than a short step
        with pytest.raises(StepFailed):
            query(session, "coded", available_now=True, reached=crash).awaitTermination()
        known.register(2, schemas[2])
        send_coded((2, 12))
        query(session, "coded", available_now=True).awaitTermination()
    assert numbers(session, "coded") == [0, 1, 2, *range(4, 13)]
    (bad,) = session.read(session.catalog.table("coded"), side="quarantine").collect()
    assert bad.reason == "schema id=2: the registry does not know it"
    all_once(session, "coded")


def test_a_topic_that_ends_before_what_was_read_is_refused_after_a_while(
    session, monkeypatch, capsys
):
    monkeypatch.setattr(source_input, "_RECOVERED", 1.0)
    kafka_broker.ensure_topics(session.settings, {"plain": 2})
    send(session, "plain", range(10))
    query(session, "plain", available_now=True).awaitTermination()
    ends = offsets.ends
    monkeypatch.setattr(
        offsets, "ends", lambda *given: {"plain": {**ends(*given)["plain"], "1": 3}}
    )  # as it lost two of five
    steps = query(session, "plain")
    with pytest.raises(
        StepFailed, match="offset=5: the table has read up to there, and the topic ends with 3"
    ) as failed:
        steps.awaitTermination(60)
    assert isinstance(failed.value.__cause__, TopicError)
    assert "may still recover it" in capsys.readouterr().err
