"""Debezium's connector for PostgreSQL in Kafka Connect, for benchmarks and tests: real processes, of jars that Ivy brings.

Nothing of it belongs to the library.
"""

import json
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks import maven
from benchmarks.measure import BenchmarkError
from lakehouse.settings import java

# of the server that it follows
LOGICAL = "-c wal_level=logical -c max_wal_senders=10 -c max_replication_slots=10"
CONNECT, DEBEZIUM = "4.2.0", "3.5.0.Final"
_UP = 60.0  # seconds for a worker to answer
_DEPENDENCIES = f"""
    <dependency org="org.apache.kafka" name="connect-runtime" rev="{CONNECT}" conf="connect->default"/>
    <dependency org="org.apache.kafka" name="connect-json" rev="{CONNECT}" conf="connect->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="connect->default" transitive="false"/>
    <dependency org="io.debezium" name="debezium-connector-postgres" rev="{DEBEZIUM}" conf="plugin->default"
                transitive="false">
      <artifact name="debezium-connector-postgres" type="plugin" ext="tar.gz" m:classifier="plugin"/>
    </dependency>
"""


def fetched(home: Path) -> Path:
    """The folder of the jars, which Ivy brings from Maven Central if they are not there (some 60 MB).

    Raises BenchmarkError if they do not come.
    """
    name = f"debezium-{DEBEZIUM}-connect-{CONNECT}"
    return maven.fetched(home, name, ("connect", "plugin"), _DEPENDENCIES, _unpack)


def _unpack(fresh: Path) -> None:
    (packed,) = (fresh / "plugin").glob("*.tar.gz")
    with tarfile.open(packed) as whole:
        whole.extractall(fresh / "plugins", filter="data")
    packed.unlink()


class Worker:
    """One worker of Kafka Connect with one connector; its offsets outlive it."""

    def __init__(
        self, home: Path, jars: Path, bootstrap_servers: str, connector: Mapping[str, object]
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._home, self._jars, self._process = home, jars, None
        self._name = str(connector["name"])
        worker = {
            "bootstrap.servers": bootstrap_servers,
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": home / "offsets",
            "offset.flush.interval.ms": 2_000,
            "plugin.path": jars / "plugins",
            "plugin.discovery": "service_load",
        }
        own = {
            "topic.creation.default.replication.factor": 1,
            "topic.creation.default.partitions": 1,
        }
        for name, properties in (("worker", worker), ("connector", {**own, **connector})):
            lines = (f"{key}={value}\n" for key, value in properties.items())
            (home / f"{name}.properties").write_text("".join(lines))

    def start(self) -> None:
        """Returns when the connector runs."""
        classes = str(self._jars / "connect" / "*")
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        files = [str(self._home / f"{name}.properties") for name in ("worker", "connector")]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [java(), *options, "-cp", classes, main, *files],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + _UP
        while self._states() != ["RUNNING", "RUNNING"]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(
                    f"debezium={self._home}: connector and task must run within {_UP:.0f} s, and are {self._states()}; the end "
                    f"of its log: {(self._home / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def kill(self) -> None:
        """As by a crash: what it has not noted is sent again by the next."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """In order: it notes how far it has come."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _states(self) -> list[str]:
        """Of the connector and its one task; fewer while they are not there."""
        try:
            address = f"http://127.0.0.1:{self._port}/connectors/{self._name}/status"
            with urlopen(address, timeout=2) as answer:
                known = json.load(answer)
        except (URLError, OSError):
            return []
        return [known["connector"]["state"], *(task["state"] for task in known["tasks"])]


def connector(dsn: str, tables: str, **properties: object) -> dict[str, object]:
    """A connector's properties for tables of a server, by `psycopg`'s kind of address."""
    known = dict(pair.split("=") for pair in dsn.split())
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": 1,
        "database.hostname": known["host"],
        "database.port": known["port"],
        "database.user": known["user"],
        "database.password": "none",
        "database.dbname": known["dbname"],
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "slot.name": "shop",
        "table.include.list": tables,
        "skipped.operations": "none",
        "poll.interval.ms": 100,
        **{name.replace("_", "."): value for name, value in properties.items()},
    }
