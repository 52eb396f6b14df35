"""Producers on a real broker, which receives byte for byte what they generate; and their command."""

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer

import confluent_kafka as kafka
import pytest

from lakehouse.examples.sensors import producer as sensors
from lakehouse.producers.faults import OVERSIZED
from lakehouse.producers.sender import send
from lakehouse.producers.workload import DUPLICATE, LATE, MALFORMED, Record, Workload
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.jars import resolve
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import EXAMPLES, Settings, from_environment
from lakehouse.stopping import Stop
from support import ROOT
from support.workloads import LINE, PRODUCERS, ROUGH, START


@pytest.mark.parametrize("pipeline", PRODUCERS)
def test_another_process_generates_the_same_bytes(pipeline: str) -> None:
    code = (
        f"import hashlib; from {PRODUCERS[pipeline].records.__module__} import PRODUCER;"
        f"from lakehouse.producers.workload import Workload; w = {ROUGH!r};"
        f"r = list(PRODUCER.records(w, {START}, {START} + 2000));"
        "print(hashlib.sha256(repr(r).encode()).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = repr(list(PRODUCERS[pipeline].records(ROUGH, START, START + 2_000)))
    assert there.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A lakehouse with an embedded broker of its own."""
    settings = replace(
        from_environment(), root=tmp_path_factory.mktemp("lake"), bootstrap_servers="", kafka={}
    )
    kafka_broker.start(settings, resolve(settings.jars))
    yield settings
    kafka_broker.stop(settings)


def received(
    settings: Settings, topic: str, partitions: int
) -> list[list[tuple[bytes | None, bytes | None, int]]]:
    """Key, value and timestamp of all records of each partition."""
    consumer = kafka.Consumer(
        client_config(settings)
        | {"group.id": "test", "fetch.message.max.bytes": "8000000", "check.crcs": "true"}
    )
    found = []
    for partition in range(partitions):
        low, high = consumer.get_watermark_offsets(
            kafka.TopicPartition(topic, partition), timeout=10
        )
        consumer.assign([kafka.TopicPartition(topic, partition, low)])
        messages: list[kafka.Message] = []
        while len(messages) < high - low:
            messages += consumer.consume(high - low - len(messages), timeout=10)
        assert not [m.error() for m in messages if m.error()]
        assert {m.timestamp()[0] for m in messages} <= {kafka.TIMESTAMP_CREATE_TIME}
        found.append([(m.key(), m.value(), m.timestamp()[1]) for m in messages])
    consumer.close()
    return found


def size(settings: Settings, topic: str, partitions: int) -> int:
    """How many records were ever sent to `topic`."""
    consumer = kafka.Consumer(client_config(settings) | {"group.id": "test", "log_level": "0"})
    ends = [
        consumer.get_watermark_offsets(kafka.TopicPartition(topic, p), timeout=10)[1]
        for p in range(partitions)
    ]
    consumer.close()
    return sum(ends)


@pytest.mark.parametrize("pipeline", PRODUCERS)
def test_the_broker_receives_what_was_generated(settings: Settings, pipeline: str) -> None:
    made = PRODUCERS[pipeline]
    topic = f"whole-{pipeline}"
    kafka_broker.ensure_topics(settings, {topic: 3}, {"retention.ms": "-1"})
    # as a versioned table sends them, with a record far over the client's default limit among them
    sent = [*made.records(ROUGH, START - 5_000, START), made.malformed(OVERSIZED, START)]
    sent = [each._replace(topic="") for each in sent]  # all to this topic, whatever their own
    summary = send(sent, topic, client_config(settings))
    for partition, arrived in enumerate(received(settings, topic, 3)):
        assert arrived == [(r.key, r.value, r.time_ms) for r in sent if r.partition == partition]
    kinds, times = (
        Counter(r.kind for r in sent),
        [r.event_ms for r in sent if r.event_ms is not None],
    )
    assert (summary.sent, summary.late, summary.duplicates, summary.malformed) == (
        len(sent),
        kinds[LATE],
        kinds[DUPLICATE],
        kinds[MALFORMED],
    )
    assert summary.bytes == sum(len(r.key or b"") + len(r.value or b"") for r in sent)
    assert summary.first_event == datetime.fromtimestamp(min(times) / 1000, UTC)
    assert summary.last_event == datetime.fromtimestamp(max(times) / 1000, UTC)


def test_a_stream_behind_the_clock_catches_up_and_then_keeps_to_it(settings: Settings) -> None:
    kafka_broker.ensure_topics(settings, {"paced": 1})
    # of each record its instant, and when the one after it was asked for
    taken: list[tuple[int, float]] = []

    def watched(start: int) -> Iterator[Record]:
        for record in sensors.records(Workload(rate=500), start - 10_000, start + 1_000):
            yield record
            taken.append((record.time_ms, time.time() * 1000))

    start = int(time.time() * 1000)
    assert send(watched(start), "paced", client_config(settings)).sent == 5_500
    assert all(asked >= instant for instant, asked in taken), "none before its instant"
    assert taken[5_000][1] - start < 1_000, "ten seconds of the past in less than one"
    assert len(received(settings, "paced", 1)[0]) == 5_500


def test_an_endless_stream_stops_when_asked_and_loses_nothing(settings: Settings) -> None:
    kafka_broker.ensure_topics(settings, {"endless": 1})
    stop = Stop()
    Timer(0.5, stop.set).start()
    summary = send(
        sensors.records(Workload(rate=1_000), int(time.time() * 1000)),
        "endless",
        client_config(settings),
        stop,
    )
    assert len(received(settings, "endless", 1)[0]) == summary.sent > 0


def run_produce(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
    code = "import typer; from lakehouse.cli.produce import produce; typer.run(produce)"
    tables = ",".join([*EXAMPLES, "examples.visits.tables"])
    environment = os.environ | {"LAKEHOUSE_ROOT": str(settings.root), "LAKEHOUSE_TABLES": tables}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_produce_sends_a_history(settings: Settings) -> None:
    run = run_produce(
        settings, "ads", "--history", "1 minute", "--rate", "500", "--malformed", "0.1", "--json"
    )
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    summary = json.loads(out)
    assert (summary["topic"], summary["sent"]) == ("ad-events", 30_000)
    assert 2_500 < summary["malformed"] < 3_500
    assert [len(partition) for partition in received(settings, "ad-events", 4)] == [7_500] * 4


def test_produce_sends_the_lines_of_files_and_of_stdin(settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "access.log.gz"
    log.write_bytes(gzip.compress(LINE + b"\njunk\n"))
    run = run_produce(settings, "visits", "--file", str(log), "--file", "-", "--json")
    out, err = run.communicate(LINE.decode(), timeout=60)
    assert run.returncode == 0, err
    summary = json.loads(out)
    assert (summary["topic"], summary["sent"], summary["malformed"]) == ("access-log", 3, 1)
    assert summary["first_event"] == summary["last_event"] == "2000-10-10T20:55:36Z"
    arrived = [record for partition in received(settings, "access-log", 3) for record in partition]
    assert [value for _, value, at in arrived if at == 971_211_336_000] == [LINE, LINE]
    assert Counter(value for _, value, _ in arrived) == {LINE: 2, b"junk": 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_produce_live_ends_cleanly_on_a_signal(settings: Settings, number: signal.Signals) -> None:
    kafka_broker.ensure_topics(settings, {"sensor-readings": 3})
    # a new partition has no leader to ask for a moment: the producer waits for it
    send(
        sensors.records(Workload(rate=20, partitions=3), START, START + 1_000),
        "sensor-readings",
        client_config(settings),
    )
    before = size(settings, "sensor-readings", 3)
    run = run_produce(
        settings, "sensors", "--history", "10 seconds", "--live", "--disorder", "1 second", "--json"
    )
    # 200 a second: until it has reached the present
    while size(settings, "sensor-readings", 3) < before + 2_000:
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert json.loads(out)["sent"] == size(settings, "sensor-readings", 3) - before


def test_produce_refuses_what_makes_no_sense(settings: Settings) -> None:
    for arguments, message in (
        (("ads", "--no-live"), "nothing is left to send"),
        (("ads", "--history", "1 hour", "--seconds", "5"), "add --live"),
        (("ads", "--history", "soon"), "history='soon': a duration is a number and a unit"),
        (
            ("ads", "--file", "-"),
            "pipeline='ads', topic=ad-events, file=-: its producer makes events up and reads no lines",
        ),
        (("visits", "--file", "none.log"), "there is no such file"),
        (
            ("visits", "--file", "-", "--rate", "5", "--live"),
            "file=-, rate, live: lines are sent as they are",
        ),
    ):
        run = run_produce(settings, *arguments)
        _, err = run.communicate(timeout=60)
        assert run.returncode != 0
        assert message in " ".join(err.replace("│", " ").split())
