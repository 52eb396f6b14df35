"""What is said of an expectation that cannot be judged, and of a country that is not known."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from examples.visits import tables as visits
from lakehouse.declare.expectations import expect
from lakehouse.errors import DeclarationError
from lakehouse.transform.checks import quality


def test_an_expectation_that_cannot_be_judged_says_why(spark):
    missing = [expect.column_values_to_be_between("nothing", min_value=1)]
    with pytest.raises(DeclarationError, match="it cannot be judged on this table: ") as refused:
        quality.row_rules(spark, StructType.fromDDL("id BIGINT"), missing)
    assert '"nothing"' in str(refused.value) and "exception_" not in str(refused.value)
    [result] = quality.validate(spark.range(1), missing)
    assert not result.passed and '"nothing"' in result.detail and "exception_" not in result.detail


def test_a_rule_is_compiled_without_a_job_unless_it_depends_on_other_rows(spark):
    schema = StructType.fromDDL("id BIGINT, late BIGINT")
    rules = [
        expect.column_values_to_be_between("id", min_value=1),
        expect.column_pair_values_a_to_be_greater_than_b("id", "late"),
    ]
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    compiled = quality.row_rules(spark, schema, rules)
    assert set(tracker.getJobIdsForGroup()) == before
    rows = spark.createDataFrame([(1, 0), (0, -1), (2, 2)], schema)
    found = rows.select(*(r.broken for r in compiled)).collect()
    assert [tuple(row) for row in found] == [(False, False), (True, False), (False, True)]
    quality.row_rules(
        spark,
        schema,
        [expect.column_value_z_scores_to_be_less_than("id", threshold=3, double_sided=True)],
    )
    assert set(tracker.getJobIdsForGroup()) > before, (
        "else this looks for jobs where there are none"
    )


def test_a_network_of_which_only_the_continent_is_known_is_of_no_country():
    assert visits._geoip().lookup("168.168.205.185").country_code == "ASIA", (
        "else this tests nothing"
    )
    addresses = pa.array(["168.168.205.185", "10.0.0.1", "no address", "8.8.8.8", None])
    assert visits._countries(addresses).to_pylist() == ["ZZ", "ZZ", "ZZ", "US", None]
