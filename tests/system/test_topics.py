"""An ingest table and its topic, on a real broker: crashes, tables put back, gaps, topics created again."""

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer, TopicPartition
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from typer.testing import CliRunner

from lakehouse import ingest_table, kafka
from lakehouse.cli import main
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import CommitError, TopicError
from lakehouse.runtime import jars, kafka_broker, kafka_topics
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading import offsets
from lakehouse.testing import COMMIT_POINTS, Aborted
from streaming_jobs import progress
from streaming_jobs.command_groups import views
from streaming_jobs.exporters import notifications
from streaming_jobs.progress import JobStatus, QueryStatus
from streaming_jobs.queries import SupervisedQuery
from support.sensors_job import awaited

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

sent_topic = kafka("sent", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")
lost_topic = kafka("lost", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")
kept_topic = kafka("kept", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")
again_topic = kafka("again", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def taken(sent_topic: DataFrame) -> DataFrame:
    return sent_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def taken_again(again_topic: DataFrame) -> DataFrame:
    return again_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def taken_on(lost_topic: DataFrame) -> DataFrame:
    return lost_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def taken_kept(kept_topic: DataFrame) -> DataFrame:
    return kept_topic


@pytest.fixture(scope="module")
def session(tmp_path_factory, spark) -> Iterator[Session]:
    root = tmp_path_factory.mktemp("topics")
    settings = Settings(root=root, jars=from_environment().jars, tables=(__name__,))
    kafka_broker.start(settings, jars.resolve(settings.jars))
    session = Session(settings, catalog_of([HERE]), spark)
    queries.prepare(session, list(session.catalog))
    yield session
    kafka_broker.stop(settings)


def send(session: Session, topic: str, count: int) -> None:
    """To two partitions; every tenth message is no row."""
    producer = Producer(client_config(session.settings) | {"acks": "all", "log_level": "0"})
    for n in range(count):
        row = {"n": n, "at": (START + timedelta(seconds=n)).isoformat()}
        producer.produce(topic, json.dumps(row) if n % 10 else b"junk", b"key", partition=n % 2)
    assert producer.flush(30) == 0


def run(session: Session, name: str) -> None:
    queries.start(session, session.catalog.table(name), available_now=True).awaitTermination()


def command(session: Session, *arguments: str):
    environment = {"LAKEHOUSE_ROOT": str(session.settings.root), "LAKEHOUSE_TABLES": __name__}
    return CliRunner().invoke(main.app(), arguments, env=environment)


def compared(session: Session, name: str) -> list[dict]:
    done = command(session, "topic", "check", name, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == any(each["missing"] or each["doubled"] for each in found), done.output
    return found


def all_once(session: Session, name: str, count: int) -> None:
    found = compared(session, name)
    assert [(each["missing"], each["doubled"]) for each in found] == [(0, 0)] * 2, found
    assert sum(each["rows"] for each in found) == count


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_an_ingest_table_has_each_message_once_whatever_becomes_of_its_job(session, capsys):
    name, declared = "taken", session.catalog.table("taken")
    kafka_broker.ensure_topics(session.settings, {"sent": 2})
    count = 0
    for point in (*COMMIT_POINTS, ""):

        def crash(now: str, point: str = point) -> None:
            if now == point:
                raise Aborted(point)

        send(session, "sent", 20)
        if point:
            with pytest.raises(StepFailed, match="Aborted"):
                queries.start(
                    session, declared, available_now=True, reached=crash
                ).awaitTermination()
        send(session, "sent", 20)
        run(session, name)
        all_once(session, name, count := count + 40)
    old = session.settings.root / "_checkpoints" / name / "1" / "offsets"
    old.mkdir(parents=True)  # as an earlier version, whose query was Spark's, left one
    (old / "0").write_text('v1\n{}\n{"sent":{"0":1,"1":1}}')
    send(session, "sent", 20)
    run(session, name)
    assert not old.exists() and "its checkpoint was removed" in capsys.readouterr().err
    all_once(session, name, count := count + 20)

    before = DeltaTable(str(session.path(declared))).version()
    send(session, "sent", 20)
    run(session, name)
    send(session, "sent", 20)
    run(session, name)
    DeltaTable(str(session.path(declared))).restore(before)
    send(session, "sent", 20)
    run(session, name)
    all_once(session, name, count := count + 60)
    send(session, "sent", 20)
    run(session, name)
    all_once(session, name, count + 20)

    stored = DeltaTable(str(session.path(declared)))
    twice = stored.to_pyarrow_table().slice(0, 2)
    stored.delete("_arrival.partition = 1 AND _arrival.offset = 3")
    write_deltalake(str(session.path(declared)), twice, mode="append")
    found = compared(session, name)
    assert [sum(each[what] for each in found) for what in ("missing", "doubled")] == [1, 2], found
    assert found[1]["examples"].startswith("missing 3")


def present(session: Session, topic: str) -> dict[str, str]:
    return {
        name: identity
        for name, (identity, _) in kafka_topics.ids(
            kafka_topics.admin(session.settings), [topic]
        ).items()
    }


def created_again(session: Session, topic: str, count: int) -> None:
    client = kafka_topics.admin(session.settings)
    client.delete_topics([topic])[topic].result()
    awaited(lambda: topic not in client.list_topics(timeout=10).topics, "deleted")
    kafka_broker.ensure_topics(session.settings, {topic: 2})
    send(session, topic, count)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_topic_created_again_is_named_and_read_from_its_beginning(session):
    name, declared = "taken_again", session.catalog.table("taken_again")
    kafka_broker.ensure_topics(session.settings, {"again": 2})
    send(session, "again", 40)
    run(session, name)
    rows = 40
    for count in (60, 20):  # more than were read, and fewer
        before = offsets.known(session.settings, declared).ids["again"]
        created_again(session, "again", count)
        with pytest.raises(
            TopicError,
            match=f"topic of id {re.escape(before)}.*lakehouse topic accept-new taken_again",
        ):
            run(session, name)
        paused = SupervisedQuery(session, declared)
        paused.start()
        assert paused.paused and before in paused.status.error
        refused = command(session, "topic", "accept-new", name)
        assert refused.exit_code == 1 and "read from the beginning?" in refused.output
        done = command(session, "topic", "accept-new", name, "--yes")
        assert (
            done.exit_code == 0 and before in done.output and f"{count} messages" in done.output
        ), done.output
        run(session, name)
        all_once(session, name, count)
        rows += count
        assert (
            session.read(declared).count() + session.read(declared, side="quarantine").count()
            == rows
        )
    assert command(session, "topic", "accept-new", name, "--yes").exit_code == 2, (
        "it is the topic that was read"
    )

    send(session, "again", 10)
    query = SupervisedQuery(session, declared)
    query.start()
    try:
        awaited(
            lambda: sum(each["rows"] for each in compared(session, name)) == 30,
            "the rest of the topic",
        )
        all_once(session, name, 30)
        for count in (10, 200):
            send(session, "again", 4)
            created_again(session, "again", count)
            deadline = time.monotonic() + 120
            while not query.paused:
                assert time.monotonic() < deadline, query.status
                query.observe()
                query.tend()
                time.sleep(0.2)
            assert "lakehouse topic accept-new taken_again" in query.status.error
            assert command(session, "topic", "accept-new", name, "--yes").exit_code == 0
            query = SupervisedQuery(session, declared)
            query.start()
            awaited(
                lambda count=count: sum(each["rows"] for each in compared(session, name)) == count,
                "read from the beginning",
            )
    finally:
        query.stop()


def lose(session: Session, topic: str, until: int) -> None:
    """Has the topic begin with that offset, as retention does."""
    client = kafka_topics.admin(session.settings)
    for future in client.delete_records(
        [TopicPartition(topic, p, until) for p in range(2)]
    ).values():
        future.result()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_gap_can_be_accepted_again_when_the_topic_has_lost_more(session, monkeypatch):
    name, declared = "taken_on", session.catalog.table("taken_on")
    kafka_broker.ensure_topics(session.settings, {"lost": 2})
    send(session, "lost", 20)
    run(session, name)
    for begins in (15, 25):  # it is accepted, and before the job has gone on more is lost
        send(session, "lost", 20)
        lose(session, "lost", begins)
        with pytest.raises(
            CommitError, match=f"begins with {begins}.*lakehouse topic accept-gap {name}"
        ):
            run(session, name)
        with monkeypatch.context() as crash:
            crash.setattr(offsets, "note", lambda *_: 1 / 0)
            assert isinstance(
                command(session, "topic", "accept-gap", name, "--yes").exception, ZeroDivisionError
            )
        with pytest.raises(CommitError, match=f"lakehouse topic accept-gap {name}"):
            run(session, name)  # a crash before it was declared has declared nothing
        done = command(session, "topic", "accept-gap", name, "--yes")
        assert (
            done.exit_code == 0
            and f"partition 1: offsets 10 to {begins - 1} are lost" in done.output
        ), done.output
    assert len(offsets.known(session.settings, declared).gaps) == 2, "one for each partition"
    send(session, "lost", 20)
    run(session, name)
    all_once(session, name, 30)
    refused = command(session, "topic", "accept-gap", name, "--yes")
    assert refused.exit_code == 2 and name in refused.output, "nothing is lost any more"


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_the_ids_of_topics_outlive_the_file_that_keeps_them(session, capsys):
    """Each commit has them, too."""
    name, declared = "taken_kept", session.catalog.table("taken_kept")
    kafka_broker.ensure_topics(session.settings, {"kept": 2})
    send(session, "kept", 10)
    run(session, name)
    before = offsets.known(session.settings, declared)
    kept = session.settings.root / "_commit_log" / f"{name}.topics.json"
    kept.unlink()
    capsys.readouterr()
    offsets.check_ids(session.settings, declared, present(session, "kept"))
    assert (
        "taken_kept.topics.json: it is gone" in (told := capsys.readouterr().err)
        and "from the table's last commit" in told
    )
    assert offsets.known(session.settings, declared) == before
    kept.unlink()
    created_again(session, "kept", 30)
    with pytest.raises(
        TopicError,
        match=f"topic of id {re.escape(before.ids['kept'])}.*lakehouse topic accept-new {name}",
    ):
        run(session, name)


def test_of_a_broker_without_ids_of_topics_it_is_said(tmp_path, capsys):
    settings, declared = Settings(root=tmp_path), catalog_of([HERE]).table("taken")
    for _ in range(2):
        offsets.check_ids(settings, declared, {"sent": ""})
    assert capsys.readouterr().err.count("table=taken, topic=sent: the broker gives it no id") == 1
    assert offsets.known(settings, declared).ids == {}


def test_a_crash_before_a_topic_is_declared_recreated_declares_nothing(session, monkeypatch):
    """The new generation alone would be no harm: it is refused until the command is run again."""
    name, declared = "taken_on", session.catalog.table("taken_on")
    settings = replace(
        session.settings,
        root=session.settings.root / "other",
        bootstrap_servers=bootstrap_servers(session.settings),
    )
    CommitLog(settings, declared).append(
        Commit(name, "stream", 1, 0, 1, START, "", inputs={"lost": {"0": 1, "1": 1}})
    )
    kafka_broker.ensure_topics(session.settings, {"lost": 2})
    offsets.note(settings, declared, offsets.Topics(ids={"lost": "of before"}))
    environment = {"LAKEHOUSE_ROOT": str(settings.root), "LAKEHOUSE_TABLES": __name__,
                   "LAKEHOUSE_BOOTSTRAP_SERVERS": settings.bootstrap_servers}  # fmt: skip
    with monkeypatch.context() as crash:
        crash.setattr(offsets, "note", lambda *_: 1 / 0)
        failed = CliRunner().invoke(
            main.app(), ["topic", "accept-new", name, "--yes"], env=environment
        )
        assert isinstance(failed.exception, ZeroDivisionError), failed.output
    assert checkpoints.standing(settings, declared).generation == 2
    with pytest.raises(TopicError, match="lakehouse topic accept-new taken_on"):
        offsets.check_ids(settings, declared, present(session, "lost"))
    assert (
        CliRunner()
        .invoke(main.app(), ["topic", "accept-new", name, "--yes"], env=environment)
        .exit_code
        == 0
    )
    offsets.check_ids(settings, declared, present(session, "lost"))


def test_a_generation_that_began_is_told_of_once(tmp_path):
    settings, now = Settings(root=tmp_path), "2026-01-01T00:00:00+00:00"
    query = QueryStatus("taken", True, begun="generation 2: it is gone")
    progress.write(
        settings, JobStatus("sent", 1, 1.0, 0, 0.0, "stopped", now, now, queries=(query,))
    )
    told = views.troubles(settings, "sent", progress.read(settings, "sent"))
    assert told == ["table=taken is in a new generation 2: it is gone"]
    [notice] = notifications.of_job(settings, "sent")
    assert (notice.what, notice.table, notice.why) == (
        "checkpoint_replaced",
        "taken",
        "generation 2: it is gone",
    )
    assert notice.at == START
