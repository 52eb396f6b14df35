"""`lakehouse init`: a folder with a pipeline of one's own that runs, to begin with."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from lakehouse.cli import console
from lakehouse.errors import SettingsError

_TABLES = '''"""Orders of shops, and their turnover by minute."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, kafka, table, tumbling

order_topic = kafka("orders", schema="order_id STRING NOT NULL, shop STRING NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT")


@table(layer="bronze", event_time="at", delay="10 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    """Every order, as it was sent."""
    return order_topic


@table(layer="silver", expectations=[expect.column_values_to_be_between("cents", min_value=1)])
def paid_orders(orders: DataFrame) -> DataFrame:
    """Orders with an amount. An amount below one cent is quarantined."""
    return orders.where("cents IS NOT NULL")


@table(layer="gold", window=tumbling("1 minute"), keys=["shop"])
def turnover(paid_orders: DataFrame) -> DataFrame:
    """Turnover of each shop and minute, in cents."""
    return paid_orders.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))
'''
_TEST = '''"""The tables of orders: fed micro-batches, crashed between commit points, compared with the batch run."""

import orders

from lakehouse.testing import assert_stream_equals_batch


def test_turnover(testbed):
    stage = testbed(orders)
    order = {"order_id": "1", "shop": "a", "at": "2026-01-01T00:00:10Z", "cents": 250}
    stage.feed("orders", [order, order | {"order_id": "2", "at": "2026-01-01T00:00:20Z"}], abort_at="rows")
    stage.advance("orders", order | {"order_id": "3", "at": "2026-01-01T01:00:00Z"})
    stage.run("paid_orders", "turnover")
    assert [row.cents for row in stage.rows("turnover").collect()] == [500]
    assert_stream_equals_batch(stage, "turnover")
'''
_SETTINGS = """# Settings of the lakehouse. An environment variable LAKEHOUSE_<NAME> overrides the setting of that name.
root = ".lakehouse"       # tables, checkpoints, commit logs, the embedded broker's data
since = "$day"      # the first partition in Dagster: the day of your oldest rows
tables = ["orders"]       # modules of tables; a module is a pipeline
module_path = ["."]       # where the modules are looked for
"""
_EVENTS = "".join(
    f'{{"order_id": "{n}", "shop": "{"abc"[n % 3]}", "at": "${{day}}T{n // 60:02}:{n % 60:02}:00Z", "cents": {100 + n}}}\n'
    for n in range(180)
)
_WORKSPACE = """load_from:
  - python_module:
      module_name: assets.definitions
      location_name: $name
"""
_DG = """# For Dagster's `dg`, which loads the module pipelines.definitions.
directory_type = "project"

[project]
root_module = "pipelines"
code_location_name = "$name"
"""
_DEFINITIONS = '''"""The Definitions that `dg` loads: what is in the folder `defs` beside this file."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
'''
_README = """# $name

Tables over a topic of orders.

```bash
pytest                                                # the tables, tested
lakehouse doctor                                      # what this machine has
lakehouse broker start                                # an embedded Kafka broker, unless lakehouse.toml names yours
lakehouse topic create orders
lakehouse produce --topic orders --file orders.jsonl --key shop
lakehouse stream start orders                         # the streaming job, a process of its own
lakehouse table list                                  # rows, frontier, verdict of each table
lakehouse query "SELECT window.start AS minute, shop, cents FROM turnover ORDER BY 1, 2 LIMIT 5"
lakehouse reconcile run turnover --start ${day}T00:00 --end ${day}T02:00
lakehouse ui                                          # all of it in the browser, at http://localhost:3000
lakehouse stream stop && lakehouse broker stop
```

`orders.py` declares the tables, `lakehouse.toml` has the settings. With the package `dagster-dg-cli`,
`dg scaffold defs assets.component.Pipeline orders` writes the pipeline as YAML to `pipelines/defs`, and `dg dev` loads it from
there.
"""
_FILES = {
    "orders.py": _TABLES,
    "test_orders.py": _TEST,
    "lakehouse.toml": _SETTINGS,
    "orders.jsonl": _EVENTS,
    "workspace.yaml": _WORKSPACE,
    "dg.toml": _DG,
    "pipelines/__init__.py": "",
    "pipelines/definitions.py": _DEFINITIONS,
    "pipelines/defs/__init__.py": "",
    "README.md": _README,
    ".gitignore": ".lakehouse/\n",
}


def init(
    directory: Annotated[
        Path, typer.Argument(help="A folder, new or without files of these names")
    ],
) -> None:
    """Make a project that runs: tables over a topic, their test, events to send, settings, a workspace for Dagster.

    The project and its location in Dagster have the name of the folder. The events are of yesterday.
    """
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    values = {"name": directory.absolute().name, "day": str(yesterday)}
    if present := [name for name in _FILES if (directory / name).exists()]:
        raise SettingsError(
            f"directory={directory}: it has {', '.join(present)} already, and nothing is overwritten; name another folder"
        )
    try:
        for name, text in _FILES.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(Template(text).substitute(values))
    except OSError as err:
        raise SettingsError(
            f"directory={directory}: the folder cannot be written to ({err}); name another folder"
        ) from err
    console.print_text(f"{directory}: {', '.join(_FILES)}; README.md there has the commands")
