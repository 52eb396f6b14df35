"""Event time that goes on while the topics of a real broker are silent, through crashes and without the broker."""

import json
import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Producer

from lakehouse.declare.catalog import catalog_of
from lakehouse.ranges import BEGINNING
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.position import checkpoints
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.reading.registry import check
from lakehouse.testing import COMMIT_POINTS, Aborted
from support import quiet
from support.quiet import at
from support.sensors_job import awaited


@pytest.fixture
def session(served, spark) -> Session:
    session = Session(replace(served, tables=(quiet.__name__,)), catalog_of([quiet]), spark)
    kafka_broker.ensure_topics(session.settings, {"clicks": 2, "still": 1})
    queries.prepare(session, list(session.catalog))
    return session


def send(session: Session, *rows: dict) -> None:
    producer = Producer(client_config(session.settings) | {"acks": "all", "log_level": "0"})
    for number, row in enumerate(rows):
        producer.produce("clicks", json.dumps(row), b"key", partition=number % 2)
    assert producer.flush(30) == 0


def frontier_of(session: Session, name: str) -> datetime:
    return frontier(session.settings, session.catalog.table(name)) or BEGINNING


def written(session: Session, name: str) -> int:
    return sum(line.written for line in session.commit_log(session.catalog.table(name)).by_stream())


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_live_query_closes_its_last_windows_through_crashes_and_not_while_the_broker_is_away(
    session,
):
    send(session, at(1), at(14), at(2, "bob"), at(13, "bob"))
    table = session.catalog.table("clicks")
    counted = queries.start(session, session.catalog.table("by_ten_seconds"))
    crashed = []
    for point in COMMIT_POINTS:

        def crash(now: str, point: str = point) -> None:
            # the first step has the rows, and each later one none
            if now == point and written(session, "clicks"):
                crashed.append(now)
                raise Aborted(now)

        before = frontier_of(session, "clicks")
        query = queries.start(session, table, reached=crash)
        awaited(lambda query=query: not query.isActive, f"no step of silence came to {point}")
        assert Aborted.__name__ in str(query.exception())
        pending = checkpoints.standing(session.settings, table).pending
        assert bool(pending) == (point in ("rows", "quarantine"))
        if point == "commit_log":
            assert frontier_of(session, "clicks") >= before + timedelta(seconds=2)
    assert crashed == list(COMMIT_POINTS)
    query = queries.start(session, table)
    try:
        awaited(lambda: written(session, "by_ten_seconds") == 4, "the last windows did not close")
        kafka_broker.stop(session.settings)
        awaited(lambda: bool(query.trouble), "the query did not notice that its broker was away")
        stood = frontier_of(session, "clicks")
        time.sleep(5)
        assert frontier_of(session, "clicks") == stood, "nobody can say that the topic is quiet"
        kafka_broker.start(session.settings, jars.resolve(session.settings.jars))
        awaited(lambda: frontier_of(session, "clicks") > stood, "event time did not go on again")
    finally:
        query.stop()
        counted.stop()
    lines = list(session.commit_log(table).by_stream())
    assert [line.batch for line in lines] == list(range(len(lines)))[::-1]
    assert sum(line.arrived for line in lines) == 4
    found = check(session, table)
    assert found and not any(each.missing or each.doubled for each in found), found
    certificate = reconciliation.reconcile(session, session.catalog.table("by_ten_seconds"))
    assert (certificate.verdict, certificate.rows_recomputed) == ("EQUAL", 4)
    # what was noted is a fact of the table's own log
    session.commit_log(table).path.unlink()
    assert list(session.commit_log(table).by_stream()) == lines
