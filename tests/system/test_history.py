"""A folder or a table of others as the history of a topic, on a real broker: each row once, whatever becomes of the process."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from deltalake import DeltaTable, write_deltalake
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import delta_table, folder, ingest_table, kafka, tumbling, window_table
from lakehouse.errors import CommitError
from lakehouse.ranges import BEGINNING
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import kafka_broker, kafka_topics
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.lakehouse import load
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading.contract import Looks
from lakehouse.stream.reading.history import History
from lakehouse.stream.reading.registry import check
from lakehouse.testing import Aborted, Stage, assert_stream_equals_batch
from streaming_jobs.command_groups import topic_commands
from support import ROOT
from support.iceberg_shop import Shop
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
    module.events = ingest_table(layer="bronze", event_time="at", delay="5 minutes")(events)
    module.per_ten_minutes = window_table(layer="gold", window=tumbling("10 minutes"))(
        per_ten_minutes
    )
    return module


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
        phase = "past" if holder[0].input.reader.reads_history else "topic"
        if phase == "topic" and (last.watermark or BEGINNING) < STARTING:
            phase = "cut"
        if (phase, point) in wanted:
            met.append((phase, point))
            raise Aborted(point)

    holder.append(queries.start(stage.session, ingest, available_now=True, reached=reached))
    assert isinstance(holder[0].input.reader, History)
    with pytest.raises(StepFailed, match="Aborted"):
        holder[0].awaitTermination()
    return met[0]


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
def test_history_cut_and_topic_with_a_crash_in_each_have_each_row_once(spark, tmp_path, served):
    there = tmp_path / "archive"
    there.mkdir()
    send_all(served, "crashed")
    history = folder(str(there), schema=SCHEMA, settle="0 seconds")
    topic = kafka("crashed", schema=SCHEMA, history=history, starting=STARTING)
    stage = stage_on(spark, served, tmp_path / "root", topic)
    with pytest.raises(StepFailed, match="no file of the history is there, and a folder whose"):
        stage.run("events")
    (there / "torn.json.gz").write_bytes(gzip.compress(b"{}")[:-3])
    with pytest.raises(StepFailed, match=r"torn.json.gz: it is not read, since it is not whole"):
        stage.run("events")
    (there / "torn.json.gz").unlink()
    archive(there)
    wanted = {(phase, "rows") for phase in ("past", "cut", "topic")}
    while wanted:
        wanted.remove(crashing(stage, wanted))
        if len(wanted) == 2:
            stage.run("per_ten_minutes")
    stage.run("events", "per_ten_minutes")
    rows = stage.rows("events").select("n", "_arrival.topic", "_arrival.watermark").collect()
    assert sorted(row.n for row in rows) == list(range(122)), "each row once"
    of_history = [row for row in rows if row.topic == str(there)]
    assert sorted(row.n for row in of_history) == list(range(CUT))
    none_yet = {BEGINNING.timestamp()}
    assert {row.watermark.timestamp() for row in of_history} == none_yet, "none could be late"
    of_topic = [row for row in rows if row.topic == "crashed"]
    assert min(row.watermark.timestamp() for row in of_topic) == STARTING.timestamp()
    bad = stage.rows("events", side="quarantine").groupBy("_arrival.topic", "reason").count()
    assert {tuple(row) for row in bad.collect()} == {
        (
            str(there),
            "not a JSON object of the declared types: it is not JSON, at character 1 of 7",
            1,
        ),
        (str(there), "event time from 2026-01-01T01:00:00Z on, of which the topic has the rows", 5),
        ("crashed", "event time before 2026-01-01T01:00:00Z, of which the history has the rows", 6),
    }
    windows = stage.rows("per_ten_minutes").select("rows").collect()
    assert {row.rows for row in windows} == {10} and len(windows) > 6, "of both sides"
    assert_stream_equals_batch(stage, "per_ten_minutes")
    session = stage.session
    checked = check(session, session.catalog.table("events"))
    assert [(each.topic, each.start, each.end) for each in checked] == [
        (str(there), 0, 66),
        ("crashed", 8, 42),
        ("crashed", 7, 41),
    ]
    assert not any(each.missing or each.doubled or each.examples for each in checked), checked


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_of_others_before_a_topic_that_lost_messages_and_what_comes_afterwards(
    spark, tmp_path, served, monkeypatch
):
    there = tmp_path / "orders"
    for first in (0, CUT // 2):
        ns = range(first, first + CUT // 2)
        at = pa.array([START + timedelta(minutes=n) for n in ns], pa.timestamp("us", "UTC"))
        write_deltalake(str(there), pa.table({"n": [*ns], "at": at}), mode="append")
    kafka_broker.ensure_topics(served, {"short": 1}, OLD)
    send(served, "short", *((0, line(n), n) for n in range(50, 70)))
    client = kafka_topics.admin(replace(served, bootstrap_servers=bootstrap_servers(served)))
    for future in client.delete_records([TopicPartition("short", 0, 8)]).values():
        future.result()
    history = delta_table(str(there), schema=SCHEMA)
    topic = kafka("short", schema=SCHEMA, history=history, starting=STARTING)
    stage = stage_on(spark, served, tmp_path / "root", topic)
    session, ingest = stage.session, stage.session.catalog.table("events")
    with pytest.raises(CommitError, match=r"topic=short, partition=0, offset=8: the topic begins"):
        queries.start(session, ingest)
    monkeypatch.setattr(
        topic_commands, "_lock_job", lambda name: nullcontext((session, ingest, None))
    )
    topic_commands.accept_gap("events", yes=True)
    query = queries.start(session, ingest)
    query.processAllAvailable()
    assert sorted(row.n for row in stage.rows("events").select("n").collect()) == [*range(70)]
    query.input.reader.looks_back = Looks(0.0)
    write_deltalake(str(there), pa.table({"n": [0], "at": at[:1]}), mode="append")
    awaited(lambda: "version 2 (rows were added); it was read" in query.remark, "a remark")
    send(served, "short", (0, line(70), 70))
    query.processAllAvailable()
    query.stop()
    assert stage.rows("events").count() == 71
    of_table, of_topic = check(session, ingest)
    assert (of_table.rows, of_table.missing, of_table.doubled) == (60, 0, 0)
    assert "version 2 (rows were added)" in of_table.examples
    assert (of_topic.start, of_topic.rows, of_topic.missing, of_topic.doubled) == (8, 13, 0, 0)
    assert not of_topic.examples
    assert stage.rows("events", side="quarantine").count() == 2, "58 and 59, of the topic"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_of_others_without_a_row_is_a_history_and_one_of_other_types_is_refused(
    spark, tmp_path, served
):
    there = tmp_path / "orders"
    columns = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(str(there), columns)
    kafka_broker.ensure_topics(served, {"bare": 1}, OLD)
    send(served, "bare", *((0, line(n), n) for n in range(50, 70)))
    other = delta_table(str(there), schema="n INT NOT NULL, at TIMESTAMP NOT NULL")
    topic = kafka("bare", schema=other.schema, history=other, starting=STARTING)
    with pytest.raises(StepFailed, match="column=n: the schema has it as int, and in the Delta"):
        stage_on(spark, served, tmp_path / "other", topic).run("events")
    history = delta_table(str(there), schema=SCHEMA)
    topic = kafka("bare", schema=SCHEMA, history=history, starting=STARTING)
    stage = stage_on(spark, served, tmp_path / "root", topic)
    stage.run("events")
    rows = sorted(row.n for row in stage.rows("events").select("n").collect())
    assert rows == [*range(CUT, 70)]
    assert stage.frontier("events") > STARTING
    of_table, of_topic = check(stage.session, stage.session.catalog.table("events"))
    assert (of_table.rows, of_table.examples, of_topic.rows) == (0, "", 15), "from 55 on"


@pytest.mark.slow
@pytest.mark.parallel
def test_an_iceberg_table_before_a_topic_and_what_comes_afterwards(
    spark, tmp_path, served, monkeypatch
):
    columns = Schema(NestedField(1, "n", LongType()), NestedField(2, "at", TimestamptzType()))
    shop = Shop(tmp_path / "shop", columns)

    def append(*ns: int) -> None:
        rows = [{"n": n, "at": START + timedelta(minutes=n)} for n in ns]
        shop.table.append(pa.Table.from_pylist(rows, schema=shop.table.schema().as_arrow()))

    append(*range(CUT // 2, CUT + 2))
    append(*range(CUT // 2))
    kafka_broker.ensure_topics(served, {"iced": 1}, OLD)
    send(served, "iced", *((0, line(n), n) for n in range(50, 70)))
    topic = kafka("iced", schema=SCHEMA, history=shop.source(SCHEMA), starting=STARTING)
    stage = stage_on(spark, served, tmp_path / "root", topic)
    query = queries.start(stage.session, stage.session.catalog.table("events"))
    query.processAllAvailable()
    assert sorted(row.n for row in stage.rows("events").select("n").collect()) == [*range(70)]
    query.input.reader.looks_back = Looks(0.0)
    append(0)
    awaited(
        lambda: f"snapshot {shop.last()} (rows were added); it was read" in query.remark, "said"
    )
    query.stop()
    of_table, of_topic = check(stage.session, stage.session.catalog.table("events"))
    assert (of_table.rows, of_table.missing, of_table.doubled) == (CUT + 2, 0, 0)
    assert (of_topic.missing, of_topic.doubled) == (0, 0)


PAGE = (ROOT / "docs" / "how-to" / "topic-history.md").read_text()
FILES, ROWS = 120, 20  # of the history, and of each file
MESSAGES = 2_000


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
@pytest.mark.timeout(600)
def test_a_job_of_the_page_killed_in_the_history_at_the_cut_and_in_the_topic_has_each_row_once(
    spark, tmp_path, served, quick_jvm, monkeypatch
):
    archive, rows = tmp_path / "archive", FILES * ROWS
    (declared,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    head = "from pyspark.sql import DataFrame, functions as F\nfrom lakehouse import *\n"
    declared = declared.replace("/data/archive/page-views", str(archive))
    (tmp_path / "views_shop.py").write_text(head + declared)

    def view(n: int, seconds: float) -> str:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        return json.dumps({"user_id": str(n), "page": f"p{n % 3}", "at": at.isoformat()})

    shuffled = sorted(range(rows), key=lambda n: n * 7919 % rows)
    for number in range(FILES):
        own = shuffled[number * ROWS : (number + 1) * ROWS]
        put(archive, f"{number}.json", *(view(n, n - rows) for n in own))
    put(archive, "late.json", view(-1, 5))  # of the topic's time
    kafka_broker.ensure_topics(served, {"page-views": 4}, OLD)
    send(served, "page-views", *((n % 4, view(rows + n, n), n / 60) for n in range(-9, MESSAGES)))
    settings = replace(
        served,
        root=tmp_path / "root",
        tables=("views_shop",),
        bootstrap_servers=bootstrap_servers(served),
        spark_conf=quick_jvm,
        shuffle_partitions=1,
        max_offsets_per_trigger=400,
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | to_environment(settings) | {"PYTHONPATH": path}
    log = settings.root / "_commit_log" / "page_views.jsonl"

    def job() -> subprocess.Popen:
        command = [sys.executable, "-m", "streaming_jobs.driver", "views_shop"]
        return subprocess.Popen(command, env=environment, start_new_session=True)

    def commits() -> list[dict]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(each) for each in lines if not each.startswith("#")]

    def is_cut(commit: dict) -> bool:
        return commit["watermark"] >= "2026"

    phases = (
        lambda: sum(each["arrived"] for each in commits()) >= 800,
        lambda: any(map(is_cut, commits())),
        lambda: sum(is_cut(each) and each["arrived"] > 0 for each in commits()) >= 2,
    )
    killed = []
    for reached in phases:
        process = job()
        awaited(reached, "the phase", 240)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        killed.append(sum(each["arrived"] for each in commits()))
    assert killed[0] < rows <= killed[1] < killed[2] < rows + MESSAGES, "in each of the three"
    monkeypatch.syspath_prepend(tmp_path)
    session = Session(settings, load(settings).catalog, spark)
    for name in ("page_views", "views_per_hour"):
        table_of = session.catalog.table(name)
        queries.start(session, table_of, available_now=True).awaitTermination()
    stored = DeltaTable(str(settings.root / "bronze" / "page_views")).to_pyarrow_table()
    assert Counter(stored["user_id"].to_pylist()) == Counter(map(str, range(rows + MESSAGES)))
    of = Counter(arrival["topic"] for arrival in stored["_arrival"].to_pylist())
    assert of == {str(archive): rows, "page-views": MESSAGES}
    commands = re.findall(r"^lakehouse (.*?) +#", PAGE, re.MULTILINE)
    asked = {command: run(environment, command) for command in commands}
    assert set(asked) == {"table quarantine page_views", "topic check page_views"}
    assert "of which the topic has the rows" in asked["table quarantine page_views"]
    assert "of which the history has the rows" in asked["table quarantine page_views"]
    assert "missing" in asked["topic check page_views"], asked
    certificate = reconciliation.reconcile(session, table_of, None)
    assert certificate.verdict == "EQUAL" and certificate.rows_recomputed > 0, certificate


def run(environment: dict, command: str) -> str:
    program = [sys.executable, "-m", "lakehouse", *command.split()]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout
