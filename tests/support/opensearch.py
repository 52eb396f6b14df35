"""A server of OpenSearch for a test: one node on the loopback, of jars from Maven Central, without the security plugin."""

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from benchmarks import maven
from lakehouse.settings import from_environment, java

VERSION = "2.19.6"  # the last that runs on Java 17
_UP = 120.0  # seconds until it answers
_DEPENDENCIES = f"""
    <dependency org="org.opensearch" name="opensearch" rev="{VERSION}" conf="server->default,optional"/>
    <dependency org="org.opensearch" name="opensearch-plugin-classloader" rev="{VERSION}" conf="server->default"
                transitive="false"/>
    <dependency org="org.opensearch.plugin" name="transport-netty4-client" rev="{VERSION}" conf="network->default">
      <exclude org="org.opensearch"/>
      <exclude org="org.apache.lucene"/>
      <exclude org="org.apache.logging.log4j"/>
    </dependency>
"""
_MODULE = f"""
name=transport-netty4
description=network
version={VERSION}
opensearch.version={VERSION}
java.version=11
classname=org.opensearch.transport.Netty4Plugin
has.native.controller=false
"""
_MAY = """
grant {
  permission java.io.FilePermission "/proc/sys/net/core/somaxconn", "read";
  permission java.net.SocketPermission "*", "accept,connect";
  permission java.lang.RuntimePermission "*", "setContextClassLoader";
  permission java.lang.RuntimePermission "getClassLoader";
};
"""
_LOG = """
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def fetched() -> Path:
    """The folder of the jars, 46 MB."""
    home = from_environment().jars.parent / "opensearch"
    return maven.fetched(home, VERSION, ("server", "network"), _DEPENDENCIES)


class Server:
    """A server that keeps what it has when it is killed."""

    def __init__(self) -> None:
        self._jars = fetched()
        self.home = Path(tempfile.mkdtemp(prefix="opensearch-"))
        self.port, between = _free(), _free()
        module = self.home / "modules" / "transport-netty4"
        shutil.copytree(self._jars / "network", module)
        (module / "plugin-descriptor.properties").write_text(_MODULE)
        (module / "plugin-security.policy").write_text(_MAY)
        for name in ("plugins", "config", "lib", "tmp"):
            (self.home / name).mkdir()
        (self.home / "config" / "log4j2.properties").write_text(_LOG)
        known = {
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": self.port,
            "transport.port": between,
            "node.name": "test",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        lines = "".join(f"{name}: {value}\n" for name, value in known.items())
        (self.home / "config" / "opensearch.yml").write_text(lines)
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """What it answers, as any other program would ask."""
        given = None if body is None else json.dumps(body).encode()
        request = Request(
            self.url + path, given, {"Content-Type": "application/json"}, method=method
        )
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def start(self) -> None:
        options = ["-Xms384m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # without native code it does not look whether it is run by root, and end
        options += ["-Djna.nosys=true", "-Djna.noclasspath=true"]
        options += [f"-Djava.io.tmpdir={self.home / 'tmp'}", "-Djava.security.manager=allow"]
        options += [
            f"-Dopensearch.path.home={self.home}",
            f"-Dopensearch.path.conf={self.home / 'config'}",
        ]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    java(),
                    *options,
                    "-cp",
                    str(self._jars / "server" / "*"),
                    "org.opensearch.bootstrap.OpenSearch",
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + _UP
        while not self._answers():
            ended = self._process.poll() is not None or time.monotonic() > deadline
            assert not ended, (self.home / "log").read_text()[-5000:]
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            health = self.ask("GET", "/_cluster/health")
        except (HTTPError, URLError, OSError):
            return False
        return health["status"] != "red"


def _free() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running() -> Iterator[Server]:
    """A server that runs."""
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.kill()
        server.remove()
