"""Rows are posted by real followers, which are killed while the receiver fails at random."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from lakehouse.declare import catalog
from lakehouse.settings import Settings, to_environment
from lakehouse.sinks import actions
from lakehouse.storage.lakehouse import Lakehouse
from streaming_jobs.progress import QueryStatus
from streaming_jobs.supervision import supervisor
from streaming_jobs.supervision.jobs import follower_of
from support import acting, published
from support.sensors_job import awaited

KILLS, ROWS = 6, 25


@pytest.fixture
def lakehouse(tmp_path) -> Lakehouse:
    settings = Settings(root=tmp_path / "root", tables=("support.acting",))
    lakehouse = Lakehouse(settings, catalog.load(settings))
    published.make_payments(lakehouse.path(lakehouse.catalog.table("payments")))
    return lakehouse


def append(lakehouse: Lakehouse, batch: int) -> None:
    rows = [("a", batch * ROWS + n, "1.00") for n in range(ROWS)]
    published.append(lakehouse.path(lakehouse.catalog.table("payments")), batch, rows)


def begun(lakehouse: Lakehouse, server: acting.Server) -> subprocess.Popen:
    environment = os.environ | to_environment(lakehouse.settings)
    environment |= {"ACTING_PORT": str(server.port), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", "streaming_jobs.exporters.follower", "posted"]
    return subprocess.Popen(command, env=environment)


@pytest.mark.slow
@pytest.mark.parallel
def test_each_row_is_posted_with_one_id_though_followers_are_killed_and_the_receiver_fails(
    lakehouse,
):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, done, answered = random.Random(seed), Counter[str](), Counter[int]()

    def answer(found: acting.Posted) -> tuple[int, dict[str, str]]:
        time.sleep(chance.random() / 50)
        bad = found.value["row"]["n"] % 10 == 7
        # the first two that fail are certain
        often = chance.choices((200, 500, 503), (40, 1, 1))[0]
        status = 422 if bad else {20: 500, 40: 503}.get(len(server.posted), often)
        answered[status] += 1
        done[found.id] += status in (200, 422)
        return status, {}

    with acting.serving() as server:
        server.answer = answer
        for life in range(KILLS):
            append(lakehouse, life)
            follower, before = begun(lakehouse, server), len(server.posted)
            enough = before + chance.randint(1, ROWS // 2)
            awaited(lambda enough=enough: len(server.posted) >= enough, "it posts")
            follower.kill()
            assert follower.wait() == -signal.SIGKILL
        follower, wanted = begun(lakehouse, server), set(range(KILLS * ROWS))
        awaited(lambda: {n for n, _ in told(server)} == wanted, "all rows were posted")
        awaited(lambda: status(lakehouse).batch == KILLS, "the last version is committed")
        follower.terminate()
        assert follower.wait(60) == 0

    assert answered[500] and answered[503] and answered[422], answered
    assert len(set(told(server))) == len(wanted), "one id for each row"
    assert done.keys() == {of for _, of in told(server)}
    repeated = sum(times - 1 for times in done.values())
    assert repeated <= KILLS, "a kill has at most the action repeated that was under way"
    _, target = lakehouse.catalog.target("posted")
    found = actions.refused(lakehouse.settings, target)
    assert [line.action.row["n"] for line in found] == [n for n in sorted(wanted) if n % 10 == 7]
    assert {line.said for line in found} == {"422 Unprocessable Entity"}
    assert "refused (`lakehouse publish refused posted`)" in status(lakehouse).trouble


def status(lakehouse: Lakehouse) -> QueryStatus:
    return supervisor.status(lakehouse.settings, follower_of("posted")).queries[0]


def told(server: acting.Server) -> list[tuple[int, str]]:
    return [(each.value["row"]["n"], each.id) for each in list(server.posted)]
