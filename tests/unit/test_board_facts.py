"""What the board shows, from the files of a lakehouse that no job has to run for."""

import asyncio
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from benchmarks import command_cpu
from benchmarks.command_cpu import START
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import SettingsError
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate, Verdict, certify
from lakehouse.storage.log.commits import Commit
from streaming_jobs import progress
from streaming_jobs.board import lanes, server
from streaming_jobs.board.facts import Facts

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[Lakehouse]:
    """An ingest table and two of its rows, each with a commit every twenty minutes of four hours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_cpu, "_EVERY", timedelta(minutes=20))
        yield command_cpu.filled(Settings(root=tmp_path_factory.mktemp("board") / "root"), 3, 12)


@pytest.fixture
def lakehouse(made, tmp_path) -> Lakehouse:
    root = tmp_path / "root"
    shutil.copytree(made.settings.root, root)
    return Lakehouse(replace(made.settings, root=root), made.catalog)


def facts_of(lakehouse: Lakehouse) -> dict:
    return Facts(lakehouse, every=0).since(0)[1]


def judge(lakehouse: Lakehouse, verdict: Verdict, hour: int, **more) -> None:
    table = lakehouse.catalog.table("rows_1")
    start, versions = START + HOUR * hour, delta_log.latest(lakehouse.path(table))
    seen = {"tables": {"events": versions}}
    made = Certificate(
        "rows_1", start, start + HOUR, verdict, 3, 3, 0, "", "", None, versions, seen, table.code_version,
        datetime.now(UTC), 1.0, **more,
    )  # fmt: skip
    certify(lakehouse.settings, [made])


def test_hours_have_the_verdict_in_force(lakehouse):
    judge(lakehouse, "EQUAL", 0)
    judge(lakehouse, "DIFFERENT", 1, missing=2)
    judge(lakehouse, "PENDING", 2)
    facts = facts_of(lakehouse)
    lane = facts["table/rows_1"]
    assert [(key[-2:], verdict) for key, verdict, *_ in lane["hours"]] == [
        ("00", "EQUAL"), ("01", "DIFFERENT"), ("02", "PENDING"), ("03", "OPEN"),
    ]  # fmt: skip
    assert {(writer, rows) for _, _, writer, rows in lane["hours"]} == {("stream", 3)}
    assert lane["verdict"] == "DIFFERENT"
    ingest = facts["table/events"]  # nothing computes it again, and its hours of arrival are over
    assert [verdict for _, verdict, *_ in ingest["hours"]] == [None, None, None, None]
    assert {"DIFFERENT", "EQUAL"} <= {event["what"] for event in facts["events"]["last"]}


def test_an_equal_hour_that_was_changed_is_pending(lakehouse):
    table = lakehouse.catalog.table("rows_2")
    facts = facts_of(lakehouse)["table/rows_2"]  # its certificate is of version 1
    assert facts["hours"][0][1] == "PENDING" == facts["verdict"]
    shutil.rmtree(lakehouse.path(table) / "_partition=2026-01-01-00")
    assert facts_of(lakehouse)["table/rows_2"]["verdict"] == "DIFFERENT", "its files are missing"


def test_rows_in_are_written_quarantined_late_or_filtered(lakehouse):
    log = lakehouse.commit_log(lakehouse.catalog.table("rows_1"))
    last = next(iter(log))
    more = {"arrived": 10, "written": 5, "quarantined": 1, "late": 3}
    log.append(replace(last, batch=last.batch + 1, at=last.at + HOUR, **more))
    flow = facts_of(lakehouse)["table/rows_1"]["flow"]
    assert flow | {"since": None} == {
        "in": 22, "written": 17, "quarantined": 1, "late": 3, "filtered": 1, "commits": 13, "since": None,
    }  # fmt: skip


def test_only_what_has_changed_is_sent_again(lakehouse):
    facts = Facts(lakehouse, every=0)
    number, first = facts.since(0)
    assert set(first) >= {
        f"job/{lakehouse.settings.tables[0]}",
        "table/events",
        "table/rows_1",
        "events",
    }
    number, second = facts.since(number)
    assert second == {}
    log = lakehouse.commit_log(lakehouse.catalog.table("rows_1"))
    last = next(iter(log))
    log.append(replace(last, batch=last.batch + 1, at=last.at + HOUR, frontier=last.at + HOUR))
    number, third = facts.since(number)
    assert set(third) == {"table/rows_1"} and third["table/rows_1"]["moved"] == last.at + HOUR
    assert set(facts.since(0)[1]) == set(first), "another browser gets all"


def test_lag_is_own_or_inherited(lakehouse):
    rows = [lakehouse.catalog.table(name) for name in ("events", "rows_1")]
    newest: list[Commit] = [next(iter(lakehouse.commit_log(table))) for table in rows]
    offset = {"reservoirVersion": newest[0].version - 1, "index": 0}
    lakehouse.commit_log(rows[1]).append(
        replace(newest[1], batch=99, at=newest[1].at + HOUR, inputs={"tables": {"events": offset}})
    )
    assert facts_of(lakehouse)["table/rows_1"]["behind"] == newest[0].at


def test_an_empty_lakehouse_says_why(lakehouse, tmp_path):
    empty = Lakehouse(replace(lakehouse.settings, root=tmp_path / "none"), lakehouse.catalog)
    facts = facts_of(empty)
    [pipeline] = lakehouse.settings.tables
    why = f"no job has run yet: lakehouse stream start {pipeline}"
    assert facts["lakehouse"]["why_empty"] == why
    assert facts[f"job/{pipeline}"]["state"] == "never ran"
    assert facts["table/events"]["waits"] == (
        f"it has read nothing yet; `lakehouse stream status {pipeline}` shows its job"
    )
    assert facts["table/events"]["hours"] == [] and not facts["table/events"]["frontier"]
    assert not [part for part, value in facts.items() if "unreadable" in value]


def test_torn_files_are_said_in_their_place(lakehouse, monkeypatch):
    [pipeline] = lakehouse.settings.tables
    monkeypatch.setattr(lanes, "_PACE", 0)
    monkeypatch.setattr(lanes, "_SHARE", 1e9)
    settings = lakehouse.settings
    progress.write(settings, progress.of_this_process(pipeline))
    facts = Facts(lakehouse, every=0)
    number, before = facts.since(0)
    assert before[f"job/{pipeline}"]["state"] == "starting"
    status = settings.root / "_jobs" / pipeline / "status.json"
    status.write_text('{"pipeline": "mea')
    table = lakehouse.path(lakehouse.catalog.table("rows_1"))
    delta_log.commit_file(table, delta_log.latest(table) + 1).write_text('{"add": {"pa')
    torn = facts.since(number)[1]
    assert "status.json" in " ".join(torn[f"job/{pipeline}"]["troubles"])
    lane = torn["table/rows_1"]
    assert lane["unreadable"] and lane["flow"]["in"] == 12, "what was known stays"


def test_what_cannot_be_read_at_first_is_said_by_name(lakehouse, monkeypatch):
    [pipeline] = lakehouse.settings.tables
    settings = lakehouse.settings
    job = settings.root / "_jobs" / pipeline
    (job / "status.json").mkdir(parents=True)  # reading it fails, as for a user without rights

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(lanes.files, "modified", refused)
    facts = facts_of(lakehouse)
    card, lane = facts[f"job/{pipeline}"], facts["table/rows_1"]
    assert (card["job"], card["state"]) == (pipeline, "unknown")
    assert "status.json" in card["unreadable"]
    assert (lane["table"], lane["kind"], lane["inputs"]) == ("rows_1", "row", ["events"])
    assert "Permission denied" in lane["unreadable"]
    assert facts["lakehouse"]["why_empty"] == "", "whether a job has run is not known"


def test_a_torn_log_of_verdicts_is_said_in_one_line(lakehouse):
    folder = delta_log.folder(layout.log_table(lakehouse.settings, "_certificates"))
    for file in folder.iterdir():
        file.write_text('{"add": {"pa')
    said = facts_of(lakehouse)["certificates"]["unreadable"]
    assert "Truncated" in said and "\n" not in said


def test_a_file_that_is_moved_aside_is_said_until_it_is_removed(lakehouse):
    [pipeline] = lakehouse.settings.tables
    job = lakehouse.settings.root / "_jobs" / pipeline
    job.mkdir(parents=True)
    facts = Facts(lakehouse, every=0)
    number, before = facts.since(0)
    assert before[f"job/{pipeline}"]["troubles"] == []
    for name in ("status.json", "history.json"):
        (job / name).write_text('[{"at": ')
        number, torn = facts.since(number)
        [aside] = job.glob("*.unreadable-*")
        assert aside.name in " ".join(torn[f"job/{pipeline}"]["troubles"])
        aside.unlink()
        number, mended = facts.since(number)
        assert mended[f"job/{pipeline}"]["troubles"] == []


def test_a_root_that_is_removed_is_said_and_not_made_again(lakehouse):
    facts = Facts(lakehouse, every=0)
    number, before = facts.since(0)
    assert before["lakehouse"]["is_there"]
    shutil.rmtree(lakehouse.settings.root)
    number, gone = facts.since(number)
    assert not gone["lakehouse"]["is_there"] and gone["table/rows_1"]["version"] == -1
    assert not lakehouse.settings.root.exists()


def test_a_lakehouse_without_tables_says_so(lakehouse):
    facts = facts_of(Lakehouse(lakehouse.settings, catalog_of([])))
    assert facts["lakehouse"]["why_empty"] == "no table is declared"
    assert not [part for part, value in facts.items() if "unreadable" in value]


def test_the_page_and_the_facts_of_a_table_are_served(lakehouse):
    with TestClient(server.application(lakehouse), base_url="http://localhost") as client:
        page = client.get("/")
        assert page.status_code == 200 and "board.js" in page.text
        assert client.get("/board.js").status_code == client.get("/board.css").status_code == 200
        table = client.get("/tables/rows_1").json()
        assert table["declaration"]["kind"] == "row" and table["columns"]["id"] == "long"
        assert [verdict for _, verdict, *_ in table["hours"]] == ["PENDING", None, None, "OPEN"]
        assert table["commands"]["backfill the last closed partition"] == (
            "lakehouse backfill rows_1 --start 2026-01-01T02:00Z --end 2026-01-01T03:00Z"
        )
        assert client.get("/tables/none").status_code == 404
        assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 421
        for file in delta_log.folder(lakehouse.path(lakehouse.catalog.table("rows_1"))).iterdir():
            file.write_text("{")
        torn = client.get("/tables/rows_1")
        assert torn.status_code == 200 and torn.json()["unreadable"]


def test_a_metric_that_is_no_number_is_left_out(lakehouse, monkeypatch):
    rows = [(START, math.nan, "a"), (START, 1.5, "b"), (START, math.inf, "c")]
    monkeypatch.setattr(lanes.query, "run", lambda *given: SimpleNamespace(rows=rows))
    table = replace(lakehouse.catalog.table("rows_1"), metrics=("id",))
    assert lanes.Lane(lakehouse, table)._windows("")["points"] == [(START, "b", 1.5)]


def test_a_browser_hears_of_a_board_that_has_nothing_new(lakehouse, monkeypatch):
    monkeypatch.setattr(server, "_PING", 0)
    monkeypatch.setattr(server, "_LOOK", 0)
    app = server.application(lakehouse)
    app.state.server = SimpleNamespace(should_exit=False)

    async def connected():
        return False

    async def messages(count: int) -> list[dict]:
        request = SimpleNamespace(app=app, is_disconnected=connected)
        changes = server._changes(request, Facts(lakehouse))
        texts = [await anext(changes) for _ in range(count)]
        return [json.loads(text.removeprefix("data: ")) for text in texts]

    first, second = asyncio.run(messages(2))
    assert "table/rows_1" in first and second == {}


def test_other_machines_are_refused(lakehouse):
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(SettingsError, match="loopback interface alone"):
            server.run(lakehouse, host, 0)


def test_the_page_loads_nothing_from_elsewhere():
    for file in Path(server.__file__).with_name("page").iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text, file.name
        for makes_html in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "srcdoc",
            "eval(",
        ):
            assert makes_html not in text, file.name


def test_verdicts_are_the_same_when_a_clock_goes_after_the_others(lakehouse):
    read_on = Verdicts(lakehouse.settings)
    table, moments = lakehouse.catalog.table("rows_1"), (0, 5, 9, 7, 9, 12)
    for number, (minutes, verdict) in enumerate(zip(moments, cycle(("EQUAL", "DIFFERENT")))):
        start, at = START + HOUR * number, datetime(2026, 6, 1, 0, minutes, tzinfo=UTC)
        made = command_cpu.certificate(table, START)
        certify(
            lakehouse.settings,
            [replace(made, start=start, end=start + HOUR, verdict=verdict, at=at)],
        )
        assert read_on.now() == Verdicts(lakehouse.settings).now()
    assert read_on.now()["rows_1"].counts == {"EQUAL": 4, "DIFFERENT": 3}
