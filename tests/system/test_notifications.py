"""Notifications: a real command, a real HTTP server and a real mail server get what went wrong, once, whatever else
happens."""

import asyncio
import email
import email.policy
import io
import json
import logging
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import get_args

import dagster as dg
import psutil
import pytest
from aiosmtpd.controller import Controller
from dagster._core.loader import LoadingContextForTest
from dagster._daemon.freshness import FreshnessDaemon

from assets import definitions
from assets.sensors import send_notifications
from lakehouse import addresses
from lakehouse.backoff import Backoff
from lakehouse.declare import catalog
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.log.certificates import Certificate, certify
from streaming_jobs import progress
from streaming_jobs.exporters import notifications
from streaming_jobs.exporters.notifications import Notice, What
from streaming_jobs.progress import JobStatus, QueryStatus
from streaming_jobs.supervision import desired
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.holders import here

SENSORS = ("lakehouse.examples.sensors.tables",)
HOUR = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC))


@dataclass
class Webhook:
    """A server that answers with `codes`, one after the other, then with 200; `got` is what was sent to it."""

    url: str = ""
    codes: list[int] = field(default_factory=list)
    got: queue.Queue = field(default_factory=queue.Queue)

    def all(self) -> list[dict]:
        return [self.got.get_nowait() for _ in range(self.got.qsize())]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            webhook.got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(webhook.codes.pop(0) if webhook.codes else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The test's output is not its log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    webhook.url = f"http://127.0.0.1:{server.server_port}/notification?token=s3cret"
    yield webhook
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def at_once(monkeypatch) -> None:
    """No wait between two attempts."""
    monkeypatch.setattr(notifications, "_ATTEMPTS", Backoff(0, 0))


def command(path: Path) -> str:
    return f"sh -c 'cat >> {shlex.quote(str(path))}; echo >> {shlex.quote(str(path))}'"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def notice(why: str = "why", age: timedelta = timedelta(0)) -> Notice:
    return Notice("job_failed", "sensors", why, datetime.now(UTC) - age)


def text_of(at: datetime) -> str:
    return f"""What: verdict_different
Pipeline: sensors
Table: sensor_averages
Range: 2026-01-01T00:00:00Z to 2026-01-01T01:00:00Z
Why: rows missing 1
When: {at.isoformat().replace("+00:00", "Z")}
What to do: `lakehouse reconcile status` names the cause. `lakehouse reconcile repair sensor_averages` rewrites the range."""


def test_command_and_url_are_told_once_what_happened(tmp_path, webhook):
    settings = Settings(
        root=tmp_path,
        notification_command=command(tmp_path / "told"),
        notification_urls=(webhook.url,),
    )
    at = datetime.now(UTC).replace(microsecond=0)
    happened = Notice(
        "verdict_different", "sensors", "rows missing 1", at, "sensor_averages", *HOUR
    )
    assert (
        notifications.send(settings, [happened]) == [] == notifications.send(settings, [happened])
    )
    (document,) = webhook.all()
    assert document == {
        "what": "verdict_different", "pipeline": "sensors", "table": "sensor_averages", "why": "rows missing 1",
        "range": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"},
        "at": at.isoformat().replace("+00:00", "Z"),
        "title": "sensor_averages: stream and batch differ", "text": text_of(at),
    }  # fmt: skip
    assert lines(tmp_path / "told") == [document]


def test_the_oldest_is_told_first_and_what_is_older_than_a_day_not_at_all(tmp_path, webhook):
    ages = {"new": timedelta(0), "older": timedelta(hours=23), "old": timedelta(hours=25)}
    assert (
        notifications.send(
            Settings(root=tmp_path, notification_urls=(webhook.url,)),
            [notice(w, age) for w, age in ages.items()],
        )
        == []
    )
    assert [document["why"] for document in webhook.all()] == ["older", "new"]


def test_without_a_hook_nothing_is_told_or_kept(tmp_path):
    assert notifications.send(Settings(root=tmp_path), [notice()]) == []
    assert not list(tmp_path.iterdir())


def test_a_hook_that_fails_is_told_of_and_tried_again_by_itself(tmp_path, webhook, at_once):
    webhook.codes = [500, 503]
    settings = Settings(
        root=tmp_path,
        notification_command=command(tmp_path / "told"),
        notification_urls=(webhook.url,),
    )
    first, second = notice("first"), notice("second")
    key = f"job_failed sensors {first.document['at']}"
    assert notifications.send(settings, [first, second]) == [
        f"notification_urls[0], http://***, did not get '{key}' (attempt 1 of 5): HTTP Error 500: Internal Server Error"
    ]
    assert [d["why"] for d in webhook.all()] == ["first"], (
        "what comes after waits for the next look"
    )
    (failure,) = notifications.send(settings, [first, second])
    assert "(attempt 2 of 5): HTTP Error 503" in failure
    assert (
        notifications.send(settings, [first, second])
        == []
        == notifications.send(settings, [first, second])
    )
    assert [d["why"] for d in webhook.all()] == ["first", "first", "second"]
    assert [d["why"] for d in lines(tmp_path / "told")] == ["first", "second"], (
        "the other notification was told once"
    )


def test_it_is_given_up_after_five_attempts(tmp_path, at_once):
    settings, happened = (
        Settings(root=tmp_path, notification_command="sh -c 'echo no such room >&2; exit 3'"),
        notice(),
    )
    failures = [failure for _ in range(9) for failure in notifications.send(settings, [happened])]
    assert [("the last attempt" in f, "exit code 3: no such room" in f) for f in failures] == [
        (False, True)
    ] * 4 + [(True, True)]


def test_attempts_wait_for_each_other(tmp_path):
    settings, happened = Settings(root=tmp_path, notification_command="false"), notice()
    assert "(attempt 1 of 5)" in notifications.send(settings, [happened])[0]
    assert notifications.send(settings, [happened]) == []


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(notifications, "WITHIN", 0.3)
    began = time.monotonic()
    settings = Settings(
        root=tmp_path, notification_command=f"sh -c 'sleep 60 & echo $! > {tmp_path}/pid; wait'"
    )
    (failure,) = notifications.send(settings, [notice()])
    assert (
        "killed, because it was not done within 0.3 s" in failure and time.monotonic() - began < 10
    )
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(30)


@pytest.mark.parametrize(
    "notification",
    [
        {"notification_command": "no-such-program"},
        {"notification_urls": ("http://127.0.0.1:9/?token=s3cret",)},
        {"notification_urls": ("json://ann:s3cret@127.0.0.1:9/s3cret?+token=s3cret",)},
        {"notification_urls": ("mailto://127.0.0.1:9?from=s3cret@a.org&to=s3cret@b.org",)},
    ],
)
def test_a_hook_that_is_not_there_raises_nothing_and_shows_no_secret(tmp_path, notification):
    (failure,) = notifications.send(Settings(root=tmp_path, **notification), [notice()])
    assert next(iter(notification)) in failure and "s3cret" not in failure


# ---- apprise


@dataclass
class Mails:
    """A mail server; `got` has sender, receivers and message of each mail."""

    url: str = ""
    got: queue.Queue = field(default_factory=queue.Queue)

    async def handle_DATA(self, server, session, envelope) -> str:
        content = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.got.put((envelope.mail_from, envelope.rcpt_tos, content))
        return "250 OK"


@pytest.fixture
def mails() -> Iterator[Mails]:
    mails = Mails()
    with (
        socket.socket() as free
    ):  # the server is asked whether it runs at the port that it was given
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Controller(mails, "127.0.0.1", port)
    server.start()
    mails.url = f"mailto://127.0.0.1:{port}?from=lakehouse@example.org&to=ann@example.org"
    yield mails
    server.stop()


def test_a_mail_says_what_happened_and_what_to_do(tmp_path, mails):
    settings = Settings(root=tmp_path, notification_urls=(mails.url,))
    at = datetime.now(UTC).replace(microsecond=0)
    happened = Notice(
        "verdict_different", "sensors", "rows missing 1", at, "sensor_averages", *HOUR
    )
    assert notifications.send(settings, [happened]) == []
    assert notifications.send(settings, [happened]) == [], "and once"
    sender, receivers, mail = mails.got.get_nowait()
    assert (sender, receivers) == ("lakehouse@example.org", ["ann@example.org"])
    assert mail["Subject"] == "sensor_averages: stream and batch differ"
    plain = mail.get_body(("plain",)).get_content()
    assert [line.strip() for line in plain.split("\n") if line.strip()] == text_of(at).split("\n")
    assert mails.got.empty()


@pytest.mark.parametrize("what", get_args(What))
def test_each_notice_has_a_title_and_says_what_to_do(what):
    notice = Notice(what, "sensors", "why", datetime.now(UTC), "sensor_averages")
    assert notice.title.startswith("sensor_averages: ") and "{" not in notice.body
    assert "\nWhat to do: " in notice.body and f"What: {what}\n" in notice.body


def test_each_address_is_tried_by_itself_wherever_it_is_in_the_list(
    tmp_path, webhook, mails, at_once
):
    webhook.codes = [500]
    by_apprise = webhook.url.replace("http://", "json://")
    settings = Settings(root=tmp_path, notification_urls=(by_apprise, mails.url))
    happened = notice("first")
    (failure,) = notifications.send(settings, [happened])
    assert failure.startswith("notification_urls[0], json://***, did not get 'job_failed sensors ")
    assert "(attempt 1 of 5): the answer was 500; `apprise -vv" in failure
    webhook.all()
    turned = replace(settings, notification_urls=settings.notification_urls[::-1])
    assert notifications.send(turned, [happened]) == []
    (document,) = webhook.all()
    assert (document["title"], document["message"]) == (happened.title, happened.body)
    assert mails.got.qsize() == 1, "the other address got it at first"


def test_an_address_that_does_not_answer_is_left_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(addresses, "WITHIN", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"json://127.0.0.1:{silent.getsockname()[1]}?rto=1"
        settings = Settings(root=tmp_path, notification_urls=(url,))
        (failure,) = notifications.send(settings, [notice()])
    assert "it was not done within" in failure


@pytest.mark.parametrize(
    "address",
    [
        "nobody://s3cret.example.org/s3cret",
        "mailto://ann:s3cret@",
        "slack://s3cret",
        "file:///s3cret",
        "example.org/s3cret",
    ],
)
def test_an_address_that_apprise_does_not_know_stops_at_the_start(address, capfd):
    logged = logging.StreamHandler(io.StringIO())  # apprise logs what it does not know
    logging.getLogger().addHandler(logged)
    try:
        with pytest.raises(SettingsError, match=r"notification_urls\[1\]=.*an address is") as err:
            Settings(notification_urls=("https://example.org", address))
    finally:
        logging.getLogger().removeHandler(logged)
    said = "".join((str(err.value), logged.stream.getvalue(), *capfd.readouterr()))
    assert "s3cret" not in said and "appriseit.com" in said


def test_one_at_a_time_tells(tmp_path, webhook):
    settings, happened = Settings(root=tmp_path, notification_urls=(webhook.url,)), notice()
    (tmp_path / "_notifications").mkdir()
    with locks.alone(tmp_path / "_notifications" / "sender", 0):
        assert notifications.send(settings, [happened]) == []
    assert webhook.got.empty()
    assert notifications.send(settings, [happened]) == []
    assert webhook.all() == [happened.document]


# ---- the sensor


def test_the_sensor_tells_of_jobs_verdicts_and_stale_tables_within_a_second(
    tmp_path, webhook, monkeypatch
):
    settings = Settings(root=tmp_path, tables=SENSORS, notification_urls=(webhook.url,))
    now = datetime.now(UTC)
    desired.wish(settings, "sensors", "stopped", "a test")
    for what, why in (
        ("started", "-"),
        ("restarted", "it failed: x"),
        ("stopping", "-"),
        ("crash_loop", "given up, for ..."),
    ):
        desired.note(settings, "sensors", Event(progress.now(), what, why))
    query = QueryStatus(
        "valid_readings",
        False,
        state="paused",
        since=progress.now(),
        offsets="batch 7",
        error="boom",
    )
    progress.write(
        settings,
        JobStatus("sensors", 1, 0.0, 0, 0.0, "degraded", progress.now(), progress.now(), (query,)),
    )
    found = Certificate(
        "sensor_averages", *HOUR, "DIFFERENT", 2, 1, 0, "", "", None, 1, {}, "", now, 0.1, extra=1
    )
    certify(settings, [found])
    sensor = send_notifications(settings, catalog.load(settings))
    with dg.DagsterInstance.ephemeral() as instance:
        fails(settings, instance, monkeypatch)

        def tick() -> tuple[str, list[dict]]:
            began = time.monotonic()
            told = sensor.evaluate_tick(dg.build_sensor_context(instance)).skip_message
            assert time.monotonic() - began < 1
            return told, webhook.all()

        said, documents = tick()
        assert said == "every notification is sent"
        assert {(d["what"], d["table"], d["why"]) for d in documents} == {
            ("job_failed", None, "it failed: x"),
            ("job_crash_loop", None, "given up, for ..."),
            ("query_paused", "valid_readings", "batch 7 boom"),
            ("verdict_different", "sensor_averages", "rows missing 0, extra 1, changed 0"),
            (
                "freshness_failed",
                "sensor_readings",
                "nothing was added for 0:30:00; its frontier is not known yet",
            ),
        }
        assert {d["pipeline"] for d in documents} == {"sensors"} and len(documents) == 5
        assert tick() == ("every notification is sent", [])


def test_the_sensor_goes_on_when_a_hook_fails(tmp_path):
    settings = Settings(root=tmp_path, tables=SENSORS, notification_command="false")
    desired.note(settings, "sensors", Event(progress.now(), "crash_loop", "given up"))
    with dg.DagsterInstance.ephemeral() as instance:
        tick = send_notifications(settings, catalog.load(settings)).evaluate_tick(
            dg.build_sensor_context(instance)
        )
    assert "notification_command did not get 'job_crash_loop sensors" in tick.skip_message


def test_the_sensor_says_that_no_hook_is_set(tmp_path):
    settings = Settings(root=tmp_path, tables=SENSORS)
    tick = send_notifications(settings, catalog.load(settings)).evaluate_tick(
        dg.build_sensor_context()
    )
    assert "LAKEHOUSE_NOTIFICATION_URLS" in tick.skip_message


def test_restarts_for_one_reason_one_upon_the_other_are_one_failure(tmp_path):
    settings, began = Settings(root=tmp_path, tables=SENSORS), datetime(2026, 1, 1, tzinfo=UTC)
    desired.wish(settings, "sensors", "stopped", "a test")
    restarts = {
        0: "no broker",
        1: "no broker",
        6: "no broker",
        7: "its process died",
        12: "no broker",
        60: "no broker",
    }
    for minute, why in restarts.items():
        desired.note(
            settings,
            "sensors",
            Event((began + timedelta(minutes=minute)).isoformat(), "restarted", why),
        )
    told = [
        (n.why, (n.at - began) // timedelta(minutes=1))
        for n in notifications.of_job(settings, "sensors")
    ]
    assert told == [("no broker", 0), ("its process died", 7), ("no broker", 12), ("no broker", 60)]


def test_a_scheduled_job_whose_run_failed_is_told_of(tmp_path):
    """Nobody restarts it: the next run is that of its schedule."""
    settings = Settings(root=tmp_path, tables=SENSORS, freshness={"sensors": "scheduled 0 * * * *"})
    now = progress.now()
    desired.wish(settings, "sensors", "running", "a test")

    def ended(state: str, error: str = "") -> list[tuple[str, str]]:
        progress.write(
            settings,
            JobStatus("sensors", 1, 1.0, 0, 0.0, state, now, now, error=error, place=here()),
        )
        return [(n.what, n.why) for n in notifications.of_job(settings, "sensors")]

    assert ended("failed", "no broker") == [("job_failed", "no broker")]
    assert ended("running") == [("job_failed", "its process died without an error message")], (
        "it is not there"
    )
    assert ended("stopped") == []
    at = datetime.now(UTC) + timedelta(seconds=1)
    desired.note(settings, "sensors", Event(at.isoformat(), "started", "by its schedule", 1, 1.0))
    assert [(n.what, n.at) for n in notifications.of_job(settings, "sensors")] == [
        ("job_failed", at)
    ], "it never said a word"
    desired.wish(settings, "sensors", "stopped", "a test")
    assert notifications.of_job(settings, "sensors") == []


def test_files_of_a_job_that_are_lost_are_told_of(tmp_path):
    settings = Settings(root=tmp_path, tables=SENSORS)
    desired.wish(settings, "sensors", "running", "a test")
    desired.note(settings, "sensors", Event(progress.now(), "started", "a test"))
    assert notifications.of_job(settings, "sensors") == []
    path = layout.job_folder(settings, "sensors") / "status.json"
    path.write_text("{")
    [told] = notifications.of_job(settings, "sensors")
    assert told.what == "job_files_lost" and f"file={path}.unreadable-" in told.why
    assert notifications.of_job(settings, "sensors") == [told], "and once"
    path.with_name("desired.json").unlink()
    assert ["desired.json: gone" in n.why for n in notifications.of_job(settings, "sensors")] == [
        False,
        True,
    ]


# ---- freshness


def fails(settings: Settings, instance: dg.DagsterInstance, monkeypatch) -> list[str]:
    """Dagster's daemon judges the record, just added to, at each of these minutes: what it found."""
    added = time.time()
    instance.report_runless_asset_event(dg.AssetMaterialization("sensor_readings"))
    node = definitions.build(settings).resolve_asset_graph().get(dg.AssetKey("sensor_readings"))
    states = []
    for minutes in (1, 16, 31):
        monkeypatch.setattr(
            "dagster._time._mockable_get_current_timestamp", lambda m=minutes: added + 60 * m
        )
        asyncio.run(FreshnessDaemon()._evaluate_asset(LoadingContextForTest(instance), node))
        states.append(
            instance.get_freshness_state_records([node.key])[node.key].freshness_state.value
        )
    monkeypatch.undo()
    return states


def test_a_record_that_is_not_added_to_is_warned_of_then_fails(tmp_path, monkeypatch):
    # keeps its events in files, as `make demo` does
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert fails(Settings(root=tmp_path, tables=SENSORS), instance, monkeypatch) == [
            "PASS",
            "WARN",
            "FAIL",
        ]


def test_derived_tables_may_take_a_partition_longer():
    graph = definitions.build(
        Settings(root=Path("/nowhere"), stale_after="10 minutes")
    ).resolve_asset_graph()
    policies = {
        node.key.to_user_string(): node.freshness_policy
        for node in graph.asset_nodes
        if node.freshness_policy
    }
    windows = {
        name: (
            p.warn_window.to_timedelta() / timedelta(minutes=1),
            p.fail_window.to_timedelta() / timedelta(minutes=1),
        )
        for name, p in policies.items()
    }
    assert windows == dict.fromkeys(("sensor_readings", "ad_events"), (5, 10)) | dict.fromkeys(
        ("valid_readings", "sensor_averages", "sensor_trends", "campaign_views"), (65, 70)
    )


# ---- without Dagster


def test_supervise_tells_that_a_job_failed(tmp_path, webhook):
    settings = Settings(root=tmp_path, tables=SENSORS, notification_urls=(webhook.url,))
    desired.wish(settings, "sensors", "stopped", "a test")
    desired.note(settings, "sensors", Event(progress.now(), "restarted", "its process died"))
    line = [sys.executable, "-m", "lakehouse", "stream", "supervise", "--every", "0.1"]
    process = subprocess.Popen(
        line, env=os.environ | to_environment(settings), stdout=subprocess.DEVNULL
    )
    try:
        assert webhook.got.get(timeout=60)["why"] == "its process died"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert webhook.got.empty(), "each look finds it, one tells it"
