"""What tests of several rooms share. A test imports from here, never from another test.

sensors_job     the job of the sensors: what is sent to it, and what its tables must hold
dagster_dev     a live Dagster and its API
observed        what the control loop sees of a job
sensors_log     commits of a table of the sensors, as its commit log has them
small_log       a Delta table whose log is cut after two versions
payments        keyed and versioned tables, and what they read
accounts        rows of a keyed table, written without Spark
wide_rows       rows with a column of each type
hungry          a pipeline that takes as much memory as a message asks for
full_disk       the job of the sensors on a disk that is full for a while: a program
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
TESTS = ROOT / "tests"
"""Where a child process finds this package."""
