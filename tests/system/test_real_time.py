"""Rows on a topic before their commit, on a real broker: sent, settled by what is committed, and read back after a crash."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, ingest_table, kafka, kafka_topic, row_table
from lakehouse.declare.catalog import catalog_of
from lakehouse.runtime import kafka_broker, kafka_client, kafka_topics
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_options import client_config
from lakehouse.storage.session import Session
from lakehouse.stream import queries, real_time
from lakehouse.stream.advance import StepFailed, StepLoop
from support.sensors_job import awaited

payment_topic = kafka(
    "real-payments", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT"
)


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("cents", min_value=1)])
def large_payments(payments: DataFrame) -> DataFrame:
    return payments.where("cents >= 100 OR cents < 1")


@row_table(
    layer="gold",
    publish=[kafka_topic("alerts", key=["n", "part"], partitions=2, latency="real-time")],
)
def alerts(large_payments: DataFrame) -> DataFrame:
    """Two rows of each payment, so that a record has several."""
    part = F.explode(F.array(F.lit("a"), F.lit("b"))).alias("part")
    return large_payments.select("n", "at", "cents", part)


class Pipeline:
    """The queries of the three tables, in this process, whose ingest table can be held before it writes."""

    def __init__(self, session: Session) -> None:
        self.session, self.loops = session, list[StepLoop]()
        self.may_write, self.crashes = threading.Event(), False
        self.may_write.set()
        self._producer = Producer(client_config(session.settings))

    def start(self) -> None:
        for table in self.session.catalog:
            reached = self._reached if table.name == "payments" else lambda point: None
            loop = queries.start(self.session, table, reached=reached)
            assert isinstance(loop, StepLoop)
            self.loops.append(loop)

    def stop(self) -> None:
        self.may_write.set()
        for loop in self.loops:
            loop.stop()
        self.loops = []

    def pay(self, n: int, second: int, cents: int) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
        value = json.dumps({"n": n, "at": at.isoformat(), "cents": cents})
        self._producer.produce("real-payments", value, partition=0)
        assert self._producer.flush(30) == 0

    def committed(self) -> list[int]:
        """The payments of which the table has rows."""
        rows = self.session.read(self.session.catalog.table("alerts")).select("n").distinct()
        return sorted(row.n for row in rows.collect())

    def messages(self) -> dict[str, list[tuple[int, str] | None]]:
        """The messages that were sent, by their ids, in their order; None for a retraction."""
        consumer = kafka_client.consumer(self.session.settings, "test")
        by_id: dict[str, list[tuple[int, str] | None]] = {}
        with closing(consumer):
            consumer.assign(
                [TopicPartition("alerts.real-time", p, OFFSET_BEGINNING) for p in (0, 1)]
            )
            open_partitions = {0, 1}
            while open_partitions:
                for message in consumer.consume(1_000, 1):
                    if message.error() is not None:
                        open_partitions.discard(message.partition())
                        continue
                    value = message.value() and json.loads(message.value())
                    sent = by_id.setdefault(message.key().decode(), [])
                    sent.append((value["n"], value["part"]) if value else None)
        return by_id

    def _reached(self, point: str) -> None:
        if point == "begin":
            assert self.may_write.wait(120)
            if self.crashes:
                raise RuntimeError("a crash before the step writes")


@pytest.fixture
def pipeline(served, tmp_path, spark) -> Iterator[Pipeline]:
    settings = replace(
        served,
        root=tmp_path,
        tables=(__name__,),
        bootstrap_servers=bootstrap_servers(served),
    )
    kafka_broker.ensure_topics(settings, {"real-payments": 1})
    session = Session(settings, catalog_of([sys.modules[__name__]]), spark)
    queries.prepare(session, list(session.catalog))
    pipeline = Pipeline(session)
    pipeline.start()
    yield pipeline
    pipeline.stop()
    client, topics = kafka_topics.admin(settings), ["real-payments", "alerts.real-time"]
    for future in client.delete_topics(topics).values():
        future.result()
    awaited(lambda: not {*topics} & kafka_client.topics(settings), "the topics are gone", 60)


def hold_with_a_late_payment(pipeline: Pipeline) -> None:
    """Holds the step of payment 1, which closes the hour of payment 2. That one is sent, because it is not late yet."""
    pipeline.pay(0, 10, 100)
    awaited(lambda: pipeline.committed() == [0], "the table has a commit", 120)
    pipeline.may_write.clear()
    pipeline.pay(1, 3_700, 100)
    awaited(lambda: pipeline.loops[0].in_flight is not None, "its step has begun", 60)
    pipeline.pay(2, 20, 100)
    awaited(lambda: ids(2)[1] in pipeline.messages(), "it is sent early", 60)


def ids(offset: int) -> tuple[str, str]:
    return f"real-payments-0-{offset}-0", f"real-payments-0-{offset}-1"


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_are_sent_before_their_commit_and_settled_by_it(pipeline):
    pipeline.pay(0, 10, 100)
    awaited(lambda: pipeline.committed() == [0], "the table has a commit", 120)

    pipeline.may_write.clear()
    pipeline.pay(1, 11, 200)
    pipeline.pay(2, 12, 99)  # it is filtered
    pipeline.pay(3, 13, 0)  # it is quarantined
    pipeline.pay(4, 14, 300)
    early = {**dict.fromkeys(ids(1), 1), **dict.fromkeys(ids(4), 4)}
    awaited(lambda: pipeline.messages().keys() >= early.keys(), "rows are sent early", 60)
    assert pipeline.committed() == [0], "nothing of it is committed"

    pipeline.may_write.set()
    awaited(lambda: pipeline.committed() == [0, 1, 4], "they are committed", 60)
    pipeline.pay(5, 15, 100)
    awaited(lambda: pipeline.committed() == [0, 1, 4, 5], "the next ones, too", 60)
    sent = pipeline.messages()
    assert {key: sent[key] for key in early} == {
        key: [(n, "ab"[int(key[-1])])] for key, n in early.items()
    }, "each is sent once, and none is retracted"
    assert not sent.keys() & {*ids(2), *ids(3)}


@pytest.mark.slow
@pytest.mark.parallel
def test_a_row_that_is_late_after_all_is_retracted(pipeline):
    hold_with_a_late_payment(pipeline)
    pipeline.may_write.set()
    awaited(lambda: pipeline.committed() == [0, 1], "only the one in time is committed", 60)
    awaited(
        lambda: all(pipeline.messages()[key][-1] is None for key in ids(2)), "it is retracted", 60
    )
    sent = pipeline.messages()
    assert all(sent[key] == [(1, key_part)] for key, key_part in zip(ids(1), "ab", strict=True))


@pytest.mark.slow
@pytest.mark.parallel
def test_after_a_crash_open_messages_are_read_back_and_settled(pipeline):
    hold_with_a_late_payment(pipeline)
    pipeline.crashes = True
    pipeline.may_write.set()
    with pytest.raises(StepFailed, match="a crash"):
        pipeline.loops[0].awaitTermination(60)
    pipeline.stop()
    assert pipeline.committed() == [0]

    pipeline.crashes = False
    pipeline.start()
    awaited(lambda: 1 in pipeline.committed(), "the rows are committed by the next query", 120)
    pipeline.pay(3, 3_710, 100)
    awaited(lambda: 3 in pipeline.committed(), "and later ones", 60)
    committed = pipeline.committed()
    wanted = {n: {(n, "a"), (n, "b")} if n in committed else {None} for n in (1, 2, 3)}

    def newest() -> dict[int, set]:
        sent = pipeline.messages()
        return {n: {sent[key][-1] for key in ids(n) if key in sent} for n in wanted}

    awaited(lambda: newest() == wanted, "messages are as the table", 60)
    sent = pipeline.messages()
    assert all(len(sent[key]) == 1 for key in ids(1)), "what was read back is not sent again"


@pytest.mark.slow
@pytest.mark.parallel
def test_what_a_process_has_committed_and_not_settled_is_settled_by_the_next(pipeline, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(real_time._OpenRows, "settle", lambda *_: None)
        killed.setattr(real_time._OpenRows, "has_open", lambda rows, reached: rows.sends)
        killed.setattr(real_time._OpenRows, "sends", True, raising=False)
        hold_with_a_late_payment(pipeline)
        killed.setattr(real_time._OpenRows, "sends", False, raising=False)
        pipeline.may_write.set()
        pipeline.pay(3, 3_710, 100)
        awaited(lambda: pipeline.committed() == [0, 1, 3], "the late one is not committed", 60)
        pipeline.stop()
    assert pipeline.messages()[ids(2)[0]][-1] is not None, "nothing is settled yet"
    assert not pipeline.messages().keys() & {*ids(3)}, "and a row is not sent"
    pipeline.start()
    awaited(lambda: pipeline.messages().keys() >= {*ids(3)}, "the missing row is sent", 120)
    awaited(
        lambda: all(pipeline.messages()[key][-1] is None for key in ids(2)), "it is retracted", 60
    )
    assert all(len(pipeline.messages()[key]) == 1 for key in ids(1))
