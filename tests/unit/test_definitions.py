"""What Dagster is given: assets, their graph, partitions, jobs and checks."""

from pathlib import Path

import dagster as dg
import pytest

from assets import definitions
from assets.streams import divided, job_key
from lakehouse.settings import Resources, Settings
from lakehouse.stream.rescaling import Rescaled


@pytest.fixture(scope="module")
def built() -> dg.Definitions:
    return definitions.build(Settings(root=Path("/nowhere")))


def test_definitions_are_loadable(built):
    dg.Definitions.validate_loadable(built)


def test_graph_is_as_it_was(built):
    graph = built.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    shape = {
        n.key.to_user_string(): (n.group_name, sorted(p.to_user_string() for p in n.parent_keys))
        for n in nodes
    }
    assert shape == {
        "sensor_topic": ("sources", []),
        "ad_topic": ("sources", []),
        "ad_campaigns": ("sources", []),
        "streaming_job/sensors": ("streaming_jobs", ["sensor_topic"]),
        "streaming_job/ads": ("streaming_jobs", ["ad_topic"]),
        "sensor_readings": ("bronze", ["streaming_job/sensors"]),
        "ad_events": ("bronze", ["streaming_job/ads"]),
        "campaigns": ("bronze", ["ad_campaigns"]),
        "valid_readings": ("silver", ["sensor_readings"]),
        "sensor_averages": ("gold", ["valid_readings"]),
        "sensor_trends": ("gold", ["valid_readings"]),
        "campaign_views": ("gold", ["ad_events", "campaigns"]),
    }


def test_a_target_is_a_node_behind_its_table():
    bank = Settings(root=Path("/nowhere"), tables=("examples.bank.tables",))
    definition = definitions.build(bank)
    dg.Definitions.validate_loadable(definition)
    assert (
        len(definition.resolve_job_def("compare_targets").asset_layer.asset_graph.asset_check_keys)
        == 2
    )
    graph = definition.resolve_asset_graph()
    for topic in ("transactions.debits", "transactions.credits"):
        node = graph.get(dg.AssetKey(["target", topic]))
        assert (node.group_name, node.kinds) == ("targets", {"kafka"})
        assert node.parent_keys == {dg.AssetKey("transfers")}


def test_records_and_sources_cannot_be_materialised(built):
    graph = built.resolve_asset_graph()
    materialisable = {k.to_user_string() for k in graph.materializable_asset_keys}
    assert materialisable == {
        "campaigns",
        "valid_readings",
        "sensor_averages",
        "sensor_trends",
        "campaign_views",
    }


def test_derived_tables_have_the_partitions_of_delta(built):
    node = built.resolve_asset_graph().get(dg.AssetKey("sensor_averages"))
    assert node.partitions_def.get_first_partition_key() == "2026-01-01-00"
    assert node.backfill_policy == dg.BackfillPolicy.single_run()
    assert node.description.startswith("Average, least and greatest temperature")
    assert node.owners == ["team:sensors"]
    assert node.kinds == {"delta", "spark"}
    assert {
        "layer": "gold",
        "pipeline": "sensors",
        "late": "side_output",
    }.items() <= node.tags.items()


def test_jobs_and_checks(built):
    jobs = {j.name for j in built.resolve_all_job_defs() if not j.name.startswith("__")}
    streams = {
        f"{does}_{pipeline}"
        for does in ("start", "stop", "restart", "rescale")
        for pipeline in ("sensors", "ads")
    }
    of_batch = {"reconcile", "repair", "update", "bootstrap", "replay", "maintain"}
    of_batch |= {"check_expectations"}
    of_versions = {"create_savepoint", "restore_savepoint"}
    of_versions |= {"plan_changes", "fill_upgrade", "compare_versions", "exchange_versions"}
    assert jobs == streams | of_batch | of_versions
    checks = {
        (k.asset_key.to_user_string(), k.name) for k in built.resolve_asset_graph().asset_check_keys
    }
    derived = ("valid_readings", "sensor_averages", "sensor_trends", "campaign_views")
    assert checks == {
        (t, c) for t in derived for c in ("stream_equals_batch", "expectations_hold")
    } | {("campaigns", "expectations_hold")}


def test_a_streaming_job_shows_what_its_process_is_given():
    given = Settings(resources={"ads": Resources(driver_memory="3g")})
    graph = definitions.build(given).resolve_asset_graph()
    shown = {
        name: graph.get(job_key(name)).metadata["driver_memory"] for name in ("ads", "sensors")
    }
    assert shown == {"ads": "3g", "sensors": given.driver_memory}


def test_a_rescale_fails_where_a_state_differs_from_the_original():
    same = Rescaled("totals", 2, 4, 10, "1f", "EQUAL")
    other = Rescaled("visits", 2, 4, 11, "2f", "DIFFERENT")
    assert divided([same], "running").metadata["divided"].records[0].data["now"] == 4
    with pytest.raises(
        dg.Failure, match=r"table=visits: .* so the job keeps the original; .* remove"
    ) as failed:
        divided([same, other], "running")
    assert len(failed.value.metadata["divided"].records) == 2
