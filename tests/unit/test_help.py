"""What the command line says without a lakehouse."""

import io
import json
import re
from itertools import pairwise

import psutil
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.settings import from_environment
from streaming_jobs import progress
from streaming_jobs.command_groups import views
from streaming_jobs.progress import JobStatus, QueryStatus
from support import ROOT

NOW = "2026-11-24T17:00:00+00:00"


def lines(result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def _commands(group, path: tuple[str, ...] = ()):
    for name, command in group.commands.items():
        yield (*path, name), command
        yield from _commands(command, (*path, name)) if hasattr(command, "commands") else ()


@pytest.mark.parametrize(
    "path", [" ".join(path) for path, _ in _commands(typer.main.get_command(main.app()))]
)
def test_every_command_explains_itself(path):
    result = CliRunner().invoke(main.app(), [*path.split(), "--help"], terminal_width=2000)
    assert result.exit_code == 0
    prose = re.split(r"^\w+:\n", result.stdout, flags=re.MULTILINE)[0].splitlines()
    broken = [line for line, after in pairwise(map(str.strip, prose)) if line and after]
    assert broken == [], "a paragraph is wrapped to the terminal"
    explained = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    assert len(explained[1]) > 20, "the first sentence says what it does"


def test_the_page_of_commands_has_each_with_its_options():
    written = {}
    for line in (ROOT / "docs" / "reference" / "commands.md").read_text().splitlines():
        if found := re.match(r"\| `([a-z][a-z -]*[a-z])[^`]*` \|[^|]*\|([^|]*)\|", line):
            written[found[1]] = set(re.findall(r"`(--[a-z-]+)`", found[2]))
    given = {}
    for path, command in _commands(typer.main.get_command(main.app())):
        if not hasattr(command, "commands"):
            options = [each for each in command.params if each.param_type_name == "option"]
            given[" ".join(path)] = [{*each.opts, *each.secondary_opts} for each in options]
    assert written.keys() == given.keys()
    for name, options in given.items():
        named = written[name] - {"--help"}
        assert all(each & named for each in options), f"{name}: an option is missing"
        assert named <= set().union(*options), f"{name}: an option is not there"


def test_broker_status_without_a_broker(tmp_path):
    def status(**environment: str):
        return CliRunner().invoke(
            main.app(),
            ["broker", "status", "--json"],
            env={"LAKEHOUSE_ROOT": str(tmp_path)} | environment,
        )

    assert status().exit_code == 1
    elsewhere = status(LAKEHOUSE_BOOTSTRAP_SERVERS="kafka.example:9092")
    assert lines(elsewhere)[0]["bootstrap_servers"] == "kafka.example:9092"


def test_names_and_counts_of_a_job_are_whole_in_a_terminal_of_80_columns_and_lines_in_a_pipe(
    tmp_path,
):
    settings, said = from_environment({"LAKEHOUSE_ROOT": str(tmp_path)}), "told in one line; " * 20
    query = QueryStatus("sensor_readings", True, rows=123_456_789, lag=1_000_000, late=1_234, quarantined=56_789,
                        frontier="2026-11-24T16:56:32.516000+00:00", state="paused", error=said)  # fmt: skip
    process = psutil.Process()
    progress.write(
        settings,
        JobStatus(
            "sensors", process.pid, process.create_time(), 0, 0, "degraded", NOW, NOW, (query,)
        ),
    )
    found = [("sensors", progress.read(settings, "sensors")), ("ads", None)]
    narrow = Console(width=80, file=io.StringIO())
    narrow.print(views.queries_table(found))
    lines = narrow.file.getvalue()
    for whole in (
        "sensors degraded",
        "  sensor_readings ",
        "    paused ",
        "123,456,789",
        "1,000,000",
        "1,234",
        "ads never ran",
    ):
        assert whole in lines, lines
    assert "…" not in lines
    piped = (
        CliRunner()
        .invoke(
            main.app(), ["stream", "status", "sensors"], env={"LAKEHOUSE_ROOT": str(settings.root)}
        )
        .stdout
    )
    assert "    paused " in piped and "2026-11-24T16:56:32Z" in piped and said.strip() in piped


def test_why_spark_plans_each_step_of_a_query_is_shown(tmp_path):
    settings = from_environment({"LAKEHOUSE_ROOT": str(tmp_path)})
    ways = {"rows": "the function has [random] values", "counts orders": ""}
    query, process = QueryStatus("valid_readings", True, plans=ways), psutil.Process()
    job = JobStatus(
        "sensors", process.pid, process.create_time(), 0, 0, "running", NOW, NOW, (query,)
    )
    progress.write(settings, job)
    wide = Console(width=200, file=io.StringIO())
    wide.print(views.queries_table([("sensors", progress.read(settings, "sensors"))]))
    shown = wide.file.getvalue()
    assert "Spark plans each step (rows): the function has [random] values" in shown
    assert "counts orders" not in shown
    of_table = {}
    for name in ("valid_readings", "sensor_averages"):
        asked = ["table", "show", name]
        told = CliRunner().invoke(main.app(), asked, env={"LAKEHOUSE_ROOT": str(tmp_path)})
        of_table[name] = " ".join(told.stdout.split())
    refused = "rows: Spark plans each: the function has [random] values"
    assert f"small steps {refused} counts orders: prepared" in of_table["valid_readings"]
    assert "small steps unknown until its job runs" in of_table["sensor_averages"]
