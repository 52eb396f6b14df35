"""`lakehouse board` as a process, in a browser: what jobs write is on the screen moments later, and nothing else moves it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks import command_cpu
from benchmarks.command_cpu import START
from lakehouse import processes
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate, Verdict, certify
from streaming_jobs import progress
from streaming_jobs.progress import QueryStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
HOUR = timedelta(hours=1)


@dataclass
class Board:
    lakehouse: Lakehouse
    address: str

    @property
    def pipeline(self) -> str:
        return self.lakehouse.settings.tables[0]

    def judge(self, verdict: Verdict, hour: int) -> None:
        table = self.lakehouse.catalog.table("rows_1")
        start, version = START + HOUR * hour, delta_log.latest(self.lakehouse.path(table))
        inputs, now = {"tables": {"events": version}}, datetime.now(UTC)
        code = table.code_version
        made = Certificate(
            table.name, start, start + HOUR, verdict, 3, 3, 0, "", "", None, version, inputs, code, now, 1.0
        )  # fmt: skip
        certify(self.lakehouse.settings, [made])

    def commit(self, **more: object) -> None:
        """Adds a line to the commit log of `rows_1`, an hour later in event time than the last one."""
        log = self.lakehouse.commit_log(self.lakehouse.catalog.table("rows_1"))
        last = next(iter(log))
        later = {"batch": last.batch + 1, "at": datetime.now(UTC), "frontier": last.frontier + HOUR}
        log.append(replace(last, **(later | more)))


@contextmanager
def served(settings: Settings, port: int, end: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Yields the address of a board, which that signal ends."""
    command = [sys.executable, "-m", "lakehouse", "board", "--port", str(port)]
    environment = os.environ | to_environment(settings)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", line), line
            yield line.strip()
        finally:
            server.send_signal(end)
            assert server.wait(60) == -end, "a browser that listens does not keep it"


@pytest.fixture
def lakehouse(tmp_path, monkeypatch) -> Lakehouse:
    monkeypatch.setattr(command_cpu, "_EVERY", timedelta(minutes=20))
    return command_cpu.filled(Settings(root=tmp_path / "root"), 3, 12)


@pytest.fixture
def board(lakehouse) -> Iterator[Board]:
    with served(lakehouse.settings, 0) as address:
        yield Board(lakehouse, address)


@pytest.fixture
def page(board):
    with browsed(board.address) as (page, asked):
        yield page
    assert sum(url.endswith("/events") for url in asked) == 1, (
        "it is sent what changes, and asks for nothing"
    )


@contextmanager
def browsed(address: str) -> Iterator[tuple[Any, list[str]]]:
    """Yields the page in a browser, and the addresses that it has asked for."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "no chromium on the PATH (Debian and Ubuntu: apt install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        said, asked = [], []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.locator("#lanes tr").nth(2).wait_for()
        yield page, asked
        browser.close()  # while it listens
    assert not said
    assert all(url.startswith((address, "data:")) for url in asked), asked


def letters(page, table: str) -> str:
    return "".join(page.locator(f'[id="table/{table}"] .h').all_inner_texts())


def see(page, text: str, within: str = "body") -> None:
    page.locator(within).get_by_text(text).first.wait_for()


def test_the_page_follows_what_is_written(board, page, tmp_path):
    assert letters(page, "rows_1") == "P??·" and letters(page, "events") == "––––"
    see(page, f"no job has run yet: lakehouse stream start {board.pipeline}")
    board.judge("EQUAL", 0)
    board.judge("DIFFERENT", 1)
    see(page, "lakehouse reconcile status rows_1", '[id="table/rows_1"]')
    assert letters(page, "rows_1") == "ED?·"
    see(page, "DIFFERENT", "#events")
    board.commit(arrived=10, written=5, quarantined=1, late=3)
    see(page, "22 in = 17 written + 1 quarantined + 3 late + 1 filtered", '[id="table/rows_1"]')
    see(page, "2026-01-01 04:40:00", '[id="table/rows_1"]')
    page.screenshot(path=tmp_path / "different.png", full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "a phone shows it whole"


def test_a_killed_job_and_a_torn_file_are_seen(board, page):
    settings = board.lakehouse.settings
    with subprocess.Popen(["sleep", "600"]) as job:
        started = processes.started(job.pid)
        query = QueryStatus("rows_1", True, rows_per_second=41, lag=7, trouble="<b>no broker</b>")
        status = progress.of_this_process(board.pipeline, queries=(query,))
        running = replace(status, pid=job.pid, process_started=started, state="running")
        progress.write(settings, running)
        see(page, "running", "#jobs")
        see(page, "7 files", '[id="table/rows_1"]')
        see(page, "<b>no broker</b>", '[id="table/rows_1"]')
        job.kill()
    see(page, "dead", "#jobs")
    see(page, "its process has ended", "#jobs")
    assert page.locator('[id="table/rows_1"] [data-label="rows/s"]').inner_text() == "–"
    Path(settings.root / f"_jobs/{board.pipeline}/status.json").write_text("{")
    see(page, "it was unreadable and moved aside", "#jobs")
    table = board.lakehouse.path(board.lakehouse.catalog.table("rows_2"))
    delta_log.commit_file(table, delta_log.latest(table) + 1).write_text('{"add": {"pa')
    see(page, "cannot be read", '[id="table/rows_2"]')
    assert letters(page, "rows_2") == "P??·", "what was known stays"


def test_a_board_that_is_killed_and_started_again_is_followed(lakehouse):
    settings, first = lakehouse.settings, ExitStack()
    address = first.enter_context(served(settings, 0, signal.SIGKILL))
    with first, browsed(address) as (page, _):
        see(page, "live", "#live")
        first.close()
        see(page, "the board does not answer", "#live")
        module = settings.root / f"{settings.tables[0]}.py"
        module.write_text(module.read_text().replace("def rows_2(", "def rows_3("))
        with served(settings, int(address.strip("/").rpartition(":")[2])) as again:
            assert again == address
            see(page, "live", "#live")
            see(page, "rows_3", "#lanes")
            assert page.locator('[id="table/rows_2"]').count() == 0, "it is not declared any more"
            Board(lakehouse, address).commit()
            see(page, "13 in", '[id="table/rows_1"]')


def test_keys_open_a_table_and_change_the_colours(board, page):
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "rows_1"
    board.commit()
    see(page, "13 in", '[id="table/rows_1"]')
    assert page.evaluate("document.activeElement.textContent") == "rows_1", "the focus stays"
    page.keyboard.press("Enter")
    see(page, "lakehouse backfill rows_1 --start", "#page")
    see(page, "code_version", "#page")
    assert page.locator("#page svg rect").count() == 4
    page.keyboard.press("Escape")
    page.locator("#lanes").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "rows_1"
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.keyboard.press("t")
    assert page.evaluate(back) != light
    page.keyboard.press("?")
    see(page, "next and previous table", "dialog")
