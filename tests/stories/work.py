"""A piece of the work of telling many stories, done in a process whose session stays warm."""

import os
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from stories import hostile_tables, machine
from stories.engine import tell
from stories.suites import SUITES, Player

STEPS = 30  # of one run of the machine
QUICK_JVM = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
}
"""For a JVM that runs many small queries, none of them long: it compiles in one stage; in 48 MB of code, the default then, it
would throw code away and compile it again. Twelve interpreted stories of operators took 121 s of CPU, and 188 s in a JVM that
compiles in full, 99 s of it the compiler's."""
LASTING_JVM = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=400m"}
"""For hundreds of stories by code that Spark generates, which a JVM that compiles in full tells in two thirds of the time."""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Spark's own code for few rows, and plans as they were made first. Without code that it generates for each plan and compiles:
an eighth less CPU; without plans that are made again while they run: as much again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some stories of one suite, one run of the machine, or so many hostile messages a format, drawn by a seed of their own."""

    suite: str
    number: int
    count: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.suite} {self.number}"


def session_for_stories() -> SparkSession:
    spark = spark_session.create(
        Settings(jars=from_environment().jars, spark_conf=LASTING_JVM, shuffle_partitions=1),
        "stories",
    )
    spark.sparkContext.setLogLevel("OFF")  # each crash asked for would print a page
    return spark


_player: Player | None = None


def end_with(parent: int) -> None:
    """Has this process end when its parent does, however that ends: nobody would take what it finds."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def told(piece: Piece) -> dict:
    """Tells one piece of the stories in this process, whose session stays warm; its line in the file of the seed."""
    global _player
    _player = _player or Player(session_for_stories())
    started, failure, occurred = time.monotonic(), "", Counter()
    draws = partial(tell, count=piece.count, by_seed=piece.seed, first=piece.number == 0)
    try:
        if piece.suite == hostile_tables.HOSTILE:
            with TemporaryDirectory() as root:
                counts = dict.fromkeys(hostile_tables.FORMATS, piece.count)
                occurred = hostile_tables.play_all(_player.spark, Path(root), piece.seed, counts)
        elif piece.suite == "machine":
            occurred = draws(partial(machine.play, _player.empty(machine)), machine.runs(STEPS))
        else:
            suite = SUITES[piece.suite]
            occurred = draws(partial(_player.play, suite), suite.stories)
    except Exception as err:  # whatever a story raises is what it found
        # with it the smallest story that fails
        failure = "".join(traceback.format_exception(err, limit=-4))
    seconds = round(time.monotonic() - started, 1)
    return {
        "piece": piece.name,
        "suite": piece.suite,
        "seconds": seconds,
        "occurred": dict(occurred),
        "failure": failure,
    }
