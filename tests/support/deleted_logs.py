"""Commit logs that somebody deletes at any moment, as one may a cache."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from lakehouse.settings import Settings
from lakehouse.storage.disk import layout

_SECONDS = 2.0  # at most, from one deletion to the next


@contextmanager
def deleting_commit_logs(settings: Settings, seed: int) -> Iterator[list[int]]:
    """Deletes all commit logs of a lakehouse again and again, at random moments; yields how many were there. None with seed 0."""
    chance, ended, deleted = Random(seed), threading.Event(), [0]

    def delete() -> None:
        while not ended.wait(chance.uniform(0.0, _SECONDS)):
            for path in layout.commit_caches(settings).glob("*.jsonl"):
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
