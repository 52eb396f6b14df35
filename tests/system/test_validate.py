"""`lakehouse validate` and what other commands show of rules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_an_expectation_that_is_misspelt_is_refused_without_an_import_of_great_expectations(
    tmp_path,
):
    declared = (
        "from lakehouse import expect, ingest_table, kafka\n"
        "topic = kafka('things', schema='id STRING, at TIMESTAMP')\n"
        "@ingest_table(layer='bronze', event_time='at', expectations=[expect.column_values_to_not_be_nul('id')])\n"
        "def things(topic): return topic\n"
    )
    done = command(tmp_path, declared, "table", "list")
    told = "table=things, expectation='expect_column_values_to_not_be_nul': Great Expectations has none of that name"
    assert (
        done.returncode == 2
        and f"{told}; did you mean expect_column_values_to_not_be_null?" in done.stderr
    ), done.stderr
    imported = """
import sys
from lakehouse.declare import catalog
from lakehouse.settings import from_environment
catalog.load(from_environment())
assert "great_expectations" not in sys.modules
"""
    done = command(tmp_path, declared.replace("_nul(", "_null("), imported=imported)
    assert done.returncode == 0, done.stderr


def test_commands_show_it_beside_the_result(tmp_path):
    declared = (
        "from lakehouse import ingest_table, kafka, row_table\n"
        "topic = kafka('things', schema='at TIMESTAMP')\n"
        "@ingest_table(layer='bronze', event_time='at')\ndef things(topic): return topic\n"
        "@row_table(layer='silver')\ndef valid(things): return things\n"
        "@row_table(layer='silver', late='update')\ndef copied(valid): return valid\n"
    )
    for arguments in (["table", "list", "--json"], ["table", "show", "copied"]):
        done = command(tmp_path, declared, *arguments)
        assert done.returncode == 0 and "warning: table=copied, late='update'" in done.stderr, (
            done.stderr
        )


def command(
    folder: Path, declared: str, *arguments: str, imported: str = ""
) -> subprocess.CompletedProcess:
    """The command line, or that code, where a module declares this."""
    (folder / "ruled_tables.py").write_text(declared)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {
        "LAKEHOUSE_ROOT": str(folder / "root"), "LAKEHOUSE_TABLES": "ruled_tables", "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",  # a file that is written twice in a second is the same to the cache
    }  # fmt: skip
    words = ["-c", imported] if imported else ["-m", "lakehouse", *arguments]
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_what_a_start_would_refuse_is_said_without_a_broker(tmp_path):
    declared = """
from pyspark.sql import functions as F
from lakehouse import expect, ingest_table, kafka, kafka_topic, postgres, row_table, tumbling, window_table

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL, n DOUBLE")


@ingest_table(layer="bronze", event_time="at", expectations=[expect.column_values_to_not_be_null("id")])
def things(topic):
    return topic


@row_table(layer="silver")
def stamped(things):
    return things.withColumn("now", F.current_timestamp())


@row_table(layer="silver")
def wrong(things):
    return things.where("nothing > 1")


@window_table(layer="gold", window=tumbling("1 minute"))
def sums(things):
    return things.groupBy("window").agg(F.sum("n").alias("n"))


@row_table(layer="silver", publish=[kafka_topic("out", key="id"), postgres("out_too", key=["id", "at"])])
def mapped(things):
    return things.withColumn("by_id", F.create_map(F.struct("id"), F.lit(1)))
"""
    done = command(tmp_path, declared, "validate")
    assert done.returncode == 2 and "5 tables, 4 refused" in done.stdout, done.stderr
    for told in (
        "table=stamped",
        "two runs have two clocks",
        "table=wrong: its function",
        "table=sums",
        "a sum of doubles",
        "target=out, table=mapped, column=by_id: a key of a map becomes the name of a field",
    ):
        assert told in done.stderr, done.stderr
    assert "table=things" not in done.stderr and not list((tmp_path / "root").glob("*/things"))


def test_validate_without_spark_checks_what_declarations_alone_decide(tmp_path):
    right = """
from lakehouse import ingest_table, kafka, row_table, sql

thing_topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at")
def things(thing_topic):
    return thing_topic


later = row_table(layer="silver")(sql("later", "SELECT * FROM {things} WHERE at > timestamp '2026-01-01'"))
"""
    done = command(tmp_path, right, "validate", "--no-spark")
    assert done.returncode == 0 and "2 tables, none refused" in done.stdout, done.stderr
    unchecked = (
        "not checked, for it needs Spark: the function of things, the query of later; `lakehouse"
    )
    assert unchecked in " ".join(done.stderr.split())
    clock = right.replace("'2026-01-01'", "'now'")
    done = command(tmp_path, clock, "validate", "--no-spark")
    assert done.returncode == 2 and "2 tables, 1 refused" in done.stdout, done.stderr
    told = " ".join(done.stderr.split())
    assert "table=later, expression=timestamp 'now': two runs have two clocks" in told
    assert unchecked in told, "what is refused by its text is not all that could be wrong"
    wrong = right.replace(', event_time="at"', "")
    done = command(tmp_path, wrong, "validate", "--no-spark")
    assert (
        done.returncode == 2
        and "missing 1 required keyword-only argument: 'event_time'" in done.stderr
    )
    assert "Traceback" not in done.stderr and "ruled_tables.py:" in done.stderr
    done = command(tmp_path, right, "validate", "--no-spark", "--json")
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and shown == [
        {"table": name, "pipeline": "ruled_tables", "refused": [], "unchecked": what}
        for name, what in (("things", "function"), ("later", "query"))
    ]
