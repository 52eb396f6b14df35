"""The table `balances` of `published` and a target that follows it, also through deaths beside a reader."""

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from lakehouse.declare import catalog
from lakehouse.declare.table import Table
from lakehouse.declare.targets import Sink, Target
from lakehouse.settings import Settings
from lakehouse.sinks.comparison import compare
from lakehouse.sinks.follower import Follower
from lakehouse.storage.lakehouse import Lakehouse
from support import published

_ACCOUNTS = "abcdefg"
Held = Callable[[], Mapping[str, str | None]]


def made(root: Path) -> Lakehouse:
    """A lakehouse with the table, which has no row yet."""
    settings = Settings(root=root, tables=("support.published",))
    lakehouse = Lakehouse(settings, catalog.load(settings))
    published.make_balances(path_of(lakehouse))
    return lakehouse


def table_of(lakehouse: Lakehouse) -> Table:
    return lakehouse.catalog.table("balances")


def path_of(lakehouse: Lakehouse) -> Path:
    return lakehouse.path(table_of(lakehouse))


def caught_up(following: Follower) -> None:
    while following.step():
        pass


def causes(lakehouse: Lakehouse, following: Follower) -> dict[str, str]:
    """Why keys of the target differ from the table."""
    found = compare(lakehouse, following.table, following.target)
    return {each.key: each.cause for each in found.differences}


def check_under_kills(
    lakehouse: Lakehouse,
    target: Target,
    mortal: Callable[[Target], Sink],
    deaths: Sequence[str],
    versions: int,
    held: Held,
) -> None:
    """Asserts that a reader sees whole versions while followers die, one at each point, and that the next one ends with all rows.

    Each version moves money between accounts, so that a part of one would not add up to nothing.

    :param mortal: a sink that dies at its `point`; at the point "at random" it is killed from outside.
    :param held: what a reader sees of each account; no account, or null, where it sees none.
    """
    choose, path = random.Random(4711), path_of(lakehouse)
    balances = dict.fromkeys(_ACCOUNTS, 0)
    published.upsert(path, 0, dict.fromkeys(balances, "0.00"))
    context = multiprocessing.get_context("spawn")
    sums, ends, batch = set(), [], 1

    def summed() -> Decimal | None:
        found = [each for each in held().values() if each is not None]
        return sum(map(Decimal, found), Decimal(0)) if len(found) == len(balances) else None

    for point in deaths:
        process = context.Process(target=_follow, args=(lakehouse.settings, target, mortal, point))
        process.start()
        for _ in range(versions // len(deaths)):
            one, other = choose.sample(sorted(balances), 2)
            amount = choose.randint(1, 99)
            balances[one] -= amount
            balances[other] += amount
            published.upsert(path, batch, {name: f"{balances[name]}.00" for name in (one, other)})
            batch += 1
            sums.add(summed())
            time.sleep(0.05)
        while point == "at random" and summed() is None:
            time.sleep(0.01)
        if point == "at random":
            time.sleep(choose.random())
            process.kill()
        process.join(60)
        ends.append((point, process.exitcode))
        sums.add(summed())
    assert ends == [(point, -signal.SIGKILL) for point in deaths]
    last = Follower(lakehouse, table_of(lakehouse), target)
    last.begin()
    caught_up(last)
    last.end()
    assert {name: Decimal(each or "NaN") for name, each in held().items()} == balances
    assert causes(lakehouse, last) == {}
    assert sums <= {Decimal(0), None} and Decimal(0) in sums, sums


def _follow(
    settings: Settings, target: Target, mortal: Callable[[Target], Sink], point: str
) -> None:
    """A process: follows until it dies."""
    lakehouse = Lakehouse(settings, catalog.load(settings))
    following = Follower(lakehouse, table_of(lakehouse), target)
    following.sink = mortal(target)
    following.sink.point = point  # type: ignore[attr-defined]
    following.begin()
    while True:
        if following.step() is None:
            time.sleep(0.01)
