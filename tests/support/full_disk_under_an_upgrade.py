"""For `test_full_disk_under_an_upgrade`, in a mount namespace of its own: a table is upgraded on a disk that is full.

    unshare --mount python -m support.full_disk_under_an_upgrade      (root, tables and jars from the environment)

The root is a file system of 64 MiB, which ends with the process. A filling is run again and again, each
time with a little more room, until it succeeds. Under an exchange the disk fills up before one step after another.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from deltalake import DeltaTable
from typer.testing import CliRunner

from lakehouse.cli import main as command_line
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage import cut_off, delta_writer, savepoints, upgrades
from lakehouse.storage.commit_log import CommitLog
from lakehouse.storage.layout import table_path
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
    old, new = ([value for value in values if value > least] for least in (0, 5))

    met = {}
    changing_tables.counted = replace(former, transformation=more)
    met["fill"] = filled(settings, old)
    met["promote"] = exchanged(settings, "promote", old, new)
    changing_tables.counted = former
    met["roll-back"] = exchanged(settings, "roll-back", new, old)
    stage.feed("clicks", [at(510, value=7)])
    stage.advance("clicks", at(700, value=0))
    stage.run("counted")
    assert_stream_equals_batch(stage, "counted")
    print(json.dumps(met))


def filled(settings: Settings, rows: list[int]) -> list[str]:
    """At which attempts a filling met the full disk; then it has gone on to its end."""
    met = []
    for room in ROOM:
        fill(ballast := settings.root / "ballast")
        os.truncate(ballast, ballast.stat().st_size - room * 1024)
        met.append(attempt(settings, "fill", rows, rows))
    done(settings, "fill", rows)
    return met


def exchanged(settings: Settings, command: str, before: list[int], after: list[int]) -> list[str]:
    """How far an exchange was when it met the full disk: as it read on, then by the step before which that filled up."""
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
    ended = CliRunner().invoke(command_line.app(), ["upgrade", command, "counted"])
    begun = list(cut_off.promoting(settings))
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


def done(settings: Settings, command: str, after: list[int]) -> None:
    """Runs the command once more; there is room."""
    ended = CliRunner().invoke(command_line.app(), ["upgrade", command, "counted"])
    assert ended.exit_code == 0 and seen(settings) == after, (command, ended.stderr)


def seen(settings: Settings) -> Sequence[int]:
    """What a reader has."""
    table = DeltaTable(str(table_path(settings, changing_tables.counted)))
    return sorted(table.to_pyarrow_table(columns=["value"])["value"].to_pylist())


if __name__ == "__main__":
    main()
