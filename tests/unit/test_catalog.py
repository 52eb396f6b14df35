"""Declarations and the graph of them: what is refused, and with which words; no session."""

from types import ModuleType

import pytest

from lakehouse.declare.catalog import catalog_of, load
from lakehouse.declare.table import expect, files, kafka, table, tumbling
from lakehouse.errors import DeclarationError, UnknownTable
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import tables as sensors
from lakehouse.examples.visits import tables as visits
from lakehouse.settings import Settings

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@table(layer="bronze", event_time="at", delay="5 seconds")
def things(topic):
    """Every thing."""
    return topic


def module_of(**names) -> ModuleType:
    module = ModuleType("my_tables")
    vars(module).update(names)
    return module


def declared(**names):
    for value in names.values():
        if hasattr(value, "transformation"):
            value.transformation.__module__ = "my_tables"
    return catalog_of([module_of(topic=topic, things=things, **names)])


def test_the_shipped_tables_have_kinds_and_come_in_order():
    catalog = catalog_of([sensors, ads, visits])
    kinds = {t.name: t.kind.name for t in catalog}
    assert kinds == {
        "sensor_readings": "ingest",
        "valid_readings": "row",
        "sensor_averages": "window",
        "sensor_trends": "window",
        "ad_events": "ingest",
        "campaigns": "reference",
        "campaign_views": "window",
        "requests": "ingest",
        "visits": "row",
        "visitors_by_country": "window",
        "visitor_sessions": "window",
        "page_views": "window",
        "top_pages": "window",
        "pages_of_a_day": "report",
    }
    order = list(kinds)
    assert (
        order.index("sensor_readings")
        < order.index("valid_readings")
        < order.index("sensor_averages")
    )
    assert order.index("campaigns") < order.index("campaign_views")
    assert set(catalog.pipelines()) == {"sensors", "ads", "visits"}
    assert catalog.topics() == ["access-log", "ad-events", "sensor-readings"]
    assert catalog.event_time(catalog.table("valid_readings")) == "event_time"


@pytest.mark.parametrize(
    ("module", "pipeline"),
    [
        ("orders", "orders"),
        ("my_company.orders", "orders"),
        ("my_company.orders.tables", "orders"),
        ("orders.tables", "orders"),
        ("tables", "tables"),
        ("my_company.tables.orders", "orders"),
        ("my_company.more_tables", "more_tables"),
    ],
)
def test_a_pipeline_has_the_name_of_its_module_or_of_the_package_of_a_module_called_tables(
    module, pipeline
):
    @table(layer="bronze", event_time="at", delay="5 seconds")
    def orders(topic):
        return topic

    orders.transformation.__module__ = module
    declaring = ModuleType(module)
    vars(declaring).update(topic=topic, orders=orders)
    assert catalog_of([declaring]).pipelines() == [pipeline]


def test_an_unknown_table_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownTable, match="did you mean campaign_views"):
        catalog_of([ads]).table("campaign_view")


def test_an_unknown_input_is_refused():
    @table(layer="gold")
    def totals(thing):
        return thing

    with pytest.raises(
        DeclarationError, match=r"input='thing': no source or table .* did you mean things"
    ):
        declared(totals=totals)


def test_a_circle_is_refused():
    @table(layer="gold")
    def one(two):
        return two

    @table(layer="gold")
    def two(one):
        return one

    with pytest.raises(DeclarationError, match="a table cannot be computed from itself"):
        declared(one=one, two=two)


def test_a_record_without_event_time_is_refused():
    @table(layer="bronze")
    def untimed(topic):
        return topic

    with pytest.raises(DeclarationError, match="an ingest table needs an event time"):
        declared(untimed=untimed)


def test_a_window_over_a_record_itself_is_refused():
    @table(layer="bronze", event_time="at", window=tumbling("10 seconds"))
    def windowed(topic):
        return topic

    with pytest.raises(DeclarationError, match="an ingest table keeps every row"):
        declared(windowed=windowed)


def test_a_marker_is_of_an_ingest_table_with_an_event_time_of_its_own():
    @table(layer="silver", marker="is_end")
    def marked(things):
        return things

    @table(layer="bronze", event_time="ingestion_time", marker="is_end")
    def arriving(topic):
        return topic

    for each in (marked, arriving):
        with pytest.raises(DeclarationError, match="marker='is_end': it says which rows move"):
            declared(**{each.name: each})


def test_values_hold_back_the_watermark_of_an_ingest_table_with_an_event_time_of_its_own():
    @table(layer="silver", watermark_by="id")
    def waiting(things):
        return things

    @table(layer="bronze", event_time="ingestion_time", watermark_by="id")
    def arriving(topic):
        return topic

    for each in (waiting, arriving):
        with pytest.raises(DeclarationError, match="watermark_by='id': it says by which column"):
            declared(**{each.name: each})


def test_a_table_of_several_inputs_has_the_event_time_of_the_first():
    @table(layer="silver", window=tumbling("1 minute"), keys=["value"])
    def counted(things):
        return things

    @table(layer="gold")
    def both(things, counted):
        return things

    @table(layer="gold")
    def other(counted, things):
        return things

    catalog = declared(counted=counted, both=both, other=other)
    one, another = (catalog.table(name) for name in ("both", "other"))
    assert [t.name for t in catalog.timed_inputs(one)] == ["things", "counted"]
    assert one.kind.is_row_by_row and catalog.event_time(one) == catalog.event_time(
        catalog.table("things")
    )
    assert catalog.event_time(another) == "window_time"
    assert [t.name for t in catalog.ingest_tables_of(one)] == ["things"]
    assert catalog.has_no_order(one) and catalog.has_no_order(another)
    assert not catalog.has_no_order(catalog.table("counted"))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"layer": "platinum"}, "layer='platinum': one of bronze, silver, gold"),
        ({"layer": "gold", "late": "ignore"}, "late='ignore': one of drop, side_output"),
        ({"layer": "gold", "partition_by": "minute"}, "partition_by='minute': one of hour, day"),
        ({"layer": "gold", "delay": "soon"}, "delay='soon': a duration"),
    ],
)
def test_a_setting_outside_its_values_is_refused(settings, words):
    with pytest.raises(DeclarationError, match=words):

        @table(**settings)
        def anything(things):
            return things


def test_names_that_belong_to_side_tables_are_refused():
    with pytest.raises(DeclarationError, match="'__' marks side tables"):

        @table(layer="gold")
        def my__late(things):
            return things


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(DeclarationError, match=r"tables='no\.such\.module': cannot be imported"):
        load(Settings(tables=("no.such.module",)))


def test_the_code_version_follows_code_and_policy_but_not_comments():
    def first(things):
        """Words."""
        return things.where("id = 'a'")

    same = compile_again(
        "def first(things):\n    # other words\n    return things.where(\"id = 'a'\")\n"
    )
    other = compile_again("def first(things):\n    return things.where(\"id = 'b'\")\n")
    code_version = table(layer="gold")(first).code_version
    assert table(layer="gold")(same).code_version == code_version
    assert table(layer="gold")(other).code_version != code_version
    assert table(layer="gold", late="drop")(first).code_version != code_version


def test_a_code_version_names_the_code_that_was_imported_whatever_becomes_of_the_file(
    tmp_path, monkeypatch
):
    declared_in = """
from lakehouse import kafka, table

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")

@table(layer="bronze", event_time="at", delay="5 seconds")
def rows(topic):
    return topic.where("id = 'a'")
"""
    file = tmp_path / "edited_tables.py"
    file.write_text(declared_in)
    monkeypatch.syspath_prepend(tmp_path)
    found = load(Settings(tables=("edited_tables",))).table("rows")
    before = found.code_version
    file.write_text(declared_in.replace("'a'", "'b', and more"))
    assert "and more" in found.code, "the file that is shown is the new one"
    assert found.code_version == before


def test_a_function_without_a_file_is_refused():
    made = {"__name__": "my_tables"}
    exec("def rows(topic):\n    return topic", made)  # as typed at a prompt
    rows = table(layer="bronze", event_time="at", delay="5 seconds")(made["rows"])
    with pytest.raises(DeclarationError, match="table=rows: its code cannot be read"):
        catalog_of([module_of(topic=topic, rows=rows)])


def compile_again(source: str):
    import linecache

    name = f"<declared {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names: dict = {}
    exec(compile(source, name, "exec"), names)
    return names["first"]


def test_an_expectation_is_a_value_with_the_arguments_of_its_namesake():
    rule = expect.column_pair_values_a_to_be_greater_than_b("high", "low", or_equal=True)
    assert rule.type == "expect_column_pair_values_a_to_be_greater_than_b"
    assert rule.kwargs == {"column_A": "high", "column_B": "low", "or_equal": True}
    assert expect.column_values_to_be_in_set("a", value_set=["x"]).kwargs == {
        "column": "a",
        "value_set": ["x"],
    }
    assert rule == expect.column_pair_values_a_to_be_greater_than_b("high", "low", or_equal=True)


def test_early_results_need_a_window():
    @table(layer="silver", early_results="1 second")
    def copied(things):
        return things

    with pytest.raises(
        DeclarationError, match="early_results=0:00:01: rows without a window are final at once"
    ):
        declared(copied=copied)


def test_stale_are_tables_that_are_added_to_and_not_too_soon():
    @table(layer="silver", stale_after="1 minute")
    def watched(things):
        return things

    @table(layer="silver", stale_after="1 hour")
    def changing(still):
        return still

    @table(layer="bronze")
    def still(addresses):
        return addresses

    with pytest.raises(DeclarationError, match="stale_after=0:01:00: at least 0:05:00"):
        declared(watched=watched)
    with pytest.raises(
        DeclarationError, match="not for a reference table, which may stay as it is"
    ):
        declared(
            changing=changing, still=still, addresses=files("addresses.csv", schema="id STRING")
        )


@pytest.mark.parametrize(
    "schema", ["id STRING, n INT DEFAULT 5", "`n` INT NOT NULL default 'a, b'"]
)
@pytest.mark.parametrize("source", [kafka, files])
def test_a_default_in_a_schema_is_refused_with_the_remedy(source, schema):
    with pytest.raises(DeclarationError, match=r"column=n, DEFAULT: .* coalesce\(n, \.\.\.\)"):
        source("things", schema=schema)


def test_a_column_may_be_named_default_and_a_comment_may_speak_of_it():
    kafka(
        "things", schema="default INT, a struct<default: INT>, b INT COMMENT 'DEFAULT 3, or more'"
    )


def test_all_that_is_wrong_with_declarations_is_said_at_once():
    @table(layer="silver", early_results="1 minute", refresh="1 minute")
    def one(things):
        return things

    @table(layer="gold", keeps="latest", keys=["id"], late="drop", refresh="1 minute")
    def other(things):
        return things

    with pytest.raises(DeclarationError) as refused:
        declared(one=one, other=other)
    remarks = [line.split(": ")[0] for line in str(refused.value).splitlines()]
    assert remarks == [
        "table=one, early_results=0:01:00",
        "table=one, refresh=0:01:00",
        "table=other, keeps='latest', late='drop'",
        "table=other, refresh=0:01:00",
    ]
