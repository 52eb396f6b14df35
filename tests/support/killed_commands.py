"""Commands of `lakehouse` in one process, killed by SIGKILL before one of their steps: `python -m support.killed_commands`.

Its input is JSON: the commands, and the steps before which one of them is killed. Of each that has ended it prints a line.
"""

import json
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from typer.testing import CliRunner

from lakehouse.cli import main as command_line
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.log import commit_log, comparisons
from lakehouse.storage.position import declared_state
from lakehouse.storage.versions import savepoints, upgrades
from streaming_jobs.supervision import supervisor
from support.signals import signalled_before

Command = tuple[str, ...]
Step = tuple[str, int]
"""What is called, and which call of it does not come."""
_OWNERS: dict[str, Any] = {
    "append": commit_log.CommitLog,
    "end": supervisor,
    "exchange": delta_writer,
    "forget": comparisons,
    "keep": declared_state,
    "launch": supervisor,
    "link_inputs": upgrades,
    "note": upgrades,
    "take_table": savepoints,
}


def killed_before(name: str, call: int) -> AbstractContextManager[None]:
    """Within it this process is killed before that call of that step."""
    return signalled_before(_OWNERS[name], name, call, signal.SIGKILL)


def run(
    commands: Iterable[Command],
    steps: Mapping[Command, Sequence[Step]],
    environment: Mapping[str, str],
) -> list[str]:
    """Runs each command to its end: one that is killed is run again, until no step of it is left. The kills, in order."""
    left, due, kills = list(commands), {each: list(of) for each, of in steps.items()}, list[str]()
    while left:
        step = next(((each, due[each][0]) for each in left if due.get(each)), None)
        ended = subprocess.run(
            [sys.executable, "-m", "support.killed_commands"],
            input=json.dumps([left, step]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=1_200,
        )
        left = left[len(ended.stdout.splitlines()) :]
        if ended.returncode == 0:
            assert not left and not step, f"{step} was never reached"
            break
        assert ended.returncode == -signal.SIGKILL and step, ended.stderr[-6_000:]
        killed, (name, call) = step
        assert left[0] == killed, (left[0], step)
        due[killed].pop(0)
        kills.append(f"{' '.join(killed)}: {name} {call}")
    return kills


def main() -> None:
    commands, killed = json.load(sys.stdin)
    app = command_line.app()
    spark_session.create(from_environment(), "commands")  # one for all of them
    for words in commands:
        kill = killed_before(*killed[1]) if killed and words == killed[0] else nullcontext()
        with kill:
            ended = CliRunner().invoke(app, words)
        if ended.exit_code != 0:
            print(f"{words}: {ended.output}{ended.stderr}", file=sys.stderr)
            traceback.print_exception(ended.exception)
            sys.exit(1)
        print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
