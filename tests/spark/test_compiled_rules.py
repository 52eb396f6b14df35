"""Rules that are kept as SQL judge each row as Great Expectations' own conditions do."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql.types import StructType

from lakehouse.declare.expectations import expect
from lakehouse.transform.checks import quality

COLUMNS = (
    "id BIGINT, name STRING, share DOUBLE, at TIMESTAMP, price DECIMAL(10,2), `odd.name` STRING"
)
RULES = (
    expect.column_values_to_not_be_null("name"),
    expect.column_values_to_be_in_set(
        "name", value_set=["it's", "back\\slash", "två", "two\nlines"]
    ),
    expect.column_values_to_match_regex("name", regex=r"^[a-z]+\\?'?\w*$"),
    expect.column_values_to_be_between("share", min_value=-0.5, max_value=1e10, strict_min=True),
    expect.column_values_to_be_between("at", min_value=datetime(2026, 1, 1)),
    expect.column_values_to_be_in_set("price", value_set=[1, 2.5]),
    expect.column_value_lengths_to_be_between("name", max_value=6),
    expect.column_pair_values_a_to_be_greater_than_b("share", "id"),
    expect.column_values_to_be_unique("id"),  # it needs all rows
)
ROWS = [
    (1, "it's", 0.5, datetime(2026, 1, 1, tzinfo=UTC), Decimal("2.50"), "a"),
    (2, "back\\slash", -0.5, datetime(2025, 12, 31, 23, tzinfo=UTC), Decimal("1.00"), ""),
    (-1, "two\nlines", 1e11, None, Decimal("2.51"), None),
    (0, None, None, datetime(2027, 1, 1, tzinfo=UTC), None, "b"),
    (None, "tva!", float("nan"), datetime(2026, 1, 1, tzinfo=UTC), Decimal("-1.00"), "c"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "FOLDER", tmp_path / "rules")
    return tmp_path / "rules"


def test_a_rule_that_was_kept_judges_as_the_one_that_was_compiled(spark, folder, monkeypatch):
    rows = spark.createDataFrame(ROWS, COLUMNS)
    by_great_expectations = [rule for rule in quality._rules(rows, RULES) if rule]
    first = quality.row_rules(spark, StructType.fromDDL(COLUMNS), RULES)
    [kept] = folder.iterdir()
    written = kept.read_bytes()
    monkeypatch.delattr(quality, "great_expectations")  # Great Expectations is not asked again
    second = quality.row_rules(spark, StructType.fromDDL(COLUMNS), RULES)
    assert kept.read_bytes() == written
    judged = [
        rows.select(*(rule.broken.alias(str(n)) for n, rule in enumerate(rules))).collect()
        for rules in (by_great_expectations, first, second)
    ]
    assert judged[0] == judged[1] == judged[2]
    assert [rule.expectation for rule in second] == list(RULES[:-1])
    for number, rule in enumerate(second):
        assert {row[number] for row in judged[0]} == {True, False}, f"{rule.expectation} judges"


def test_a_file_that_is_torn_or_of_other_rules_is_written_again(spark, folder):
    rules = [expect.column_values_to_be_between("id", min_value=1)]
    quality.row_rules(spark, StructType.fromDDL(COLUMNS), rules)
    [kept] = folder.iterdir()
    written = kept.read_bytes()
    other = json.dumps(json.loads(written) | {"of": ["other"], "rules": ["true"]}).encode()
    for damaged in (written[: len(written) // 2], b"[]", b"\xff", other):
        kept.write_bytes(damaged)
        [rule] = quality.row_rules(spark, StructType.fromDDL(COLUMNS), rules)
        assert kept.read_bytes() == written
        [(first,), (second,)] = (
            spark.createDataFrame([(1,), (0,)], "id BIGINT").select(rule.broken).collect()
        )
        assert (first, second) == (False, True)


def test_rules_that_no_sql_says_or_no_folder_keeps_are_compiled_each_time(spark, folder):
    in_python = [expect.column_values_to_match_strftime_format("name", strftime_format="%Y")]
    assert (
        len(quality.row_rules(spark, StructType.fromDDL(COLUMNS), in_python)) == 1
        and not folder.exists()
    )
    folder.write_text("a file where the folder would be")
    assert len(quality.row_rules(spark, StructType.fromDDL(COLUMNS), RULES[:1])) == 1
