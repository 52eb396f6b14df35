"""A folder or a table of others as the history of a topic, on a real broker: each row once, whatever becomes of the process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from confluent_kafka import Producer, TopicPartition
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.table import delta_table, folder, kafka, table, tumbling
from lakehouse.errors import CommitError, DeclarationError
from lakehouse.ranges import EPOCH
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage import begun_with
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.stream import history_steps, offsets, queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.history_steps import HistorySteps
from lakehouse.stream.topic_check import check
from lakehouse.testing import Aborted, Stage, assert_stream_equals_batch
from streaming_jobs import topic_commands
from support.sensors_job import awaited

START = datetime(2026, 1, 1, tzinfo=UTC)
CUT = 60  # the row from which on the topic has the rows, and the minute of its event time
STARTING = START + timedelta(minutes=CUT)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL"
OLD = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def events(event_topic: DataFrame) -> DataFrame:
    return event_topic


def per_ten_minutes(events: DataFrame) -> DataFrame:
    return events.groupBy("window").agg(F.count("*").alias("rows"), F.sum("n").alias("sum"))


def module_of(topic) -> ModuleType:
    module = ModuleType(__name__)
    module.event_topic = topic
    module.events = table(layer="bronze", event_time="at", delay="5 minutes")(events)
    module.per_ten_minutes = table(layer="gold", window=tumbling("10 minutes"))(per_ten_minutes)
    return module


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Settings]:
    settings = Settings(root=tmp_path_factory.mktemp("broker"), jars=from_environment().jars)
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    kafka_broker.stop(settings)


def line(n: int, minute: float | None = None) -> str:
    at = START + timedelta(minutes=n if minute is None else minute)
    return json.dumps({"n": n, "at": at.isoformat()})


def put(there: Path, name: str, *lines: str, age: float = 0) -> None:
    """A file of these lines, whose age decides when it is read."""
    there.mkdir(exist_ok=True)
    path = there / name
    path.with_suffix(".tmp").write_text("".join(f"{each}\n" for each in lines))
    os.utime(path.with_suffix(".tmp"), (START.timestamp() + 86_400 + age,) * 2)
    path.with_suffix(".tmp").rename(path)


def archive(there: Path) -> None:
    """The rows before the cut, the newest file first, and what overlaps with the topic; a line of them is none."""
    for number in range(6):
        rows = [line(n) for n in range(10 * number, 10 * number + 10)]
        put(there, f"{number}.json", *rows, *(["no JSON"] if number == 3 else []), age=-number)
    put(there, "overlap.json", *(line(n) for n in range(CUT, CUT + 5)), age=-9)


def send(served: Settings, topic: str, *sent: tuple[int, str, float]) -> None:
    """Messages as (partition, value, minute of the message)."""
    producer = Producer(client_config(served) | {"acks": "all", "log_level": "0"})
    for partition, value, minute in sent:
        at = round((START.timestamp() + 60 * minute) * 1000)
        producer.produce(topic, value, partition=partition, timestamp=at)
    assert producer.flush(30) == 0


def send_all(served: Settings, topic: str) -> None:
    """Rows from before the cut on, and one of before it that comes late."""
    kafka_broker.ensure_topics(served, {topic: 2}, OLD)
    send(served, topic, *((n % 2, line(n), n) for n in range(40, 120)))
    send(served, topic, (0, line(900, 30), 121), (1, line(121), 121), (0, line(120), 120))


def stage_on(spark, served: Settings, root: Path, topic, **more) -> Stage:
    how = {"bootstrap_servers": bootstrap_servers(served), "max_offsets_per_trigger": 25} | more
    return Stage(spark, root, module_of(topic), **how)


def crashing(stage: Stage, wanted: set[tuple[str, str]]) -> tuple[str, str]:
    """Runs the ingest table until it crashes at the first of these points, each of a phase."""
    ingest, holder, met = stage.session.catalog.table("events"), [], []

    def reached(point: str) -> None:
        awaited(lambda: bool(holder), "the query")
        if "offsets from" not in holder[0].in_flight[1]:
            return  # it finishes what a crash has left
        last = next(stage.session.commit_log(ingest).by_stream(), None)
        phase = "past" if holder[0]._past else "topic"
        if phase == "topic" and (last.watermark or EPOCH) < STARTING:
            phase = "cut"
        if (phase, point) in wanted:
            met.append((phase, point))
            raise Aborted(point)

    holder.append(queries.start(stage.session, ingest, available_now=True, reached=reached))
    assert isinstance(holder[0], HistorySteps)
    with pytest.raises(StepFailed, match="Aborted"):
        holder[0].awaitTermination()
    return met[0]


def found(stage: Stage, side: str = "") -> Counter:
    rows = stage.rows("events", side=side).select("_arrival.topic", "_arrival.watermark", "*")
    return Counter(tuple(row) for row in rows.drop("_arrival", "_origin", "_partition").collect())


@pytest.mark.slow
@pytest.mark.parallel
def test_history_cut_and_topic_through_crashes_at_each_point_have_each_row_once(
    spark, tmp_path, served, caplog
):
    there = tmp_path / "archive"
    archive(there)
    send_all(served, "crashed")
    history = folder(str(there), schema=SCHEMA, settle="0 seconds")
    topic = kafka("crashed", schema=SCHEMA, history=history, starting=STARTING)
    stage = stage_on(spark, served, tmp_path / "root", topic)
    wanted = {(phase, "rows") for phase in ("past", "cut", "topic")} | {("cut", "begin")}
    while wanted:
        met = crashing(stage, wanted)
        wanted.remove(met)
        if met in (("past", "rows"), ("topic", "rows")):
            stage.run("per_ten_minutes")
    stage.run("events", "per_ten_minutes")
    rows = stage.rows("events").select("n", "_arrival.topic", "_arrival.watermark").collect()
    assert sorted(row.n for row in rows) == list(range(122)), "each row once"
    of_history = [row for row in rows if row.topic == str(there)]
    assert sorted(row.n for row in of_history) == list(range(CUT))
    assert {row.watermark.timestamp() for row in of_history} == {0}, "none of them could be late"
    of_topic = [row for row in rows if row.topic == "crashed"]
    assert min(row.watermark.timestamp() for row in of_topic) == STARTING.timestamp()
    bad = stage.rows("events", side="quarantine").groupBy("_arrival.topic", "reason").count()
    assert {tuple(row) for row in bad.collect()} == {
        (str(there), "not a JSON object of the declared types", 1),
        (str(there), "event time from 2026-01-01T01:00:00Z on, of which the topic has the rows", 5),
        ("crashed", "event time before 2026-01-01T01:00:00Z, of which the history has the rows", 6),
    }
    windows = stage.rows("per_ten_minutes").select("rows").collect()
    assert {row.rows for row in windows} == {10} and len(windows) == 11
    assert_stream_equals_batch(stage, "per_ten_minutes")
    session = stage.session
    checked = check(session, session.catalog.table("events"))
    assert [(each.topic, each.start, each.end) for each in checked] == [
        (str(there), 0, 66),
        ("crashed", 8, 42),
        ("crashed", 8, 41),
    ] or checked == [], checked
    assert not any(each.missing or each.doubled or each.examples for each in checked), checked
