"""The settings file: each kind of setting, what it cannot say, and what another process takes from it."""

import re

import pytest

from lakehouse.errors import SettingsError
from lakehouse.settings import Repair, Resources, from_environment, to_environment
from support import ROOT

TOML = """
root = "data"
tables = ["orders", "returns"]
module_path = ["."]
fresh_within = "5 seconds"
early_results = false
step_rows = 7
notification_urls = ["https://example.org/a,b", "json://example.org/c"]

[kafka]
"security.protocol" = "SASL_SSL"
"sasl.username" = "of the file"

[spark_conf]
"spark.ui.title" = "a; b = c"

[freshness]
orders = "every 30 seconds"

[resources.orders]
driver_memory = "2g"
state_memory_mb = 64

[together]
all = ["orders", "returns"]

[repair.turnover]
partitions = 24
rows = 10_000
"""


def test_a_file_has_each_kind_of_setting_and_the_environment_overrides_it(tmp_path):
    (tmp_path / "lakehouse.toml").write_text(TOML)
    given = {
        "LAKEHOUSE_STEP_ROWS": "8",
        "LAKEHOUSE_KAFKA_SASL_USERNAME": "u",
        "LAKEHOUSE_RESOURCES__ORDERS__STEP_ROWS": "9",
        "LAKEHOUSE_FRESHNESS__RETURNS": "continuous",
    }
    settings = from_environment(given | {"LAKEHOUSE_CONFIG": str(tmp_path / "lakehouse.toml")})
    assert (settings.root, settings.module_path, settings.tables) == (
        tmp_path / "data",
        (tmp_path,),
        ("orders", "returns"),
    )
    assert (settings.fresh_within, settings.early_results, settings.step_rows) == (
        "5 seconds",
        False,
        8,
    )
    assert settings.notification_urls == ("https://example.org/a,b", "json://example.org/c")
    assert settings.kafka == {"security.protocol": "SASL_SSL", "sasl.username": "u"}
    assert settings.spark_conf == {"spark.ui.title": "a; b = c"}
    assert settings.resources == {
        "orders": Resources(driver_memory="2g", state_memory_mb=64, step_rows=9)
    }
    assert settings.freshness == {"orders": "every 30 seconds", "returns": "continuous"}
    assert settings.freshness_of("orders").interval.total_seconds() == 30
    assert (
        settings.for_pipeline("orders").driver_memory,
        settings.for_pipeline("orders").state_memory_mb,
    ) == ("2g", 64)
    assert settings.members("all") == ("orders", "returns") and settings.repair == {
        "turnover": Repair(24, 10_000)
    }


def test_another_process_comes_to_the_same_settings(tmp_path):
    (tmp_path / "lakehouse.toml").write_text(TOML)
    settings = from_environment({"LAKEHOUSE_CONFIG": str(tmp_path / "lakehouse.toml")})
    assert from_environment(to_environment(settings)) == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('rot = "data"', "rot: there is no setting of that name; did you mean root?"),
        ("root = ", "the settings file must be TOML"),
        ('kafka = "x"', r"kafka: the setting has another form; write \[kafka\]"),
        ("[resources.orders]\nmemory = 1", "resources.orders.memory: there is no setting of that"),
        ("[repair]\norders = 24", r"repair.orders=24: the .* form; write \[repair.orders\]"),
        ("[root]\nx = 1", "root={'x': 1}: the setting has another form; write root = value"),
        ("step_rows = 1.5", "step_rows=1.5: a text, a whole number, true or false"),
        ("step_rows = -1", "step_rows=-1: at least 0"),
        ('root = "s3a://bucket"', "root='s3a://bucket': a folder"),
    ],
)
def test_what_a_file_cannot_say_is_refused_with_its_name(tmp_path, text, said):
    path = tmp_path / "lakehouse.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        from_environment({"LAKEHOUSE_CONFIG": str(path)})
    with pytest.raises(SettingsError, match="cannot be read"):
        from_environment({"LAKEHOUSE_CONFIG": str(tmp_path / "another.toml")})


def test_the_settings_of_the_page_about_production_can_be_read(tmp_path):
    page = (ROOT / "docs" / "operate" / "production.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "lakehouse.toml").write_text(text)
    settings = from_environment({"LAKEHOUSE_CONFIG": str(tmp_path / "lakehouse.toml")})
    assert settings.for_pipeline("orders").driver_memory == "2g"
