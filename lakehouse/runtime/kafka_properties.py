"""The configuration of the embedded broker: its server.properties and its ports."""

import socket
import zlib
from collections.abc import Iterable
from pathlib import Path

from lakehouse.errors import BrokerError
from lakehouse.storage.disk.files import replace_text

LARGEST_RECORD = 16 << 20  # bytes; Kafka's own limit of 1 MiB is no limit of a lakehouse
# below the ephemeral ports: no outgoing connection takes one while we are down
_FIRST_PORT, _PORTS = (20_000, 12_000)

_SERVER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "log.dirs": "data",  # relative to the folder the broker runs in, so a lakehouse can be moved
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",  # a misspelt topic is an error, not a new topic
    "message.max.bytes": str(LARGEST_RECORD),
    "replica.fetch.max.bytes": str(LARGEST_RECORD),
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",  # a killed broker may come back after this; 9 s by default
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),  # 128 MiB by default: a quarter of the heap
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # one broker holds the only copy of everything
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}


def write(home: Path) -> str:
    """Writes `home`/server.properties, with the ports of the last start if they are free, and returns the broker's address."""
    path = home / "server.properties"
    port, controller = _free_ports([*_last_ports(path), *_ports_of(home)])
    address = f"127.0.0.1:{port}"
    properties = _SERVER | {
        "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        # static: a quorum formatted as standalone remembers its first port
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    replace_text(path, "".join(f"{name}={value}\n" for name, value in properties.items()))
    return address


def _last_ports(path: Path) -> list[int]:
    lines = path.read_text().splitlines() if path.exists() else []
    listeners = [line.partition("=")[2] for line in lines if line.startswith("listeners=")]
    return [int(listener.rpartition(":")[2]) for line in listeners for listener in line.split(",")]


def _ports_of(home: Path) -> Iterable[int]:
    """Returns the ports to try for a lakehouse: by its path, so that two seldom meet and a client finds it again."""
    first = zlib.crc32(str(home).encode())
    return (_FIRST_PORT + (first + i) % _PORTS for i in range(100))


def _free_ports(candidates: Iterable[int]) -> tuple[int, int]:
    free: list[int] = []
    for port in dict.fromkeys(candidates):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == 2:
            return free[0], free[1]
    raise BrokerError(
        f"ports={free}: the broker needs two free ones among a hundred of 127.0.0.1; end what holds them"
    )
