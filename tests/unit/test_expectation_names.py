"""What each expectation takes: refused when declared without Great Expectations, and held against what is installed."""

import ast
import inspect
from collections.abc import Sequence
from types import ModuleType

import pytest

from lakehouse import ingest_table, kafka, keyed_table
from lakehouse.declare import expectations
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.expectations import Expectation, expect
from lakehouse.errors import DeclarationError
from tools import expectation_stub

BETWEEN = "expectation=expect_column_values_to_be_between"


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda: expect.column_values_to_be_between("n", min_valeu=1),
            f"{BETWEEN}, argument='min_valeu': it has no such argument; did you mean min_value?",
        ),
        (
            lambda: expect.column_values_to_be_between("n", min=1),
            "argument='min': it has no such argument; did you mean min_value?",
        ),
        (
            lambda: expect.column_values_to_not_be_null("n", xyz=1),
            "argument='xyz': it has no such argument; give one of column, mostly, row_condition",
        ),
        (
            lambda: expect.column_values_to_be_between("n"),
            f"{BETWEEN}, arguments=min_value, max_value: one of them is needed, and none is there; give min_value=...",
        ),
        (
            lambda: expect.column_values_to_be_in_set("n"),
            "expectation=expect_column_values_to_be_in_set, argument='value_set': it is needed, and is not there; "
            "give value_set=...",
        ),
        (
            lambda: expect.column_value_z_scores_to_be_less_than(),
            "argument='column': it is needed, and is not there; give column=... and threshold=... and double_sided=...",
        ),
        (
            lambda: expect.column_values_to_be_between("n", 1),
            f"{BETWEEN}, arguments=('n', 1): only column may be positional; give the rest by name",
        ),
        (
            lambda: expect.table_row_count_to_equal(7),
            "arguments=(7,): only none may be positional; give the rest by name",
        ),
        (
            lambda: expect.column_values_to_not_be_null("n", column="m"),
            "argument='column': it is given twice; leave one out",
        ),
        (
            lambda: expect.column_values_to_not_be_null("n", severity="warning"),
            "severity='warning': a row is kept or quarantined, and a check holds or does not; leave it out",
        ),
        (
            lambda: expect.column_values_to_not_be_null("n", meta={"a": 1}),
            "meta={'a': 1}: nothing reads it; put text into notes",
        ),
        (
            lambda: expect.column_max_to_be_between("n", max_value=1, row_condition="a < 5"),
            "condition_parser=None: it says what language row_condition is in; give one of 'spark', 'great_expectations'",
        ),
        (
            lambda: expect.column_values_to_be_in_set("n", value_set=[[1]]),
            "value_set=[[1]]: single values and lists of them can be judged",
        ),
        (
            lambda: expect.column_values_to_be_of_type("n", type_="LongType"),
            "expectation=expect_column_values_to_be_of_type: Great Expectations does not judge it on Spark; "
            "use column_type_to_be",
        ),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_when_it_is_declared(declare, told):
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert told in str(refused.value)


def test_an_expectation_of_ones_own_takes_what_it_likes():
    assert expect.column_values_to_please("n", us=[1]) == Expectation(
        "expect_column_values_to_please", (("column", "n"), ("us", (1,)))
    )


topic = kafka("things", schema="id STRING, at TIMESTAMP")


def declared(*, ingest: Sequence[Expectation] = (), keyed: Sequence[Expectation] = ()):
    @ingest_table(layer="bronze", event_time="at", expectations=ingest)
    def things(topic):
        return topic

    @keyed_table(layer="silver", keys=["id"], expectations=keyed)
    def latest(things):
        return things

    module = ModuleType("my_tables")
    module.topic, module.things, module.latest = topic, things, latest
    things.transformation.__module__ = latest.transformation.__module__ = "my_tables"
    return catalog_of([module])


@pytest.mark.parametrize(
    ("argument", "value", "told"),
    [
        ("mostly", 0.9, "a share means nothing"),
        ("row_condition", "at IS NULL", "without a condition"),
        ("ignore_row_if", "either_value_is_missing", "those with missing values too"),
    ],
)
def test_where_rows_are_judged_one_by_one_nothing_is_said_of_many(argument, value, told):
    parser = {"condition_parser": "spark"} if argument == "row_condition" else {}
    rule = expect.column_pair_values_to_be_equal("id", "at", **{argument: value}, **parser)
    with pytest.raises(
        DeclarationError,
        match=f"table=things, expectation={rule.type}, {argument}={value!r}: .*{told}",
    ):
        declared(ingest=[rule])
    assert declared(keyed=[rule]), "a keyed table keeps every row, and is judged as a whole"


def test_of_many_rows_that_can_be_said():
    condition = {"row_condition": "at IS NULL", "condition_parser": "spark"}
    unique = expect.column_values_to_be_unique("id", mostly=0.9, **condition)
    assert declared(ingest=[unique, expect.column_values_to_not_be_null("id", mostly=1.0)])


# ---- held against what is installed


def test_the_files_are_what_great_expectations_that_is_installed_gives():
    for path, text in expectation_stub.written().items():
        assert path.read_text() == text, (
            f"{path.name} is of another version: python -m tools.expectation_stub"
        )


def test_the_stub_says_of_an_expectation_what_the_module_has():
    stub = {
        each.name: each
        for each in ast.parse(expectation_stub.STUB.read_text()).body
        if isinstance(each, ast.ClassDef)
    }
    module = {
        each.name: each
        for each in ast.parse(inspect.getsource(expectations)).body
        if isinstance(each, ast.ClassDef)
    }
    assert stub.keys() == module.keys()
    shown, written = (
        {ast.unparse(each) for each in classes["Expectation"].body if isinstance(each, ast.AnnAssign)}
        for classes in (stub, module)
    )  # fmt: skip
    assert shown == written and ast.get_docstring(stub["Expectation"]) == Expectation.__doc__
