"""For `test_full_disk_under_an_upgrade`, in a mount namespace of its own: a table is upgraded on a disk that is full.

    unshare --mount python -m support.full_disk_under_an_upgrade      (root, tables and jars from the environment)

The root is a file system of 64 MiB, which ends with the process. A filling is run again and again, each
time with a little more room, until it succeeds. Under `follow` the disk fills up while that waits for more. Under an
exchange it fills up before one step after another. Each of Dagster's jobs that do the same meets the full disk once.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace

import dagster as dg
from deltalake import DeltaTable
from typer.testing import CliRunner

from assets import upgrades as jobs
from assets.resources import LakehouseResource
from lakehouse.cli import main as command_line
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.versions import interruptions, savepoints, upgrades
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import changing_tables
from support.changing_tables import at, more
from support.full_disk import fill

ROOM = (0, 8, 16, 32, 64, 96, 128, 256, 512)  # KiB, attempt by attempt
STEPS = (  # of an exchange, where each is looked up; it is noted as begun, and at last as done
    (savepoints, "take_table"),
    (upgrades, "note"),
    (delta_writer, "exchange"),
    (CommitLog, "append"),
    (upgrades, "note"),
)
MINUTES = range(0, 400, 7)


def main() -> None:
    settings = from_environment()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(settings.root)], check=True
    )
    spark = spark_session.create(settings, "full disk")
    stage, former = Stage(spark, settings.root, changing_tables), changing_tables.counted
    stage.feed("clicks", [at(minute, value=minute % 11) for minute in MINUTES])
    stage.advance("clicks", at(500, value=0))
    stage.run("counted")
    values = sorted(minute % 11 for minute in MINUTES)
    old = [value for value in values if value > 0]

    met = {}
    changing_tables.counted = replace(former, transformation=more)
    met["fill"] = filled(settings, old)
    met["follow"] = followed(stage, old)
    stage.run("counted")  # its job has gone on
    old, new = (sorted([7, 8, *(v for v in values if v > least)]) for least in (0, 5))
    met["promote"] = exchanged(settings, "promote", old, new)
    changing_tables.counted = former
    met["roll-back"] = exchanged(settings, "roll-back", new, old)
    stage.feed("clicks", [at(910, value=7)])
    stage.advance("clicks", at(1100, value=0))
    stage.run("counted")
    assert_stream_equals_batch(stage, "counted")
    print(json.dumps(met))


def filled(settings: Settings, rows: list[int]) -> list[str]:
    """At which attempts a filling met the full disk; then it has gone on to its end."""
    refused_in_dagster(settings, jobs.fill_upgrade, {"fill": {"config": {"table": "counted"}}})
    met = []
    for room in ROOM:
        fill(ballast := settings.root / "ballast")
        os.truncate(ballast, ballast.stat().st_size - room * 1024)
        met.append(attempt(settings, "fill", rows, rows))
    done(settings, "fill", rows)
    return met


def followed(stage: Stage, rows: list[int]) -> list[str]:
    """How far `follow` was when it met the full disk: at its start, then as it waited for more. With room it goes on."""
    settings, noted = stage.session.settings, upgrades.note_compared

    def come(minute: int, value: int) -> None:
        stage.feed("clicks", [at(minute, value=value)])
        stage.advance("clicks", at(minute + 190, value=0))

    def full(*given):  # at the end of its first round
        upgrades.note_compared = noted
        compared = noted(*given)
        come(710, 8)
        fill(settings.root / "ballast")
        return compared

    def enough(*given):
        os.kill(os.getpid(), signal.SIGINT)
        return noted(*given)

    come(510, 7)
    refused_in_dagster(settings, jobs.compare_versions, {})
    fill(settings.root / "ballast")
    met = [attempt(settings, "follow", rows, rows)]
    upgrades.note_compared = full
    met.append(attempt(settings, "follow", rows, rows))
    upgrades.note_compared = enough
    done(settings, "follow", rows)
    upgrades.note_compared = noted
    return met


def refused_in_dagster(settings: Settings, job: dg.JobDefinition, ops: dict) -> None:
    """A run of Dagster's on a disk that is full fails with the line of the command."""
    fill(settings.root / "ballast")
    resources = {"lakehouse": LakehouseResource.of(settings, ("root", "tables"))}
    try:
        job.execute_in_process({"ops": ops}, resources=resources)
    except dg.Failure as err:
        assert "make room" in str(err.description), err
        assert "is as it was" in str(err.description), err
    else:
        raise AssertionError(f"{job.name} found room")
    (settings.root / "ballast").unlink()


def exchanged(settings: Settings, command: str, before: list[int], after: list[int]) -> list[str]:
    """How far an exchange was when it met the full disk: as it read on, then by the step before which that filled up."""
    config = {"table": "counted", "command": command}
    refused_in_dagster(settings, jobs.exchange_versions, {"exchange": {"config": config}})
    fill(settings.root / "ballast")
    met = [attempt(settings, command, before, after)]
    for of, name in STEPS:
        step = getattr(of, name)

        def full(*given, step=step, **more):
            fill(settings.root / "ballast")
            return step(*given, **more)

        setattr(of, name, full)
        met.append(attempt(settings, command, before, after))
        setattr(of, name, step)
    done(settings, command, after)
    return met


def attempt(settings: Settings, command: str, before: list[int], after: list[int]) -> str:
    """Runs a command on a disk that is full, or fills up under it, and makes room afterwards."""
    ended = CliRunner().invoke(command_line.app(), words(command))
    begun = list(interruptions.promoting(settings))
    (settings.root / "ballast").unlink()
    if ended.exit_code == 0:
        return "done"
    assert seen(settings) in ([before, after] if begun else [before])
    assert ended.exit_code == 2, (ended.exception, ended.stderr)
    for said in (f"root={settings.root}", "is full", "No space left", "make room"):
        assert said in ended.stderr, ended.stderr
    assert ("nothing starts" in ended.stderr) == bool(begun), ended.stderr
    assert ("is as it was" in ended.stderr) != bool(begun), ended.stderr
    return "begun" if begun else "before"


def words(command: str) -> list[str]:
    return ["upgrade", command, "counted", *(["--every", "0.1"] if command == "follow" else [])]


def done(settings: Settings, command: str, after: list[int]) -> None:
    """Runs the command once more; there is room."""
    ended = CliRunner().invoke(command_line.app(), words(command))
    assert ended.exit_code == 0 and seen(settings) == after, (command, ended.stderr)


def seen(settings: Settings) -> Sequence[int]:
    """What a reader has."""
    table = DeltaTable(str(table_path(settings, changing_tables.counted)))
    return sorted(table.to_pyarrow_table(columns=["value"])["value"].to_pylist())


if __name__ == "__main__":
    main()
