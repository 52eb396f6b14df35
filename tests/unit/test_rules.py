"""Rules that declarations alone decide: a table in a variable of another name, policies for late rows that cancel each other."""

from datetime import timedelta
from types import ModuleType

import pytest

from lakehouse import (
    around,
    duplicates,
    files,
    ingest_table,
    kafka,
    lookup,
    reference_table,
    row_table,
    sql,
    tumbling,
    window_table,
)
from lakehouse.declare import rules
from lakehouse.declare.catalog import Catalog, catalog_of
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.maintenance import erasure
from lakehouse.ranges import EPOCH, Range
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.transform import ranges_of

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def things(topic):
    return topic


def module_of(**names) -> ModuleType:
    module = ModuleType("my_tables")
    vars(module).update({"topic": topic, "things": things} | names)
    for value in vars(module).values():
        if hasattr(value, "transformation"):
            value.transformation.__module__ = "my_tables"
    return module


def counted(name: str, **declared):
    query = "SELECT window, count(*) AS n FROM {things} GROUP BY window"
    return window_table(layer="gold", window=tumbling("1 minute"), **declared)(sql(name, query))


# ---- names


@pytest.mark.parametrize("variable", ["per_minute", "_hidden"])
def test_a_table_in_a_variable_of_another_name_is_refused_and_not_left_out(variable):
    told = f"table='things_per_minute', variable='{variable}' of my_tables: .* write things_per_minute = ..., or rename"
    with pytest.raises(DeclarationError, match=told):
        catalog_of([module_of(**{variable: counted("things_per_minute")})])


def test_a_module_whose_only_table_is_named_otherwise_is_told_that():
    only = ModuleType("only_tables")
    only.topic, only.other = topic, counted("things_per_minute")
    with pytest.raises(DeclarationError, match="write things_per_minute = "):
        catalog_of([only])


def test_a_second_name_for_a_table_that_is_found_is_no_fault():
    one = counted("things_per_minute")
    assert "things_per_minute" in catalog_of([module_of(things_per_minute=one, short=one)]).tables


def test_another_table_of_the_same_name_in_another_variable_is_refused():
    with pytest.raises(DeclarationError, match="variable='other' of my_tables"):
        catalog_of(
            [
                module_of(
                    things_per_minute=counted("things_per_minute"),
                    other=counted("things_per_minute", late="drop"),
                )
            ]
        )


# ---- policies


def chain(silver_late: str, gold_late: str, **silver) -> Catalog:
    @row_table(layer="silver", late=silver_late, **silver)
    def valid(things):
        return things

    @row_table(layer="silver", late="update")
    def copied(valid):
        return valid

    @window_table(layer="gold", window=tumbling("1 minute"), late=gold_late)
    def per_minute(copied):
        return copied.groupBy("window").count()

    return catalog_of([module_of(valid=valid, copied=copied, per_minute=per_minute)])


def told(catalog: Catalog) -> list[str]:
    return rules.warnings(catalog, list(catalog))


def test_an_update_behind_a_table_that_keeps_late_rows_out_is_warned_of():
    first, second = told(chain("side_output", "update"))
    assert first.startswith(
        "table=copied, late='update': rows that arrive after the hour of their event time never reach it"
    )
    assert (
        second.startswith("table=per_minute") and "declare late='update' on valid as well" in second
    )
    (only,) = told(chain("drop", "side_output", context=around(after="1 minute")))
    assert "arrive behind the watermark never reach it, because valid (late='drop')" in only


def test_an_update_that_late_rows_reach_is_not():
    assert told(chain("update", "update")) == []


# ---- lasting states


def lasting(**declared):
    @row_table(layer="gold", ttl="1 day", **declared)
    def remembered(things):
        return things

    return remembered


@pytest.mark.parametrize(
    "declared, words",
    [
        ({"context": around(before="1 minute")}, "takes no context= or deduplicate="),
        ({"late": "update"}, "would change the state that all later rows"),
    ],
)
def test_a_lasting_state_is_refused_where_it_cannot_be_kept(declared, words):
    with pytest.raises(DeclarationError, match=words):
        catalog_of([module_of(remembered=lasting(**declared))])


def test_a_lasting_state_reads_two_inputs_with_event_time_and_no_other():
    @row_table(layer="silver")
    def others(things):
        return things

    @row_table(layer="silver")
    def more(things):
        return things

    @row_table(layer="gold", ttl="1 day")
    def three(things, others, more):
        return things

    with pytest.raises(DeclarationError, match="a process function reads one input, or two"):
        catalog_of([module_of(others=others, more=more, three=three)])

    prices = files("prices.csv", schema="id STRING", header=True)

    @reference_table(layer="silver")
    def names(prices):
        return prices

    @row_table(layer="gold", ttl="1 day")
    def named(things, names):
        return things

    with pytest.raises(DeclarationError, match="input=names: a state outlives the version"):
        catalog_of([module_of(prices=prices, names=names, named=named)])


def test_the_function_of_a_lasting_state_applies_one_process_function():
    told = "ttl=1 day, 0:00:00: its function applies 0 process functions"
    with pytest.raises(DeclarationError, match=told):
        lasting()(None)


def test_rows_before_change_all_that_comes_after():
    hour = Range(EPOCH, EPOCH + timedelta(hours=1))
    later = EPOCH + timedelta(days=3)
    assert ranges_of.reached(lasting(), hour, later) == Range(EPOCH, later)
    assert ranges_of.reached(lasting(), hour) == hour


def test_rows_that_went_into_a_lasting_state_are_not_erased(tmp_path):
    settings, catalog = Settings(root=tmp_path), catalog_of([module_of(remembered=lasting())])
    with pytest.raises(RangeError, match="remembered keep a state"):
        erasure.planned(Lakehouse(settings, catalog), catalog.table("things"), "id = 'a'")


# ---- lookups


@lookup(schema="owner STRING")
def owner(id): ...


@pytest.mark.parametrize(
    ("query", "declared"),
    [
        ("SELECT * FROM {things}", {"context": around(before="1 minute")}),
        ("SELECT * FROM {things}", {"deduplicate": duplicates("id", within="1 hour")}),
        ("SELECT * FROM {things} UNION ALL SELECT * FROM {others}", {}),
    ],
)
def test_a_service_is_asked_for_rows_of_one_input_only(query, declared):
    asking = row_table(layer="silver", lookup=owner, **declared)(sql("asking", query))
    others = row_table(layer="silver")(sql("others", "SELECT * FROM {things}"))
    with pytest.raises(DeclarationError, match=r"table=asking, .*lookup=owner: a service is asked"):
        catalog_of([module_of(asking=asking, others=others)])


def test_what_a_lookup_means_is_part_of_the_code_version_and_how_it_asks_is_not():
    def version(**how) -> str:
        def owner(id): ...

        declared = lookup(**{"schema": "owner STRING"} | how)(owner)
        query = "SELECT * FROM {things}"
        return row_table(layer="silver", lookup=declared)(sql("asking", query)).code_version

    assert version() == version(retries=9, concurrency=99, timeout="1 minute", cache_for="1 day")
    assert len({version(), version(on_failure="null"), version(schema="owner BIGINT")}) == 3
