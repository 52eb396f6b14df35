"""Long ranges of a topic are read by Spark's own clients: what a broker refuses them is said as our own client says it."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclOperation
from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import AccessError, BrokerError, CommitError
from lakehouse.runtime import kafka_broker, kafka_client
from lakehouse.runtime.jars import resolve
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed, StepLoop
from streaming_jobs.queries import cause
from support.secured_broker import as_bob, certificate, grant, secured_broker

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    jars = resolve(from_environment().jars)
    with secured_broker(tmp_path_factory.mktemp("secured"), jars) as settings:
        yield settings


def events(event_topic: DataFrame) -> DataFrame:
    return event_topic


@pytest.fixture
def query(secured, spark) -> Callable[..., StepLoop]:
    """A query up to the present, of fifty messages of a new topic, that Spark reads."""

    def started(topic: str, settings: Settings, meanwhile: Callable[[], object] = int) -> StepLoop:
        kafka_broker.ensure_topics(secured, {topic: 1})
        producer = Producer(client_config(secured) | {"log_level": "0"})
        for n in range(50):
            row = {"n": n, "at": datetime.now(UTC).isoformat()}
            producer.produce(topic, json.dumps(row))
        assert producer.flush(30) == 0
        module = ModuleType(__name__)
        module.event_topic = kafka(topic, schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")
        module.events = ingest_table(layer="bronze", event_time="at", delay="5 seconds")(events)
        session = Session(replace(settings, step_rows=10), catalog_of([module]), spark)
        queries.prepare(session, list(session.catalog))
        declared = session.catalog.table("events")

        def reached(point: str) -> None:
            if point == "begin":
                meanwhile()

        return queries.start(session, declared, available_now=True, reached=reached)

    return started


def failure(query: StepLoop) -> tuple[BaseException, str]:
    """What it raises, and the line of it that is shown."""
    with pytest.raises(StepFailed) as raised:
        query.awaitTermination(120)
    of = raised.value.__cause__
    assert of is not None and of.__cause__ is not None, "what Spark raised is kept beside it"
    return of, cause(str(raised.value))


def test_the_rights_to_describe_and_read_a_topic_suffice(secured, tmp_path, query):
    for right in (AclOperation.DESCRIBE, AclOperation.READ):
        grant(secured, right, "that-is-read")
    of = query("that-is-read", as_bob(secured, tmp_path))
    assert of.awaitTermination(120) and of.recentProgress[0].numInputRows == 50


def test_a_login_that_only_spark_has_wrong(secured, tmp_path, query):
    for right in (AclOperation.DESCRIBE, AclOperation.READ):
        grant(secured, right, "of-a-login")
    wrong = as_bob(secured, tmp_path, sasl_jaas_config=f'{LOGIN} username="bob" password="s3cret";')
    raised, shown = failure(query("of-a-login", wrong))
    assert isinstance(raised, AccessError) and "s3cret" not in shown
    assert "sasl.username=bob: the broker turns this client away" in shown
    assert "Spark's client: Authentication failed" in shown


def test_an_authority_that_only_spark_does_not_trust(secured, tmp_path, query):
    another = tmp_path / "another"
    another.mkdir()
    pem = certificate(another)
    raised, shown = failure(
        query(
            "of-a-trust",
            replace(
                secured,
                root=tmp_path / "root",
                kafka={**secured.kafka, "ssl.truststore.location": pem},
            ),
        )
    )
    assert isinstance(raised, AccessError)
    assert "an authority that the client trusts must have signed" in shown and "PKIX" in shown


def test_the_right_to_read_a_topic(secured, tmp_path, query):
    grant(secured, AclOperation.DESCRIBE, "of-a-right")
    raised, shown = failure(query("of-a-right", as_bob(secured, tmp_path)))
    assert isinstance(raised, AccessError)
    assert "topic=of-a-right, reading it by Spark: the broker does not allow it" in shown
    assert "the user must have READ" in shown


def test_a_topic_that_is_deleted_while_it_is_read(secured, tmp_path, query):
    admin = kafka_client.admin(secured)

    def delete() -> None:
        for future in admin.delete_topics(["that-is-deleted"]).values():
            future.result(30)

    raised, shown = failure(query("that-is-deleted", replace(secured, root=tmp_path), delete))
    assert isinstance(raised, BrokerError)
    assert "check that the broker runs and has the topic" in shown


def test_messages_that_are_removed_while_they_are_read(secured, tmp_path, query):
    admin = kafka_client.admin(secured)

    def remove() -> None:
        for future in admin.delete_records([TopicPartition("that-is-cut", 0, 20)]).values():
            future.result(30)

    raised, shown = failure(query("that-is-cut", replace(secured, root=tmp_path), remove))
    assert isinstance(raised, CommitError)
    assert "the topic begins with 20" in shown and "accept-gap events" in shown
