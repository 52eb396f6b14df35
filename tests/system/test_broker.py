import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from batch_jobs import maintain
from lakehouse.errors import BrokerError, SettingsError
from lakehouse.producers import sender
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.runtime import kafka_address, kafka_broker
from lakehouse.runtime.jars import resolve
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import load


@pytest.fixture(scope="module")
def jars():
    return resolve(from_environment().jars)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory, jars):
    """Settings whose embedded broker runs."""
    settings = Settings(root=tmp_path_factory.mktemp("lake house"))
    kafka_broker.start(settings, jars)
    yield settings
    kafka_broker.stop(settings)


def client(settings: Settings) -> dict[str, object]:
    return client_config(settings) | {"log_level": "0"}  # a broker killed on purpose is no news


def send(settings: Settings, topic: str, values: list[bytes]) -> None:
    producer = Producer(client(settings) | {"acks": "all", "linger.ms": 5})
    failures = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda err, _: failures.append(err) if err else None
        )
    assert producer.flush(30) == 0
    assert failures == []


def read(settings: Settings, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(client(settings) | {"group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count and (messages := consumer.consume(count - len(values), timeout=20)):
        assert not any(message.error() for message in messages)
        values += [message.value() for message in messages]
    consumer.close()
    return values


def test_two_that_start_it_at_once_get_the_same_broker(embedded, jars):
    with ThreadPoolExecutor(2) as both:
        brokers = set(both.map(lambda _: kafka_broker.start(embedded, jars), range(2)))
    assert brokers == {kafka_address.running(embedded)}


def test_it_answers_on_this_machine_only_in_a_session_of_its_own(embedded):
    found = kafka_address.running(embedded)
    listening = {
        c.laddr.ip for c in psutil.Process(found.pid).net_connections() if c.status == "LISTEN"
    }
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert os.getsid(found.pid) != os.getsid(0)
    assert found.bootstrap_servers == kafka_address.bootstrap_servers(embedded)
    assert len(AdminClient(client(embedded)).list_topics(timeout=10).brokers) == 1


def test_missing_topics_are_created_and_others_left_alone(embedded):
    assert kafka_broker.ensure_topics(embedded, {}) == ()
    assert kafka_broker.ensure_topics(embedded, {"created": 3}, {"retention.ms": "1000"}) == (
        "created",
    )
    assert kafka_broker.ensure_topics(embedded, {"created": 9, "other": 1}) == ("other",)
    admin = AdminClient(client(embedded))
    assert len(admin.list_topics("created", timeout=10).topics["created"].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, "created")
    assert admin.describe_configs([resource])[resource].result()["retention.ms"].value == "1000"


def test_a_topic_that_kafka_refuses_is_an_error_with_its_name(embedded):
    with pytest.raises(BrokerError, match="topic=no/name"):
        kafka_broker.ensure_topics(embedded, {"no/name": 1})


def test_records_of_all_sizes_survive_kill_9(embedded, jars):
    values = [b"%d" % i for i in range(999)] + [os.urandom(5_000_000)]
    kafka_broker.ensure_topics(embedded, {"survivors": 1})
    send(embedded, "survivors", values)
    assert read(embedded, "survivors", 1000) == values
    before = kafka_address.running(embedded)
    os.kill(before.pid, signal.SIGKILL)
    after = kafka_broker.start(embedded, jars)
    assert (after.pid, after.start_time) != (before.pid, before.start_time)
    assert after.bootstrap_servers == before.bootstrap_servers
    assert read(embedded, "survivors", 1000) == values


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (SettingsError("line=5: no key"), SettingsError),  # a line without its field, a torn file
        (ValueError("a producer that fails"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),  # a second SIGINT, while a pipe is waited for
        (None, BrokerError),  # the topic has no such partition
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_records_before_what_ends_a_producer_arrive(embedded, ends, error):
    topic = f"ended-by-{type(ends).__name__}"
    kafka_broker.ensure_topics(embedded, {topic: 1})
    values = [b"%d" % number for number in range(1_004)]  # more than are queued at a time

    def records() -> Iterator[Record]:
        now_ms = int(time.time() * 1000)
        for value in values:
            yield Record(None, value, 0, now_ms, None, ORDINARY)
        if ends is not None:
            raise ends
        yield Record(None, b"", 7, now_ms, None, ORDINARY)

    with pytest.raises(error) as raised:
        sender.send(records(), topic, client(embedded))
    text = "".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "acknowledged by the broker" in text and text.endswith(": 1,004 records")
    assert read(embedded, topic, len(values)) == values


def test_a_taken_port_is_given_up_for_another(tmp_path, jars):
    settings = Settings(root=tmp_path)
    address = kafka_broker.start(settings, jars).bootstrap_servers
    kafka_broker.stop(settings)
    host, _, port = address.partition(":")
    try:
        with socket.create_server((host, int(port))):
            assert kafka_broker.start(settings, jars).bootstrap_servers != address
            assert kafka_broker.ensure_topics(settings, {"reachable": 1}) == ("reachable",)
    finally:
        kafka_broker.stop(settings)


def test_stop_leaves_no_process(embedded):
    found = kafka_address.running(embedded)
    assert kafka_broker.stop(embedded)
    assert found.process() is None
    assert kafka_address.running(embedded) is None
    assert not kafka_broker.stop(embedded)
    with pytest.raises(BrokerError, match="none is running"):
        kafka_address.bootstrap_servers(embedded)


def test_a_process_that_took_over_the_pid_is_not_the_broker(tmp_path):
    settings = Settings(root=tmp_path)
    layout.broker(settings).mkdir()
    kafka_address.write(settings, kafka_address.Broker(os.getpid(), 1.0, "127.0.0.1:1", "log"))
    assert kafka_address.running(settings) is None
    assert not kafka_broker.stop(settings)


def test_a_broker_that_cannot_start_says_why(tmp_path, jars):
    settings = Settings(root=tmp_path)
    data = layout.broker(settings) / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(
        "version=1\nnode.id=7\ncluster.id=4L6g3nShT-eMCtK--X86sw\n"
    )
    with pytest.raises(BrokerError, match=r"(?s)ended while starting.*node.id.*7"):
        kafka_broker.start(settings, jars)
    assert kafka_address.running(settings) is None


def test_a_broker_that_ended_before_its_log_began_is_said(tmp_path):
    assert kafka_broker._end_of(str(tmp_path / "broker.log")) == f"{tmp_path}/broker.log is empty."


def test_the_log_of_the_broker_is_put_aside_when_it_is_long_unless_another_starts_or_stops_it(
    tmp_path,
):
    root, log = Settings(root=tmp_path), layout.broker(Settings(root=tmp_path)) / "broker.log"
    kafka_broker.shorten_log(root, 500)
    assert not log.parent.exists(), "there is no embedded broker"
    log.parent.mkdir()
    log.write_text("warning\n" * 100)
    with kafka_broker._lock(log.parent):
        kafka_broker.shorten_log(root, 500)
    assert log.read_text().startswith("warning")
    kafka_broker.shorten_log(root, 500)
    assert log.read_text() == ""
    assert log.with_name("broker.log.1").read_text() == "warning\n" * 100
    os.truncate(log, 17 << 20)  # as maintenance finds it where the broker runs alone
    list(maintain.run(load(root)))
    assert log.stat().st_size == 0
