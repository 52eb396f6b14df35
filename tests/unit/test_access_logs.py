"""Lines of access logs, without a session."""

import pyarrow as pa
import pytest

from examples.visits import tables as visits
from lakehouse import kafka
from lakehouse.errors import DeclarationError


def test_agents_that_are_long_are_judged_by_their_beginning_in_bounded_time():
    hostile = pa.array(["x" * 20_000, None, "Googlebot " + "x" * 20_000])
    assert visits._are_bots(hostile).to_pylist() == [False, None, True]


@pytest.mark.parametrize(
    "schema", ["line BINARY", "line STRING, more STRING", "", "line STRING NULL"]
)
def test_text_is_one_column_of_strings(schema):
    with pytest.raises(DeclarationError, match="text is one column, a STRING; write for example"):
        kafka("t", schema=schema, format="text")


def test_an_unknown_format_is_refused():
    with pytest.raises(DeclarationError, match="format='csv': one of json, text"):
        kafka("t", schema="line STRING", format="csv")
