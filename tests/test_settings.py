import os
from pathlib import Path

import pytest

from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, from_environment, java


def test_an_empty_environment_gives_the_defaults_with_absolute_paths():
    settings = from_environment({})
    assert settings == Settings(root=Path(".lakehouse").resolve(), jars=settings.jars)
    assert settings.jars.is_absolute() and "~" not in str(settings.jars)


def test_each_field_is_read_from_its_variable(tmp_path):
    settings = from_environment(
        {
            "LAKEHOUSE_ROOT": str(tmp_path),
            "LAKEHOUSE_TABLES": "one.tables, two.tables,",
            "LAKEHOUSE_BOOTSTRAP_SERVERS": "kafka:9092",
            "LAKEHOUSE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "LAKEHOUSE_SPARK_CONF": "spark.a=1; spark.b=x=y",
            "LAKEHOUSE_SHUFFLE_PARTITIONS": "7",
            "LAKEHOUSE_FRESH_WITHIN": "5 seconds",
            "UNRELATED": "x",
        }
    )
    assert settings.root == tmp_path
    assert settings.tables == ("one.tables", "two.tables")
    assert settings.bootstrap_servers == "kafka:9092"
    assert settings.kafka == {"security.protocol": "SASL_SSL"}
    assert settings.spark_conf == {"spark.a": "1", "spark.b": "x=y"}
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
        ("REPAIR", "sensor_averages=much"),
    ],
)
def test_a_value_that_cannot_be_used_stops_at_the_start_and_names_the_field(name, value):
    with pytest.raises(SettingsError, match=name.lower()):
        from_environment({f"LAKEHOUSE_{name}": value})


@pytest.mark.parametrize(
    "root", [Path("s3a://bucket/lakehouse"), Path("abfss://c@a.dfs.core.windows.net")]
)
def test_an_address_is_no_root_from_python_either(root):
    with pytest.raises(
        SettingsError, match=r"root='.*': a folder, of this machine or mounted; object stores"
    ):
        Settings(root=root)
    assert Settings(root=Path("data/10:30/lakehouse")).root.name == "lakehouse"


def test_secrets_are_shown_neither_as_text_nor_in_errors():
    environment = {
        "LAKEHOUSE_KAFKA_SASL_PASSWORD": "s3cret",
        "LAKEHOUSE_KAFKA_SASL_USERNAME": "ann",
        "LAKEHOUSE_KAFKA_SASL_JAAS_CONFIG": "password=s3cret",
        "LAKEHOUSE_SPARK_CONF": "spark.hadoop.fs.s3a.secret.key=s3cret;spark.ui.port=4050",
        "LAKEHOUSE_NOTIFICATION_COMMAND": "notify --token s3cret",
        "LAKEHOUSE_NOTIFICATION_URLS": "https://example.org/s3cret slack://s3cret@T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    }
    settings = from_environment(environment)
    shown = settings.shown()
    assert "s3cret" not in repr(settings) + str(shown)
    assert shown["kafka.sasl.username"] == "ann"
    assert shown["kafka.sasl.password"] == "***"
    assert shown["spark_conf.spark.ui.port"] == "4050"
    with pytest.raises(SettingsError) as failure:
        from_environment({"LAKEHOUSE_SPARK_CONF": "spark.password=s3cret;oops"})
    assert "s3cret" not in str(failure.value)
    for hook in (
        {"LAKEHOUSE_NOTIFICATION_COMMAND": "notify 's3cret"},
        {"LAKEHOUSE_NOTIFICATION_URLS": "example.org/s3cret"},
        {"LAKEHOUSE_NOTIFICATION_URLS": "slak://s3cret"},
    ):
        with pytest.raises(SettingsError) as failure:
            from_environment(hook)
        assert "s3cret" not in str(failure.value)


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
