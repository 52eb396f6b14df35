"""Declarations and the graph of them: what is refused, and with which words; no session."""

import sys
from types import ModuleType

import pytest

from examples.visits import tables as visits
from lakehouse import (
    around,
    expect,
    files,
    ingest_table,
    kafka,
    keyed_table,
    reference_table,
    report_table,
    row_table,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.catalog import catalog_of, load
from lakehouse.declare.decorators import DECORATORS, options_of
from lakehouse.errors import DeclarationError, UnknownTable
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import tables as sensors
from lakehouse.settings import Settings

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
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
    @ingest_table(layer="bronze", event_time="at", delay="5 seconds")
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
    @row_table(layer="gold")
    def totals(thing):
        return thing

    with pytest.raises(
        DeclarationError, match=r"input='thing': no source or table .* did you mean things"
    ):
        declared(totals=totals)


def test_a_circle_is_refused():
    @row_table(layer="gold")
    def one(two):
        return two

    @row_table(layer="gold")
    def two(one):
        return one

    with pytest.raises(DeclarationError, match="a table cannot be computed from itself"):
        declared(one=one, two=two)


def test_an_ingest_table_needs_an_event_time():
    with pytest.raises(DeclarationError, match="event_time='': rows are late by their event time"):
        ingest_table(layer="bronze", event_time="")


@pytest.mark.parametrize(
    "declare, words",
    [
        (
            row_table(layer="gold"),
            "input=topic: a row table reads tables; declare an @ingest_table",
        ),
        (window_table(layer="gold", window=tumbling("1 day")), "input=topic: a window table reads"),
        (keyed_table(layer="gold", keys=["id"]), "input=topic: a keyed table reads tables"),
        (versioned_table(layer="gold", keys=["id"]), "input=topic: a versioned table reads tables"),
        (reference_table(layer="gold"), "input=topic: a reference table reads tables"),
        (report_table(layer="gold"), "input=topic: a report table reads tables"),
    ],
)
def test_a_source_is_read_by_an_ingest_table(declare, words):
    def made(topic):
        return topic

    with pytest.raises(DeclarationError, match=words):
        declared(made=declare(made))


@pytest.mark.parametrize(
    "declare, words",
    [
        (ingest_table(layer="gold", event_time="at"), "an ingest table reads topics only"),
        (reference_table(layer="gold"), "input=things: it has event time, and a reference table"),
    ],
)
def test_a_table_with_event_time_is_read_by_kinds_that_follow_it(declare, words):
    def made(things):
        return things

    with pytest.raises(DeclarationError, match=words):
        declared(made=declare(made))


@pytest.mark.parametrize(
    "declare, words",
    [
        (
            row_table(layer="gold"),
            "a row table needs an input with event time; read .* @reference_table",
        ),
        (
            window_table(layer="gold", window=tumbling("1 day")),
            "a window table needs an input with",
        ),
        (keyed_table(layer="gold", keys=["id"]), "from tables that streams fill.*@reference_table"),
        (versioned_table(layer="gold", keys=["id"]), "computed from every row of one ingest table"),
        (report_table(layer="gold"), "none of these does"),
    ],
)
def test_a_table_without_event_time_is_read_by_reference_tables(declare, words):
    def made(names):
        return names

    @reference_table(layer="silver")
    def names(addresses):
        return addresses

    addresses = files("addresses.csv", schema="id STRING")
    with pytest.raises(DeclarationError, match=words):
        declared(made=declare(made), names=names, addresses=addresses)


@pytest.mark.parametrize("kind", DECORATORS)
def test_an_option_of_another_kind_is_a_type_error_that_names_the_kinds(kind):
    of_any = set().union(*map(options_of, DECORATORS))
    required = {"layer": "gold", "window": tumbling("1 day"), "keys": ["id"], "event_time": "at"}
    given = {name: required[name] for name in required.keys() & options_of(kind)}
    for name in sorted(of_any - options_of(kind)):
        with pytest.raises(
            TypeError, match=rf"@{kind}_table has no option '{name}'; {name} is an"
        ) as error:
            DECORATORS[kind](**given, **{name: "1 minute"})
        others = [f"@{other}_table" for other in DECORATORS if name in options_of(other)]
        assert f"an option of {', '.join(others)} (it has" in str(error.value)
    with pytest.raises(TypeError, match=r"has no option 'ownr'; did you mean owner\?"):
        DECORATORS[kind](**given, ownr="me")
    del given["layer"]
    with pytest.raises(TypeError, match=f"@{kind}_table needs layer=, one of bronze, silver, gold"):
        DECORATORS[kind](**given)


def test_a_text_is_no_list_of_names():
    with pytest.raises(DeclarationError, match=r"keys='id': it is a list; write keys=\['id'\]"):
        keyed_table(layer="gold", keys="id")


@pytest.mark.parametrize("option", ["marker", "watermark_by"])
def test_what_moves_event_time_is_no_column_where_arrival_is_event_time(option):
    @ingest_table(layer="bronze", event_time="ingestion_time", **{option: "id"})
    def arriving(topic):
        return topic

    with pytest.raises(DeclarationError, match=f"{option}='id': it says which rows move"):
        declared(arriving=arriving)


def test_a_table_of_several_inputs_has_the_event_time_of_the_first():
    @window_table(layer="silver", window=tumbling("1 minute"), keys=["value"])
    def counted(things):
        return things

    @row_table(layer="gold")
    def both(things, counted):
        return things

    @row_table(layer="gold")
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
        ({"layer": "gold", "ttl": "soon"}, "ttl='soon': a duration"),
    ],
)
def test_a_setting_outside_its_values_is_refused(settings, words):
    with pytest.raises(DeclarationError, match=words):

        @row_table(**settings)
        def anything(things):
            return things


def test_all_options_outside_their_values_are_said_at_once():
    with pytest.raises(DeclarationError, match=r"layer='platinum': .*\nlate='ignore': one"):
        row_table(layer="platinum", late="ignore")
    words = "format='xml': .*\nframing='lines': .*\nkey='nr', .*"
    with pytest.raises(DeclarationError, match=words):
        kafka("t", schema="id STRING", format="xml", framing="lines", key="nr")


def test_all_inputs_that_have_no_declaration_are_said_at_once():
    def first(thing): ...
    def second(other): ...

    words = "input='thing': .* did you mean things.*\n.*input='other': .*parameters name"
    with pytest.raises(DeclarationError, match=words):
        declared(first=row_table(layer="silver")(first), second=row_table(layer="silver")(second))


def test_names_that_belong_to_side_tables_are_refused():
    with pytest.raises(DeclarationError, match="'__', which marks side tables"):

        @row_table(layer="gold")
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
    code_version = row_table(layer="gold")(first).code_version
    assert row_table(layer="gold")(same).code_version == code_version
    assert row_table(layer="gold")(other).code_version != code_version
    assert row_table(layer="gold", late="drop")(first).code_version != code_version


def test_a_code_version_names_the_code_that_was_imported_whatever_becomes_of_the_file(
    tmp_path, monkeypatch
):
    declared_in = """
from lakehouse import ingest_table, kafka

topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")

@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
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
    rows = ingest_table(layer="bronze", event_time="at", delay="5 seconds")(made["rows"])
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


def test_a_table_is_not_stale_too_soon():
    @row_table(layer="silver", stale_after="1 minute")
    def watched(things):
        return things

    with pytest.raises(DeclarationError, match="stale_after=0:01:00: at least 0:05:00"):
        declared(watched=watched)


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
    @row_table(
        layer="silver", stale_after="1 minute", context=around(before="1 minute"), ttl="1 day"
    )
    def one(things):
        return things

    @keyed_table(layer="gold", keys=[])
    def other(things):
        return things

    with pytest.raises(DeclarationError) as refused:
        declared(one=one, other=other)
    remarks = [line.split(": ")[0] for line in str(refused.value).splitlines()]
    assert remarks == [
        "table=one, ttl=1 day, 0:00:00",
        "table=one, stale_after=0:01:00",
        "table=other, keys=[]",
    ]


def test_a_module_that_the_process_has_from_another_lakehouse_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr("lakehouse.declare.modules._added", set())
    code = (
        "from lakehouse import ingest_table, kafka, sql\n"
        "topic = kafka('{}', schema='id BIGINT NOT NULL, at TIMESTAMP NOT NULL')\n"
        "rows = ingest_table(layer='bronze', event_time='at')(sql('rows', 'SELECT * FROM {{topic}}'))\n"
    )
    settings = {}
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_name.py").write_text(code.format(folder))
        settings[folder] = Settings(tables=("same_name",), module_path=(tmp_path / folder,))
    monkeypatch.delitem(sys.modules, "same_name", raising=False)
    assert load(settings["one"]).sources["topic"].address == "one"
    with pytest.raises(DeclarationError, match=f"already, {tmp_path}/one/same_name.py, of another"):
        load(settings["two"])
    assert load(settings["one"]).sources["topic"].address == "one"
    monkeypatch.delitem(sys.modules, "same_name")
