"""Creates a savepoint, or forks one, killed by SIGKILL before one step after another: `python -m support.killed_savepoints`.

A process of its own: each kill is of a child that it forks, before a library has begun a thread here.
"""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse.storage.disk import files, layout, locks
from lakehouse.storage.lakehouse import load
from lakehouse.storage.versions import fork_guard, read_holds, restoring, savepoints

NAME = "killed"
_STEPS = (
    (shutil, "copyfile"),
    (savepoints, "link"),
    (savepoints, "replace_file"),
    (fork_guard, "replace_file"),
    (files, "replace_file"),
    (Path, "rename"),
    (Path, "rmdir"),
)


def _counted(owner: object, name: str, taken: list[int], last: int) -> None:
    step = getattr(owner, name)

    def counting(*given: object, **more: object) -> object:
        taken[0] += 1
        if taken[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*given, **more)

    setattr(owner, name, counting)


def _in_child(command: Callable[[], object], last: int) -> int:
    """Runs the command up to before that step; how many steps it took, 0 if it was killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            taken = [0]
            for owner, name in _STEPS:
                _counted(owner, name, taken, last)
            command()
            os.write(writes, str(taken[0]).encode())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writes)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reads) as steps:
        told = steps.read()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed != bool(told), (status, told)
    return int(told or 0)


def _chosen(steps: int) -> list[int]:
    """Some places in the long middle, and each of the first and the last steps."""
    return sorted(
        {*range(1, 4), *range(4, steps, max(1, steps // 8)), *range(steps - 4, steps + 1)}
    )


def _check(settings: Settings, whole: Path) -> None:
    """Nothing half is taken for a whole, what is left is named, and nothing is held by a dead process."""
    names = [each.name for each in savepoints.savepoints(settings)]
    assert names == ["one"], names
    for half in savepoints.left_half(settings):
        assert half.name == f".{NAME}.new", half
        with locks.alone(layout.savepoints_lock(settings), note="another"):
            assert not savepoints.left_half(settings), "that command is at work"
    assert not whole.exists() or not any(whole.iterdir())
    assert read_holds.began(settings) is None


def main(root: str, tables: str, fork: str) -> None:
    settings, there = Settings(root=Path(root), tables=(tables,)), Path(fork)
    lakehouse = load(settings)
    assert _in_child(lambda: savepoints.create(lakehouse, "one"), 0)
    forking = partial(restoring.fork, settings, "one", there)
    creating = partial(savepoints.create, lakehouse, NAME)
    for command, whole in (
        (forking, there),
        (creating, layout.savepoint(settings, NAME)),
    ):
        steps = _in_child(command, 0)
        shutil.rmtree(whole)
        halves = 0
        for step in _chosen(steps):
            assert not _in_child(command, step), (whole, step)
            halves += whole.with_name(f".{whole.name}.new").exists()
            _check(settings, whole)
        assert halves > len(_chosen(steps)) // 2, "most kills are in the middle of it"
        assert _in_child(command, 0) == steps, "the same command, run again, does all of it"
        print(f"{whole}: {len(_chosen(steps))} kills of {steps} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
