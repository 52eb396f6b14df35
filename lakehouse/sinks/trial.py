"""The test kit of a sink: a table is published through it while its process is killed and replaced, and the two are compared.

    def test_my_sink(tmp_path):
        assert_exactly_once(SqliteTable("accounts", key=("account",), corrections="send", path=...), tmp_path)

The processes are real, and so are their ends: SIGKILL. No Spark is needed.
"""

import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from lakehouse.declare.targets import Target
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.sinks.comparison import compare
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.mortal import End, Event, declared, live
from lakehouse.storage.delta import delta_log, table_creation
from lakehouse.storage.delta.row_keys import KEY, of_text
from lakehouse.storage.keyed import keyed_files

DEATHS = (
    "opened", "writing", "committing", "written", "committing", "committed", "at random",
)  # fmt: skip
_ROWS = pa.schema(
    [
        ("account", pa.string()),
        ("n", pa.int64()),
        ("region", pa.string()),
        ("amount", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
        (KEY, pa.binary()),
    ]
)
_NOTES = (None, "", "plain", 'of "two"\nlines, with \\ and é')
_START = datetime(2026, 1, 1, tzinfo=UTC)
_PAUSE = 0.03  # seconds between two versions while a process lives
_AHEAD = 4  # versions of the table before those that a process has committed
_DEADLINE = 60.0  # seconds for a process to come to its end, or to the newest version
_PATIENCE = 1.0  # seconds for an heir to take over from a process that stands still


def assert_exactly_once(
    target: Target, root: Path, *, lives: int = len(DEATHS), seed: int = 0, **settings: Any
) -> Counter[str]:
    """Publishes a table to the target while its process is killed again and again, and compares after each death.

        def test_my_sink(tmp_path):
            assert_exactly_once(MyTarget("accounts", key=("account",), corrections="send"), tmp_path)

    The table has the columns account, n, region, amount, at and note, and one row for each account.
    Its versions add, change and remove rows. A process is killed by SIGKILL once it has opened the
    target, within a write, before, within and after a commit, and at random moments. Then two processes
    stand still, one after `open`, one after `write`, and wake up when another has taken over. Rows and
    position must be those of one version of the table at each moment, each key once, and whoever was
    replaced must be refused.

    :param target: new and empty. Its key has the column `account`; more columns of the table may be in
        it. It is pickled, so its class is in a module that can be imported.
    :param root: an empty folder for the table, such as pytest's `tmp_path`.
    :param lives: how many processes are killed; from seven on each kind of death comes.
    :param seed: chooses rows and moments.
    :param settings: of the lakehouse, such as `bootstrap_servers`.
    :returns: how often each end came, and how many versions there were.
    :raises AssertionError: says what differs, after which end.
    :raises DeclarationError: for a key without `account`.
    """
    if "account" not in target.key:
        raise DeclarationError(
            f"target={target.name}, key={list(target.key)}: the test kit has one row for each account; add account to the key"
        )
    return _KillTest(Settings(root=root, **settings), target, seed).run(lives)


class _KillTest:
    """The table, its versions, and the processes that publish it."""

    def __init__(self, settings: Settings, target: Target, seed: int) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self.settings, self.target, self.seed = settings, target, seed
        self.lakehouse, self.table = declared(settings, target)
        self.path = self.lakehouse.path(self.table)
        # apart, because how many versions there are is a matter of time
        self.choose, self.moments = random.Random(seed), random.Random(seed)
        self.rows: dict[str, dict[str, object]] = {}
        self.made = 0  # accounts so far
        self.batch = 0
        self.ends: Counter[str] = Counter()
        self.processes: list[ForkServerProcess] = []
        self.context = multiprocessing.get_context("forkserver")
        schema = from_arrow_schema(_ROWS)
        table_creation.create(self.path, schema, False, "", table_creation.found_by(["account"]))

    def run(self, lives: int) -> Counter[str]:
        try:
            before = set(sys.modules)
            self._check("the beginning")
            self._version()
            # a client of the target, or pandas, takes a second to import in each process
            self.context.set_forkserver_preload(
                [__name__, type(self.target).__module__, *sorted(set(sys.modules) - before)]
            )
            for life in range(lives):
                self._killed(DEATHS[life % len(DEATHS)])
            for point in ("opened", "written"):
                self._replaced(point)
        finally:
            for process in self.processes:
                process.kill()
        last = Follower(self.lakehouse, self.table, self.target)
        last.begin()
        while last.step():
            pass
        last.end()
        self._check("the last process, which was not killed", newest=True)
        self.ends["versions"] = self.batch
        return self.ends

    def _killed(self, point: str) -> None:
        """Runs one process up to its death."""
        nth = 2 if point == "committing" else self.moments.randint(1, 2)
        process, events = self._started(End(point, nth, after=self.moments.random()))
        deadline, reached = time.monotonic() + _DEADLINE, self._newest()
        moment = 0.0
        while process.is_alive():
            assert time.monotonic() < deadline, self._text(
                f"a process that was to die ({point}) lives after {_DEADLINE:.0f} s, and its events are {events()}"
            )
            reached = max([reached, *(event.version for event in events())])
            if self._newest() < reached + _AHEAD:
                self._version()
            if point == "at random" and not moment and events():
                moment = time.monotonic() + self.moments.random() / 2
            if moment and time.monotonic() > moment:
                process.kill()
            process.join(_PAUSE)
        assert process.exitcode == -signal.SIGKILL, self._text(
            f"a process that was to die ({point}) failed before: {_error(events())}"
        )
        self.ends[point] += 1
        self._check(f"a process was killed ({point})")

    def _replaced(self, point: str) -> None:
        """Lets one process stand still while another takes over. It wakes up, and must be refused."""
        zombie, zombie_events = self._started(End(point, 1, stands_still=True))
        while psutil.Process(zombie.pid).status() != psutil.STATUS_STOPPED:
            assert zombie.is_alive(), self._text(f"it failed: {_error(zombie_events())}")
            self._version()
            time.sleep(_PAUSE)
        heir, heir_events = self._started(End())
        self._version()
        patience = time.monotonic() + _PATIENCE  # the heir may wait for a lock of the zombie's
        while heir.is_alive() and not _caught_up(heir_events(), self._newest()):
            if time.monotonic() > patience:
                break
            time.sleep(_PAUSE)
        psutil.Process(zombie.pid).resume()
        deadline = time.monotonic() + _DEADLINE
        while zombie.is_alive():
            opened = next((e.at for e in heir_events() if e.kind == "opened"), float("inf"))
            late = [
                event.version
                for event in zombie_events()
                if event.kind == "committed" and event.at > opened
            ]
            if late or time.monotonic() > deadline:
                zombie.kill()
            assert not late, self._text(
                f"a process that stood still ({point}) committed version {late[0]} after another had opened the target; "
                "`open` must refuse whoever had it before"
            )
            if not heir.is_alive():  # refused as long as the other had locked the target
                heir, heir_events = self._started(End())
            self._version()
            zombie.join(10 * _PAUSE)
        assert _error(zombie_events()), self._text(
            f"a process that was replaced ({point}) neither ended nor committed within {_DEADLINE:.0f} s"
        )
        while not _caught_up(heir_events(), self._newest()):
            assert heir.is_alive(), self._text(
                f"the process that took over failed: {_error(heir_events())}"
            )
            assert time.monotonic() < deadline, self._text(
                f"the process that took over is not at version {self._newest()} after {_DEADLINE:.0f} s"
            )
            time.sleep(_PAUSE)
        heir.kill()
        heir.join()
        self.ends[f"replaced, {point}"] += 1
        self._check(f"a process was replaced ({point})", newest=True)

    def _started(self, end: End) -> "tuple[ForkServerProcess, _ChildEvents]":
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = self.context.Process(
            target=live, args=(self.settings, self.target, end, theirs), daemon=True
        )
        process.start()
        self.processes.append(process)
        theirs.close()
        return process, _ChildEvents(ours)

    def _newest(self) -> int:
        return delta_log.latest(self.path)

    def _version(self) -> None:
        """Commits a version of the table: rows come, change and go."""
        choose, present = self.choose, sorted(self.rows)
        gone = choose.sample(present, min(len(present) // 4, choose.randint(0, 3)))
        rest = sorted(set(present) - set(gone))
        changed = choose.sample(rest, min(len(rest), choose.randint(1, 4)))
        new = [f"é {self.made + n}" for n in range(choose.randint(2, 8))]
        for n, name in enumerate(new):
            self.rows[name] = {"account": name, "n": self.made + n}
        self.made += len(new)
        for name in gone:
            del self.rows[name]
        for name in (*changed, *new):
            self.rows[name] |= {
                "region": choose.choice(["north", "a/b=c", None]),
                "amount": Decimal(choose.randint(0, 10**6)) / 100,
                "at": _START + timedelta(microseconds=choose.randint(0, 10**12)),
                "note": choose.choice(_NOTES),
                KEY: _key(name),
            }
        rows = [self.rows[name] for name in (*changed, *new)]
        touched = [_key(name) for name in (*gone, *changed, *new)]
        app = f"{self.table.name}:stream:1"
        keyed_files.upsert(
            pa.Table.from_pylist(rows, _ROWS),
            self.path,
            app,
            self.batch,
            f'{{"app": "{app}", "batch": {self.batch}, "inputs": {{}}}}',
            pa.chunked_array([pa.array(touched, pa.binary())]),
        )
        self.batch += 1

    def _check(self, after: str, newest: bool = False) -> None:
        """Compares with the version that the target holds."""
        with closing(self.target.sink(self.settings, self.table.name)) as sink:
            position = sink.position()
            unknown = [] if position else [key for key, _, _ in sink.rows(0)]
        assert not unknown, self._text(
            f"after {after}, the target has rows ({unknown[0]}) and no position, so they will be written again; make both "
            "visible in one step"
        )
        if position is None:
            return
        compared = compare(self.lakehouse, self.table, self.target)
        differences = compared.differences
        different = ", ".join(
            f"{difference.key} ({difference.cause})" for difference in differences[:5]
        )
        assert not differences, self._text(
            f"after {after}, the target is at version {compared.version}, and {len(differences)} keys differ from it: "
            f"{different}; rows and position must become visible in one step"
        )
        assert not newest or compared.version == self._newest(), self._text(
            f"after {after}, the target is at version {compared.version}, and the table at {self._newest()}"
        )

    def _text(self, what: str) -> str:
        return f"target={self.target.name}, seed={self.seed}: {what}"


class _ChildEvents:
    """The events of a process so far."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._events: list[Event] = []

    def __call__(self) -> list[Event]:
        with suppress(EOFError, OSError):  # it is dead
            while self._pipe.poll():
                self._events.append(self._pipe.recv())
        return self._events


def _caught_up(events: Sequence[Event], version: int) -> bool:
    return any(event.kind == "committed" and event.version >= version for event in events)


def _error(events: Sequence[Event]) -> str:
    return next((event.error for event in events if event.kind == "failed"), "")


def _key(account: str) -> bytes:
    return of_text("trial_accounts", {"account": "string"}, [account])
