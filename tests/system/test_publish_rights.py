"""The rights that the follower of a topic needs at a broker with ACLs: each one that lacks is named, and all of them suffice."""

import re
from contextlib import suppress

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from lakehouse import kafka_topic
from lakehouse.declare.targets import Position, RowChange
from lakehouse.errors import AccessError
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.jars import resolve
from lakehouse.settings import from_environment
from lakehouse.sinks.targets.kafka import KafkaSink
from support.secured_broker import as_bob, grant, secured_broker
from support.sensors_job import awaited

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

READ, WRITE = AclOperation.READ, AclOperation.WRITE
TOPIC, POSITIONS = "of-bob", "of-bob.position"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    jars = resolve(from_environment().jars)
    with secured_broker(tmp_path_factory.mktemp("secured"), jars) as settings:
        yield settings


def test_each_right_that_a_follower_lacks_is_named_and_all_of_them_suffice(secured, tmp_path):
    bob = as_bob(secured, tmp_path)

    def follow() -> KafkaSink:
        """What a follower does with its sink: it begins, reads its position, and writes a version."""
        sink = kafka_topic(TOPIC, key="id").sink(bob, "orders")
        sink.open()
        before = sink.position()
        version = before.version + 1 if before else 0
        sink.write(version, [RowChange("insert", {"id": version})])
        sink.commit(Position("table", version))
        return sink

    kafka_broker.ensure_topics(secured, {TOPIC: 1, POSITIONS: 1}, {"cleanup.policy": "compact"})
    of_topics = "READ and WRITE on the topics of-bob and of-bob.position"
    needed = (
        (READ, TOPIC, "topic=of-bob, creating it: .*CREATE on the topic, or DESCRIBE if it is"),
        (READ, POSITIONS, "topic=of-bob.position, creating it: .*or DESCRIBE if it is there"),
        (WRITE, "lakehouse.of-bob", "WRITE on the transactional id lakehouse.of-bob"),
        (WRITE, TOPIC, f"committing version 0: .*{of_topics}"),
        (WRITE, POSITIONS, f"committing version 0: .*{of_topics}"),
    )
    for right, name, said in needed:

        def lacks(said: str = said) -> bool:
            """Once it is this one: a grant takes a moment to be known."""
            with pytest.raises(AccessError) as raised:
                follow()
            return re.search(said, str(raised.value)) is not None

        awaited(lacks, said, 30)
        is_id = name.startswith("lakehouse.")
        grant(secured, right, name, ResourceType.TRANSACTIONAL_ID if is_id else ResourceType.TOPIC)
    written: list[KafkaSink] = []

    def follows() -> bool:
        with suppress(AccessError):
            written.append(follow())
        return len(written) == 2

    awaited(follows, "it has all rights")
    assert [key for key, _, _ in written[-1].rows(1)] == ["0", "1"]


def test_a_topic_that_may_be_described_only_is_read_by_nobody(secured, tmp_path):
    kafka_broker.ensure_topics(secured, {"shown": 1, "shown.position": 1})
    for name in ("shown", "shown.position"):
        grant(secured, AclOperation.DESCRIBE, name)
    grant(secured, WRITE, "lakehouse.shown", ResourceType.TRANSACTIONAL_ID)
    sink = kafka_topic("shown", key="id").sink(as_bob(secured, tmp_path), "orders")

    def lacks() -> bool:
        with pytest.raises(AccessError) as raised:
            sink.open()
            sink.position()
        return "topic=shown, reading shown.position: the broker does not" in str(raised.value)

    awaited(lacks, "the right to read")
