"""Commit logs that somebody deletes at any moment, as one may a cache."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

_SECONDS = 2.0  # at most, from one deletion to the next


@contextmanager
def deleting_commit_logs(root: Path, seed: int) -> Iterator[list[int]]:
    """Deletes all commit logs of a root again and again, at random moments; yields how many were there. None with seed 0."""
    chance, ended, deleted = Random(seed), threading.Event(), [0]

    def delete() -> None:
        while not ended.wait(chance.uniform(0.0, _SECONDS)):
            for path in (root / "_commit_log").glob("*.jsonl"):
                if "." not in path.stem:  # else it is a note
                    path.unlink(missing_ok=True)
                    deleted[0] += 1

    thread = threading.Thread(target=delete, daemon=True)
    if seed:
        thread.start()
    try:
        yield deleted
    finally:
        ended.set()
        if seed:
            thread.join()
