"""Which lakehouse a command works on: `lakehouse.toml` here or above, a variable, `--examples`, or a refusal."""

import importlib
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assets.resources import LakehouseResource
from assets.ui import loaded
from lakehouse.cli import main
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, _report_above, from_environment, to_environment
from support import ROOT


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder without settings, in which this process is, of an environment without any."""
    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "shop" / "notes" / "may").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "shop" / "notes" / "may")
    return tmp_path / "shop"


def lakehouse(*words: str, **environment: str | None):
    return CliRunner().invoke(main.app(), words, env=environment)


def test_the_file_is_looked_for_upwards_and_the_nearest_one_counts(folder):
    (folder.parent / "lakehouse.toml").write_text('tables = ["of_another"]\n')
    (folder / "lakehouse.toml").write_text('tables = ["orders"]\nmodule_path = ["code"]\n')
    (folder / "notes" / "lakehouse.toml").mkdir()  # a folder of that name is no file
    settings = from_environment()
    assert (settings.tables, settings.module_path) == (("orders",), (folder / "code",))
    assert settings.root == folder / ".lakehouse", "a root that is not named is beside the file"
    (folder / "lakehouse.toml").write_text('root = "data"\n')
    assert from_environment().root == folder / "data"
    given = {"LAKEHOUSE_CONFIG": str(folder / "lakehouse.toml"), "LAKEHOUSE_ROOT": "here"}
    assert from_environment(given).root == Path("here").resolve(), "a variable's is of this folder"


def test_a_file_above_is_named_once_on_standard_error(folder, monkeypatch):
    file = folder / "lakehouse.toml"
    file.write_text('tables = ["lakehouse.examples.sensors.tables"]\n')
    shown = lakehouse("table", "list", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout.splitlines()[0])["table"] == "sensor_readings"
    assert shown.stderr.splitlines() == [
        f"config={file}: these settings are used, because the current folder has no lakehouse.toml"
    ]
    _report_above.cache_clear()
    monkeypatch.chdir(folder)
    assert lakehouse("table", "list").stderr == ""
    monkeypatch.chdir(folder / "notes")
    assert lakehouse("table", "list", LAKEHOUSE_CONFIG=str(file)).stderr == ""
    assert lakehouse("table", "list", "--help").stderr == ""
    assert lakehouse("table", "list", **to_environment(Settings(root=folder))).stderr == ""


@pytest.mark.parametrize(
    "words",
    ["table list", "stream status", "broker status", "query x", "plan", "validate --no-spark",
     "topic check x", "publish status", "savepoint list", "reconcile status", "ui", "metrics --once",
     "produce sensors"],
)  # fmt: skip
def test_without_settings_a_command_is_refused_in_one_line(folder, words):
    refused = lakehouse(*words.split())
    assert refused.exit_code == 2 and refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    for named in (
        str(Path.cwd()),
        "lakehouse.toml",
        "`lakehouse init DIRECTORY`",
        "--examples",
        "cd",
    ):
        assert named in line
    assert len(line.split()) <= 26 and not (Path.cwd() / ".lakehouse").exists()


def test_init_doctor_and_help_need_no_settings(folder):
    told = lakehouse("doctor", "--json").stdout
    found = {each["check"]: each for each in map(json.loads, told.splitlines())}
    assert found["settings"]["state"] == "note" and "--examples" in found["settings"]["remedy"]
    assert found["tables"]["found"].endswith("in sensors, ads")
    assert lakehouse("init", "new").exit_code == 0
    for words in (["--help"], ["table"], ["table", "list", "--help"], ["--version"]):
        shown = lakehouse(*words)
        assert shown.exit_code in (0, 2) and "or above" not in shown.output, words


def test_the_doctor_names_the_file(folder):
    (folder / "lakehouse.toml").write_text('tables = ["lakehouse.examples.ads.tables"]\n')
    told = map(json.loads, lakehouse("doctor", "--json").stdout.splitlines())
    found = next(each for each in told if each["check"] == "settings")
    assert (found["state"], found["found"]) == ("ok", str(folder / "lakehouse.toml"))


def test_the_examples_are_asked_for(folder):
    shown = lakehouse("--examples", "table", "list", "--json", LAKEHOUSE_TABLES=None)
    tables = [json.loads(line)["table"] for line in shown.stdout.splitlines()]
    assert {"sensor_averages", "campaign_views"} <= set(tables) and shown.stderr == ""
    (folder / "notes" / "may" / "lakehouse.toml").write_text('tables = ["of_nobody"]\n')
    again = lakehouse("--examples", "table", "list", LAKEHOUSE_TABLES="of_nobody_else")
    assert again.exit_code == 0 and "campaign_views" in again.stdout


@pytest.mark.parametrize(
    "variables",
    [{"LAKEHOUSE_ROOT": "data"}, {"LAKEHOUSE_TABLES": "lakehouse.examples.ads.tables"},
     to_environment(Settings())],
)  # fmt: skip
def test_a_variable_that_names_the_root_or_the_tables_is_enough(folder, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "lakehouse.examples.ads.tables" in from_environment().tables
    for name in variables:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAKEHOUSE_JARS", "jars")
    with pytest.raises(SettingsError, match="or above"):
        from_environment()
    assert from_environment(required=False).jars == Path("jars").resolve()


def test_dagster_shows_no_examples_either(folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "assets.definitions", raising=False)
    with pytest.raises(SettingsError, match="or above"):
        importlib.import_module("assets.definitions")
    own = LakehouseResource.of(Settings(root=folder, tables=("orders",))).settings
    assert (own.root, own.tables) == (folder, ("orders",)), "who names both needs no file"


def test_the_workspace_is_here_or_beside_the_file(folder):
    beside, here = folder / "workspace.yaml", Path("workspace.yaml")
    assert loaded(None) == loaded(folder / "lakehouse.toml") == ["-m", "assets.definitions"]
    beside.touch()
    assert loaded(folder / "lakehouse.toml") == ["-w", str(beside)]
    here.touch()
    assert loaded(folder / "lakehouse.toml") == loaded(None) == ["-w", "workspace.yaml"]


def test_this_repository_has_a_file_that_names_the_examples(monkeypatch, folder):
    monkeypatch.chdir(ROOT / "docs")
    settings = from_environment()
    assert settings == Settings(root=ROOT / ".lakehouse", local=settings.local, jars=settings.jars)


def test_a_level_above_info_leaves_the_line_out(folder, caplog):
    (folder / "lakehouse.toml").write_text('tables = ["orders"]\n')
    with caplog.at_level(logging.INFO, "lakehouse"):
        from_environment()
        from_environment()
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.INFO


def test_a_folder_that_was_removed_is_named_in_one_line(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = CliRunner().invoke(main.app(), ["table", "list"])
    assert done.exit_code == 2 and "the current folder has been removed" in done.stderr, done.output
