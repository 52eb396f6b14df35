"""The module of docs/how-to/from-dagster.md: assets that were there before, merged with the tables of a pipeline."""

import re
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from support import ROOT

PAGES = ROOT / "docs" / "how-to"
PAGE = (PAGES / "from-dagster.md").read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> Iterator[dict[str, Any]]:
    """What the page's module defines, beside the pipeline that docs/how-to/from-spark.md declares."""
    folder = tmp_path_factory.mktemp("project")
    _, declared = blocks((PAGES / "from-spark.md").read_text())
    (folder / "orders_beside.py").write_text(declared)
    [module] = blocks(PAGE)
    defined: dict[str, Any] = {"__name__": "my_company.definitions"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("LAKEHOUSE_TABLES", "orders_beside")
        patch.setenv("LAKEHOUSE_ROOT", str(folder / "root"))
        exec(module, defined)
        yield defined


def test_assets_and_tables_are_one_graph(names):
    merged = names["definitions"]
    dg.Definitions.validate_loadable(merged)
    graph = merged.resolve_asset_graph()
    assert graph.get(dg.AssetKey("turnover")).group_name == "gold"
    parents = {
        key.to_user_string() for key in graph.get(dg.AssetKey("turnover_in_euros")).parent_keys
    }
    assert parents == {"turnover", "exchange_rates"}


def test_the_page_has_the_names_that_come_along(names):
    merged = names["definitions"]
    repository = merged.get_repository_def()
    found = {each.name for each in (*repository.schedule_defs, *repository.sensor_defs)}
    found |= {key.name for key in merged.resolve_asset_graph().asset_check_keys}
    assert "closed_partitions" in found and set(merged.resources) == {"lakehouse"}
    assert not [name for name in sorted(found) if f"`{name}`" not in PAGE]
    assert merged.executor is dg.in_process_executor


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ({"executor": dg.multiprocess_executor}, "both have an executor"),
        ({"resources": {"lakehouse": 1}}, "different resources with same key 'lakehouse'"),
        ({"jobs": [dg.define_asset_job("reconcile")]}, "'reconcile'"),
        ({"assets": [dg.AssetSpec("turnover")]}, "turnover"),
    ],
)
def test_what_the_page_says_collides_is_refused(names, also, said):
    with pytest.raises(dg.DagsterError, match=re.escape(said)):
        merged = dg.Definitions.merge(names["definitions"], dg.Definitions(**also))
        merged.get_repository_def()


def test_a_condition_of_an_asset_brings_no_further_sensor(names):
    mine = dg.AssetSpec("mine", automation_condition=dg.AutomationCondition.eager())
    merged = dg.Definitions.merge(names["definitions"], dg.Definitions(assets=[mine]))
    sensors = {each.name for each in merged.get_repository_def().sensor_defs}
    assert sensors == {each.name for each in names["definitions"].get_repository_def().sensor_defs}
