"""Each expectation is judged row by row as is written down."""

import pytest
from pyspark.sql.types import StructType

from lakehouse.declare import expectation_names
from lakehouse.declare.expectations import expect
from lakehouse.transform.checks import quality

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
