"""A table and the version beside it change places, while the table's job is stopped."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage import upgrades
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.publish_lock import publishing
from lakehouse.storage.upgrades import Command, Upgrade
from streaming_jobs import desired, supervisor


def exchange(
    lakehouse: Lakehouse, name: str, command: Command, catch_up: Callable[[Table], None]
) -> Upgrade:
    """Promotes the version beside a table, or rolls it back; what was cut off before goes on.

    :param catch_up: has the version that is to take the place read what came since, with Spark. It is
        not called where that was done before the exchange was cut off.
    :raises JobError: if the table's job runs, there is nothing to exchange, or another process is at it.
    """
    table = lakehouse.catalog.table(name)
    upgrades.check(lakehouse, table, command)  # before a JVM starts
    with (
        upgrades.alone(lakehouse.settings, table),
        _stopped(lakehouse, table),
        publishing(lakehouse.settings, table),
    ):
        if not upgrades.check(lakehouse, table, command):
            catch_up(table)
        return upgrades.exchange(lakehouse, table, command)


@contextmanager
def _stopped(lakehouse: Lakehouse, table: Table) -> Iterator[None]:
    """Until this ends the table's job does not run. Raises JobError, with who is at it, if another keeps it stopped."""
    with ExitStack() as held:
        try:
            held.enter_context(supervisor.all_stopped(lakehouse.settings, [table.pipeline]))
        except desired.Busy as err:
            others = upgrades.under_way(lakehouse, table)
            if not others:
                raise
            shown = ", ".join(f"pid={pid} upgrades {name}" for name, pid in others.items())
            raise desired.Busy(f"{err} ({shown}, of that pipeline)") from err
        yield


def stands(settings: Settings, table: Table) -> str:
    """How things are when an exchange of the table has ended before it was done."""
    begun = upgrades.upgrade(settings, table)
    return (
        "its readers see one version or the other, whole, and nothing starts until it is done"
        if begun and begun.command
        else "the table is as it was"
    )
