"""A folder, or a table of others, in the graph of tables: what is refused, and how it is shown everywhere."""

from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType

import pytest

from assets import streams, tables
from lakehouse import delta_table, files, folder, iceberg_table, ingest_table, kafka
from lakehouse.cli import doctor, table_status
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state
from lakehouse.stream import pauses
from support import starts
from support.lines import note_read

SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL"
INCOMING = folder("/data/incoming", schema=SCHEMA, quiet_timeout="1 minute")


def readings(incoming): ...


def united(incoming, others): ...


def catalog(function=readings, **sources):
    module = ModuleType(__name__)
    for name, source in sources.items():
        setattr(module, name, source)
    setattr(module, function.__name__, ingest_table(layer="bronze", event_time="at")(function))
    return catalog_of([module])


@pytest.mark.parametrize(
    "others",
    [
        kafka("others", schema=SCHEMA),
        folder("/data/others", schema=SCHEMA),
        delta_table("/data/others", schema=SCHEMA),
        iceberg_table("/data/others", schema=SCHEMA),
        files("/data/others.csv", schema=SCHEMA),
    ],
    ids=["a topic", "a folder", "a Delta table", "an Iceberg table", "files"],
)
def test_a_folder_is_read_alone(others):
    with pytest.raises(
        DeclarationError,
        match=r"reads topics.* or one folder, or one Delta or Iceberg table of others",
    ):
        catalog(united, incoming=INCOMING, others=others)


def test_it_fills_an_ingest_table_and_is_no_topic():
    found = catalog(incoming=INCOMING)
    ingest = found.table("readings")
    assert ingest.kind.reads_sources and found.ingest_tables_of(ingest) == [ingest]
    assert found.topics() == [] and found.quiet_timeout(ingest).total_seconds() == 60


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (folder("/data/elsewhere", schema=SCHEMA), "keeps the topics, the folder or the table that it began with"),
        (folder("/data/incoming", schema=SCHEMA, format="csv"), "would be read differently from where they come from"),
        (folder("/data/incoming", schema=f"{SCHEMA}, x INT"), "would be read differently"),
    ],
)  # fmt: skip
def test_another_folder_format_or_column_under_a_table_with_rows_is_refused(tmp_path, other, told):
    settings, found = Settings(root=tmp_path), catalog(incoming=INCOMING)
    starts.begin(Lakehouse(settings, found), found.table("readings"))
    note_read(settings, found.table("readings"), 1)
    changed = catalog(incoming=other)
    with pytest.raises(DeclarationError, match=told):
        declared_state.check(Lakehouse(settings, changed), [changed.table("readings")])
    same = catalog(incoming=replace(INCOMING, pattern="*.json", max_bytes=5))
    declared_state.check(Lakehouse(settings, same), [same.table("readings")])


def test_it_is_shown_in_dagster_in_the_list_of_tables_and_when_its_job_stops(tmp_path):
    shop = delta_table("/data/shop", schema=SCHEMA)
    orders = iceberg_table("shop.orders", catalog={"uri": "https://catalog"}, schema=SCHEMA)
    for source, kind, shown, kept in (
        (INCOMING, "json", "incoming (folder /data/incoming)", "files that come meanwhile"),
        (shop, "delta", "incoming (Delta table /data/shop)", "its versions are read"),
        (orders, "iceberg", "incoming (Iceberg table shop.orders)", "its snapshots are read"),
    ):
        found, settings = catalog(incoming=source), Settings(root=tmp_path)
        (job,) = streams.specs(settings, found)
        assert job.kinds == {"spark"} and [d.asset_key.path[-1] for d in job.deps] == ["incoming"]
        spec = tables._source(found.sources["incoming"])
        assert spec.kinds == {kind} and spec.metadata["path"] == source.address
        assert table_status._input(found, "incoming") == shown
        (line,) = pauses.remarks(
            Lakehouse(settings, found), found.pipelines()[0], datetime.now(UTC)
        )
        assert line.startswith(f"{source.address}: {kept}")


def test_the_doctor_names_a_folder_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("lakehouse.declare.catalog.load", lambda settings: found)
    found = catalog(incoming=INCOMING)
    told = doctor._tables(Settings(root=tmp_path), "tables")
    assert told.state == "note" and told.found.endswith("; /data/incoming cannot be read")
    found = catalog(incoming=folder(str(tmp_path), schema=SCHEMA))
    assert doctor._tables(Settings(root=tmp_path), "tables").state == "ok"


def test_changes_of_a_table_are_read_otherwise_than_its_rows(tmp_path):
    """A table that has begun with the one cannot go on with the other."""
    settings, found = Settings(root=tmp_path), catalog(incoming=delta_table("/shop", schema=SCHEMA))
    starts.begin(Lakehouse(settings, found), found.table("readings"))
    note_read(settings, found.table("readings"), 1)
    changed = catalog(incoming=delta_table("/shop", schema=SCHEMA, changes=True))
    with pytest.raises(DeclarationError, match="would be read differently"):
        declared_state.check(Lakehouse(settings, changed), [changed.table("readings")])
    spec = tables._source(changed.sources["incoming"])
    assert spec.description == "The Delta table `/shop` of others: what changes in it."


@pytest.mark.parametrize("declare", [folder, delta_table])
def test_an_option_of_topics_is_a_type_error_that_names_the_right_ones(declare):
    told = rf"{declare.__name__}\(\) has no option 'require_key'; beside its own it has unknown_fields, "
    with pytest.raises(TypeError, match=told):
        declare("/data/incoming", schema="n BIGINT", require_key=True)
