"""The guide through the tour: it runs commands as they are typed, sends orders, waits, and checks what the tables hold."""

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from signal import SIGKILL
from typing import Any

from rich.text import Text

import lakehouse
from assets.parts import Parts
from lakehouse.declare import catalog
from lakehouse.ranges import text
from lakehouse.settings import Settings, from_environment
from lakehouse.stopping import Stopped
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.log.commits import Commit

Order = dict[str, Any]  # as it is sent, `at` in ISO 8601
_WITHIN = 240.0  # seconds for what a step waits for; a start of the job takes 15 on two idle cores
_DELAY = timedelta(seconds=10)  # of the ingest table, as `lakehouse init` declares it
_LINES, _LINES_OF_A_FAILURE = 8, 40  # of a command's output
_NO_OUTPUT = ("━", "WARNING: Using incubator")  # a bar, and a word of the JVM
_ROWS = 3  # of a check that fails


class CheckError(Exception):
    """A step has not done what it says. The text has the rule and what was seen."""


class Guide:
    """The lakehouse of the tour, whose project is in `folder`, and what was sent to it so far."""

    def __init__(self, folder: Path, parts: Parts) -> None:
        self.folder, self.parts = folder, parts
        self.console, self.stopping = parts.console, parts.stopping
        self.orders: list[Order] = []  # those that count, by their event time
        self.messages = 0

    @cached_property
    def settings(self) -> Settings:
        """Returns the settings of the project, once it is there."""
        return from_environment(self.parts.environment())

    def run(self, command: str, exit_code: int = 0, lines: int = _LINES) -> None:
        """Runs a command in the project's folder, and shows the first lines of its output.

        Raises CheckError if it ends with another exit code, Stopped if somebody ends the tour.
        """
        self.console.print(Text(f"$ {command}", style="bold cyan"), soft_wrap=True)
        with tempfile.TemporaryFile() as output, self.console.status("running"):
            process = subprocess.Popen(
                command,
                shell=True,
                cwd=self.folder,
                env=self.parts.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while process.poll() is None:
                if self.stopping.wait(0.05):
                    os.killpg(process.pid, SIGKILL)
                    process.wait()
                    raise Stopped(command)
            output.seek(0)
            text_ = output.read().decode(errors="replace")
        failed = process.returncode != exit_code
        self._show(text_, _LINES_OF_A_FAILURE if failed else lines)
        if failed:
            raise CheckError(
                f"`{command}` must end with exit code {exit_code}, and ended with {process.returncode}"
            )

    def _show(self, output: str, limit: int) -> None:
        all_lines = (line.rstrip() for line in output.splitlines() if line.strip(" ─"))
        lines = [line for line in all_lines if not line.startswith(_NO_OUTPUT)]
        more = [f"… {len(lines) - limit} more lines"] if len(lines) > limit else []
        for line in (*lines[:limit], *more):
            shown = Text(f"  {line}", style="dim")
            if "  " in line.strip():  # of a table; a sentence is folded
                shown.truncate(self.console.width - 1, overflow="ellipsis")
            self.console.print(shown)

    def produce(self, name: str, orders: Iterable[Order], others: Iterable[str] = ()) -> str:
        """Writes orders, and messages that do not count, to a file. Returns the command that sends its lines."""
        new = list(orders)
        lines = [*map(json.dumps, new), *others]
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        self.orders += new
        self.messages += len(lines)
        return f"lakehouse produce --topic orders --file {name}"

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds, and says what it waits for. Raises CheckError after a while, and Stopped."""
        deadline, shown = time.monotonic() + _WITHIN, f"waiting for {what}"
        self.console.print(Text(shown, style="dim"))
        with self.console.status(shown):
            while not condition():
                if self.stopping.wait(0.1):
                    raise Stopped(what)
                if time.monotonic() > deadline:
                    raise CheckError(
                        f"{what}: within {_WITHIN:.0f} s, and it has not come; .lakehouse/_jobs/orders/driver.log may say why"
                    )

    def wait_for_orders(self) -> None:
        """Waits until all that was sent has gone through every table."""
        turnover = catalog.load(self.settings).table("turnover")

        def complete() -> bool:
            reached = frontier(self.settings, turnover)
            read = sum(commit.arrived for commit in self.commits("orders"))
            return read == self.messages and reached is not None and reached >= self._until()

        self.wait(f"turnover to be complete up to {text(self._until())}", complete)

    def _until(self) -> datetime:
        """Returns the event time up to which turnover is complete once all orders are read."""
        return datetime.fromisoformat(self.orders[-1]["at"]) - _DELAY

    def commits(self, table: str) -> list[Commit]:
        """Returns the commits of the table's stream."""
        declared = catalog.load(self.settings).table(table)
        return list(CommitLog(self.settings, declared).by_stream())

    def check(self, rule: str, seen: Iterable[Hashable], wanted: Iterable[Hashable]) -> None:
        """Raises CheckError with what is missing and what is too much, unless both have the same rows."""
        actual, expected = Counter(seen), Counter(wanted)
        if actual != expected:
            missing = _first((expected - actual).elements())
            raise CheckError(
                f"{rule}: missing {missing}; not expected {_first((actual - expected).elements())}"
            )

    def check_turnover(self, name: str = "turnover", minutes: int = 1) -> int:
        """Compares turnover with sums that Python makes of the orders, and returns the number of its rows."""
        size, wanted = timedelta(minutes=minutes), Counter[tuple[datetime, str]]()
        for order in self.orders:
            at = datetime.fromisoformat(order["at"])
            start = at.replace(minute=at.minute // minutes * minutes, second=0)
            if start + size <= self._until():
                wanted[start, order["shop"]] += order["cents"]
        rows = lakehouse.read(name, settings=self.settings).to_pylist()
        seen = [(text(row["window"]["start"]), row["shop"], row["cents"]) for row in rows]
        sums = ((text(start), shop, cents) for (start, shop), cents in wanted.items())
        self.check(f"{name} must have the sums of the orders that were sent", seen, sums)
        return len(seen)


def _first(rows: Iterable[Hashable]) -> str:
    all_rows = list(rows)
    shown = [str(row) for row in all_rows[:_ROWS]] + ["…"] * (len(all_rows) > _ROWS)
    return f"{len(all_rows)} ({', '.join(shown)})" if all_rows else "0"
