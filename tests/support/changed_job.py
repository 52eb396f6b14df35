"""A job with a table of each kind of change, changed while it runs: it is killed, and so is each command that changes a table.

    PYTHONPATH=.:tests .venv/bin/python -m support.changed_job --seed 1

A broker, a streaming job and the commands are processes of their own. The tables are changed all at
once. What `lakehouse plan` names of each is done: those that are filled beside the present ones are
filled while the job goes on, and promoted once it is stopped. Each step of filling and of promotion,
of `table accept` and of `backfill` is once the one before which SIGKILL comes, of a table that the
seed draws. The job goes on under the changed code, and is killed once more. In the end each table is
compared with that of another job, whose code was always the changed one, and with its batch run.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil

from lakehouse.cli import change_plan
from lakehouse.declare.catalog import catalog_of
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_log, version_rows
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from stories.work import QUICK_JVM
from streaming_jobs.supervision import supervisor
from support import ROOT, TESTS, killed_commands
from support.changing_tables import at
from support.killed_commands import Command, Step
from support.kinds_of_change import CHANGES_NO_ROW, KINDS, Kind, declared
from support.sensors_job import awaited

PIPELINE = "kinds_of_change"  # of the module that has the functions
_MODULE = """from support.kinds_of_change import KINDS, named

def of(names):
    return {{name: KINDS[name] for name in names}}

globals().update({versions})
"""
_FILL: Sequence[Step] = (("note", 1), ("append", 1), ("note", 2))
_PROMOTE: Sequence[Step] = (
    ("take_table", 1),
    ("note", 1),
    ("exchange", 1),  # of its quarantine
    ("exchange", 2),
    ("append", 1),
    ("link_inputs", 1),
    ("forget", 1),
)
_AT_ONCE: Sequence[Step] = (("keep", 1),)
Code = Literal["before", "after", "onward", "always"]


class Changed:
    """The lakehouse, its broker and its job, under one code or another."""

    def __init__(self, seed: int, kinds: Mapping[str, Kind], folder: Path) -> None:
        self.kinds, self.choose, self.folder = kinds, random.Random(seed), folder
        self.settings = Settings(
            root=folder / "root",
            jars=from_environment().jars,
            tables=(PIPELINE,),
            spark_conf=QUICK_JVM,
            shuffle_partitions=1,
        )
        self.sent: Counter[str] = Counter()
        self.kills: list[str] = []
        going = [name for name, kind in kinds.items() if kind.then != "refused"]
        staying = [name for name in kinds if name not in going]
        self._write("before", f"named(of({[*kinds]}), 'before')")
        self._write("after", f"named(of({[*kinds]}), 'after')")
        self._write("onward", f"named(of({staying}), 'before') | named(of({going}), 'after')")
        self._write("always", f"named(of({going}), 'always')")
        self.before = self._lakehouse("before")
        self.after = self._lakehouse("after", "always")

    def _write(self, code: Code, versions: str) -> None:
        module = self.folder / code / f"{PIPELINE}.py"
        module.parent.mkdir()
        module.write_text(_MODULE.format(versions=versions))

    def _lakehouse(self, *versions: Literal["before", "after", "always"]) -> Lakehouse:
        return Lakehouse(self.settings, catalog_of([declared(self.kinds, *versions)]))

    @contextmanager
    def broker(self) -> Iterator[None]:
        kafka_broker.start(self.settings, jars.resolve(self.settings.jars))
        try:
            kafka_broker.ensure_topics(self.settings, {"clicks": 1, "taps": 1}, TOPIC)
            yield
        finally:
            now = supervisor.status(self.settings, PIPELINE)
            if now and now.alive:
                psutil.Process(now.pid).kill()
            kafka_broker.stop(self.settings)

    def environment(self, code: Code) -> dict[str, str]:
        settings = replace(self.settings, module_path=(self.folder / code,))
        path = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS)))}
        return os.environ | to_environment(settings) | path

    def command(self, code: Code, *words: str, exit_code: int = 0) -> subprocess.CompletedProcess:
        return self._ended(code, ["-m", "lakehouse", *words], exit_code)

    def _ended(
        self, code: Code, words: Sequence[str], exit_code: int = 0
    ) -> subprocess.CompletedProcess:
        ended = subprocess.run(
            [sys.executable, "-P", *words],
            env=self.environment(code),
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert ended.returncode == exit_code, f"{words}: {ended.stdout}{ended.stderr[-6_000:]}"
        return ended

    def start(self, code: Code) -> None:
        self.command(code, "stream", "start", PIPELINE, "--wait", "400")

    def to_the_present(self, code: Code) -> None:
        """Runs the job until all that is there has gone through every table."""
        self._ended(code, ["-m", "streaming_jobs.driver", PIPELINE, "--available-now"])

    def killed_under(self, first: int, last: int, *late: dict) -> None:
        """Sends what the job, which runs, reads, and kills that before it has gone through every table."""
        before = self._steps()
        self.send(first, last, *late)
        awaited(lambda: self._steps()["clicks"] > before["clicks"], "the job reads on", 240)
        time.sleep(self.choose.uniform(0, 0.5))
        psutil.Process(supervisor.status(self.settings, PIPELINE).pid).kill()
        awaited(lambda: supervisor.status(self.settings, PIPELINE).state == "dead", "it is dead")
        now = self._steps()
        behind = sum(now[name] == before[name] for name in now)
        assert behind, "some table had still to follow"
        self.kills.append(f"job: {behind} of {len(now)} tables had still to follow")

    def _steps(self) -> dict[str, int]:
        """How many commits of the stream each table has."""
        return {
            table.name: sum(1 for _ in CommitLog(self.settings, table).by_stream())
            for table in self.before.catalog
        }

    def await_begun(self) -> None:
        awaited(lambda: all(self._steps().values()), "each table has begun", 400)

    def send(self, first: int, last: int, *late: dict) -> None:
        """Messages of these minutes, behind some that are late, and one that has event time go on."""
        spread = [m for m in range(first, last, 3) if m % 30 < 20]  # sessions come to an end
        for topic, user in (("clicks", "a"), ("taps", "c")):
            rows = [*late] if topic == "clicks" else []
            for m in spread:
                rows += [at(m, user, m % 9 + 1), at(m + 0.5, "b", m % 7 + 1)]
            self._send(topic, *rows, at(last, value=1))

    def _send(self, topic: str, *rows: dict) -> None:
        records = []
        for row in rows:
            moment = int(datetime.fromisoformat(row["at"]).timestamp() * 1000)
            records.append(Record(None, json.dumps(row).encode(), 0, moment, moment, ORDINARY))
        self.sent[topic] += send(records, topic, client_config(self.settings)).sent

    def advance(self, minute: int) -> None:
        """One message more to each topic: those before it are read, so it carries their watermark."""
        for topic in ("clicks", "taps"):
            self._send(topic, at(minute, value=1))

    def run(self, commands: Sequence[Command], steps: Mapping[str, Sequence[Step]]) -> None:
        """Runs commands with the changed code; each of these steps of a command is once the one before which it is killed."""
        killed: dict[Command, list[Step]] = defaultdict(list)
        for kind, of_kind in steps.items():
            drawn = [each for each in commands if kind in each]
            for step in of_kind if drawn else ():
                killed[self.choose.choice(drawn)].append(step)
        done = killed_commands.run(commands, killed, self.environment("after"))
        assert len(done) == sum(map(len, killed.values()))
        self.kills += done


def run(seed: int, kinds: Mapping[str, Kind], folder: Path) -> list[str]:
    """Changes the tables of these kinds under their job. The kills, in order."""
    job, began = Changed(seed, kinds, folder), time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s: {what}", flush=True)

    with job.broker():
        job.send(0, 81)
        job.start("before")
        job.await_begun()
        say("the job runs")
        check_plan(job)
        job.killed_under(81, 130)
        job.start("before")
        filled = [name for name in kinds if kinds[name].way == "upgrade"]
        job.run([("upgrade", "fill", name) for name in filled], {"fill": _FILL})
        say(f"filled: {', '.join(filled)}")
        job.killed_under(130, 131)
        job.to_the_present("before")
        supervisor.stop(job.settings, PIPELINE)  # else an exchange may start it
        position = job.sent["clicks"]
        job.run(
            list(changing(job)), {"promote": _PROMOTE, "accept": _AT_ONCE, "backfill": _AT_ONCE}
        )
        say("promoted, accepted, computed whole")
        refused = [name for name in kinds if kinds[name].then == "refused"]
        if refused:
            check_refused(job, refused)
        job.start("onward")
        job.killed_under(132, 200, at(35, "late", 3), at(125, "late", 4))
        job.start("onward")
        job.killed_under(201, 260)
        job.to_the_present("onward")
        job.advance(260)
        job.to_the_present("onward")
        say("the job has gone on")
        job.to_the_present("always")
        say("the other job has read all")
        for name, kind in kinds.items():
            compare(job, name, kind, position)
        reconciled = [name for name in kinds if kinds[name].then == "always"]
        job.run([("reconcile", "run", name) for name in reconciled], {})
        say(
            f"{len(kinds)} tables are as they should be, {len(reconciled)} of them EQUAL to their batch run"
        )
    return job.kills


def changing(job: Changed) -> Iterator[Command]:
    """The commands that change tables of a job that is stopped, in an order that the seed draws."""
    for name, kind in job.choose.sample(sorted(job.kinds.items()), len(job.kinds)):
        match kind.way:
            case "accept":
                yield "table", "accept", name
            case "compute whole":
                yield "backfill", name
            case "upgrade":
                yield "upgrade", "promote", name


def check_plan(job: Changed) -> None:
    """The plan is that of each kind, and a start is refused for each table that needs a command."""
    shown = job.command("after", "plan", PIPELINE, "--json", exit_code=1).stdout.splitlines()
    planned = {each["table"]: each["action"] for each in map(json.loads, shown)}
    wanted = {table.name: "nothing" for table in job.before.catalog}
    assert planned == wanted | {name: kind.planned for name, kind in job.kinds.items()}, planned
    asking = [name for name, kind in job.kinds.items() if kind.planned in change_plan.ASKING]
    check_refused(job, asking)


def check_refused(job: Changed, names: Sequence[str]) -> None:
    """A start with the changed code is refused for these tables, and for no other."""
    shown = job.command("after", "stream", "start", PIPELINE, exit_code=2).stderr
    named = {table.name for table in job.before.catalog if f"table={table.name}, " in shown}
    assert named == {*names}, shown


def compare(job: Changed, name: str, kind: Kind, position: int) -> None:
    """The table's rows are what its kind says: those of a table that was always so, or, up to a position, never."""
    if kind.then == "refused":
        assert held(job.before, name) == held(job.before, kind.of.name), name
        return
    assert (held(job.after, kind.of.name) == held(job.after, f"always_{name}")) == (
        name in CHANGES_NO_ROW
    ), name
    if kind.then == "always":
        wanted = held(job.after, f"always_{name}")
    else:
        columns = columns_of(job.after, name)
        before = held(job.after, kind.of.name, columns, range(position))
        after = held(job.after, f"always_{name}", columns, range(position, job.sent["clicks"]))
        assert before and after
        wanted = before + after
    found = held(job.after, name)
    assert found == wanted, (name, found - wanted, wanted - found)


def columns_of(lakehouse: Lakehouse, name: str) -> list[str]:
    path = lakehouse.path(lakehouse.catalog.table(name))
    return list(version_rows.columns(path, delta_log.latest(path)).names)


def held(
    lakehouse: Lakehouse, name: str, columns: Sequence[str] = (), offsets: range | None = None
) -> Counter[str]:
    """The rows of a table, each as often as it is there; with `offsets`, of messages there alone."""
    path = lakehouse.path(lakehouse.catalog.table(name))
    rows = version_rows.all_at(path, delta_log.latest(path)).to_pylist()
    wanted = columns or columns_of(lakehouse, name)
    return Counter(
        str({each: row.get(each) for each in wanted})
        for row in rows
        if offsets is None or row["_arrival"]["offset"] in offsets
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS], choices=[*KINDS])
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="changed-job-"))
    print(folder, "is kept if it fails", flush=True)
    for kill in run(given.seed, {name: KINDS[name] for name in given.kinds}, folder):
        print(f"killed {kill}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
