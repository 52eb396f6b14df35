"""`lakehouse stream rescale` of a job with many keys in its state: how soon it goes on with that in other partitions.

The command itself compares the states before and after; in the end each message is counted once.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from benchmarks import commands, keyed_stream
from benchmarks.keyed_stream import HOURLY, PIPELINE, TOTALS, KeyedStream
from benchmarks.measure import BenchmarkError
from lakehouse.ranges import parse_instant
from lakehouse.settings import Settings
from streaming_jobs.supervision import supervisor

PARTITIONS = (2, 4)  # of the state: before, and then in turn


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Seconds of each round.

    :param command: of the command, which ends when the job runs.
    :param first: from its beginning to the first commit of the ingest table by the job that it starts.
    :param all_tables: until each table had one.
    :param still: from when the job is asked to end to that first commit.
    """

    keys: int
    command: tuple[float, ...]
    first: tuple[float, ...]
    all_tables: tuple[float, ...]
    still: tuple[float, ...]


def run(settings: Settings, keys: int, rounds: int) -> Rescaled:
    """Divides the state of so many keys again, that often. Raises BenchmarkError."""
    before, *_ = PARTITIONS
    with keyed_stream.running(replace(settings, shuffle_partitions=before), keys) as stream:
        found = [
            _round(stream, PARTITIONS[(number + 1) % len(PARTITIONS)]) for number in range(rounds)
        ]
    return Rescaled(keys, *(tuple(each) for each in zip(*found, strict=True)))


def _round(stream: KeyedStream, partitions: int) -> tuple[float, ...]:
    settings = replace(stream.settings, shuffle_partitions=partitions)
    began = datetime.now(UTC)
    done = commands.run(settings, "stream", "rescale", PIPELINE)
    lines = [line.split() for line in done.output.splitlines()]
    equal = [name for name in (HOURLY, TOTALS) if any({name, "EQUAL"} <= {*each} for each in lines)]
    if equal != [HOURLY, TOTALS]:
        raise BenchmarkError(
            f"rescale: the states of {equal} alone are EQUAL; the run is void:\n{done.output}"
        )
    started = parse_instant(supervisor.status(settings, PIPELINE).started_at)
    waited = (started - began).total_seconds()
    first, all_tables = stream.first_commits(started)
    still = started.timestamp() + first - commands.asked_to_end(settings, PIPELINE)
    return done.seconds, waited + first, waited + all_tables, still
