"""`lakehouse upgrade follow` as a process: two versions of a table side by side, while the table's stream goes on."""

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.testing import Stage
from support.taken_orders import SHOP

MODULE = "followed_shop"


class Following:
    """The process, and the lines that it prints."""

    def __init__(self, settings: Settings, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lakehouse", "upgrade", "follow", "taken", "--every", "0.2", "--json", *options],
            env=os.environ | to_environment(settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)

    def partition(self) -> tuple[str, int, int, int]:
        """The next one that it shows: the hour, rows before, rows after, how many are missing."""
        try:
            line = json.loads(self.lines.get(timeout=120))
        except queue.Empty:
            self.process.kill()
            raise AssertionError(self.process.stderr.read()) from None
        return line["partition"][-2:], line["rows_before"], line["rows_after"], line["missing"]

    def end(self, number: signal.Signals) -> tuple[int, str]:
        os.killpg(self.process.pid, number)
        with self.process:  # which closes what it wrote to
            code = self.process.wait(timeout=120)
            self.reading.join()
            return code, self.process.stderr.read()


def hour(stage: Stage, number: int) -> None:
    """Four orders of that hour, and one after it, which closes it."""
    stage.feed("orders", [{"id": n, "at": f"2026-01-01T{number:02}:30:00Z"} for n in (1, 2, 3, 4)])
    stage.advance("orders", {"id": 0, "at": f"2026-01-01T{number + 1:02}:10:00Z"})
    stage.run("taken")


def said(settings: Settings, *words: str) -> list[dict]:
    """What a command prints, in this process."""
    done = CliRunner().invoke(main.app(), [*words, "--json"], env=to_environment(settings))
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(400)
def test_a_version_follows_its_table_is_killed_resumes_and_shows_partitions_as_they_close(
    spark, tmp_path, quick_jvm, monkeypatch
):
    for version, least in (("before", "1"), ("after", "2")):
        (tmp_path / version).mkdir()
        (tmp_path / version / f"{MODULE}.py").write_text(SHOP.replace("LEAST", least))
    monkeypatch.syspath_prepend(tmp_path / "before")
    stage = Stage(spark, tmp_path / "root", importlib.import_module(MODULE))
    settings = replace(
        stage.session.settings, jars=from_environment().jars, module_path=(tmp_path / "after",), spark_conf=quick_jvm
    )  # fmt: skip
    hour(stage, 0)
    hour(stage, 1)

    following = Following(settings)
    assert [following.partition() for _ in range(2)] == [("00", 3, 2, 1), ("01", 3, 2, 1)]
    hour(stage, 2)
    assert following.partition() == ("02", 3, 2, 1)
    refused = subprocess.run(
        [sys.executable, "-m", "lakehouse", "upgrade", "drop", "taken", "--yes"],
        env=os.environ | to_environment(settings), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert refused.returncode == 2 and f"pid={following.process.pid}" in refused.stderr
    assert following.end(signal.SIGKILL)[0] == -signal.SIGKILL
    hour(stage, 3)

    within = ("--differs-from", "2026-01-01T01:00Z", "--differs-until", "2026-01-02T00:00Z")
    following = Following(settings, *within)
    shown = [following.partition()[0] for _ in range(4)]
    assert shown == ["00", "01", "02", "03"], "what differs, and what has closed meanwhile"
    for name, rows in (("taken", 12), ("taken__beside", 8)):
        (line,) = said(settings, "query", f"SELECT count(*) AS n FROM {name}")
        assert line["n"] == rows
    (line,) = said(settings, "table", "show", "taken")
    assert (line["beside"]["table"], line["beside"]["rows"]) == ("taken__beside", 8)
    (line,) = said(settings, "upgrade", "status")
    assert line["compared"]["differing"] == 4 and line["refused"], line
    code, errors = following.end(signal.SIGINT)
    assert code == 1 and "rows differ in 2026-01-01-00" in errors, errors
    assert "Traceback" not in errors, errors
    assert following.lines.empty()
    lines = Path(settings.root, "_upgrades/taken/compared.jsonl").read_text().splitlines()
    assert len(lines) == 4, "no partition was read twice"
