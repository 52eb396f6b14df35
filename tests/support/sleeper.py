"""A process of the sensor tables that runs what it is asked for, and stops itself at a commit point: `python -m support.sleeper`.

A line of its input is what to run and where to sleep, as `stream rows` or `backfill _create:2`: at that commit point, or before
that call of a step. It prints a line of each: "done", or "refused", or the error.
"""

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from batch_jobs import backfill, planning
from lakehouse.batch import publish
from lakehouse.examples.sensors import tables as sensors
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.delta import committer, delta_log
from lakehouse.stream import queries
from lakehouse.testing import Stage
from support.signals import signalled_before

START, HOUR = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
TABLE = "valid_readings"
_OWNERS: dict[str, Any] = {"_committed": publish, "_create": committer, "_info": committer}
_TAKEN_OVER = "has taken it over", "runs it now"


def reading(at: datetime, fahrenheit: str = "50.00") -> dict[str, str]:
    return {
        "sensor_id": "sensor-1",
        "event_time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "temperature_f": fahrenheit,
    }


def sleeping(point: str) -> AbstractContextManager[None]:
    """Within it this process stops itself before that call of a step."""
    name, _, call = point.partition(":")
    if name not in _OWNERS:
        return nullcontext()
    return signalled_before(_OWNERS[name], name, int(call or 1), signal.SIGSTOP)


def feed(stage: Stage, n: int) -> None:
    """A good reading and one that is quarantined, each of a second of its own."""
    stage._go_on_behind("sensor_readings")
    at = START + 5 * HOUR + timedelta(seconds=n)
    stage.feed("sensor_readings", [reading(at), reading(at, "500.00")])


def stream(stage: Stage, point: str) -> None:
    table, asleep = stage.session.catalog.table(TABLE), [False]

    def reached(now: str) -> None:
        if now == point and not asleep[0]:
            asleep[0] = True
            os.kill(os.getpid(), signal.SIGSTOP)

    for path in sides(stage):
        committer.take_over(path, table.pipeline)
    with sleeping(point):
        query = queries.start(stage.session, table, available_now=True, reached=reached)
        query.awaitTermination()


def sides(stage: Stage) -> list[Path]:
    table = stage.session.catalog.table(TABLE)
    return [stage.session.path(table, side) for side in ("", "quarantine")]


def backfilled(stage: Stage, point: str) -> None:
    for path in sides(stage):  # it is no stream any more
        committer.leave(path, stage.session.catalog.table(TABLE).pipeline)
    planned = planning.plan(stage.session, TABLE, START, START + HOUR)
    with sleeping(point):
        list(backfill.run(stage.session, planned))


def main() -> None:
    settings = from_environment()
    stage = Stage(spark_session.create(settings, "sleeper"), settings.root, sensors)
    if delta_log.latest(stage.session.path(stage.session.catalog.table("sensor_readings"))) < 1:
        at = [START + timedelta(minutes=n) for n in range(6)]
        stage.feed("sensor_readings", [*map(reading, at), reading(START, "500.00")])
        stage.advance("sensor_readings", reading(START + 2 * HOUR))
        stage.run(TABLE)
    print("done", flush=True)
    for line in sys.stdin:
        act, point = line.split()
        try:
            if act == "feed":
                feed(stage, int(point))
            else:
                {"stream": stream, "backfill": backfilled}[act](stage, point)
            print("done", flush=True)
        except Exception as err:
            refused = any(words in str(err) for words in _TAKEN_OVER)
            print("refused" if refused else str(err).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
