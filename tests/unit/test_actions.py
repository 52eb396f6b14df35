"""Targets that act on rows: each action once with its own id, what is refused kept, what does not answer waited for."""

import base64
import errno
import hashlib
import hmac
import json
import re
import smtplib
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from typer.testing import CliRunner

from assets import resources, targets
from lakehouse import mail, webhook
from lakehouse.cli.main import app
from lakehouse.declare import catalog
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.settings import Settings, to_environment
from lakehouse.sinks import actions, comparison
from lakehouse.sinks.actions import Pace
from lakehouse.sinks.follower import Follower
from lakehouse.stopping import Stopped
from lakehouse.storage.disk import layout, notes
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import action_log, published_position
from lakehouse.storage.log.action_log import ActionLog
from support import ROOT, acting
from support.published import append, make_payments
from support.published import replace as replace_partition


@pytest.fixture
def lakehouse(tmp_path) -> Lakehouse:
    settings = Settings(root=tmp_path / "root", tables=("support.acting",))
    lakehouse = Lakehouse(settings, catalog.load(settings))
    make_payments(path(lakehouse))
    append(path(lakehouse), 1, [("a", 1, "1.00")])
    return lakehouse


@pytest.fixture
def server(monkeypatch) -> Iterator[acting.Server]:
    with acting.serving() as server:
        monkeypatch.setenv("ACTING_PORT", str(server.port))
        yield server


def path(lakehouse: Lakehouse) -> Path:
    return lakehouse.path(lakehouse.catalog.table("payments"))


def opened(lakehouse: Lakehouse, of: str = "posted", **changed) -> Follower:
    table, target = lakehouse.catalog.target(of)
    follower = Follower(lakehouse, table, replace(target, **changed))
    follower.begin()
    return follower


def follow(follower: Follower) -> None:
    while follower.step():
        pass


def caught_up(lakehouse: Lakehouse, **changed) -> Follower:
    follower = opened(lakehouse, **changed)
    follow(follower)
    return follower


def numbers(server: acting.Server) -> list[int]:
    return [each.value["row"]["n"] for each in server.posted]


def answering(*statuses: int | tuple[int, dict]):
    """These one after the other, then 200."""
    left = iter(statuses)

    def answer(_: acting.Posted) -> tuple[int, dict]:
        found = next(left, 200)
        return found if isinstance(found, tuple) else (found, {})

    return answer


# ---- each action


def test_each_new_row_is_posted_once_in_the_order_of_its_topic(lakehouse, server):
    follower = caught_up(lakehouse)
    append(path(lakehouse), 2, [("a", 2, "2.50"), ("b", 3, "3.00")])
    follow(follower)
    assert numbers(server) == [1, 2, 3]
    first = server.posted[1]
    assert first.value == {
        "id": first.id, "table": "payments", "version": 2, "change": "insert",
        "row": {"account": "a", "n": 2, "amount": "2.50", "at": "2026-01-01T00:00:00Z"},
    }  # fmt: skip
    assert len({each.id for each in server.posted}) == 3
    assert first.headers["content-type"] == "application/json"
    caught_up(lakehouse)
    assert numbers(server) == [1, 2, 3], "a process that comes later does nothing again"


def test_rows_that_are_there_twice_are_two_actions(lakehouse, server):
    append(path(lakehouse), 2, [("a", 2, "2.00"), ("a", 2, "2.00")])
    follower = opened(lakehouse)
    follow(follower)
    assert numbers(server) == [1, 2, 2] and len({each.id for each in server.posted}) == 3


def test_it_acts_for_the_changes_that_it_names(lakehouse, server):
    follower = caught_up(lakehouse, on=("update", "delete"))
    append(path(lakehouse), 2, [("a", 2, "2.00"), ("a", 3, "3.00")])
    replace_partition(path(lakehouse), [("a", 2, "9.00"), ("a", 3, "3.00")], "0")
    follow(follower)
    assert [(each.value["change"], each.value["row"]["n"]) for each in server.posted] == [
        ("delete", 1),
        ("update", 2),
    ]


def test_corrections_are_sent_or_left_out(lakehouse, server):
    following = [caught_up(lakehouse), caught_up(lakehouse, name="second", corrections="ignore")]
    replace_partition(path(lakehouse), [("a", 1, "1.00"), ("a", 7, "7.00")], "0")
    for follower in following:
        follow(follower)
    assert numbers(server) == [1, 1, 7]


@pytest.mark.parametrize(("begin", "expected"), [("all", [1, 2]), ("next", [2])])
def test_rows_that_are_there_at_first_are_left_out_unless_all_are_asked_for(
    lakehouse, server, begin, expected
):
    follower = caught_up(lakehouse, begin=begin)
    told = follower.sink.remarks()
    assert bool(told) and ("1 rows that were there before are left out" in told) == (
        begin == "next"
    )
    append(path(lakehouse), 2, [("a", 2, "2.00")])
    follow(follower)
    assert numbers(server) == expected


def test_a_follower_that_was_there_before_its_table_leaves_no_row_out(lakehouse, server):
    path(lakehouse).rename(path(lakehouse).with_name("another"))
    follower = opened(lakehouse, begin="next")
    assert follower.step() is None
    make_payments(path(lakehouse))
    append(path(lakehouse), 1, [("a", 1, "1.00")])
    append(path(lakehouse), 2, [("a", 2, "2.00")])
    follow(follower)
    assert numbers(server) == [1, 2] and follower.position.version == 2


def test_a_body_of_ones_own_and_headers_and_secrets_of_the_environment(
    lakehouse, server, monkeypatch
):
    secret = base64.b64encode(b"known to both").decode()
    monkeypatch.setenv("HOOK_TOKEN", "t0ken")
    monkeypatch.setenv("HOOK_SECRET", f"whsec_{secret}")
    caught_up(
        lakehouse,
        body=lambda action: {"text": f"{action.key} of {action.table}: {action.row['amount']}"},
        headers=(("Authorization", "Bearer ${HOOK_TOKEN}"),),
        secret="${HOOK_SECRET}",
    )
    (found,) = server.posted
    assert found.value == {"text": '{"account":"a","n":1} of payments: 1.00'}
    assert found.headers["authorization"] == "Bearer t0ken"
    of = (
        f"{found.headers['webhook-id']}.{found.headers['webhook-timestamp']}.".encode() + found.body
    )
    wanted = base64.b64encode(hmac.digest(b"known to both", of, hashlib.sha256)).decode()
    assert found.headers["webhook-signature"] == f"v1,{wanted}"
    assert found.headers["webhook-id"] == found.id


def test_a_variable_that_is_not_there_is_named(lakehouse, server):
    with pytest.raises(SinkError, match=r"variable=HOOK_TOKEN: .* set it there"):
        opened(lakehouse, headers=(("Authorization", "Bearer ${HOOK_TOKEN}"),))


# ---- what is answered


def test_a_row_that_is_refused_is_kept_the_others_go_on_and_it_is_done_again_on_demand(
    lakehouse, server, monkeypatch
):
    append(path(lakehouse), 2, [("a", 2, "2.00"), ("a", 3, "3.00")])
    server.answer = answering(200, (422, {"X": "y"}))
    follower = caught_up(lakehouse)
    assert numbers(server) == [1, 2, 3]
    assert follower.sink.remarks() == ["2 done", "1 refused (`lakehouse publish refused posted`)"]
    _, target = lakehouse.catalog.target("posted")
    (line,) = actions.refused(lakehouse.settings, target)
    assert (line.action.row["n"], line.said) == (2, "422 Unprocessable Entity")

    for name, text in to_environment(lakehouse.settings).items():
        monkeypatch.setenv(name, text)
    run = CliRunner().invoke
    shown = json.loads(run(app(), ["publish", "refused", "posted", "--json"]).output)
    assert (shown["id"], shown["row"]["n"]) == (line.action.id, 2)
    assert line.action.id in run(app(), ["publish", "refused", "posted"]).output
    assert not judged(lakehouse.settings)
    server.answer = answering(400)
    again = run(app(), ["publish", "retry", "posted"])
    assert (again.exit_code, "0 done, 1 refused again" in again.output) == (1, True)
    with pytest.raises(SinkError, match="id=nothing: no such action is refused"):
        actions.retry(lakehouse.settings, target, ["nothing"])
    again = run(app(), ["publish", "retry", "posted", line.action.id])
    assert (again.exit_code, "1 done, 0 refused again" in again.output) == (0, True)
    assert {each.id for each in server.posted if each.value["row"]["n"] == 2} == {line.action.id}
    assert actions.refused(lakehouse.settings, target) == [] and judged(lakehouse.settings)
    follow(follower)
    assert numbers(server) == [1, 2, 3, 2, 2]
    follower.sink._looked -= 60
    assert follower.sink.remarks() == ["2 done"], "it was performed by another process"


def judged(settings: Settings) -> bool:
    """What Dagster's check of the target says."""
    found = targets._nothing_refused("posted")(lakehouse=resources.LakehouseResource.of(settings))
    return found.passed


def test_what_fails_is_tried_again_by_whichever_process_until_it_counts_as_refused(
    lakehouse, server
):
    append(path(lakehouse), 2, [("a", 2, "2.00")])
    server.answer = lambda found: (500 if found.value["row"]["n"] == 1 else 200, {})
    for attempt in (1, 2):
        with pytest.raises(SinkAway, match=f"500 Internal Server Error .*attempt {attempt} of 3"):
            caught_up(lakehouse, attempts=3)
    follower = caught_up(lakehouse, attempts=3)
    assert numbers(server) == [1, 1, 1, 2] and len({each.id for each in server.posted}) == 2
    assert "1 refused (`lakehouse publish refused posted`)" in follower.sink.remarks()


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_has_no_time_is_waited_for_as_long_as_it_says(lakehouse, server, status):
    server.answer = answering(*[(status, {"Retry-After": "7"})] * 3)
    for _ in range(3):
        with pytest.raises(SinkAway, match=f"not now.*{status}") as err:
            caught_up(lakehouse, attempts=1)
        assert err.value.after == 7.0
    caught_up(lakehouse, attempts=1)
    _, target = lakehouse.catalog.target("posted")
    assert numbers(server) == [1] * 4 and actions.refused(lakehouse.settings, target) == []


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_receiver_that_refuses_every_request_ends_the_follower_and_nothing_is_lost(
    lakehouse, server, status
):
    server.answer = answering((status, {"Location": f"http://127.0.0.1:{server.port}/other"}))
    with pytest.raises(SinkError, match=f"refuses every request .{status} ") as err:
        caught_up(lakehouse)
    assert not isinstance(err.value, SinkAway)
    caught_up(lakehouse)
    assert numbers(server) == [1, 1]


def test_a_receiver_that_is_not_there_is_waited_for(lakehouse, server):
    port = server.port
    with pytest.raises(SinkAway, match=r"url=http://127.0.0.1:1/rows: it does not answer"):
        caught_up(lakehouse, url="http://127.0.0.1:1/rows")
    assert port and not numbers(server)


def test_a_body_that_cannot_be_made_is_refused(lakehouse, server):
    append(path(lakehouse), 2, [("a", 0, "2.00")])
    caught_up(lakehouse, body=lambda action: 1 / action.row["n"])
    _, target = lakehouse.catalog.target("posted")
    (line,) = actions.refused(lakehouse.settings, target)
    assert line.said == "body: ZeroDivisionError: division by zero"
    assert [each.value for each in server.posted] == [1.0]


# ---- processes that die, stop, or are replaced


def test_what_was_done_of_a_version_is_not_done_again(lakehouse, server):
    append(path(lakehouse), 2, [("a", n, "2.00") for n in range(2, 6)])
    first = opened(lakehouse)
    seen = []

    def going_on() -> None:
        seen.append(len(server.posted))
        if len(server.posted) == 3:
            raise Stopped

    first.sink.going_on = going_on
    with pytest.raises(Stopped):
        follow(first)
    assert numbers(server) == [1, 2, 3] and len(seen) > 3
    caught_up(lakehouse)
    assert numbers(server) == [1, 2, 3, 4, 5]


def test_an_heir_that_finds_a_later_version_first_does_nothing_again(lakehouse, server):
    follow_to_the_end_of_write(opened(lakehouse))
    append(path(lakehouse), 2, [("a", 2, "2.00")])
    caught_up(lakehouse)
    assert numbers(server) == [1, 2]


def test_an_action_whose_line_was_torn_is_done_again_with_its_id(lakehouse, server):
    first = opened(lakehouse)
    follow_to_the_end_of_write(first)
    log = layout.actions(lakehouse.settings, "posted", "log.jsonl")
    log.write_bytes(log.read_bytes()[:-9])
    caught_up(lakehouse)
    assert numbers(server) == [1, 1] and len({each.id for each in server.posted}) == 1


def follow_to_the_end_of_write(follower: Follower) -> None:
    """Without the commit."""

    def die(_: object) -> None:
        raise SinkError("it died")

    follower.sink.commit = die
    with pytest.raises(SinkError, match="it died"):
        follow(follower)


def test_on_a_full_disk_no_process_acts_again_and_again(lakehouse, server, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = opened(lakehouse)
    with monkeypatch.context() as disk:
        disk.setattr(notes, "append_line", full)
        disk.setattr(action_log, "replace_file", full)
        with pytest.raises(OSError, match="No space left"):
            follow(first)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                opened(lakehouse)
        assert numbers(server) == [1]
    caught_up(lakehouse)
    assert numbers(server) == [1, 1] and len({each.id for each in server.posted}) == 1


def test_a_process_that_was_replaced_does_nothing_more(lakehouse, server):
    former = opened(lakehouse)
    caught_up(lakehouse)
    with pytest.raises(SinkError, match=r"epoch=\d+: another process has taken the target over"):
        follow(former)
    assert numbers(server) == [1]


def test_a_log_that_is_gone_is_said(lakehouse, server):
    follower = caught_up(lakehouse)
    follower.end()
    assert published_position.noted(lakehouse.settings, "posted").version == 1
    layout.actions(lakehouse.settings, "posted", "log.jsonl").unlink()
    with pytest.raises(SinkError, match=r"log.jsonl: .* is gone, .* put it back"):
        opened(lakehouse)


def test_a_table_that_was_made_again_is_refused_with_the_way_to_begin_anew(lakehouse, server):
    caught_up(lakehouse)
    path(lakehouse).rename(path(lakehouse).with_name("gone"))
    make_payments(path(lakehouse))
    with pytest.raises(
        SinkError,
        match=r"remove .*posted.json and the folder .*posted, and the target begins as a new one",
    ):
        opened(lakehouse)


def test_what_was_done_a_month_ago_leaves_the_log_and_what_was_refused_stays(lakehouse, server):
    append(path(lakehouse), 2, [("a", 2, "2.00"), ("a", 3, "3.00")])
    server.answer = answering(200, 422)
    caught_up(lakehouse).end()
    log = ActionLog(lakehouse.settings, "posted")
    before = log.position()
    assert Counter(line.outcome for line in log.lines()) == {"done": 2, "refused": 1}
    file = layout.actions(lakehouse.settings, "posted", "log.jsonl")
    caught_up(lakehouse)
    append(path(lakehouse), 3, [("a", 4, "4.00")])
    caught_up(lakehouse)
    before = log.position()
    log.shorten(datetime.now(UTC) - timedelta(days=1))
    assert len(list(log.lines())) == 4
    assert file.read_text().count('{"position"') == 1, "the last one alone"
    log.shorten(datetime.now(UTC))
    assert [line.outcome for line in log.lines()] == ["refused"]
    assert log.position() == before
    caught_up(lakehouse)
    assert numbers(server) == [1, 2, 3, 4]


def test_what_was_done_cannot_be_compared_or_repaired(lakehouse, server):
    table, target = lakehouse.catalog.target("posted")
    for of in (comparison.compare, comparison.repair):
        with pytest.raises(SinkError, match="an action leaves no row to compare"):
            of(lakehouse, table, target)


# ---- how fast


def test_a_rate_is_kept_without_a_burst():
    now, naps = [0.0], []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    pace, at, asked = Pace("2/second", lambda: now[0], sleep), [], []
    for _ in range(4):
        pace.wait(lambda: asked.append(now[0]))
        at.append(now[0])
    now[0] += 10  # a pause saves nothing up
    for _ in range(2):
        pace.wait(lambda: None)
        at.append(now[0])
    assert at == [0.0, 0.5, 1.0, 1.5, 11.5, 12.0] and asked
    slow = Pace("1/minute", lambda: now[0], sleep)
    for _ in range(2):
        slow.wait(lambda: None)
    assert max(naps) <= 0.5, "it looks meanwhile whether it is to stop"


# ---- mails


class Mailbox:
    """What a server was given. `says` is its answer to each mail."""

    def __init__(self) -> None:
        self.mails: list = []
        self.says = "250 OK"
        self.unknown = ""

    async def handle_RCPT(self, server, session, envelope, address, options) -> str:
        if address == self.unknown:
            return "550 nobody of that name"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope) -> str:
        if self.says.startswith("250"):
            self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        return self.says


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, str]]:
    box = Mailbox()
    controller = Controller(box, "127.0.0.1", free_port())
    controller.start()
    yield box, f"smtp://127.0.0.1:{controller.port}"
    controller.stop()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def mailed(lakehouse: Lakehouse, server: str, **changed) -> None:
    follower = opened(lakehouse, "mailed", server=server, begin="all", **changed)
    with closing(follower.sink):
        follow(follower)


def test_a_mail_is_of_the_columns_and_has_the_id_of_its_action(lakehouse, mailbox):
    box, server = mailbox
    append(path(lakehouse), 2, [("two\nlines", 2, "2.50")])
    mailed(lakehouse, server)
    first, second = box.mails
    assert (first["From"], first["To"], first["Subject"]) == (
        "lakehouse@example.org",
        "somebody@example.org",
        "a: 1.00",
    )
    text = "payments has payment 1 of a, 1.00, at 2026-01-01T00:00:00Z."
    assert first.get_content().splitlines() == [text]
    assert second["Subject"] == "two lines: 2.50", "a column cannot end a header"
    ids = [line.action.id for line in ActionLog(lakehouse.settings, "mailed").lines()]
    assert [each["Message-ID"] for each in (second, first)] == [f"<{of}@example.org>" for of in ids]


def test_a_recipient_that_the_server_does_not_know_is_refused_or_left_out(lakehouse, mailbox):
    box, server = mailbox
    box.unknown = "somebody@example.org"
    mailed(lakehouse, server)
    _, target = lakehouse.catalog.target("mailed")
    (line,) = actions.refused(lakehouse.settings, target)
    assert "nobody of that name" in line.said and box.mails == []
    append(path(lakehouse), 2, [("a", 2, "2.00")])
    mailed(lakehouse, server, to=("somebody@example.org", "other@example.org"))
    (line, *_) = ActionLog(lakehouse.settings, "mailed").lines()
    assert (line.outcome, line.said) == ("done", "without somebody@example.org")


def test_a_mail_that_is_not_taken_now_is_sent_again_and_one_that_never_is_refused(
    lakehouse, mailbox
):
    box, server = mailbox
    box.says = "451 try later"
    with pytest.raises(SinkAway, match=r"451.*attempt 1 of 10"):
        mailed(lakehouse, server)
    box.says = "554 it looks like spam"
    mailed(lakehouse, server)
    _, target = lakehouse.catalog.target("mailed")
    assert "looks like spam" in actions.refused(lakehouse.settings, target)[0].said
    box.says = "250 OK"
    assert actions.retry(lakehouse.settings, replace(target, server=server)) == {"done": 1}
    assert len(box.mails) == 1 and actions.refused(lakehouse.settings, target) == []


def test_a_server_of_mail_that_is_not_there_is_waited_for(lakehouse):
    with pytest.raises(SinkAway, match=r"server=127.0.0.1:1: it does not answer"):
        mailed(lakehouse, "smtp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("smtp://${PLACE}", {"PLACE": "127.0.0.1:{port}"}),
        ("smtp://127.0.0.1:${PORT}", {"PORT": "{port}"}),
        ("smtp://${HOST}:${PORT}", {"HOST": "127.0.0.1", "PORT": "{port}"}),
    ],
)
def test_host_and_port_of_a_server_may_be_variables(lakehouse, mailbox, monkeypatch, server, names):
    box, there = mailbox
    for name, value in names.items():
        monkeypatch.setenv(name, value.format(port=there.rpartition(":")[2]))
    mailed(lakehouse, server)
    assert len(box.mails) == 1


@pytest.mark.parametrize("value", ["mail:many", "mail:99999", "", "mail/x", "me:s3cret@mail"])
def test_a_variable_that_is_no_host_and_port_ends_the_follower(lakehouse, monkeypatch, value):
    monkeypatch.setenv("PLACE", value)
    with pytest.raises(SinkError, match=r"server='.*': it must be a host, or host:port") as err:
        mailed(lakehouse, "smtp://${PLACE}")
    assert not isinstance(err.value, SinkAway) and "s3cret" not in str(err.value)


def test_a_user_without_a_server_that_asks_for_one_ends_the_follower(lakehouse, mailbox):
    _, server = mailbox
    with pytest.raises(SinkError, match="SMTP AUTH extension not supported") as err:
        mailed(lakehouse, server.replace("://", "://somebody:secret@"))
    assert not isinstance(err.value, SinkAway) and "secret" not in str(err.value)


def test_a_password_that_is_refused_ends_the_follower_and_is_not_shown(
    lakehouse, mailbox, monkeypatch
):
    _, server = mailbox
    monkeypatch.setenv("SMTP_PASSWORD", "p@ss:w/rd")
    seen = []

    def refuse(self, user: str, password: str) -> None:
        seen.append((user, password))
        raise smtplib.SMTPAuthenticationError(535, b"who are you")

    monkeypatch.setattr(smtplib.SMTP, "login", refuse)
    with pytest.raises(SinkError, match=r"refuses every mail.*who are you") as err:
        mailed(lakehouse, server.replace("://", "://me:${SMTP_PASSWORD}@"))
    assert seen == [("me", "p@ss:w/rd")] and "p@ss" not in str(err.value)


def test_a_column_that_the_table_does_not_have_is_named(lakehouse, mailbox):
    _, server = mailbox
    with pytest.raises(SinkError, match=r"subject with {acount}: .* account, n, amount, at"):
        mailed(lakehouse, server, subject="{acount}")


# ---- declarations


def test_the_page_declares_both_and_shows_what_is_posted(lakehouse, server):
    page = (ROOT / "docs" / "how-to" / "act-on-rows.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    given = {"__name__": "docs"}
    exec(code, given)
    posted, mailed = given["large_transfers"].publish
    assert (posted.rate, mailed.rate) == ("20/second", "1/second")
    [shown] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    caught_up(lakehouse)
    assert list(json.loads(shown)) == list(server.posted[0].value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": "example.org/rows"}, r"url='example.org/rows': an address is http"),
        ({"corrections": "hold"}, "corrections='hold': .* take 'send' or 'ignore'"),
        ({"corrections": "later"}, "corrections='later': one of send, ignore$"),
        ({"rate": "5 a second"}, "rate='5 a second': .* '5/second'"),
        ({"rate": "0/second"}, "rate='0/second': a whole number above 0"),
        ({"attempts": 0}, "attempts=0: at least one"),
        ({"on": "upsert"}, "on='upsert': one of insert, update, delete"),
        ({"begin": "now"}, "begin='now': one of next, all"),
        ({"timeout": 0}, "timeout=0: seconds above 0"),
        ({"key": []}, r"key=\[\]"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused_as_it_is_declared(changed, said):
    given = {"url": "https://example.org", "key": "account"} | changed
    with pytest.raises(DeclarationError, match=said):
        webhook("posted", given.pop("url"), **given)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"to": "somebody"}, "to=.'somebody'.*have an @"),
        ({"server": "mail.example.org"}, "scheme '': one of smtp, smtp.starttls, smtps"),
        ({"server": "smtp://mail:many"}, "server with 'mail:many': a host, or host:port"),
        ({"text": "{account"}, "text='{account': a column is written {account}"),
    ],
)
def test_a_mail_that_cannot_be_is_refused_as_it_is_declared(changed, said):
    given = {
        "to": "a@example.org", "sender": "b@example.org", "subject": "s", "text": "t", "key": "account",
    } | changed  # fmt: skip
    with pytest.raises(DeclarationError, match=said):
        mail("mailed", **given)
