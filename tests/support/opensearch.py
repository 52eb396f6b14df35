"""A server of OpenSearch for a test: one node on the loopback, of jars from Maven Central, without the security plugin."""

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from benchmarks import maven
from lakehouse.settings import from_environment, java
from support.own_server import OwnServer, free_port

VERSION = "2.19.6"  # the last that runs on Java 17
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


class Server(OwnServer):
    """A server that keeps what it has when it is killed."""

    name = "opensearch"
    up = 120.0

    def __init__(self) -> None:
        self._jars = fetched()
        super().__init__()
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
            "transport.port": free_port(),
            "node.name": "test",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        lines = "".join(f"{name}: {value}\n" for name, value in known.items())
        (self.home / "config" / "opensearch.yml").write_text(lines)

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

    def command(self) -> Sequence[str]:
        options = ["-Xms384m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # without native code it does not look whether it is run by root, and end
        options += ["-Djna.nosys=true", "-Djna.noclasspath=true"]
        options += [f"-Djava.io.tmpdir={self.home / 'tmp'}", "-Djava.security.manager=allow"]
        options += [
            f"-Dopensearch.path.home={self.home}",
            f"-Dopensearch.path.conf={self.home / 'config'}",
        ]
        main = "org.opensearch.bootstrap.OpenSearch"
        return [java(), *options, "-cp", str(self._jars / "server" / "*"), main]

    def answers(self) -> bool:
        try:
            health = self.ask("GET", "/_cluster/health")
        except (HTTPError, URLError, OSError):
            return False
        return health["status"] != "red"


def running() -> AbstractContextManager[Server]:
    """A server that runs."""
    return Server().running()
