"""`lakehouse init`: a folder with a first pipeline of one's own that runs: of orders, or of the lines of a file."""

import json
import keyword
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from lakehouse.cli import console, inference
from lakehouse.cli.inference import Inferred
from lakehouse.declare.columns import is_table_name, quoted
from lakehouse.errors import SettingsError
from lakehouse.producers.files import lines

_TABLES = '''"""Orders of shops, and their turnover by minute."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, ingest_table, kafka, row_table, tumbling, window_table

order_topic = kafka("orders", schema="order_id STRING NOT NULL, shop STRING NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT")


@ingest_table(layer="bronze", event_time="at", delay="10 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    """Every order, as it was sent."""
    return order_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("cents", min_value=1)])
def paid_orders(orders: DataFrame) -> DataFrame:
    """Orders with an amount. An amount below one cent is quarantined."""
    return orders.where("cents IS NOT NULL")


@window_table(layer="gold", window=tumbling("1 minute"), keys=["shop"])
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
tables = ["$module"]       # modules of tables; a module is a pipeline
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

Tables over the topic `$module`.

```bash
pytest                                                # the tables, tested
lakehouse doctor                                      # what this machine has
lakehouse broker start                                # an embedded Kafka broker, unless lakehouse.toml names yours
lakehouse topic create $module
lakehouse produce --topic $module --file $module.jsonl$key
lakehouse stream start $module                        # the streaming job, a process of its own
lakehouse table list                                  # rows, frontier, verdict of each table
lakehouse query "SELECT $columns FROM $result ORDER BY 1, 2 LIMIT 5"
lakehouse reconcile run $result$span
lakehouse ui                                          # all of it in the browser, at http://localhost:3000
lakehouse stream stop && lakehouse broker stop
```

`$module.py` declares the tables, `lakehouse.toml` has the settings. With the package `dagster-dg-cli`,
`dg scaffold defs assets.component.Pipeline $module` writes the pipeline as YAML to `pipelines/defs`, and `dg dev` loads it from
there.
"""
_INFERRED_TABLES = '''"""Tables over the topic $module, inferred from $lines lines: correct what is wrong."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, tumbling, window_table

# Inferred, for correction:
$choices
${module}_topic = kafka(
    "$module",
    schema="""
$schema
    """,
)


@ingest_table(layer="bronze", event_time="$time", delay="10 seconds")
def $module(${module}_topic: DataFrame) -> DataFrame:
    """Every line, as it was sent."""
    return $rows


@window_table(layer="gold", window=tumbling("1 minute"), keys=[$quoted_key])
def $result($module: DataFrame) -> DataFrame:
    """How many rows there are in each minute, by the key if there is one."""
    return $module.groupBy($groups).agg(F.count("*").alias("row_count"))
'''
_INFERRED_TEST = '''"""The tables of $module: fed the lines, crashed between commit points, compared with the batch run."""

from pathlib import Path

import $module

from lakehouse.testing import assert_stream_equals_batch

LINES = Path(__file__).with_name("$module.jsonl").read_bytes().splitlines()[:1000]
LATER = $later


def test_$result(testbed):
    stage = testbed($module)
    stage.feed("$module", LINES, abort_at="rows")
    stage.advance("$module", LATER)
    stage.run("$result")
    assert_stream_equals_batch(stage, "$result")
'''
_OF_BOTH = {
    "lakehouse.toml": _SETTINGS,
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
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="JSON lines, plain or .gz, from which schema, key and event time are inferred",
        ),
    ] = None,
) -> None:
    """Make a project that runs: tables over a topic, their test, events to send, settings, a workspace for Dagster.

    The project and its location in Dagster have the name of the folder. The events are of yesterday,
    or with --from the lines of your file.
    """
    if from_:
        raw = list(lines([from_]))
        inferred = inference.inferred(from_, raw)
        values, templates = _of_lines(_module_name(from_), inferred)
        files = _filled(directory, values, templates)
        sent = (line + b"\n" for line in raw if line.strip())
        files[f"{values['module']}.jsonl"] = b"".join(sent).decode()
        _write(directory, files)
        console.print_rows(("inferred", "as", "why"), inferred.choices())
        for remark in inferred.remarks:
            console.print_note(f"warning: {remark}")
        return
    yesterday = str(datetime.now(UTC).date() - timedelta(days=1))
    values = {
        "module": "orders",
        "day": yesterday,
        "key": " --key shop",
        "result": "turnover",
        "columns": "window.start AS minute, shop, cents",
        "span": f" --start {yesterday}T00:00 --end {yesterday}T02:00",
    }
    templates = {"orders.py": _TABLES, "test_orders.py": _TEST, "orders.jsonl": _EVENTS}
    _write(directory, _filled(directory, values, templates))


def _filled(
    directory: Path, values: Mapping[str, str], templates: dict[str, str]
) -> dict[str, str]:
    values = {"name": directory.absolute().name, **values}
    files = templates | _OF_BOTH
    return {name: Template(text).substitute(values) for name, text in files.items()}


def _write(directory: Path, files: Mapping[str, str]) -> None:
    if present := [name for name in files if (directory / name).exists()]:
        raise SettingsError(
            f"directory={directory}: it has {', '.join(present)} already, and nothing is overwritten; name another folder"
        )
    try:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
    except OSError as err:
        raise SettingsError(
            f"directory={directory}: the folder cannot be written to ({err}); name another folder"
        ) from err
    console.print_text(f"{directory}: {', '.join(files)}; README.md there has the commands")


def _module_name(file: str) -> str:
    """Returns the name of module, topic and ingest table: that of the file, unless another module has it already."""
    stem = re.sub(r"[\W_]+", "_", Path(file).name.partition(".")[0], flags=re.ASCII)
    name = stem.strip("_").lower()
    usable = is_table_name(name) and not keyword.iskeyword(name) and name != "pipelines"
    return name if usable and find_spec(name) is None else f"events_{name}".rstrip("_")


def _of_lines(module: str, inferred: Inferred) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the values that fill the templates, and the templates of the files that declare and test the tables."""
    time, rows = _time_and_rows(f"{module}_topic", inferred)
    result = f"{module}_by_minute"
    needed = [inferred.key, ".".join(inferred.event_time.path)]
    schema = ",\n".join(
        f"        {_ddl(name)} {values.type()}{' NOT NULL' * (name in needed and inferred.always(name))}"
        for name, values in inferred.columns.items()
    )
    choices = (f"# - {what}: {value} ({why})" for what, value, why in inferred.choices())
    key = inferred.names[inferred.key] if inferred.key else ""
    keys = [_text(key)] if key else []
    latest = min(inferred.last, datetime.now(UTC)) + timedelta(days=1)
    later = json.dumps(inferred.event_time.at(inferred.lines[0], latest), default=float)
    values = {
        "module": module,
        "day": f"{inferred.first:%Y-%m-%d}",
        "key": f" --key {inferred.key}" if inferred.key else "",
        "result": result,
        "columns": ", ".join(["window.start AS minute", *filter(None, [key]), "row_count"]),
        "span": "",
        "lines": str(len(inferred.lines)),
        "choices": "\n".join(" ".join(console.shown(choice).split()) for choice in choices),
        "schema": schema.replace("\\", "\\\\").replace('"', '\\"'),
        "time": time,
        "rows": rows,
        "quoted_key": ", ".join(keys),
        "groups": ", ".join(['"window"', *keys]),
        "later": repr(later),
    }
    return values, {f"{module}.py": _INFERRED_TABLES, f"test_{module}.py": _INFERRED_TEST}


def _time_and_rows(rows: str, inferred: Inferred) -> tuple[str, str]:
    """Returns the column of the event time, and the expression that makes it and names the columns."""
    renamed = {name: column for name, column in inferred.names.items() if name != column}
    steps = [f".withColumnRenamed({_text(n)}, {_text(column)})" for n, column in renamed.items()]
    first, *below = inferred.event_time.path
    source = time = inferred.names[first]
    if below:
        source, time = ".".join([time, *map(quoted, below)]), "event_time"
        while time in inferred.names.values():
            time += "_"
    if inferred.event_time.unit == "epoch milliseconds":  # others would overflow, and end the query
        usable = f"F.col({_text(source)}).between(0, 253_402_300_799_999)"
        instant = f"F.when({usable}, F.timestamp_millis({_text(source)}))"
        steps.append(f".withColumn({_text(time)}, {instant})")
    elif below:
        steps.append(f".withColumn({_text(time)}, F.col({_text(source)}))")
    if not steps:
        return time, rows
    lines_of = "".join(f"\n        {step}" for step in steps)
    return time, f"(\n        {rows}{lines_of}\n    )"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _ddl(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quoted(name)
