"""A project of one's own: `lakehouse init`, `doctor`, events from a file, and its commands in their order."""

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.errors import SettingsError
from lakehouse.producers.files import messages
from lakehouse.settings import from_environment, to_environment


def lakehouse(*arguments: str, **environment: str):
    return CliRunner().invoke(main.app(), arguments, env=environment)


@pytest.fixture
def project(tmp_path) -> Path:
    done = lakehouse("init", str(tmp_path / "shop"))
    assert done.exit_code == 0, done.output
    return tmp_path / "shop"


def test_a_project_has_its_own_name_and_its_partitions_begin_with_its_events(project):
    location = yaml.safe_load((project / "workspace.yaml").read_text())["load_from"][0]
    assert location["python_module"]["location_name"] == "shop"
    assert 'code_location_name = "shop"' in (project / "dg.toml").read_text()
    settings = from_environment({"LAKEHOUSE_CONFIG": str(project / "lakehouse.toml")})
    events = [json.loads(line) for line in (project / "orders.jsonl").read_text().splitlines()]
    assert min(each["at"] for each in events)[:10] == settings.since
    assert "$" not in "".join(path.read_text() for path in project.rglob("*") if path.is_file())


def test_a_project_is_made_once(project):
    again = lakehouse("init", str(project))
    for place in (project / "orders.py", project / "orders.py" / "below"):
        refused = lakehouse("init", str(place))
        assert refused.exit_code == 2 and "the folder cannot be written to" in refused.stderr
    assert again.exit_code == 2 and "it has orders.py, test_orders.py" in again.stderr
    assert "nothing is overwritten" in again.stderr


def test_the_doctor_names_what_is_missing_and_its_remedy(project, monkeypatch):
    monkeypatch.chdir(project)
    found = {
        each["check"]: each
        for each in map(json.loads, lakehouse("doctor", "--json").stdout.splitlines())
    }
    assert (
        found["tables"]["found"] == "3 in orders"
        and found["java"]["state"] == found["root"]["state"] == "ok"
    )
    assert (found["broker"]["state"], found["broker"]["remedy"]) == (
        "note",
        "`lakehouse broker start`",
    )
    wrong = {
        "LAKEHOUSE_TABLES": "of_nobody",
        "LAKEHOUSE_BOOTSTRAP_SERVERS": "127.0.0.1:9",
        "JAVA_HOME": "/nowhere",
    }
    sick = lakehouse("doctor", "--json", **wrong)
    found = {
        each["check"]: each["found"]
        for each in map(json.loads, sick.stdout.splitlines())
        if each["state"] == "fail"
    }
    assert sick.exit_code == 1 and found.keys() == {"tables", "broker", "java"}
    assert (
        "127.0.0.1:9: it must answer within 5 s and did not" in found["broker"]
        and "name its folder in module_path" in found["tables"]
    )


def test_the_doctor_goes_on_past_a_module_that_cannot_be_read(project, monkeypatch):
    monkeypatch.chdir(project)
    (project / "torn_orders.py").write_text("def (")
    told = lakehouse("doctor", "--json", LAKEHOUSE_TABLES="torn_orders").stdout
    found = {each["check"]: each for each in map(json.loads, told.splitlines())}
    assert (
        len(found) == 10
        and found["tables"]["state"] == "fail"
        and "SyntaxError" in found["tables"]["found"]
    )


def test_a_child_takes_nothing_from_a_file_where_it_happens_to_run(project, tmp_path, monkeypatch):
    (project / "lakehouse.toml").write_text(
        'root = "of the file"\n[kafka]\n"client.id" = "of the file"\n'
    )
    monkeypatch.chdir(project)
    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)
    assert from_environment().kafka == {"client.id": "of the file"}
    given = from_environment({"LAKEHOUSE_ROOT": str(tmp_path)})
    for name, value in to_environment(given).items():
        monkeypatch.setenv(name, value)
    assert from_environment() == given


IN_A_WORKER = """
import orders_of_a_worker
from lakehouse.declare import catalog
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from pyspark.sql import functions as F

spark = spark_session.create(from_environment(), "a test")
print(spark.range(1).select(F.udf(orders_of_a_worker.doubled, "bigint")("id").alias("n")).head().n)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parallel
def test_a_python_worker_finds_the_modules_of_module_path(project):
    (project / "orders_of_a_worker.py").write_text("def doubled(n):\n    return 2 * n + 4\n")
    code = f"import sys; sys.path.append({str(project)!r})\n{IN_A_WORKER}"  # as the catalog does
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout == "4\n", done.stderr


def test_events_of_ones_own_are_the_lines_of_a_file(project):
    lines = [b'{"shop": "a", "n": 1}', b"", b'{"shop": 7}']
    sent = [(each.key, each.value) for each in messages(lines, "shop")]
    assert sent == [(b"a", lines[0]), (b"7", lines[2])]
    assert [each.key for each in messages(lines)] == [None, None]
    for line in (b"[]", b"{}", b'{"shop": null}', b'{"shop": "a"'):
        with pytest.raises(SettingsError, match=r"line=2, key='shop'.*send it with those after it"):
            list(messages([lines[0], line], "shop"))
    exact = [b"1.10", b"12345678901234567.89", b"true", b'{"of": [1.0]}']
    keys = [each.key for each in messages([b'{"shop": %b}' % value for value in exact], "shop")]
    assert keys == [*exact[:3], b'{"of": ["1.0"]}'], "of a plain value its own text"
    for arguments in (("--topic", "orders"), ("--file", "orders.jsonl", "--key", "shop")):
        refused = lakehouse("produce", *arguments)
        assert refused.exit_code == 2 and "give both" in refused.stderr, refused.stderr
    assert "or give --topic and --file" in lakehouse("produce").stderr
    assert (
        "leave out the options of made-up events"
        in lakehouse("produce", "ads", "--topic", "t", "--file", "f").stderr
    )


def of_rides(orders: Path, folder: Path) -> Path:
    """A project of lines of one's own: an object in each, its time in milliseconds, and a key."""
    with (folder / "rides.jsonl").open("w") as file:
        for order in map(json.loads, orders.read_text().splitlines()):
            at = datetime.fromisoformat(order["at"]).timestamp() * 1000
            ride = {"ride": {"n": order["order_id"], "at": int(at)}, "driver_id": order["shop"]}
            print(json.dumps(ride | {"fare": order["cents"] / 100}), file=file)
    done = lakehouse("init", str(folder / "own"), "--from", str(folder / "rides.jsonl"))
    assert done.exit_code == 0, done.output
    return folder / "own"


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("module", "result", "tables"), [("orders", "turnover", 3), ("rides", "rides_by_minute", 2)]
)
def test_the_commands_of_a_new_project_work_in_their_order(
    project, tmp_path, quick_jvm, module, result, tables
):
    """As its README has them, from its test to the reconciled table; without Dagster's server, which does not end.

    Once for the project of orders, and once for that of lines of one's own.
    """
    day = json.loads((project / "orders.jsonl").read_text().splitlines()[0])["at"][:10]
    if module == "rides":
        project = of_rides(project / "orders.jsonl", tmp_path)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")
    }
    environment |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "LAKEHOUSE_SPARK_CONF": json.dumps(quick_jvm),
    }

    def run(command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    block = (project / "README.md").read_text().split("```")[1]
    commands = [line.split("#")[0].strip() for line in block.splitlines()[1:] if line.strip()]
    said = {}
    try:
        for command in commands:
            if "lakehouse ui" in command or "reconcile" in command or "query" in command:
                continue
            if command.startswith("lakehouse stream stop"):
                break
            said[command.split()[1] if " " in command else command] = run(command)
            while command == "lakehouse table list" and not re.search(
                rf"{result} +window +{module} +178", run(command)
            ):
                time.sleep(1)  # the test's own limit ends it
        query, reconcile = (
            next(c for c in commands if word in c) for word in ("query", "reconcile")
        )
        assert f"{day}T00:04:00Z" in run(query)
        assert (
            "EQUAL" in run(reconcile)
            and "1 passed" in said["pytest"]
            and f"{tables} in {module}" in said["doctor"]
        )
        run("dagster definitions validate -w workspace.yaml")
    finally:
        subprocess.run(
            "lakehouse stream stop --now; lakehouse broker stop",
            shell=True,
            cwd=project,
            env=environment,
            timeout=120,
        )
