"""The exchange of a table and the version beside it. A job that is to run ends for that, and goes on under the present code.

The long work is done while the job runs: Spark starts, the version beside reads up to the present, and the job's next
process comes up. Once the job has ended, that version reads the few rows that came since.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import full_disk
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state
from lakehouse.storage.versions import upgrades
from lakehouse.storage.versions.upgrades import Command, Upgrade
from streaming_jobs import progress
from streaming_jobs.supervision import desired, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.standby import Standby, standby

_log = logging.getLogger(__name__)

_SHORT = 3.0  # seconds of a reading that leaves little to read
_READINGS = 3  # at most, before the job ends: a version that falls behind would read on without end


def exchange(
    lakehouse: Lakehouse,
    name: str,
    command: Command,
    catch_up: Callable[[Table], None],
    by: str = "",
) -> tuple[Upgrade, int | None]:
    """Promotes the version beside a table, or rolls it back; an exchange that was cut off goes on.

    A job that is to run is ended and started again; then the pid of its new process is returned as well. A stopped job
    stays so.

    :param catch_up: has the new version read what came since, with Spark. It is not called where that was done before the
        exchange was cut off.
    :raises JobError: if there is nothing to exchange, another process is at it, the disk is full, or the job runs and
        would not start again under this code.
    """
    table = lakehouse.catalog.table(name)
    what = f"the exchange of the versions of {name}"
    with ExitStack() as locks:
        full = full_disk.named(lakehouse.settings, what, lambda: _stands(lakehouse, table))
        locks.enter_context(full)
        if done := _to_be_started(lakehouse, table, command):
            return done, _started(lakehouse, table, command)
        upgrades.check(lakehouse, table, command)  # before a JVM starts
        goes_on = _goes_on(lakehouse, table)
        locks.enter_context(upgrades.alone(lakehouse.settings, table))
        locks.enter_context(publishing(lakehouse.settings, table))
        is_begun = upgrades.check(lakehouse, table, command)

        def swap() -> Upgrade:
            if not is_begun:
                catch_up(table)
            return upgrades.exchange(lakehouse, table, command)

        if not goes_on:
            locks.enter_context(_lock_job(lakehouse, table))
            supervisor.check_ended(lakehouse.settings, table.pipeline)
            return swap(), None
        beside = locks.enter_context(standby(lakehouse.settings, table.pipeline))
        if not is_begun:
            _read_ahead(lambda: catch_up(table))
        beside.await_ready()
        locks.enter_context(_lock_job(lakehouse, table))
        return _between(lakehouse.settings, table, command, by, swap, beside)


def _stands(lakehouse: Lakehouse, table: Table) -> str:
    """Returns the state of the table after an exchange that ended before it was done."""
    upgrade = upgrades.upgrade(lakehouse.settings, table)
    if upgrade and upgrade.command:
        return (
            "its readers see one version or the other, whole, and nothing starts until it is done"
        )
    return "the table is as it was"


def _shown(table: Table, command: Command) -> str:
    return f"lakehouse upgrade {command} {table.name}"


def _to_be_started(lakehouse: Lakehouse, table: Table, command: Command) -> Upgrade | None:
    """Returns the exchange that this command has done, if it was cut off before it started the job again."""
    settings, pipeline = lakehouse.settings, table.pipeline
    if desired.ended_for(settings, pipeline) != _shown(table, command):
        return None
    upgrade = upgrades.upgrade(settings, table)
    is_done = upgrade and not upgrade.command and upgrade.state == upgrades.DONE[command]
    return upgrade if is_done and not supervisor.lives(settings, pipeline) else None


def _started(lakehouse: Lakehouse, table: Table, command: Command) -> int:
    """Starts the job and returns its pid. Raises DeclarationError if the job cannot start under this code."""
    settings, pipeline = lakehouse.settings, table.pipeline
    declared_state.check(lakehouse, lakehouse.catalog.of_pipeline(pipeline))
    with upgrades.alone(settings, table), _lock_job(lakehouse, table):
        return supervisor.begin(settings, pipeline, f"`{_shown(table, command)}` was cut off")


def _goes_on(lakehouse: Lakehouse, table: Table) -> bool:
    """Returns True if the table's job is to run, and can do so under this code once the versions are exchanged.

    Raises JobError if it runs now, and could not.
    """
    settings, pipeline = lakehouse.settings, table.pipeline
    wanted = desired.read(settings, pipeline)
    if wanted is None or wanted.state != "running":
        return False
    lives = supervisor.lives(settings, pipeline)
    if lives:
        supervisor.check_here(settings, pipeline, "and is to be started again under this code")
    others = [other for other in lakehouse.catalog.of_pipeline(pipeline) if other != table]
    changed = [other.name for other in others if declared_state.changes(lakehouse, other)]
    if changed and lives:
        raise JobError(
            f"pipeline={pipeline!r}: its job could not start again under this code, in which {', '.join(changed)} changed as "
            f"well; stop it (`lakehouse stream stop {pipeline}`), do for each table what `lakehouse plan` says, and start it"
        )
    return not changed


def _read_ahead(read: Callable[[], None]) -> None:
    """Reads again until a reading was short, so that the next one reads few rows."""
    for _ in range(_READINGS):
        began = time.monotonic()
        read()
        if time.monotonic() - began < _SHORT:
            return


def _lock_job(lakehouse: Lakehouse, table: Table) -> AbstractContextManager[object]:
    """Holds the right to end and start the table's job. Raises JobError with the process that has it."""
    try:
        return desired.lock_process(lakehouse.settings, table.pipeline)
    except desired.Busy as err:
        others = upgrades.under_way(lakehouse, table)
        if not others:
            raise
        shown = ", ".join(f"pid={pid} upgrades {name}" for name, pid in others.items())
        raise desired.Busy(f"{err} ({shown}, of that pipeline)") from err


def _between(
    settings: Settings,
    table: Table,
    command: Command,
    by: str,
    swap: Callable[[], Upgrade],
    beside: Standby,
) -> tuple[Upgrade, int]:
    """Swaps between two processes of the job: the present one is ended, and one under this code goes on.

    A failure in between leaves the job ended: this code could not go on with the table as it was.
    """
    pipeline = table.pipeline
    wanted = desired.wish(settings, pipeline, "running", by)
    why = f"exchange of versions asked for by {wanted.by}"
    event = Event(progress.now(), "exchanging", why, command=_shown(table, command))
    desired.note(settings, pipeline, event)  # a process killed before the start leaves this
    supervisor.end(settings, pipeline, why, supervisor.DRAIN)
    try:
        with supervisor.lock_pipelines(settings, pipeline, why):
            done = swap()
    except BaseException:
        _log.warning(
            f"pipeline={pipeline!r}: its job was ended for the exchange; run the command again, which starts it"
        )
        raise
    return done, supervisor.launch(settings, pipeline, why, beside=beside)
