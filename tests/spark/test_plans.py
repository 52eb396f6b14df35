"""The plans of a catalog are made once, and the columns of each table are found once, after those of its inputs."""

from dataclasses import replace
from types import ModuleType

from lakehouse import ingest_table, kafka, row_table
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.expectations import expect
from lakehouse.settings import Settings
from lakehouse.storage.session import Session
from lakehouse.transform.plan import plan_of, plans_of, without_expectations

event_topic = kafka("events", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")
CALLS: list[str] = []


@ingest_table(layer="bronze", event_time="at")
def events(event_topic):
    CALLS.append("events")
    return event_topic


@row_table(layer="silver", expectations=[expect.column_values_to_not_be_null("id")])
def known(events):
    CALLS.append("known")
    return events


def test_a_table_is_planned_once_after_its_inputs(spark, tmp_path):
    module = ModuleType(__name__)
    vars(module).update(event_topic=event_topic, events=events, known=known)
    catalog = catalog_of([module])
    session = Session(Settings(root=tmp_path), catalog, spark)
    table = catalog.table("known")
    CALLS.clear()
    step = plan_of(session, table)
    assert not CALLS and list(plans_of(spark, catalog)) == ["events", "known"]
    assert step.schema.names == ["id", "at", "_arrival", "_origin", "_partition"]
    assert [rule.expectation for rule in step.rules] == list(table.expectations)
    assert CALLS == ["events", "known"]
    elsewhere = replace(session, settings=Settings(root=tmp_path / "beside"))
    assert plan_of(elsewhere, table) is step and plan_of(elsewhere, table).schema is step.schema
    assert step.inputs["events"] is plan_of(session, catalog.table("events"))
    assert CALLS == ["events", "known"], "the columns are not found again"
    assert not without_expectations(step).rules and step.rules
    another = plan_of(Session(session.settings, catalog_of([module]), spark), table)
    assert another is not step, "another catalog has plans of its own"
