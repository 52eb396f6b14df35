"""Two sets of rows compared: which values count as the same."""

from math import inf, nan

import pytest
from pyspark.sql import Row

from lakehouse.storage.delta import digest


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.001, 2.0], True),
        ([1.0, 2.0], [1.1, 2.0], False),
        ([1.0, nan], [1.001, nan], True),
        ([1.0, nan], [1.001, 2.0], False),
        ([1.0, inf], [1.001, inf], True),
        ([1.0, inf], [1.001, -inf], False),
        ([1.0, inf], [1.001, 2.0], False),
        ([1.0, None], [1.001, None], True),
        ([1.0, None], [1.001, 2.0], False),
    ],
)
def test_doubles_within_the_tolerance_are_the_same(expected, actual, same):
    assert digest._close(Row(*expected), Row(*actual), 0.01) is same
