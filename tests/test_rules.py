"""Rules that declarations alone decide: a table in a variable of another name, policies for late rows that cancel each other."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lakehouse.declare import rules
from lakehouse.declare.catalog import Catalog, catalog_of
from lakehouse.declare.table import around, kafka, sql_table, table, tumbling
from lakehouse.errors import DeclarationError

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@table(layer="bronze", event_time="at", delay="5 seconds")
def things(topic):
    return topic


def module_of(**names) -> ModuleType:
    module = ModuleType("my_tables")
    vars(module).update({"topic": topic, "things": things} | names)
    for value in vars(module).values():
        if hasattr(value, "transformation"):
            value.transformation.__module__ = "my_tables"
    return module


def counted(name: str, **declared):
    query = "SELECT window, count(*) AS n FROM {things} GROUP BY window"
    return sql_table(name, query, layer="gold", window=tumbling("1 minute"), **declared)


# ---- names


@pytest.mark.parametrize("variable", ["per_minute", "_hidden"])
def test_a_table_in_a_variable_of_another_name_is_refused_and_not_left_out(variable):
    told = f"table='things_per_minute', variable='{variable}' of my_tables: .* write things_per_minute = ..., or rename"
    with pytest.raises(DeclarationError, match=told):
        catalog_of([module_of(**{variable: counted("things_per_minute")})])


def test_a_module_whose_only_table_is_named_otherwise_is_told_that():
    only = ModuleType("only_tables")
    only.topic, only.other = topic, counted("things_per_minute")
    with pytest.raises(DeclarationError, match="write things_per_minute = "):
        catalog_of([only])


def test_a_second_name_for_a_table_that_is_found_is_no_fault():
    one = counted("things_per_minute")
    assert "things_per_minute" in catalog_of([module_of(things_per_minute=one, short=one)]).tables


def test_another_table_of_the_same_name_in_another_variable_is_refused():
    with pytest.raises(DeclarationError, match="variable='other' of my_tables"):
        catalog_of(
            [
                module_of(
                    things_per_minute=counted("things_per_minute"),
                    other=counted("things_per_minute", late="drop"),
                )
            ]
        )


def test_an_expectation_that_is_misspelt_is_refused_without_an_import_of_great_expectations(
    tmp_path,
):
    declared = (
        "from lakehouse import expect, kafka, table\n"
        "topic = kafka('things', schema='id STRING, at TIMESTAMP')\n"
        "@table(layer='bronze', event_time='at', expectations=[expect.column_values_to_not_be_nul('id')])\n"
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


# ---- policies


def chain(silver_late: str, gold_late: str, **silver) -> Catalog:
    @table(layer="silver", late=silver_late, **silver)
    def valid(things):
        return things

    @table(layer="silver", late="update")
    def copied(valid):
        return valid

    @table(layer="gold", window=tumbling("1 minute"), late=gold_late)
    def per_minute(copied):
        return copied.groupBy("window").count()

    return catalog_of([module_of(valid=valid, copied=copied, per_minute=per_minute)])


def told(catalog: Catalog) -> list[str]:
    return rules.warnings(catalog, list(catalog))


def test_an_update_behind_a_table_that_keeps_late_rows_out_is_warned_of():
    first, second = told(chain("side_output", "update"))
    assert first.startswith(
        "table=copied, late='update': rows that arrive after the hour of their event time never reach it"
    )
    assert (
        second.startswith("table=per_minute") and "declare late='update' on valid as well" in second
    )
    (only,) = told(chain("drop", "side_output", context=around(after="1 minute")))
    assert "arrive behind the watermark never reach it, because valid (late='drop')" in only


def test_an_update_that_late_rows_reach_is_not():
    assert told(chain("update", "update")) == []


def test_commands_show_it_beside_the_result(tmp_path):
    declared = (
        "from lakehouse import kafka, table\n"
        "topic = kafka('things', schema='at TIMESTAMP')\n"
        "@table(layer='bronze', event_time='at')\ndef things(topic): return topic\n"
        "@table(layer='silver')\ndef valid(things): return things\n"
        "@table(layer='silver', late='update')\ndef copied(valid): return valid\n"
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


# ---- what only a session can tell


@pytest.mark.slow
@pytest.mark.parallel
def test_what_a_start_would_refuse_is_said_without_a_broker(tmp_path):
    declared = """
from pyspark.sql import functions as F
from lakehouse import expect, kafka, table, tumbling

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL, n DOUBLE")


@table(layer="bronze", event_time="at", expectations=[expect.column_values_to_not_be_null("id")])
def things(topic):
    return topic


@table(layer="silver")
def stamped(things):
    return things.withColumn("now", F.current_timestamp())


@table(layer="silver")
def wrong(things):
    return things.where("nothing > 1")


@table(layer="gold", window=tumbling("1 minute"))
def sums(things):
    return things.groupBy("window").agg(F.sum("n").alias("n"))
"""
    done = command(tmp_path, declared, "validate")
    assert done.returncode == 2 and "4 tables, 3 refused" in done.stdout, done.stderr
    for told in (
        "table=stamped",
        "two runs have two clocks",
        "table=wrong: its function",
        "table=sums",
        "a sum of doubles",
    ):
        assert told in done.stderr, done.stderr
    assert "table=things" not in done.stderr and not list((tmp_path / "root").glob("*/things"))


def test_validate_without_spark_checks_what_declarations_alone_decide(tmp_path):
    right = """
from lakehouse import kafka, table

thing_topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@table(layer="bronze", event_time="at")
def things(thing_topic):
    return thing_topic
"""
    done = command(tmp_path, right, "validate", "--no-spark")
    assert done.returncode == 0 and "1 tables, none refused" in done.stdout, done.stderr
    assert "no function was run" in done.stderr
    wrong = right.replace(', event_time="at"', "")
    done = command(tmp_path, wrong, "validate", "--no-spark")
    assert done.returncode == 2 and "an ingest table needs an event time" in done.stderr
