"""What tests of several rooms share. A test imports from here, never from another test.

sensors_job      the job of the sensors: what is sent to it, and what its tables must hold
dagster_dev      a live Dagster, and its API
cluster          a Spark cluster
full_disk        the job of the sensors on a disk that is full for a while: a program
hungry           a pipeline that takes as much memory as a message asks for
observed         what the control loop sees of a job
sensors_log      commits of a table of the sensors, as its commit log has them
torn_logs        commit logs that are cut in the middle of a line
small_log        a Delta table whose log is cut after two versions; files that become older
payments         keyed and versioned tables, and what they read
purchases        tables whose ingest table reads two topics
ads_and_sales    tables that read two ingest tables, each of a topic
changing_tables  tables that tests declare otherwise
schema_registry  a schema registry over a dictionary, and values in its wire format
calls            a process function that reports each call
quiet            tables whose topics may be silent
accounts         rows of a keyed table, written without Spark
wide_rows        rows with a column of each type
workloads        workloads of the producers
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
TESTS = ROOT / "tests"
"""Where a child process finds this package."""
