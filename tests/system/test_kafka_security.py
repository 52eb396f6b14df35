"""A real broker that asks for TLS, a password and rights: who has them is accepted, who does not is refused by name."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient
from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka
from lakehouse.cli import doctor
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import AccessError, BrokerError, SettingsError
from lakehouse.runtime import kafka_address, kafka_broker, kafka_client, kafka_topics
from lakehouse.runtime.jars import resolve
from lakehouse.runtime.kafka_options import client_config, spark_options
from lakehouse.settings import from_environment, java, to_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.reading import registry
from streaming_jobs.supervision import healing, supervisor
from streaming_jobs.supervision.jobs import follower_of, module_of
from support.secured_broker import as_bob, certificate, grant, secured_broker
from support.sensors_job import awaited

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

HERE = sys.modules[__name__]

guarded_topic = kafka("guarded", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def guarded(guarded_topic: DataFrame) -> DataFrame:
    return guarded_topic


@pytest.fixture(scope="module")
def jars():
    return resolve(from_environment().jars)


@pytest.fixture(scope="module")
def secured(tmp_path_factory, jars):
    with secured_broker(tmp_path_factory.mktemp("secured"), jars) as settings:
        yield settings


def test_confluents_client_is_let_in(secured):
    assert AdminClient(client_config(secured) | {"log_level": "0"}).list_topics(timeout=30).brokers


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sasl.password": "s3cret"}, "sasl.username=ann: .*this password.*SASL_PASSWORD.*Invalid"),
        ({"sasl.username": "eve"}, "sasl.username=eve: .*the broker turns this client away"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "SCRAM-SHA-256.*must offer the mechanism.*PLAIN"),
        ({"ssl.ca.location": "another"}, "another/ca.pem, .*authority that the client trusts"),
    ],
)
def test_who_is_turned_away_gets_the_reason_at_once(secured, tmp_path, wrong, said):
    if "ssl.ca.location" in wrong:
        another = tmp_path / "another"
        another.mkdir()
        wrong = {"ssl.ca.location": certificate(another)}
    settings = replace(secured, kafka={**secured.kafka, **wrong})
    with pytest.raises(AccessError, match=f"(?s){said}") as raised:
        kafka_client.check(settings, 30)
    assert "s3cret" not in str(raised.value) and not healing.is_transient(str(raised.value))


@pytest.mark.parametrize("given", [{}, {"security.protocol": "SSL"}])
def test_a_listener_of_another_protocol_looks_like_a_broker_that_ends_and_the_message_says_so(
    secured, given
):
    authority = {name: secured.kafka[name] for name in ("ssl.ca.location",) if given}
    with pytest.raises(BrokerError, match=r"within 3 s and did not.*listener speaks.*PROTOCOL"):
        kafka_client.check(replace(secured, kafka=given | authority), 3)


def test_properties_that_no_client_takes_are_named(secured):
    wrong = replace(secured, kafka={**secured.kafka, "sasl.mechanism": "FOO"})
    with pytest.raises(SettingsError, match=r"sasl.mechanism=FOO.*Unsupported SASL mechanism"):
        kafka_client.check(wrong)


def test_job_follower_and_doctor_say_who_was_turned_away_and_do_not_wait(secured, tmp_path):
    kafka_broker.ensure_topics(secured, {"sensor-readings": 1})
    wrong = replace(
        secured,
        root=tmp_path,
        kafka={**secured.kafka, "sasl.password": "s3cret"},
        tables=("lakehouse.examples.sensors.tables", "examples.bank.tables"),
    )
    debits = "transactions.debits"
    for job in ("sensors", follower_of(debits)):
        run = subprocess.run(
            [sys.executable, "-m", module_of(job), job],
            env=os.environ | to_environment(wrong),
            capture_output=True,
            text=True,
            timeout=120,
        )
        status = supervisor.status(wrong, job)
        assert (run.returncode, status.state) == (1, "failed"), run.stderr
        for text in (status.error, run.stdout + run.stderr):
            assert "sasl.username=ann: the broker turns this client away" in text, text
            assert "s3cret" not in text
    broker = next(each for each in doctor.findings(wrong) if each.check == "broker")
    assert broker.state == "fail" and "turns this client away" in broker.found


def test_rights_that_lack_are_named_and_a_password_that_changes_under_a_stream_ends_its_query(
    secured, jars, tmp_path, spark, monkeypatch
):
    monkeypatch.setattr(kafka_topics, "_WITHIN", 3.0)
    kafka_broker.ensure_topics(secured, {"guarded": 1})
    bob = replace(as_bob(secured, tmp_path), tables=(__name__,))
    session = Session(bob, catalog_of([HERE]), spark)
    queries.prepare(session, list(session.catalog))
    with pytest.raises(AccessError, match=r"topic=made, creating it.*CREATE on the topic"):
        kafka_broker.ensure_topics(bob, {"made": 1})
    assert "DESCRIBE on the topic" in ended(session, "DESCRIBE")
    grant(secured, AclOperation.DESCRIBE, "guarded")
    assert "topic=guarded, reading it" in ended(session, "READ")
    # what is there needs no right to create it
    assert kafka_broker.ensure_topics(bob, {"guarded": 1}) == ()
    grant(secured, AclOperation.READ, "guarded")
    producer = Producer(client_config(secured) | {"log_level": "0"})
    producer.produce("guarded", json.dumps({"n": 1, "at": datetime.now(UTC).isoformat()}))
    assert producer.flush(30) == 0
    steps = queries.start(session, session.catalog.table("guarded"))
    steps.processAllAvailable()
    declared = session.catalog.table("guarded")
    assert session.read(declared).count() == 1
    assert [each.rows for each in registry.check(session, declared)] == [1]
    wrong = replace(bob, kafka={**bob.kafka, "sasl.password": "s3cret"})
    with pytest.raises(AccessError, match=r"sasl.username=bob: the broker turns"):
        registry.check(Lakehouse(wrong, session.catalog), declared)

    kafka_broker.stop(replace(secured, bootstrap_servers=""))
    awaited(lambda: "waits for the broker" in steps.trouble, "it is away")
    home = layout.broker(secured)
    path = home / "server.properties"
    path.write_text(path.read_text().replace('user_bob="bob"', 'user_bob="another"'))
    kafka_address.write(secured, kafka_broker._launch(home, jars, secured.bootstrap_servers))
    awaited(lambda: not steps.isActive, "it is turned away")
    raised = steps.exception().__cause__
    assert isinstance(raised, AccessError) and "sasl.username=bob" in str(raised)


def ended(session: Session, right: str) -> str:
    """What the query of the topic ends with, once it is for want of that right: a grant takes a moment to be known."""
    said: list[str] = []

    def ends() -> bool:
        steps = queries.start(session, session.catalog.table("guarded"))
        awaited(lambda: not steps.isActive, f"it ends: {steps.trouble}")
        cause = steps.exception().__cause__
        assert isinstance(cause, AccessError), cause
        said.append(str(cause))
        return f"{right} on the topic" in said[-1]

    awaited(ends, f"it lacks {right}")
    return said[-1]


def test_javas_client_is_let_in(secured, jars, tmp_path):
    options = {name.removeprefix("kafka."): value for name, value in spark_options(secured).items()}
    escaped = {name: value.replace("\\", "\\\\") for name, value in options.items()}
    (tmp_path / "client.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in escaped.items())
    )
    describe = ["--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"]
    to = [
        "--bootstrap-server",
        secured.bootstrap_servers,
        "--command-config",
        str(tmp_path / "client.properties"),
    ]
    command = [
        java(),
        "-cp",
        ":".join(map(str, jars.kafka)),
        "kafka.admin.ConfigCommand",
        *to,
        *describe,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "message.max.bytes=16777216" in run.stdout
