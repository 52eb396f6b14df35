"""The jobs of Dagster that plan a change, fill the other version of a table, and exchange the two."""

import importlib
import sys
from datetime import UTC, datetime

import dagster as dg
import pytest

from assets import upgrades as jobs
from assets.resources import LakehouseResource
from lakehouse.testing import Stage
from support.taken_orders import SHOP


def ids(stage: Stage) -> list[int]:
    rows = stage.session.read(stage.session.catalog.table("taken"))
    return sorted({row["id"] for row in rows.select("id").collect()})  # the last in each partition


def in_order(resources: dict[str, LakehouseResource]) -> list[str] | str:
    """The tables that the schedule launches a run for now, or why it launches none."""
    declared = resources["lakehouse"].declared
    schedule = jobs.follow_versions(declared.settings, declared.catalog)
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    now = dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
    tick = schedule.evaluate_tick(now)
    if tick.skip_message:
        return tick.skip_message
    (request,) = tick.run_requests
    return request.run_config["ops"]["compare"]["config"]["tables"]


@pytest.mark.slow
@pytest.mark.parallel
def test_a_change_is_planned_filled_promoted_and_rolled_back(spark, tmp_path, monkeypatch):
    for version, least in (("before", "1"), ("after", "2")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "upgraded_shop.py").write_text(SHOP.replace("LEAST", least))

    def resources(version: str) -> dict[str, LakehouseResource]:
        monkeypatch.syspath_prepend(tmp_path / version)
        monkeypatch.delitem(sys.modules, "upgraded_shop", raising=False)
        return {"lakehouse": LakehouseResource.of(stage.session.settings, ("root", "tables"))}

    def run(job: dg.JobDefinition, op: str, **config: str) -> dg.ExecuteInProcessResult:
        wanted = {"ops": {op: {"config": {"table": "taken", **config}}}}
        return job.execute_in_process(wanted, resources=after)

    monkeypatch.syspath_prepend(tmp_path / "before")
    monkeypatch.delitem(sys.modules, "upgraded_shop", raising=False)
    stage = Stage(spark, tmp_path / "root", importlib.import_module("upgraded_shop"))
    hours = (f"2026-01-01T0{hour}:00:00Z" for hour in range(3))
    stage.feed("orders", [{"id": n, "at": at} for n, at in enumerate(hours, 1)])
    stage.advance("orders", {"id": 9, "at": "2026-01-01T09:00:00Z"})
    stage.run("taken")
    assert ids(stage) == [2, 3, 9]
    planned = jobs.plan_changes.execute_in_process(resources=resources("before"))
    assert planned.output_for_node("plan") == 0, "nothing was changed"

    after = resources("after")
    planned = jobs.plan_changes.execute_in_process(resources=after)
    assert planned.output_for_node("plan") == 1
    (records,) = [
        event.step_output_data.metadata["changed"].records
        for event in planned.all_node_events
        if event.is_successful_output
    ]
    commands = {
        each.data["table"]: each.data["command"] for each in records if each.data["command"]
    }
    assert commands == {"taken": "lakehouse table accept taken"}, records

    with pytest.raises(dg.Failure, match=r"rows differ in 2026-01-01-01"):
        run(
            jobs.fill_upgrade,
            "fill",
            differs_from="2026-01-01T02:00Z",
            differs_until="2026-01-01T03:00Z",
        )
    with pytest.raises(dg.Failure, match="rows differ in 2026-01-01-01"):
        jobs.compare_versions.execute_in_process(resources=after)
    declared = after["lakehouse"].declared
    (check,) = jobs.checks(declared.settings, declared.catalog)
    assert [key.to_user_string() for key in check.check_keys] == ["taken:versions_agree"]
    failed = check(lakehouse=after["lakehouse"])
    assert not failed.passed and "rows differ in 2026-01-01-01" in failed.description
    with pytest.raises(dg.Failure, match="rows differ in 2026-01-01-01"):
        run(jobs.exchange_versions, "exchange")
    assert ids(stage) == [2, 3, 9]
    assert run(jobs.fill_upgrade, "fill").output_for_node("fill") == 1
    stage.feed("orders", [{"id": n, "at": "2026-01-01T09:30:00Z"} for n in (1, 2, 8)])
    stage.advance("orders", {"id": 9, "at": "2026-01-01T11:00:00Z"})
    stage.run("taken")
    assert in_order(after) == ["taken"]
    compared = jobs.compare_versions.execute_in_process(resources=after)
    assert compared.output_for_node("compare") == 2, "another hour has closed meanwhile"
    (checked,) = compared.get_asset_check_evaluations()
    assert checked.passed and checked.check_name == jobs.VERSIONS_AGREE
    assert checked.metadata["differing"].value == 2 and checked.metadata["rows_before"].value == 6
    assert check(lakehouse=after["lakehouse"]).passed
    assert "was filled with" in in_order(resources("before"))
    after = resources("after")
    assert run(jobs.exchange_versions, "exchange").output_for_node("exchange") == "promoted"
    assert ids(stage) == [3, 8, 9]
    after = resources("before")
    taken_back = run(jobs.exchange_versions, "exchange", command="roll-back")
    assert taken_back.output_for_node("exchange") == "rolled back"
    assert ids(stage) == [2, 3, 8, 9]
