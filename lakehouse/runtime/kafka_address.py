"""The address of the broker: the one of the settings, or that of the embedded broker by the record it left.

`kafka_broker`, which starts and stops that, loads more than a caller needs who asks for an address.
"""

from dataclasses import asdict, dataclass

import psutil

from lakehouse import processes
from lakehouse.errors import BrokerError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file


@dataclass(frozen=True, slots=True)
class Broker:
    """An embedded broker; the process is its pid, its start (`lakehouse.processes`) and the boot of the machine."""

    pid: int
    start_time: float
    bootstrap_servers: str
    log: str
    boot: str = ""  # of an earlier version: not known

    def process(self) -> psutil.Process | None:
        """Returns its process, or None once it has ended, even if another process has the pid now."""
        here = self.boot in ("", processes.boot_id())
        return processes.running(self.pid, self.start_time) if here else None


def last(settings: Settings) -> Broker | None:
    """Returns the broker that was last started here, alive or not."""
    meaning = "the embedded broker counts as not running; if its process still runs, end it before `lakehouse broker start`"
    return read_value(layout.broker(settings) / "broker.json", Broker, meaning)


def write(settings: Settings, broker: Broker) -> None:
    """Records `broker` in one step, so that a reader sees the last one or this one."""
    replace_file(layout.broker(settings) / "broker.json", asdict(broker))


def running(settings: Settings) -> Broker | None:
    """Returns the embedded broker if its process is alive; it may still be starting."""
    broker = last(settings)
    return broker if broker and broker.process() else None


def bootstrap_servers(settings: Settings) -> str:
    """Returns the address. Raises BrokerError if the settings name none and the embedded broker is not running."""
    if named := settings.bootstrap_servers or settings.kafka.get("bootstrap.servers", ""):
        return named
    broker = running(settings)
    if broker is None:
        raise BrokerError(
            f"bootstrap_servers='' (root={settings.root}): empty means the embedded broker, and none is running;"
            " start it with `lakehouse broker start` or set LAKEHOUSE_BOOTSTRAP_SERVERS"
        )
    return broker.bootstrap_servers
