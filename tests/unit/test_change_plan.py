"""What a start would change, table by table, and what each needs."""

import json
from datetime import UTC, datetime
from types import ModuleType

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from lakehouse import (
    expect,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    sql,
    tumbling,
    window_table,
)
from lakehouse.cli import change_plan, main
from lakehouse.declare.catalog import catalog_of
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import declared_state

AT = datetime(2026, 1, 1, tzinfo=UTC)
topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT")
EACH = {"events": 3, "rows": 2, "minutes": 1, "totals": 1}


def declared(**changed) -> ModuleType:
    """The tables of a pipeline, some of them with other arguments."""
    given = {
        "events": {"declare": ingest_table, "event_time": "at", "layer": "bronze"},
        "rows": {"declare": row_table, "layer": "silver", "query": "SELECT * FROM {events}"},
        "minutes": {
            "declare": window_table,
            "layer": "gold",
            "query": "SELECT window, count(*) AS n FROM {rows} GROUP BY window",
            "window": tumbling("1 minute"),
        },
        "totals": {
            "declare": keyed_table,
            "layer": "gold",
            "query": "SELECT id, count(*) AS n FROM {rows} GROUP BY id",
            "keys": ["id"],
        },
    }
    for name, more in changed.items():
        given[name] = given.get(name, {}) | more
    module = ModuleType(__name__)
    module.topic = topic

    def events(topic):
        return topic

    for name, options in given.items():
        declare, query = options.pop("declare"), options.pop("query", None)
        setattr(module, name, declare(**options)(sql(name, query) if query else events))
    return module


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A lakehouse whose streams have begun."""
    settings, catalog = Settings(root=tmp_path), catalog_of([declared()])
    for name, rows in EACH.items():
        of, path = catalog.table(name), table_path(settings, catalog.table(name))
        for _ in range(2):
            write_deltalake(str(path), pa.table({"value": list(range(rows))}), mode="append")
        declared_state.keep(Lakehouse(settings, catalog), of)
        CommitLog(settings, of).append(
            Commit(name, "stream", 1, 0, 1, AT, of.code_version, frontier=AT)
        )
    return settings


def found(settings: Settings, **changed) -> dict[str, change_plan.Planned]:
    catalog = catalog_of([declared(**changed)])
    return {
        each.table: each
        for each in change_plan.planned(
            Lakehouse(settings, catalog), list(catalog), undeclared=True
        )
    }


def test_nothing_is_to_be_done_where_nothing_changed(settings):
    assert {each.action for each in found(settings).values()} == {"nothing"}


@pytest.mark.parametrize(
    ("name", "changed", "action", "command"),
    [
        ("rows", {"expectations": [expect.column_values_to_not_be_null("id")]}, "in place", ""),
        ("minutes", {"late": "drop"}, "in place", ""),
        ("rows", {"query": "SELECT * FROM {events} WHERE value > 1"}, "accept", "lakehouse table accept rows"),
        ("events", {"delay": "5 seconds"}, "accept", "lakehouse table accept events"),
        ("events", {"watermark_by": "id"}, "accept", "lakehouse table accept events"),
        ("totals", {"query": "SELECT id, sum(value) AS n FROM {rows} GROUP BY id"}, "compute whole", "lakehouse backfill totals"),
        ("totals", {"ttl": "1 day"}, "compute whole", "lakehouse backfill totals"),
        ("totals", {"final_rows": True}, "compute whole", "lakehouse backfill totals"),
        ("minutes", {"window": tumbling("2 minutes")}, "upgrade", "lakehouse upgrade fill minutes"),
        ("rows", {"partition_by": "day"}, "upgrade", "lakehouse upgrade fill rows"),
        ("rows", {"layer": "gold"}, "another name", "lakehouse bootstrap NEW_NAME"),
        ("events", {"event_time": "ingestion_time"}, "another name", ""),
    ],
)  # fmt: skip
def test_each_change_has_its_way(settings, name, changed, action, command):
    planned = found(settings, **{name: changed})
    assert (planned[name].action, planned[name].command) == (action, command), planned[name]
    assert bool(planned[name].changes) == (action in change_plan.ASKING)


def test_it_says_what_is_read_and_what_is_behind(settings):
    planned = found(settings, rows={"partition_by": "day"})["rows"]
    assert (planned.rows, planned.downstream) == (2 * EACH["events"], ("minutes", "totals"))
    assert planned.bytes > 0


def test_what_is_new_begins_and_what_is_gone_is_named(settings):
    more = {"declare": row_table, "layer": "gold", "query": "SELECT * FROM {rows}"}
    assert found(settings, more=more)["more"].action == "begin"
    catalog = catalog_of([declared()])
    without = [each for each in catalog if each.name != "totals"]
    del catalog.tables["totals"]
    gone = change_plan.planned(Lakehouse(settings, catalog), without, undeclared=True)[-1]
    assert (gone.table, gone.action) == ("totals", "not declared")


def test_the_command_shows_it_and_says_by_its_exit_code_whether_a_start_is_accepted(tmp_path):
    sensors = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    shown = CliRunner().invoke(main.app(), ["plan", "--json"], env=to_environment(sensors))
    assert shown.exit_code == 0, shown.output
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {line["action"] for line in lines} == {"begin"} and len(lines) >= 3
    text = CliRunner().invoke(main.app(), ["plan", "sensors"], env=to_environment(sensors))
    assert text.exit_code == 0 and "valid_readings" in text.output
