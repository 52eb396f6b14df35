"""What is decided about a job and about a query: tables of what is seen, and what follows. No process, no Spark."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from streaming_jobs import progress
from streaming_jobs.progress import QueryStatus
from streaming_jobs.supervision import control_loop, desired, healing, lease, supervisor
from streaming_jobs.supervision.desired import Desired, Event
from streaming_jobs.supervision.healing import (
    Bounds,
    Failure,
    Observed,
    after_failure,
    backoff,
    decide,
    is_overdue,
    unhealthy,
)
from support.observed import BOUNDS, DEAD, FAILED, NOW, RUN, STOP, WELL, ago, restarted, status_of

STARTING = replace(WELL, state="starting", started=ago(minutes=9))
SLOWLY = timedelta(seconds=9)  # of three minutes
AWAY = "bootstrap.servers=x: it must answer within 30 s and did not"


def broken(minutes: float) -> Event:
    return Event(ago(minutes=minutes).isoformat(), "crash_loop", "given up")


@pytest.mark.parametrize(
    ("wanted", "seen", "history", "action", "why"),
    [
        # nobody asked, or all is well
        (None, DEAD, (), "nothing", "nobody has asked"),
        (RUN, WELL, (), "nothing", "it is running"),
        (RUN, replace(WELL, state="degraded"), (), "nothing", "it is degraded"),
        (RUN, replace(WELL, state="starting", started=ago(minutes=2), heartbeat=ago(minutes=2)), (), "nothing", "starting"),
        (RUN, replace(WELL, state="stopping", heartbeat=ago(seconds=90)), (), "nothing", "stopping"),
        # wanted, and not there
        (RUN, Observed("sensors"), (), "start", healing.WANTED),
        (replace(RUN, since=ago(seconds=0).isoformat()), DEAD, restarted(3, 2, 1), "start", healing.WANTED),
        (RUN, DEAD, (), "start", "its process died"),
        (RUN, FAILED, (), "start", "it failed: OSError: x"),
        (RUN, replace(DEAD, state="stopped"), (), "start", "it ended, though it is to run"),
        # there, and not well
        (RUN, replace(WELL, heartbeat=ago(seconds=61)), (), "replace", "no sign of life for 61 s, more than 1 min"),
        (RUN, replace(WELL, busy=("t", ago(minutes=11))), (), "replace", "a micro-batch of t has run for 11 min"),
        (RUN, replace(WELL, state="starting", started=ago(minutes=4)), (), "replace", "did not run within 3 min"),
        (RUN, replace(STARTING, computed=timedelta(minutes=3)), (), "replace", "did not run within"),
        (RUN, replace(WELL, state="stopping", heartbeat=ago(minutes=3)), (), "replace", "did not end within 2 min"),
        # slow, and not dead: it passes stages, or computes as much as a loaded machine lets it
        (RUN, replace(STARTING, stage=ago(minutes=2)), (), "nothing", "starting"),
        (RUN, replace(STARTING, stage=ago(minutes=4)), (), "replace", "did not run within 3 min"),
        (RUN, replace(STARTING, computed=SLOWLY, share=0.1), (), "nothing", "starting"),
        (RUN, replace(WELL, heartbeat=ago(minutes=3), computed=SLOWLY, share=0.1), (), "nothing", "it is running"),
        (RUN, replace(WELL, heartbeat=ago(minutes=3), computed=SLOWLY), (), "replace", "no sign of life"),
        (RUN, replace(WELL, state="stopping", heartbeat=ago(minutes=3), computed=SLOWLY, share=0.1), (), "nothing", "stopping"),
        (replace(STOP, since=ago(minutes=3).isoformat()), replace(WELL, computed=SLOWLY, share=0.1), (), "stop", "stopped"),
        # again and again: wait, then give up
        (RUN, DEAD, restarted(0.01), "nothing", "its process died; next attempt in"),
        (RUN, replace(DEAD, heartbeat=ago(seconds=20)), restarted(1), "start", "its process died"),
        (RUN, FAILED, restarted(50, 30, 10), "break", "3 restarts within 1 h did not help; the last end: OSError: x"),
        (RUN, replace(WELL, heartbeat=ago(seconds=99)), restarted(50, 30, 10), "break", "the last end: no sign of life"),
        (RUN, replace(FAILED, heartbeat=ago(minutes=5)), restarted(61, 30, 10), "start", "it failed"),
        (RUN, FAILED, (*restarted(50, 30, 10), broken(1)), "nothing", "given up"),
        (replace(RUN, since=ago(seconds=0).isoformat()), FAILED, (*restarted(9, 8, 7), broken(1)), "start", healing.WANTED),
        # what passes by itself is waited for
        (RUN, replace(FAILED, error=AWAY, heartbeat=ago(minutes=6)), restarted(*range(30, 6, -1), counted=False), "start", AWAY),
        (RUN, replace(FAILED, error=AWAY, heartbeat=ago(minutes=6)), restarted(50, 30, 10), "start", AWAY),
        (RUN, replace(FAILED, error=AWAY), restarted(1, counted=False), "nothing", "next attempt in"),
        (RUN, replace(DEAD, room=False), (), "nothing", "the disk is full"),
        (RUN, replace(FAILED, room=False), restarted(3, 2, 1), "nothing", "the disk is full"),
        # not wanted
        (STOP, DEAD, (), "nothing", "it is stopped"),
        (STOP, WELL, (), "stop", "it is to be stopped"),
        (STOP, replace(WELL, state="stopping"), (), "nothing", "it drains"),
        (STOP, WELL, (Event(ago(seconds=4).isoformat(), "stopping", "asked"),), "nothing", "it drains"),
        (replace(STOP, since=ago(minutes=3).isoformat()), WELL, (), "kill", "it did not end within 2 min"),
        # not ours
        (Desired("unsupervised", STOP.since, "ann"), DEAD, (), "nothing", "what runs it in the foreground keeps it running"),
    ],
)  # fmt: skip
def test_what_is_seen_and_what_is_done(wanted, seen, history, action, why):
    decision = decide(wanted, seen, history, NOW, BOUNDS)
    assert decision.action == action and why in decision.why, decision


@pytest.mark.parametrize(
    ("silence", "computed", "share", "overdue"),
    [
        (60, 0, 1.0, False),  # within its time, whatever it does
        (61, 0, 1.0, True),  # it waits for something, on a machine with room
        (61, 0, 0.05, True),  # it waits for something, on one without
        (61, 5, 1.0, True),  # no more than an idle JVM
        (61, 7, 1.0, False),  # it works
        (600, 59, 1.0, True),  # hardly
        (600, 59, 0.5, False),  # as much as it gets, and less than its time
        (61, 60, 1.0, True),  # it has computed all of its time, and came to nothing
        (1200, 59, 0.05, False),  # a load of 40 on two cores: slow
        (1200, 60, 0.05, True),  # an endless loop ends there, too
        (1200, 5, 0.05, True),
    ],
)
def test_slow_is_not_dead(silence, computed, share, overdue):
    limit = timedelta(minutes=1)
    found = is_overdue(timedelta(seconds=silence), limit, timedelta(seconds=computed), share)
    assert found == overdue


def test_a_restart_counts_unless_its_cause_passes_by_itself():
    for error, counted in (
        ("", True),
        ("ValueError: x", True),
        (AWAY, False),
        ("OSError: No space left on device", False),
    ):
        assert decide(RUN, replace(FAILED, error=error), (), NOW, BOUNDS).counted == counted, error
    assert decide(RUN, replace(WELL, heartbeat=ago(hours=1)), (), NOW, BOUNDS).counted


def test_what_is_given_up_says_what_to_do():
    told = decide(RUN, FAILED, restarted(3, 2, 1), NOW, BOUNDS).why
    assert "lakehouse stream logs sensors" in told and "lakehouse stream start sensors" in told


@pytest.mark.parametrize(
    "error",
    [
        "bootstrap_servers='' (root=x): empty means the embedded broker, and none is running",
        "Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.",
        "java.io.IOException: No space left on device",
    ],
)
def test_what_passes_by_itself(error):
    assert healing.is_transient(error)
    assert not healing.is_transient(
        "py4j.protocol.Py4JNetworkError: [Errno 111] Connection refused"
    )


def test_waits_grow_to_a_bound_and_differ_by_job_and_attempt():
    waits = [backoff("sensors", n).total_seconds() for n in range(12)]
    assert waits[0] == 0 and waits == [backoff("sensors", n).total_seconds() for n in range(12)]
    for n, wait in enumerate(waits[1:], 1):
        assert min(2**n, 300) / 2 <= wait <= min(2**n, 300)
    assert backoff("ads", 5) != backoff("sensors", 5)


@pytest.mark.parametrize(
    ("failures", "then"),
    [
        ([(0, 7, "x")], "restart"),
        ([(20, 7, "x"), (10, 7, "x"), (0, 7, "x")], "pause"),
        (
            [(20, 7, "x"), (10, 8, "x"), (0, 8, "x")],
            "end",
        ),  # not one batch: the process may be at fault
        # as it starts: another process would meet it again, and end the other tables with it
        ([(20, None, "x"), (10, None, "x"), (0, None, "x")], "pause"),
        ([(20, None, AWAY), (10, None, AWAY), (0, None, AWAY)], "end"),
        ([(20, 7, AWAY), (10, 7, AWAY), (0, 7, AWAY)], "end"),  # the batch is not to blame
        ([(0, 7, "java.lang.OutOfMemoryError: Java heap space")], "end"),
        ([(2000, 7, "x"), (1000, 7, "x"), (0, 7, "x")], "restart"),  # forgotten
    ],
)
def test_what_becomes_of_a_query_that_failed(failures, then):
    assert (
        after_failure(
            [Failure(ago(seconds=s), batch, error) for s, batch, error in failures], limit=2
        )
        == then
    )


def test_a_query_without_a_right_at_the_broker_is_paused_once_restarts_do_not_help():
    failures = [Failure(ago(seconds=s), None, "may not", access=True) for s in (20, 10, 0)]
    assert after_failure(failures[:2], limit=2) == "restart"
    assert after_failure(failures, limit=2) == "pause"


# ---- what is read from the files


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(root=tmp_path)


def me() -> tuple[int, float]:
    return os.getpid(), psutil.Process().create_time()


def test_a_pid_that_another_process_has_now_is_not_the_job(settings):
    pid, born = me()
    progress.write(settings, status_of(pid, born))
    assert control_loop.observe(settings, "sensors").alive
    progress.write(settings, status_of(pid, born - 100))
    seen = control_loop.observe(settings, "sensors")
    assert (seen.state, seen.alive) == ("dead", False)
    # and it is not killed for it: else this test would not end
    supervisor.kill(settings, "sensors", "a test")


def test_the_micro_batch_that_runs_longest_is_seen(settings):
    queries = (QueryStatus("a", True, busy_since="2026-01-01T00:00:02+00:00"), QueryStatus("b", True),
               QueryStatus("c", True, busy_since="2026-01-01T00:00:01+00:00"))  # fmt: skip
    progress.write(settings, status_of(*me(), queries=queries))
    assert control_loop.observe(settings, "sensors").busy == (
        "c",
        datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
    )


def test_one_at_a_time_acts(settings):
    desired.wish(settings, "sensors", "running", "a test")
    with desired.lock_process(settings, "sensors"):
        decision = control_loop.step(settings, "sensors")
    assert decision.action == "nothing" and "another is at it" in decision.why
    assert desired.history(settings, "sensors") == ()


def test_the_history_keeps_the_last_hundred(settings):
    for n in range(103):
        desired.note(settings, "sensors", Event(progress.now(), "started", f"{n}"))
    assert [e.why for e in desired.history(settings, "sensors")] == [f"{n}" for n in range(3, 103)]


# ---- the lease


def test_each_holder_has_an_epoch_of_its_own_and_the_one_before_ends_with_the_winners_name(
    settings,
):
    with lease.acquire(settings, "sensors") as first:
        first.check()
        with (
            pytest.raises(JobError, match=f"pid={os.getpid()} since .* one process fills a table"),
            lease.acquire(settings, "sensors"),
        ):
            pass
        # as on a file system that does not lock
        layout.job_file(settings, "sensors", "lease").unlink()
        with lease.acquire(settings, "sensors") as second:
            assert (first.epoch, second.epoch) == (1, 2)
            second.check()
            with pytest.raises(
                JobError, match=r"epoch=1: pid=\d+ since .* \(epoch 2\) runs it now"
            ):
                first.check()


# ---- restarts of a job that ran well between


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ASKED = Desired("running", BEGIN.isoformat(), "ann")


def hour_of_kills(well: timedelta, apart: timedelta = timedelta(minutes=4)) -> list[str]:
    """What is decided at each of 15 kills; `well`: how long the job ran before each."""
    history: list[Event] = []
    done = []
    for kill in range(1, 16):
        now = BEGIN + kill * apart
        ended = now - timedelta(seconds=1)
        seen = Observed(
            "sensors", "dead", False, ended - well - timedelta(minutes=1), ended, well=well
        )
        decision = decide(ASKED, seen, history, now, Bounds())
        if decision.due:
            now = decision.due
            decision = decide(ASKED, seen, history, now, Bounds())
        done.append(decision.action)
        if decision.action == "start":
            history.append(
                Event(
                    now.isoformat(),
                    "restarted",
                    decision.why,
                    counted=decision.counted,
                    well=well.total_seconds(),
                )
            )
    return done


def test_a_job_that_runs_well_between_two_kills_is_started_at_once_each_time():
    assert hour_of_kills(timedelta(seconds=175)) == ["start"] * 15
    assert hour_of_kills(timedelta(minutes=2)) == ["start"] * 15, "the default"
    assert hour_of_kills(timedelta(seconds=119))[:6] == ["start"] * 5 + ["break"], (
        "a crash loop is given up as before"
    )


def test_what_counts_is_what_came_since_the_job_was_well():
    healthy = timedelta(minutes=2)
    done = [Event(BEGIN.isoformat(), "restarted", "it died", well=well) for well in (0, 500, 3, 4)]
    assert unhealthy(done, timedelta(0), healthy) == done[1:], (
        "the restart that ended the good time is the first"
    )
    assert unhealthy(done[:1], timedelta(0), healthy) == done[:1]
    assert unhealthy(done, healthy, healthy) == []


def test_the_wait_begins_from_zero_too():
    now = BEGIN + timedelta(hours=1)
    recent = [
        Event((now - timedelta(minutes=n)).isoformat(), "restarted", "it died", counted=True)
        for n in (40, 30, 20)
    ]
    ended = now - timedelta(seconds=1)
    seen = Observed("sensors", "dead", False, now - timedelta(minutes=19), ended)
    waiting = decide(ASKED, seen, recent, now, Bounds())
    assert (waiting.action, waiting.due) == ("nothing", ended + backoff("sensors", 3))
    assert (
        decide(ASKED, replace(seen, well=timedelta(minutes=18)), recent, now, Bounds()).action
        == "start"
    )
