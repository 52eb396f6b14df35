"""What each expectation takes: refused when declared without Great Expectations, and held against what is installed."""

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest
from pyspark.sql.types import StructType

from lakehouse.declare import expectation_names, expectations
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.expectations import Expectation, expect
from lakehouse.declare.table import kafka, table
from lakehouse.errors import DeclarationError
from lakehouse.transform import expectation_stub, quality

BETWEEN = "expectation=expect_column_values_to_be_between"


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda: expect.column_values_to_be_between("n", min_valeu=1),
            f"{BETWEEN}, argument='min_valeu': it takes none of that name; did you mean min_value?",
        ),
        (
            lambda: expect.column_values_to_be_between("n", min=1),
            "argument='min': it takes none of that name; did you mean min_value?",
        ),
        (
            lambda: expect.column_values_to_not_be_null("n", xyz=1),
            "argument='xyz': it takes none of that name; give one of column, mostly, row_condition",
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


def test_a_set_is_the_same_argument_in_every_process():
    """Else a table's code version would change with the seed of hashes, and its stream be refused."""
    code = """
from lakehouse import expect
print(expect.column_values_to_be_in_set("unit", value_set={"C", "F", "K", "R"}))
"""
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(shown) == 1, shown


def test_nothing_of_that_imports_great_expectations():
    code = """
import sys
from lakehouse import expect
from lakehouse.errors import DeclarationError
try:
    expect.column_values_to_be_between("n", min_valeu=1)
except DeclarationError:
    expect.column_values_to_be_between("n", min_value=1)
    assert "column_values_to_be_between" in dir(expect)
    print({"great_expectations", "pyspark"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def test_an_expectation_of_ones_own_takes_what_it_likes():
    assert expect.column_values_to_please("n", us=[1]) == Expectation(
        "expect_column_values_to_please", (("column", "n"), ("us", (1,)))
    )


topic = kafka("things", schema="id STRING, at TIMESTAMP")


def declared(*, ingest: Sequence[Expectation] = (), keyed: Sequence[Expectation] = ()):
    @table(layer="bronze", event_time="at", expectations=ingest)
    def things(topic):
        return topic

    @table(layer="silver", keeps="latest", keys=["id"], expectations=keyed)
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
            f"{path.name} is of another version: python -m lakehouse.transform.expectation_stub"
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


EXAMPLES = {  # a value for each argument that is needed
    "column": "n", "column_A": "n", "column_B": "m", "column_list": ["n", "m"], "value_set": [1], "value": 1, "type_": "LongType",
    "value_pairs_set": [(1, 2)], "threshold": 3, "double_sided": True, "strictly": True, "regex": "a", "regex_list": ["a"],
    "match_on": "any", "strftime_format": "%Y", "sum_total": 1, "min_value": 1,
}  # fmt: skip
OF_AGGREGATES = {  # on no rows these have no mean or quartile, so that no row breaks them: the check judges
    "expect_column_value_z_scores_to_be_less_than",
    "expect_column_values_to_not_be_outliers",
}


@pytest.mark.slow
@pytest.mark.parallel
def test_each_is_compiled_and_judged_row_by_row_as_is_written_down(spark):
    schema = StructType.fromDDL("n BIGINT, m BIGINT")
    told, found = {}, {}
    for name, known in expectation_names.signatures().items():
        needed = {each: EXAMPLES[each] for each in (*known.required, *known.any_of[:1])}
        rule = getattr(expect, name.removeprefix("expect_"))(**needed)
        told[name] = known.by_row or name in OF_AGGREGATES
        found[name] = bool(quality.row_rules(spark, schema, [rule]))
    assert found == told and sum(told.values()) > 15
