"""Which broker this lakehouse talks to: the one of the settings, or the embedded one by the record it left.

Apart from `kafka_broker`, which starts and stops it, so that whoever only needs an address does not
load all that.
"""

from dataclasses import asdict, dataclass
from functools import partial

import psutil

from lakehouse import processes
from lakehouse.errors import BrokerError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file
from lakehouse.storage.disk.typed_values import typed


@dataclass(frozen=True, slots=True)
class Broker:
    """An embedded broker; the process is its pid, its start (`lakehouse.processes`) and the boot of the machine."""

    pid: int
    start_time: float
    bootstrap_servers: str
    log: str
    boot: str = ""  # of an earlier version: not known

    def process(self) -> psutil.Process | None:
        """Its process, or None once it has ended, whoever has the pid now."""
        here = self.boot in ("", processes.boot_id())
        return processes.running(self.pid, self.start_time) if here else None


def last(settings: Settings) -> Broker | None:
    """The broker that was last started here, alive or not."""
    meaning = "the embedded broker counts as not running; if its process still runs, end it before `lakehouse broker start`"
    return read_value(layout.broker(settings) / "broker.json", partial(typed, Broker), meaning)


def write(settings: Settings, broker: Broker) -> None:
    """Record `broker` in one step, so that a reader sees the last one or this one."""
    path = layout.broker(settings) / "broker.json"
    replace_file(path, asdict(broker))


def running(settings: Settings) -> Broker | None:
    """The embedded broker if its process is alive; it may still be starting."""
    broker = last(settings)
    return broker if broker and broker.process() else None


def bootstrap_servers(settings: Settings) -> str:
    """The address of the broker.

    Raises BrokerError if the settings name none and the embedded one is not running.
    """
    named = settings.bootstrap_servers or settings.kafka.get("bootstrap.servers", "")
    if named:
        return named
    broker = running(settings)
    if broker is None:
        raise BrokerError(
            f"bootstrap_servers='' (root={settings.root}): empty means the embedded broker, and none is running;"
            " start it with `lakehouse broker start` or set LAKEHOUSE_BOOTSTRAP_SERVERS"
        )
    return broker.bootstrap_servers
