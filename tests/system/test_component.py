"""A pipeline in YAML: the Component, what its settings reach, and the scaffolder that `dg` runs."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.package_entry import discover_package_objects
from typer.testing import CliRunner

from assets import component
from assets.component import Pipeline
from assets.location import build
from assets.resources import LakehouseResource
from lakehouse.cli import main
from lakehouse.errors import SettingsError
from lakehouse.settings import Repair, Settings, from_environment
from streaming_jobs.supervision import supervisor
from support import ROOT

TYPE = "assets.component.Pipeline"
SENSORS, ADS = "lakehouse.examples.sensors.tables", "lakehouse.examples.ads.tables"
EACH = {  # setting that may be given: a value that is not its default
    "root": "data",
    "module_path": ["modules"],
    "local": "host",
    "jars": "jars",
    "bootstrap_servers": "127.0.0.1:9",
    "spark_master": "local[3]",
    "batch_master": "local[4]",
    "driver_memory": "700m",
    "state_memory_mb": 64,
    "shuffle_partitions": 3,
    "scheduler_pools": "pools.xml",
    "fresh_within": "5 seconds",
    "freshness": {"both": "every 30 seconds"},
    "resources": {"both": {"driver_memory": "2g", "step_rows": 8}},
    "together": {"both": ["sensors", "ads"]},
    "max_offsets_per_trigger": 1_001,
    "max_files_per_trigger": 1_002,
    "step_rows": 1_003,
    "early_results": False,
    "start_within": "11 minutes",
    "heartbeat_within": "2 minutes",
    "batch_within": "12 minutes",
    "stream_lag": "31 seconds",
    "restarts": 6,
    "restarts_within": "2 hours",
    "healthy_after": "3 minutes",
    "query_restarts": 4,
    "stale_after": "32 minutes",
    "repair": {"sensor_averages": {"partitions": 24, "rows": 10_000}},
    "history": "2 days",
    "versions": 1_004,
    "log_level": "error",
    "log_format": "json",
    "since": "2026-02-03",
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A new project, in which this process is."""
    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)
    done = CliRunner().invoke(main.app(), ["init", str(tmp_path / "shop")])
    assert done.exit_code == 0, done.output
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.syspath_prepend(tmp_path / "shop")
    return tmp_path / "shop"


@pytest.fixture
def loaded(project) -> Callable[..., dg.Definitions]:
    """Writes a pipeline's YAML and loads the project as `dg` does."""

    def load(modules: list[str], **settings: object) -> dg.Definitions:
        place = project / "pipelines" / "defs" / "some"
        place.mkdir(exist_ok=True)
        attributes = {"tables": modules, "settings": settings}
        told = yaml.safe_dump({"type": TYPE, "attributes": attributes})
        (place / "defs.yaml").write_text(told)
        from pipelines.definitions import defs

        return defs()

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipelines"]:
        del sys.modules[name]


def shape(definitions: dg.Definitions) -> dict[str, object]:
    """What of definitions can be compared: names, groups, parents, times."""
    graph, repository = definitions.resolve_asset_graph(), definitions.get_repository_def()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    return {
        "assets": {
            n.key: (n.group_name, n.tags, n.kinds, n.parent_keys, n.partitions_def) for n in nodes
        },
        "checks": set(graph.asset_check_keys),
        "jobs": set(repository.job_names),
        "schedules": {each.name: each.cron_schedule for each in repository.schedule_defs},
        "sensors": {each.name for each in repository.sensor_defs},
        "resources": set(definitions.resources),
    }


def told_to_a_run(definitions: dg.Definitions) -> Settings:
    """The settings that an op of a real run is given by the resource."""
    told = []

    @dg.op
    def listen(lakehouse: LakehouseResource) -> None:
        told.append(lakehouse.settings)

    @dg.job
    def listening() -> None:
        listen()

    assert listening.execute_in_process(resources=definitions.resources).success
    return told[0]


def test_it_has_what_build_gives_for_the_same_settings(loaded, project):
    every_ten = {"sensors": "scheduled */10 * * * *"}
    found = loaded([SENSORS], root="data", freshness=every_ten, since="2026-02-03")
    here = from_environment()
    assert here.root == project / ".lakehouse" and here.tables == ("orders",)
    expected = build(
        replace(
            here,
            root=project / "data",
            tables=(SENSORS,),
            freshness=every_ten,
            since="2026-02-03",
        )
    )
    assert shape(found) == shape(expected)
    assert "run_sensors" in shape(found)["schedules"]
    wanted = {spec.key: spec.metadata for spec in expected.resolve_all_asset_specs()}
    for spec in found.resolve_all_asset_specs():  # Dagster adds where the YAML is
        assert wanted[spec.key].items() <= spec.metadata.items()


def test_each_setting_of_the_yaml_reaches_a_run_whatever_its_environment_says(
    loaded, project, monkeypatch
):
    assert EACH.keys() == {f.name for f in fields(Settings)} - component._ELSEWHERE.keys()
    (project / "pools.xml").write_text("<allocations/>")
    definitions = loaded([SENSORS, ADS], **EACH)
    environment = {"root": "another", "tables": "another", "fresh_within": "9 seconds"}
    for name, value in environment.items() | {("kafka_sasl_password", "of the run")}:
        monkeypatch.setenv(f"LAKEHOUSE_{name.upper()}", value)
    told = told_to_a_run(definitions)
    default = Settings()
    assert not [name for name in EACH if getattr(told, name) == getattr(default, name)]
    assert told.tables == (SENSORS, ADS)
    assert (told.root, told.jars) == (project / "data", project / "jars")
    assert told.module_path == (project / "modules",)
    assert told.freshness_of("both").interval.total_seconds() == 30
    own = told.for_pipeline("both")
    assert (own.driver_memory, own.step_rows) == ("2g", 8)
    assert told.members("both") == ("sensors", "ads")
    assert told.repair == {"sensor_averages": Repair(24, 10_000)}
    assert (told.fresh_within, told.step_rows) == ("5 seconds", 1_003)
    assert (told.early_results, told.since) == (False, "2026-02-03")
    assert told.kafka == {"sasl.password": "of the run"}


def test_what_the_yaml_does_not_name_is_as_the_environment_of_the_run_says(loaded, monkeypatch):
    definitions = loaded([SENSORS], step_rows=7)
    monkeypatch.setenv("LAKEHOUSE_FRESH_WITHIN", "9 seconds")
    told = told_to_a_run(definitions)
    assert (told.step_rows, told.fresh_within, told.tables) == (7, "9 seconds", (SENSORS,))


def test_a_streaming_job_that_dagster_starts_has_the_settings(loaded, project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LAKEHOUSE_FRESHNESS__SENSORS", "every 99 seconds")
    own = {"root": "data", "freshness": {"sensors": "every 30 seconds"}}
    job = loaded([SENSORS], **own).get_job_def("start_sensors")
    run = job.execute_in_process(raise_on_error=False)
    assert "none is running" in str(
        run.failure_data_for_node("start_sensors_job").error
    )  # no broker
    status = supervisor.status(replace(from_environment(), root=project / "data"), "sensors")
    assert (status.state, status.freshness) == ("failed", "every 30 seconds")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rot": "data"}, "settings, rot: there is no setting of that name; did you mean root?"),
        (
            {"root": {"x": 1}},
            "settings, root={'x': 1}: the setting has another form; write `root: value`",
        ),
        ({"freshness": "soon"}, "write `freshness:` and below it a line `name: value` for each"),
        ({"freshness": {"sensors": "soon"}}, "freshness of sensors"),
        ({"step_rows": 1.5}, "settings, step_rows=1.5: a text, a whole number, true or false"),
        ({"step_rows": -1}, "step_rows=-1: at least 0"),
        ({"fresh_within": "0 seconds"}, "fresh_within='0 seconds': longer than zero"),
        ({"root": "s3a://bucket"}, "root='s3a://bucket': a folder"),
        ({"tables": ["x"]}, "settings, tables: it is an attribute of its own"),
        ({"metrics_port": 1}, "settings, metrics_port: it is for `lakehouse metrics`"),
        ({"kafka": {"sasl.password": "hidden"}}, "settings, kafka: it may hold secrets"),
        ({"notification_urls": ["hidden"]}, "settings, notification_urls: it may hold secrets"),
    ],
)
def test_a_wrong_setting_is_refused_in_the_words_of_the_library(loaded, settings, said):
    with pytest.raises(ComponentTreeException, match="some") as refused:
        loaded([SENSORS], **settings)
    assert isinstance(refused.value.__cause__, SettingsError)
    assert said in str(refused.value.__cause__)
    assert "hidden" not in str(refused.value.__cause__)


def test_no_module_is_refused_in_the_words_of_the_library(loaded):
    with pytest.raises(ComponentTreeException) as refused:
        loaded([])
    assert "tables=(): at least one module of tables" in str(refused.value.__cause__)


def test_the_module_that_dg_loads_everywhere_has_the_component_alone_and_needs_no_settings():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    modules = list(declared["dagster_dg_cli.registry_modules"].values())
    found = discover_package_objects(modules)
    assert {key.to_typename(): each for key, each in found.items()} == {TYPE: Pipeline}
    code = "import sys, assets.component; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LAKEHOUSE_ROOT": "s3a://refused"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(run.stdout.split()) & {"assets.definitions", "assets.location", "pyspark"}


@pytest.mark.slow
@pytest.mark.parallel
def test_dg_scaffolds_a_pipeline_and_loads_it(project, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "assets" / "dagster.yaml").read_text())
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "DAGSTER_DG_UPDATE_CHECK_ENABLED": "0",
        "PYTHONPATH": str(ROOT),
    }

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
        program = Path(sys.executable).with_name("dg")
        done = subprocess.run(
            [str(program), *arguments], cwd=project, env=environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    run("scaffold", "defs", TYPE, "orders")
    written = project / "pipelines" / "defs" / "orders" / "defs.yaml"
    assert yaml.safe_load(written.read_text()) == {
        "type": TYPE,
        "attributes": {"tables": ["orders"]},
    }
    second = run("scaffold", "defs", TYPE, "ads", "--tables", ADS, code=1)
    assert f"a project has one Pipeline; name your module in `tables` of {written}" in second.stderr
    assert (
        "Traceback" not in second.stderr and not (project / "pipelines" / "defs" / "ads").exists()
    )
    written.unlink()
    written.parent.rmdir()
    run("scaffold", "defs", TYPE, "both", "--tables", "orders", "--tables", ADS)
    with (project / "pipelines" / "defs" / "both" / "defs.yaml").open("a") as file:
        file.write("  settings:\n    root: data\n    freshness:\n      ads: scheduled 5 * * * *\n")
    (project / "pipelines" / "defs" / "report.py").write_text(
        "import dagster as dg\n\n\n@dg.asset(deps=['turnover'])\ndef report() -> None: ...\n"
    )
    run("check", "defs")
    listed = json.loads(run("list", "defs", "--json").stdout)
    keys = {asset["asset_key"] for asset in listed["assets"]}
    assert {"turnover", "campaign_views", "report", "streaming_job/orders"} <= keys
    assert "sensor_averages" not in keys
    assert "run_ads" in {job["name"] for job in listed["jobs"]}
