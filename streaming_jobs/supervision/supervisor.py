"""Starts, stops and looks at the processes of streaming jobs, by pid and start time, where these mean something.

A process elsewhere (`streaming_jobs.supervision.holders`) can only be asked to drain, and waited for until it has, or its
lease has expired. Each start and stop is recorded as the desired state, which `control_loop` keeps.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from lakehouse import processes
from lakehouse.durations import duration
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import file_system_now, modified
from lakehouse.storage.lakehouse import load
from lakehouse.storage.position import declared_state
from lakehouse.storage.versions import interruptions
from streaming_jobs import progress
from streaming_jobs.progress import AT_WORK, JobStatus
from streaming_jobs.supervision import desired, holders, jobs, lease, standby
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.holders import Place, here
from streaming_jobs.supervision.job_logs import log_tail
from streaming_jobs.supervision.standby import Standby

# seconds between two looks at a status file, which is all that a job shares with others
_LOOK = 0.1
_KILLED = 30.0  # seconds for a process to be gone after SIGKILL; with much memory, under load, it is no moment
DRAIN = 60.0  # seconds
ACTING = 120.0  # seconds to wait for whoever else is starting or ending the process


def status(settings: Settings, pipeline: str) -> JobStatus | None:
    """Returns the status of the job; None if it never ran."""
    return progress.read(settings, pipeline)


def start(
    settings: Settings, pipeline: str, *, wait: float | None = None, by: str = ""
) -> JobStatus:
    """Starts the job, detached, and returns when it runs; a job that runs already is left alone.

    A scheduled one runs once, and then by its schedule. Raises JobError with the end of its log if it fails, or does not run
    within `wait` seconds, by default `start_within`; DeclarationError if its queries started with another declaration.
    """
    _check(settings, pipeline)
    wanted = desired.wish(settings, pipeline, "running", by)
    with desired.lock_process(settings, pipeline, ACTING):
        pid = begin(settings, pipeline, f"asked for by {wanted.by}")
    return await_running(settings, pipeline, pid, wait)


def begin(settings: Settings, pipeline: str, why: str) -> int:
    """Returns the pid of a process that runs the job as fresh as the settings say: the one there is, or a new one.

    A process with another freshness, or one that is stopping, is drained first. The caller holds `lock_process`.
    """
    now, freshness = status(settings, pipeline), str(settings.freshness_of(pipeline))
    if running(settings, pipeline):
        if now is None or not now.alive or now.freshness == freshness:
            return identity(settings, pipeline)[0]
        check_here(
            settings, pipeline, f"{now.freshness}, and by the settings it is to be {freshness}"
        )
    end(settings, pipeline, f"{why}, to be {freshness}", DRAIN)
    return launch(settings, pipeline, why)


def stop(
    settings: Settings, pipeline: str, *, timeout: float = 60, now: bool = False, by: str = ""
) -> JobStatus | None:
    """Stops the job: drains it, or with `now` kills it, and returns its status; None if it never ran.

    A process that has not ended after `timeout` seconds is killed: it resumes all the same.
    """
    wanted = desired.wish(settings, pipeline, "stopped", by)
    with desired.lock_process(settings, pipeline, ACTING):
        end(settings, pipeline, f"asked for by {wanted.by}", 0 if now else timeout)
    return status(settings, pipeline)


def restart(
    settings: Settings,
    pipeline: str,
    *,
    timeout: float = 60,
    now: bool = False,
    wait: float | None = None,
    by: str = "",
    ahead: Callable[[], None] = lambda: None,
    meanwhile: Callable[[], None] | None = None,
) -> JobStatus:
    """Ends the job as `stop` does and starts it again; paused queries are tried again. Raises JobError as `start` does.

    :param ahead: is called before the job ends.
    :param meanwhile: is called with the lease of its pipelines while it does not run; the job is started even if it fails.
        Unless `now` is given, the next process comes up before that, for which there must be memory.
    """
    _check(settings, pipeline)
    if running(settings, pipeline):
        check_here(settings, pipeline, "and is to be started again")
        desired.check_supervised(settings, pipeline)
    with ExitStack() as opened:
        beside: Standby | None = None
        if meanwhile and not now:
            beside = opened.enter_context(standby.standby(settings, pipeline))
        ahead()
        if beside:
            beside.await_ready()
        wanted = desired.wish(settings, pipeline, "running", by)
        with desired.lock_process(settings, pipeline, ACTING):
            why = f"restart asked for by {wanted.by}"
            end(settings, pipeline, why, 0 if now else timeout)
            try:
                if meanwhile:
                    with lock_pipelines(settings, pipeline, why):
                        meanwhile()
            finally:
                pid = launch(settings, pipeline, why, beside=beside)
    return await_running(settings, pipeline, pid, wait)


@contextmanager
def all_stopped(settings: Settings, pipelines: Iterable[str]) -> Iterator[None]:
    """Keeps all these jobs from being started. Raises JobError for one that runs."""
    with ExitStack() as locks:
        for pipeline in pipelines:
            locks.enter_context(desired.lock_process(settings, pipeline))
            check_ended(settings, pipeline)
        yield


def check_ended(settings: Settings, pipeline: str) -> None:
    """Raises JobError if the job runs. The caller holds `lock_process`: else it may start at once."""
    if lives(settings, pipeline) or lease.others(settings, pipeline):
        raise JobError(
            f"pipeline={pipeline!r}: its job runs, and would write on into tables that are to be replaced; stop it first "
            f"(`lakehouse stream stop`)"
        )


@contextmanager
def lock_pipelines(settings: Settings, pipeline: str, why: str) -> Iterator[None]:
    """Keeps every process from the tables of a job that was ended, by their lease. The caller holds `lock_process`."""
    _end_others(settings, pipeline, why)
    with lease.acquire(settings, pipeline):
        yield


def _check(settings: Settings, pipeline: str) -> None:
    """Raises the errors by which a process would refuse to start; a job that runs goes on as it was declared."""
    interruptions.check(settings)
    lakehouse = load(settings)
    if target := jobs.target_of(pipeline):
        lakehouse.catalog.target(target)
        return
    declared_state.check(lakehouse, lakehouse.catalog.of_pipeline(pipeline))


def launch(
    settings: Settings,
    pipeline: str,
    why: str,
    *,
    restarted: bool = False,
    counted: bool = False,
    well: float = 0.0,
    beside: Standby | None = None,
) -> int:
    """Starts the job's process, or lets go the one `beside`, and returns its pid without waiting for it.

    A process that runs the same pipelines under another name, since the settings had them together or apart, is drained
    first. The caller holds `lock_process`.
    """
    _end_others(settings, pipeline, why)
    at = progress.now()
    pid = beside.pid if beside else standby.spawn(settings, pipeline)
    what: desired.What = "restarted" if restarted else "started"
    desired.note(
        settings, pipeline, Event(at, what, why, pid, processes.started(pid), counted, well)
    )
    if beside:
        beside.go()
    return pid


def _end_others(settings: Settings, pipeline: str, why: str) -> None:
    for other in lease.others(settings, pipeline):
        with desired.lock_process(settings, other, ACTING):
            end(settings, other, f"{why}, in the process {pipeline!r}", DRAIN)


def end(settings: Settings, pipeline: str, why: str, timeout: float) -> None:
    """Drains the job's process for at most `timeout` seconds, then kills it. Raises JobError. The caller holds `lock_process`.

    A process elsewhere drains because of the desired state, and is waited for.
    """
    pid, born, place = _process(settings, pipeline)
    if not place.is_here:
        _await_end_elsewhere(settings, pipeline, timeout)
        return
    if timeout and progress.is_alive(pid, born):
        ask_to_end(settings, pipeline, why)
        if processes.wait(pid, born, timeout) and (now := status(settings, pipeline)):
            now.await_end_of_jvm(timeout)
    kill(settings, pipeline, why)


def ask_to_end(settings: Settings, pipeline: str, why: str) -> None:
    """Lets the job's process, which is here, begin to drain. The caller holds `lock_process`."""
    pid, born = identity(settings, pipeline)
    desired.note(settings, pipeline, Event(progress.now(), "stopping", why, pid, born))
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).terminate()


def kill(settings: Settings, pipeline: str, why: str) -> None:
    """Kills the job's process and its JVM. The caller holds `lock_process`.

    Raises JobError if one survives SIGKILL (it waits for a disk, say): then no other may start.
    """
    pid, born, place = _process(settings, pipeline)
    if not place.is_here:
        _await_end_elsewhere(settings, pipeline, 0)
        return
    now = status(settings, pipeline)
    ours = [(pid, born), (now.jvm, now.jvm_started)] if now and now.place.is_here else [(pid, born)]
    if progress.is_alive(pid, born):
        desired.note(settings, pipeline, Event(progress.now(), "killed", why, pid, born))
    deadline = time.monotonic() + _KILLED
    for process in ours:
        if progress.is_alive(*process):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(process[0]).kill()
    while left := [p for p in ours if progress.is_alive(*p)]:
        if time.monotonic() > deadline:
            raise JobError(
                f"pipeline={pipeline!r}, pid={left[0][0]}: the process survived SIGKILL, so no replacement is started; check "
                "which device it is blocked on"
            )
        time.sleep(_LOOK / 10)


def identity(settings: Settings, pipeline: str) -> tuple[int, float]:
    """Returns pid and start time of the job's process, by its status, or by its launch until it has written one."""
    return _process(settings, pipeline)[:2]


def _process(settings: Settings, pipeline: str) -> tuple[int, float, Place]:
    # in this order: a process that speaks in between would be taken for the one before
    if launched := silent_launch(settings, pipeline):
        return launched.pid, launched.process_started, launched.place
    now = status(settings, pipeline)
    return (now.pid, now.process_started, now.place) if now else (0, 0.0, here())


def is_here(settings: Settings, pipeline: str) -> bool:
    """Returns True if the job's process runs where it can be looked at and ended."""
    return _process(settings, pipeline)[2].is_here


def silent_launch(settings: Settings, pipeline: str) -> Event | None:
    """Returns the last launch if its process has not written a status yet: it is about to, or it died before that."""
    now, done = status(settings, pipeline), desired.history(settings, pipeline)
    launched = next((e for e in reversed(done) if e.what in ("started", "restarted")), None)
    if now and launched and (now.alive or now.started_at > launched.at):
        return None
    return launched


def is_launching(settings: Settings, pipeline: str, launched: Event) -> bool:
    """Returns True if a process without a status may still write one; elsewhere, as long as a lease would last."""
    if launched.place.is_here:
        return progress.is_alive(launched.pid, launched.process_started)
    noted_at = modified(layout.job_file(settings, pipeline, "history.json")) or 0.0
    age = file_system_now(layout.job_folder(settings, pipeline)) - noted_at
    return age < duration(settings.heartbeat_within).total_seconds()


def await_running(
    settings: Settings, pipeline: str, pid: int, wait: float | None = None
) -> JobStatus:
    """Returns when the process runs, or has done its run of a schedule.

    Raises JobError with the end of its log if it ends otherwise, or does not run within `wait` seconds.
    """
    wait = duration(settings.start_within).total_seconds() if wait is None else wait
    deadline = time.monotonic() + wait
    while True:
        # looked at first: what it said last is then final
        ended = identity(settings, pipeline)[0] != pid or not lives(settings, pipeline)
        now = status(settings, pipeline)
        if now is not None and now.pid == pid:
            scheduled = settings.freshness_of(pipeline).cron is not None
            done = ended and now.state == "stopped" and scheduled
            if done or now.state in AT_WORK:
                return now
        if ended:
            raise JobError(
                f"pipeline={pipeline!r}: its process ended before it ran:\n{log_tail(settings, pipeline)}"
            )
        if time.monotonic() >= deadline:
            raise JobError(
                f"pipeline={pipeline!r}, pid={pid}: it is still starting after {wait:g} s, and goes on with that; see "
                f"`{jobs.command('status', pipeline)}` later, or wait longer (--wait); its log "
                f"ends:\n{log_tail(settings, pipeline)}"
            )
        time.sleep(_LOOK)


def lives(settings: Settings, pipeline: str) -> bool:
    """Returns True if the job's process lives, or may live elsewhere."""
    if launched := silent_launch(settings, pipeline):
        return is_launching(settings, pipeline, launched)
    now = status(settings, pipeline)
    return now is not None and now.alive


def running(settings: Settings, pipeline: str) -> bool:
    """Returns True if a process runs, or is about to."""
    pid, _ = identity(settings, pipeline)
    now = status(settings, pipeline)
    ending = now is not None and now.pid == pid and now.state not in ("starting", *AT_WORK)
    return lives(settings, pipeline) and not ending


def check_here(settings: Settings, pipeline: str, why: str) -> None:
    """Raises JobError if the job's process runs elsewhere."""
    pid, _, place = _process(settings, pipeline)
    if not place.is_here:
        raise JobError(
            f"pipeline={pipeline!r}, pid={pid}, {place}: it runs elsewhere, {why}; say it there, or here "
            f"`{jobs.command('stop', pipeline)}` and then `{jobs.command('start', pipeline)}`, which runs it here"
        )


def _await_end_elsewhere(settings: Settings, pipeline: str, timeout: float) -> None:
    """Returns when the process elsewhere has ended, or its lease has expired. Raises JobError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        pid, _, place = _process(settings, pipeline)
        launched = silent_launch(settings, pipeline)
        waiting = holders.left(settings, pipeline, place)
        if not waiting and not (launched and is_launching(settings, pipeline, launched)):
            return
        if time.monotonic() >= deadline:
            raise JobError(
                f"pipeline={pipeline!r}, pid={pid}, {place}: it ends where it runs once "
                f"`{jobs.command('stop', pipeline)}` was said, or its lease expires {settings.heartbeat_within} after its last "
                "sign of life; try again then"
            )
        time.sleep(_LOOK)
