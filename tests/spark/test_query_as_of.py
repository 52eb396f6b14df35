"""Queries of tables as they were: at an instant, or at a version."""

import json
import shutil
from datetime import timedelta

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakehouse import ranges
from lakehouse.cli import main
from lakehouse.declare.catalog import load
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.layout import table_path

TABLES = ("lakehouse.examples.sensors.tables",)
ENGINES = pytest.mark.parametrize("engine", [[], ["--spark"]], ids=["without Spark", "in Spark"])


@pytest.fixture
def settings(filled, tmp_path) -> Settings:
    shutil.copytree(filled, tmp_path / "root")
    return Settings(root=tmp_path / "root", tables=TABLES)


def asked(settings: Settings, sql: str, as_of: str, *engine: str):
    environment = {"LAKEHOUSE_TABLES": TABLES[0], "LAKEHOUSE_ROOT": str(settings.root)}
    given = ["query", sql, "--json", "--as-of", as_of, *engine]
    return CliRunner().invoke(main.app(), given, env=environment)


def count(settings: Settings, table: str, as_of: str, *engine: str) -> int:
    result = asked(settings, f"SELECT count(*) AS n FROM {table}", as_of, *engine)
    assert result.exit_code == 0, f"{result.stderr}{result.exception}"
    return json.loads(result.stdout)["n"]


@ENGINES
def test_tables_are_read_as_they_were(settings, spark, engine):
    path = table_path(settings, load(settings).table("valid_readings"))
    versions = delta_log.versions(path)
    rows = {v: sum(file["num_records"] for file in delta_log.files(path, v)) for v in versions}
    assert len(set(rows.values())) > 1, "the table has grown"
    for version in (versions[0], versions[-1]):
        assert count(settings, "valid_readings", str(version), *engine) == rows[version]
    last = delta_log.written(path, versions[-1])
    before = ranges.text(last - timedelta(milliseconds=1))
    assert count(settings, "valid_readings", before, *engine) < rows[versions[-1]]
    assert count(settings, "valid_readings", ranges.text(last), *engine) == rows[versions[-1]]


def test_a_version_older_than_what_the_log_names_of_removed_files_is_read_in_spark(settings, spark):
    path = table_path(settings, load(settings).table("valid_readings"))
    at_once = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(str(path)).alter.set_table_properties(at_once)
    assert count(settings, "valid_readings", "1", "--spark") == count(
        settings, "valid_readings", "1"
    )


def test_what_cannot_be_read_as_it_was_is_refused_with_the_reason(settings, spark):
    refusals = {
        ("valid_readings", "2020-01-01"): "its log begins with version 0 of 20",
        ("valid_readings", "999999"): "its log has the versions 0 to ",
        ("valid_readings", "soon"): "an ISO 8601 instant",
        ("valid_readings JOIN sensor_readings USING (sensor_id)", "1"): "a version is of one table",
        ("valid_readings__late", "2030-01-01"): "leave --as-of out",
    }
    for (tables, as_of), rule in refusals.items():
        refused = asked(settings, f"SELECT count(*) AS n FROM {tables}", as_of)
        assert refused.exit_code == 2 and not refused.stdout, tables
        assert rule in refused.stderr, (rule, refused.stderr)


@ENGINES
def test_columns_have_one_name_each_and_fields_their_own(settings, spark, engine):
    sql = (
        "SELECT a.window.start, b.window.end, a.sensor_id, b.sensor_id, a.window.start AS begun, max(a.window.start) AS latest "
        "FROM sensor_averages a JOIN sensor_averages b ON a.sensor_id = b.sensor_id AND a.window = b.window "
        "GROUP BY a.window, b.window, a.sensor_id, b.sensor_id LIMIT 1"
    )
    result = asked(settings, sql, "2030-01-01", *engine)
    assert result.exit_code == 0, result.stderr
    names = ["start", "end", "sensor_id", "sensor_id_2", "begun", "latest"]
    assert list(json.loads(result.stdout)) == names
