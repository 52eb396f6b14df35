"""The embedded Kafka broker: real Kafka, broker and controller in one process that outlives whoever started it.

Its data survive restarts and kill -9 (not a power cut: Kafka leaves fsync to the operating system). It listens on
127.0.0.1 only, without authentication.
"""

import base64
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse import processes
from lakehouse.errors import BrokerError
from lakehouse.runtime import cds_archive, kafka_address, kafka_client, kafka_properties
from lakehouse.runtime.jars import Jars
from lakehouse.runtime.kafka_address import Broker, running
from lakehouse.runtime.kafka_options import Properties
from lakehouse.settings import Settings, java
from lakehouse.storage.disk import layout, locks, text_logs
from lakehouse.storage.disk.root import make as make_root

READY_LIMIT = 60.0  # seconds for a started broker to answer
STOP_LIMIT = 20.0  # seconds for a broker to end after SIGTERM, before SIGKILL
_LOG, _LOG_BYTES, _LOGS = "broker.log", 16 << 20, 3
_LOCK = ".lock"
_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",  # 512 MB are collected in milliseconds, without a thread for each core
    "-XX:+ExitOnOutOfMemoryError",  # a broker that cannot work should be seen to be gone
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)


def start(settings: Settings, jars: Jars, jvm: Sequence[str] | None = None) -> Broker:
    """Returns the embedded broker of `settings.root`, started unless it runs, once it answers.

    Raises BrokerError with the end of its log if it does not answer within READY_LIMIT seconds.

    :param jvm: options of its JVM beside the usual ones. Default: those of the archive of its classes.
    """
    home = layout.broker(settings)
    make_root(settings)
    home.mkdir(parents=True, exist_ok=True)
    with _lock(home):
        broker = running(settings)
        if broker is None or not _answers(broker):  # the second: it was about to end
            address = kafka_properties.write(home)
            _format(home, jars)
            options = cds_archive.options("kafka") if jvm is None else jvm
            broker = _launch(home, jars, address, options)
            kafka_address.write(settings, broker)
            if not _answers(broker):
                raise BrokerError(
                    f"broker={home}: it must stay up and ended while starting. {_end_of(broker.log)}"
                )
    return broker


def stop(settings: Settings) -> bool:
    """Ends the embedded broker by SIGTERM, by SIGKILL after STOP_LIMIT seconds; returns False if none was running."""
    home = layout.broker(settings)
    if not home.exists():
        return False
    with _lock(home):
        broker = running(settings)
        process = broker.process() if broker else None
        if process is None:
            return False
        try:
            process.terminate()
            process.wait(STOP_LIMIT)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT)
        except psutil.NoSuchProcess:
            pass  # it ended by itself meanwhile
    return True


def shorten_log(settings: Settings, longest: int = _LOG_BYTES) -> None:
    """Moves the log of the embedded broker aside once it is long: Kafka's logger writes one file without end."""
    log = layout.broker(settings) / _LOG
    if text_logs.size(log) > longest:
        with suppress(locks.Locked), locks.alone(log.with_name(_LOCK), wait=0):
            text_logs.shorten(log, longest, _LOGS)


def ensure_topics(
    settings: Settings, partitions: Mapping[str, int], config: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Creates the topics of `partitions` that are missing, with the topic properties `config`, and returns their names.

    A topic that is there stays as it is, also with another number of partitions. Raises AccessError, BrokerError.
    """
    present = kafka_client.topics(settings, READY_LIMIT) if partitions else frozenset()
    # one that is there is not asked for: it may take a right that only its owner has
    topics = [
        NewTopic(name, n, replication_factor=-1, config=dict(config or {}))
        for name, n in partitions.items()
        if name not in present
    ]
    if not topics:
        return ()
    admin = kafka_client.admin(settings)
    created = []
    for name, future in admin.create_topics(topics, request_timeout=READY_LIMIT).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as err:
            what = f"topic={name}, creating it"
            if refused := kafka_client.denied(err.args[0], what, _RIGHT):
                raise refused from err
            if err.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerError(
                    f"topic={name}: the broker must create it and did not; {err.args[0].str()}"
                ) from err
    return tuple(created)


# a broker shows nobody a topic that he may not describe
_RIGHT = "CREATE on the topic, or DESCRIBE if it is there"


def _lock(home: Path) -> AbstractContextManager[object]:
    limit = READY_LIMIT + 2 * STOP_LIMIT
    message = (
        f"broker={home}: one process at a time starts or stops it; another has for {limit:.0f} s"
    )
    return locks.alone(home / _LOCK, limit, refusal=lambda holder: BrokerError(message))


def _command(jars: Jars, jvm: Sequence[str], main: str, *arguments: str) -> list[str]:
    return [java(), *_JVM, *jvm, "-cp", ":".join(map(str, jars.kafka)), main, *arguments]


def _format(home: Path, jars: Jars) -> None:
    if (home / "data" / "meta.properties").exists():
        return
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    arguments = (f"--cluster-id={cluster}", "--config=server.properties", "--ignore-formatted")
    # over in a second: not worth compiling in full
    jvm = (*cds_archive.options("kafka"), "-XX:TieredStopAtLevel=1")
    command = _command(jars, jvm, "kafka.tools.StorageTool", "format", *arguments)
    try:
        run = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=READY_LIMIT)
    except subprocess.TimeoutExpired as err:
        raise BrokerError(
            f"broker={home}: Kafka must format its storage within {READY_LIMIT:.0f} s and did not; see whether the disk answers, "
            "and start it again"
        ) from err
    if run.returncode != 0:
        raise BrokerError(
            f"broker={home}: its storage must be formatted once; {(run.stdout + run.stderr).strip()}"
        )


def _launch(home: Path, jars: Jars, address: str, jvm: Sequence[str] = ()) -> Broker:
    text_logs.set_aside(home / _LOG, _LOGS)
    command = _command(jars, jvm, "kafka.Kafka", "server.properties")
    pid = processes.detached(command, home / _LOG, cwd=home)
    start_time = processes.started(pid)
    if not start_time:
        raise BrokerError(f"broker={home}: it ended at once. {_end_of(str(home / _LOG))}")
    return Broker(pid, start_time, address, str(home / _LOG), processes.boot_id())


def _answers(broker: Broker) -> bool:
    """Waits until the broker answers; returns False if its process ends instead. Raises BrokerError after READY_LIMIT."""
    quick: Properties = {"log_level": "0", "reconnect.backoff.max.ms": "200"}
    admin = AdminClient(quick | {"bootstrap.servers": broker.bootstrap_servers})
    deadline = time.monotonic() + READY_LIMIT
    while time.monotonic() < deadline:
        try:
            if admin.list_topics(timeout=0.5).brokers:
                return True
        except KafkaException:  # not listening yet, or not in charge yet
            if broker.process() is None:
                return False
    raise BrokerError(
        f"broker={broker.bootstrap_servers} (pid={broker.pid}): it must answer within {READY_LIMIT:.0f} s."
        f" {_end_of(broker.log)}"
    )


def _end_of(log: str) -> str:
    lines = text_logs.tail(Path(log), 20)
    return f"The end of {log}:\n  " + "\n  ".join(lines) if lines else f"{log} is empty."
