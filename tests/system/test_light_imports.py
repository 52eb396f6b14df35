"""A fresh process of Python: what it loads, what it does not, and what is the same in each."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.command_cpu import filled
from lakehouse.settings import Settings, from_environment, to_environment


def test_to_declare_a_table_loads_no_pyspark():
    code = "import sys; from lakehouse import kafka, tumbling; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


# what the command line stands on, with typer's own
BASE = {"annotated_doc", "cronsim", "shellingham", "typer"}
# typer validates what it is given by pydantic
VALUES = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
SHOWN = BASE | {"rich", "typing_extensions"}
# the modules of tables import pyspark; what is on disk deltalake reads, with an Arrow that needs no numpy
TABLES = SHOWN | {"pyspark", "py4j"}
STORED = TABLES | {"deltalake", "arro3"}
MAY_IMPORT = {
    "--help": BASE,
    "table --help": BASE,
    "query --help": BASE,
    "produce --help": BASE,
    "broker status": SHOWN | {"psutil"},
    "doctor": TABLES | {"psutil"},
    "table list": STORED,
    "table list --json": STORED,
    "table show rows_1": STORED | VALUES,
    "reconcile status": STORED | VALUES,
    "stream status": TABLES | VALUES | {"psutil"},
    "upgrade status": TABLES | VALUES | {"psutil"},
    "savepoint list": STORED,
    "publish status": TABLES | VALUES | {"psutil"},
    "plan": STORED | VALUES,
    "validate --no-spark": STORED | VALUES,
    "query SELECT": STORED | VALUES,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Settings:
    """A lakehouse whose tables have rows, commits and certificates."""
    base = replace(from_environment({}), root=tmp_path_factory.mktemp("small") / "root")
    return filled(base, tables=2, commits=3).settings


@pytest.mark.parametrize("command", MAY_IMPORT)
def test_a_command_imports_no_package_that_it_has_no_use_for(small: Settings, command: str):
    """The first `table list` copies what is new in commit logs to `_commits`, too.

    numpy is a quarter of the CPU of a command, pandas as much again, typer's panels of `--help` a half.
    """
    code = (
        "import sys\nfrom lakehouse.cli.main import app\nsys.argv = ['lakehouse', *sys.argv[1:]]\n"
        "try:\n    app()()\nfinally:\n    print('LOADED', *sys.modules)"
    )
    words = command.replace("SELECT", "SELECT|*|FROM|rows_1").split()
    run = subprocess.run(
        [sys.executable, "-c", code, *(word.replace("|", " ") for word in words)],
        env=os.environ | to_environment(small),
        capture_output=True,
        text=True,
    )
    assert run.returncode in (0, 1), run.stderr
    loaded = {name.partition(".")[0] for name in run.stdout.partition("LOADED ")[2].split()}
    ours = {"lakehouse", "streaming_jobs", "batch_jobs", "assets", *small.tables}
    theirs = {name for name in loaded - set(sys.stdlib_module_names) - ours if name[0] != "_"}
    assert loaded and theirs <= MAY_IMPORT[command], theirs - MAY_IMPORT[command]


def test_tables_in_sql_are_listed_without_pyspark(tmp_path: Path):
    (tmp_path / "in_sql.py").write_text(
        "from lakehouse import ingest_table, kafka, sql\n"
        "topic = kafka('events', schema='id BIGINT NOT NULL, at TIMESTAMP NOT NULL')\n"
        "rows = ingest_table(layer='bronze', event_time='at')(sql('rows', 'SELECT * FROM {topic}'))\n"
    )
    code = (
        "import sys; sys.argv = ['lakehouse', 'table', 'list']; from lakehouse.cli.main import app\n"
        "try:\n    app()()\nfinally:\n    print('pyspark' in sys.modules)"
    )
    settings = Settings(root=tmp_path / "root", tables=("in_sql",), module_path=(tmp_path,))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and run.stdout.endswith("False\n"), run.stdout + run.stderr


def test_python_m_lakehouse_is_the_same_program():
    run = subprocess.run(
        [sys.executable, "-m", "lakehouse", "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0 and "quarantine" in run.stdout


def test_a_set_is_the_same_argument_in_every_process():
    """Else a table's code version would change with the seed of hashes, and its stream be refused."""
    code = """
from lakehouse import expect
print(expect.column_values_to_be_in_set("unit", value_set={"C", "F", "K", "R"}))
"""
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(shown) == 1, shown


def test_nothing_of_that_imports_great_expectations():
    code = """
import sys
from lakehouse import expect
from lakehouse.errors import DeclarationError
try:
    expect.column_values_to_be_between("n", min_valeu=1)
except DeclarationError:
    expect.column_values_to_be_between("n", min_value=1)
    assert "column_values_to_be_between" in dir(expect)
    print({"great_expectations", "pyspark"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def test_definitions_load_without_spark_session_and_great_expectations():
    code = "import sys, assets.definitions; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    dear = {
        "great_expectations",
        "delta",
        "lakehouse.runtime.spark_session",
        "lakehouse.batch.compute",
        "lakehouse.transform.checks.quality",
    }
    assert not set(run.stdout.split()) & dear
