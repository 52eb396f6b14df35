"""What is said of an expectation that cannot be judged, and of a country that is not known."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from lakehouse import quality
from lakehouse.errors import DeclarationError
from lakehouse.expectations import expect
from lakehouse.tables import visits


def test_an_expectation_that_cannot_be_judged_says_why(spark):
    missing = [expect.column_values_to_be_between("nothing", min_value=1)]
    with pytest.raises(DeclarationError, match="it cannot be judged on this table: ") as refused:
        quality.row_rules(spark, StructType.fromDDL("id BIGINT"), missing)
    assert '"nothing"' in str(refused.value) and "exception_" not in str(refused.value)
    [result] = quality.validate(spark.range(1), missing)
    assert not result.passed and '"nothing"' in result.detail and "exception_" not in result.detail


def test_a_network_of_which_only_the_continent_is_known_is_of_no_country():
    assert visits._geoip().lookup("168.168.205.185").country_code == "ASIA", "else this tests nothing"
    addresses = pa.array(["168.168.205.185", "10.0.0.1", "no address", "8.8.8.8", None])
    assert visits._countries(addresses).to_pylist() == ["ZZ", "ZZ", "ZZ", "US", None]
