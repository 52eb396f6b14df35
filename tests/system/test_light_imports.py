"""A fresh process of Python: what it loads, what it does not, and what is the same in each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_to_declare_a_table_loads_no_pyspark():
    code = (
        "import sys; from lakehouse import kafka, table, tumbling; print('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


def test_help_needs_none_of_the_heavy_packages():
    heavy = {"pyspark", "deltalake", "pyarrow", "great_expectations", "dagster"}
    code = f"import sys; from lakehouse.cli.main import app; app(); print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["table", "list"],
        ["stream", "status"],
        ["query", "SELECT 1"],
        ["table", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_imports_no_package_that_it_has_no_use_for(tmp_path: Path, command: list[str]):
    """`redis` and `pandas` came with packages that ask whether they are installed."""
    code = (
        "import sys\nfrom lakehouse.cli.main import app\nsys.argv = ['lakehouse', *sys.argv[1:]]\n"
        "try:\n    app()()\nfinally:\n    print('LOADED', *sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *command],
        env=os.environ | {"LAKEHOUSE_ROOT": str(tmp_path / "root")},
        capture_output=True,
        text=True,
    )
    loaded = {name.partition(".")[0] for name in run.stdout.partition("LOADED ")[2].split()}
    never = {"redis", "pandas", "portalocker", "dagster", "great_expectations", "duckdb", "psycopg"}
    may = {"--help": set(), "stream": {"pyspark"}}.get(
        command[0], {"pyspark", "deltalake", "pyarrow", "numpy"}
    )
    may = set() if "--help" in command else may
    assert loaded and not loaded & never, run.stderr
    assert loaded & {"pyspark", "deltalake", "pyarrow", "numpy"} <= may


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
        "lakehouse.transform.quality",
    }
    assert not set(run.stdout.split()) & dear
