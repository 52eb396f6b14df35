import os
import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest

from lakehouse.errors import SettingsError
from lakehouse.settings import (
    Repair,
    Resources,
    Settings,
    from_environment,
    java,
    to_environment,
)
from support import ROOT

DOCS = ROOT / "docs"


def test_an_empty_environment_gives_the_defaults_with_absolute_paths():
    settings = from_environment({})
    paths = {"local": settings.local, "jars": settings.jars}
    assert settings == Settings(root=Path(".lakehouse").resolve(), **paths)
    assert all(path.is_absolute() and "~" not in str(path) for path in paths.values())
    assert from_environment(to_environment(Settings())) == settings, "in another process, too"


def test_each_field_is_read_from_its_variable(tmp_path):
    settings = from_environment(
        {
            "LAKEHOUSE_ROOT": str(tmp_path),
            "LAKEHOUSE_TABLES": "one.tables, two.tables,",
            "LAKEHOUSE_BOOTSTRAP_SERVERS": "kafka:9092",
            "LAKEHOUSE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "LAKEHOUSE_SPARK_CONF": '{"spark.a": 1, "spark.b": "x=y;z"}',
            "LAKEHOUSE_SHUFFLE_PARTITIONS": "7",
            "LAKEHOUSE_FRESH_WITHIN": "5 seconds",
            "UNRELATED": "x",
        }
    )
    assert settings.root == tmp_path
    assert settings.tables == ("one.tables", "two.tables")
    assert settings.bootstrap_servers == "kafka:9092"
    assert settings.kafka == {"security.protocol": "SASL_SSL"}
    assert settings.spark_conf == {"spark.a": "1", "spark.b": "x=y;z"}
    assert (settings.shuffle_partitions, settings.fresh_within) == (7, "5 seconds")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHUFFLE_PARTITIONS", "many"),
        ("SHUFFLE_PARTITIONS", "0"),
        ("MAX_OFFSETS_PER_TRIGGER", "-1"),
        ("MAX_FILES_PER_TRIGGER", "0"),
        ("STATE_MEMORY_MB", "1"),
        ("EARLY_RESULTS", "often"),
        ("SCHEDULER_POOLS", "nowhere/pools.xml"),
        ("METRICS_PORT", "http"),
        ("METRICS_PORT", "65536"),
        ("SPARK_CONF", "spark.a"),
        ("TABLES", " , "),
        ("ROOT", ""),
        ("JARS", " "),
        ("ROOT", "s3a://bucket/lakehouse"),
        ("ROOT", "file:///srv/lakehouse"),
        ("ROOT", "s3://"),
        ("LOCAL", "s3://bucket"),
        ("JARS", "gs://bucket"),
        ("FRESH_WITHIN", "often"),
        ("BATCH_WITHIN", "10"),
        ("HEARTBEAT_WITHIN", "0 seconds"),
        ("RESTARTS", "0"),
        ("STALE_AFTER", "1 minute"),
        ("NOTIFICATION_COMMAND", "notify 'someone"),
        ("NOTIFICATION_COMMAND", " "),
        ("NOTIFICATION_URLS", "https://example.org file:///etc/hosts"),
        ("HISTORY", "30 minutes"),
        ("HISTORY", "some days"),
        ("VERSIONS", "all"),
        ("VERSIONS", "0"),
        ("SPARK_CONF", "[1]"),
        ("ROOT__HERE", "x"),
        ("REPAIR", "sensor_averages=much"),
        ("REPAIR__SENSOR_AVERAGES", "partitions 24, rows 10000"),
        ("REPAIR__SENSOR_AVERAGES__PARTITIONS", "much"),
        ("REPAIR__SENSOR_AVERAGES__ROWS", "-1"),
        ("FRESHNESS", "sensors=continuous"),
        ("RESOURCES__ADS", "driver_memory 2g"),
        ("TOGETHER", "all=sensors, ads"),
        ("KAFKA", "sasl.username=ann"),
    ],
)
def test_a_value_that_cannot_be_used_stops_at_the_start_and_names_the_field(name, value):
    setting, *_ = name.lower().split("__")
    with pytest.raises(SettingsError, match=setting):
        from_environment({f"LAKEHOUSE_{name}": value})


def test_what_a_pipeline_or_a_table_has_of_its_own_is_a_variable_each(tmp_path):
    pools = tmp_path / "pools.xml"
    pools.touch()
    settings = from_environment(
        {
            "LAKEHOUSE_FRESHNESS__ORDERS": "every 30 seconds",
            "LAKEHOUSE_FRESHNESS__MyOrders": "every 40 seconds",
            "LAKEHOUSE_RESOURCES__ORDERS__DRIVER_MEMORY": "2g",
            "LAKEHOUSE_RESOURCES__ORDERS__STEP_ROWS": "7",
            "LAKEHOUSE_RESOURCES__my__orders__SCHEDULER_POOLS": str(pools),
            "LAKEHOUSE_TOGETHER__ALL": "orders, returns",
            "LAKEHOUSE_REPAIR__TURNOVER__PARTITIONS": "24",
            "LAKEHOUSE_SPARK_CONF": "",
        }
    )
    assert settings.freshness == {"orders": "every 30 seconds", "MyOrders": "every 40 seconds"}
    assert settings.resources == {
        "orders": Resources(driver_memory="2g", step_rows=7),
        "my__orders": Resources(scheduler_pools=str(pools)),
    }
    assert settings.together == {"all": ("orders", "returns")}
    assert settings.repair == {"turnover": Repair(partitions=24, rows=0)}
    assert from_environment(to_environment(settings)) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"STEP_ROW": "s3cret"},
            r"LAKEHOUSE_STEP_ROW: .* no setting of that name; did you mean LAKEHOUSE_STEP_ROWS\?",
        ),
        ({"NOTIFICATION_URL": "s3cret"}, r"did you mean LAKEHOUSE_NOTIFICATION_URLS\?"),
        (
            {"FRESHNES__My_Orders": "s3cret"},
            r"LAKEHOUSE_FRESHNES__My_Orders: .* mean LAKEHOUSE_FRESHNESS__My_Orders\?",
        ),
        (
            {"REPAIR__A__B__ROW": "s3cret"},
            r"LAKEHOUSE_REPAIR__A__B__ROW: .*; did you mean LAKEHOUSE_REPAIR__A__B__ROWS\?",
        ),
        (
            {"FRESHNESS": "orders=continuous", "FRESHNESS__ADS": "continuous"},
            "write LAKEHOUSE_FRESHNESS__<NAME>=value, a variable",
        ),
        (
            {"RESOURCES__ADS": "memory", "RESOURCES__ADS__DRIVER_MEMORY": "2g"},
            "resources.ads='memory'.*write LAKEHOUSE_RESOURCES__ADS__<NAME>=value",
        ),
        ({"REPAIR": "a=rows 1"}, "write LAKEHOUSE_REPAIR__<TABLE>__ROWS=value"),
        ({"KAFKA": "s3cret"}, "kafka: .*write LAKEHOUSE_KAFKA_<PROPERTY>=value"),
        ({"SPARK_CONF": '{"a": "s3cret'}, "spark_conf: .* as JSON"),
        ({"SPARK_CONF__SPARK_UI_PORT": "4040"}, "spark_conf: .* as JSON"),
        ({"SETTINGS": '{"root": "s3cret"'}, "LAKEHOUSE_SETTINGS: .*; remove it"),
        ({"SETTINGS": '{"rot": "s3cret"}'}, "LAKEHOUSE_SETTINGS: .*; remove it"),
        ({"SPARK_CONF": '{"spark.password": ["s3cret"]}'}, "spark_conf.spark.password: a text"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_without_its_value(given, said):
    with pytest.raises(SettingsError, match=said) as failure:
        from_environment({f"LAKEHOUSE_{name}": value for name, value in given.items()})
    assert "s3cret" not in str(failure.value)


@pytest.mark.parametrize(
    "root", [Path("s3a://bucket/lakehouse"), Path("abfss://c@a.dfs.core.windows.net")]
)
def test_an_address_is_no_root_from_python_either(root):
    with pytest.raises(
        SettingsError, match=r"root='.*': a folder, of this machine or mounted, or in S3"
    ):
        Settings(root=root)
    assert Settings(root=Path("data/10:30/lakehouse")).root.name == "lakehouse"


def test_secrets_are_shown_neither_as_text_nor_in_errors():
    environment = {
        "LAKEHOUSE_KAFKA_SASL_PASSWORD": "s3cret",
        "LAKEHOUSE_KAFKA_SASL_USERNAME": "ann",
        "LAKEHOUSE_KAFKA_SASL_JAAS_CONFIG": "password=s3cret",
        "LAKEHOUSE_SPARK_CONF": '{"spark.hadoop.fs.s3a.secret.key": "s3cret", "spark.ui.port": 4050}',
        "LAKEHOUSE_NOTIFICATION_COMMAND": "notify --token s3cret",
        "LAKEHOUSE_NOTIFICATION_URLS": "https://example.org/s3cret slack://s3cret@T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    }
    settings = from_environment(environment)
    assert "s3cret" not in f"{settings!r} {settings} {settings.for_pipeline('sensors')}"
    assert settings.kafka["sasl.password"] == "s3cret"
    assert settings.spark_conf["spark.ui.port"] == "4050"
    with pytest.raises(SettingsError) as failure:
        from_environment({"LAKEHOUSE_SPARK_CONF": "spark.password=s3cret"})
    assert "s3cret" not in str(failure.value)
    for hook in (
        {"LAKEHOUSE_NOTIFICATION_COMMAND": "notify 's3cret"},
        {"LAKEHOUSE_NOTIFICATION_URLS": "example.org/s3cret"},
        {"LAKEHOUSE_NOTIFICATION_URLS": "slak://s3cret"},
    ):
        with pytest.raises(SettingsError) as failure:
            from_environment(hook)
        assert "s3cret" not in str(failure.value)


def test_the_page_of_settings_has_each_of_them_and_other_pages_name_no_other():
    text = (DOCS / "reference" / "settings.md").read_text()
    pages = [page.read_text() for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]]
    rows = re.findall(r"^\| `LAKEHOUSE_([A-Z]\w*?)_*[<`]", text, re.MULTILINE)
    of_each = {re.split("__", row)[0].lower() for row in rows}
    assert of_each == {f.name for f in fields(Settings)}
    named = {name for page in pages for name in re.findall(r"\bLAKEHOUSE_([A-Z]+\w*)", page)}
    settings = {
        re.sub(r"^(kafka|registry)_.*", r"\1", name.split("__")[0].lower()) for name in named
    }
    assert settings - {"config", "settings"} <= of_each | {"kafka_", "registry_"}


def test_the_variables_of_the_page_of_settings_are_those_of_its_file(tmp_path):
    text = (DOCS / "reference" / "settings.md").read_text()
    variables = dict(re.findall(r'^export (LAKEHOUSE_\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    (tmp_path / "lakehouse.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    of_file = from_environment({"LAKEHOUSE_CONFIG": str(tmp_path / "lakehouse.toml")})
    of_variables = from_environment(variables)
    for name in ("freshness", "resources", "together", "repair"):
        assert getattr(of_file, name) == getattr(of_variables, name) != {}


def test_java_is_taken_from_java_home_then_from_the_path(tmp_path):
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").touch(mode=0o755)
    path = {"PATH": os.pathsep.join([str(tmp_path), str(tmp_path / "path")])}
    assert java(path) == str(tmp_path / "path" / "java")
    assert java(path | {"JAVA_HOME": str(tmp_path / "home")}) == str(
        tmp_path / "home" / "bin" / "java"
    )


@pytest.mark.parametrize("environment", [{"PATH": ""}, {"PATH": "", "JAVA_HOME": "/nowhere"}])
def test_a_missing_java_is_said_in_one_line(environment):
    with pytest.raises(SettingsError, match="Java 17") as failure:
        java(environment)
    assert "\n" not in str(failure.value)
