"""What the README and the docs tell people to type, typed."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.log.commit_log import frontier
from support import ROOT

LAKEHOUSE = Path(sys.executable).with_name("lakehouse")


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def commands(document: str, program: str) -> list[list[str]]:
    lines = [line for block in blocks(document, "bash") for line in block.splitlines()]
    return [
        words
        for line in lines
        if (words := shlex.split(line, comments=True)) and words[0] == program
    ]


def run(words: list[str], settings: Settings, seconds: float) -> subprocess.CompletedProcess:
    environment = os.environ | to_environment(settings)
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=seconds, cwd=ROOT
    )


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_the_command_lines_of_the_readme_work_in_their_order(tmp_path, quick_jvm):
    given = commands("README.md", "lakehouse")
    assert [" ".join(words[1:3]).partition(" SELECT")[0] for words in given] == [
        "broker start", "produce sensors", "stream start", "stream status", "table list", "table quarantine", "topic check",
        "table late", "update", "table lateness", "query", "reconcile run", "reconcile status", "reconcile repair", "stream stop",
        "broker stop",
    ]  # fmt: skip
    settings = Settings(root=tmp_path, jars=from_environment().jars, spark_conf=quick_jvm)
    try:
        for words in given:
            done = run([str(LAKEHOUSE), *words[1:]], settings, 300)
            assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
            if words[1:3] == ["stream", "start"]:
                await_frontier(settings, "sensor_averages")
    finally:
        for left in (["stream", "stop"], ["broker", "stop"]):
            run([str(LAKEHOUSE), *left], settings, 120)


def await_frontier(settings: Settings, table: str, process: subprocess.Popen | None = None) -> None:
    declared, deadline = catalog.load(settings).table(table), time.monotonic() + 240
    while (ahead := frontier(settings, declared)) is None or ahead.year < 2000:
        assert time.monotonic() < deadline, "nothing was closed within 240 s"
        assert process is None or process.poll() is None, "it ended before anything was closed"
        time.sleep(0.2)


def environment(process: psutil.Process) -> list[str]:
    """Its command line and variables."""
    try:
        return [*process.cmdline(), *process.environ().values()]
    except psutil.Error:
        return []


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_is_killed_with_all_it_started_and_the_next_ends_with_its_certificate_and_leaves_no_process(
    tmp_path, quick_jvm
):
    settings = Settings(root=tmp_path, jars=from_environment().jars, spark_conf=quick_jvm)
    command = [str(LAKEHOUSE), "demo", "--history", "20 minutes", "--port", "3579"]
    with subprocess.Popen(
        command, env=os.environ | to_environment(settings), stdout=subprocess.DEVNULL
    ) as first:
        for name in ("sensor_averages", "campaign_views"):
            await_frontier(settings, name, first)
        killed = [p for p in psutil.process_iter() if str(tmp_path) in " ".join(environment(p))]
        assert len(killed) > 8, (
            "the demo, a broker, two producers, two jobs with a JVM each, Dagster"
        )
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):  # ended with the one that started it
                process.kill()
    demo = run([*command, "--seconds", "45"], settings, 800)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "✓ the board on http://localhost:" in demo.stdout
    assert "reconciled: 4 of 4 tables" in demo.stdout and "DIFFERENT" not in demo.stdout
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


def test_every_table_of_the_readme_is_one_that_ships():
    shown = blocks("README.md", "python")[0]
    shipped = (ROOT / "lakehouse" / "examples" / "ads" / "tables.py").read_text()
    bodies = re.findall(r"    (?:milliseconds|in_range|views|return) ?=? ?.*", shown)
    assert len(bodies) >= 5
    for line in bodies:
        assert line.strip() in shipped, line


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_what_a_page_links_to_or_names_is_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, section = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert str(linked.relative_to(ROOT)) in tracked, f"{page.name} links to {target}"
        assert not section or section in sections(linked), f"{page.name} links to {target}"
    for named in re.findall(
        r"`((?:tests|benchmarks|assets|lakehouse|ops|docs)/[\w/-]+\.\w+)", text
    ):
        assert named in tracked, f"{page.name} names {named}"


def sections(page: Path) -> set[str]:
    """The anchors of a page's headings, as those who show it make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
