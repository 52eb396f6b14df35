"""Whole columns as text: byte for byte what `encoding` writes of each value, whatever the type and the value."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse import RowChange
from lakehouse.errors import SinkError
from lakehouse.sinks.formats import encoded, texts
from lakehouse.sinks.formats.encoded import Columns, Rows
from lakehouse.sinks.formats.encoding import json_of, key_of, rows_of, text_of, value_of

ANY = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
instants = st.datetimes(timezones=st.just(UTC)) | st.datetimes().map(
    lambda at: at.replace(microsecond=0, tzinfo=UTC)
)
characters = st.text() | st.text('"\\/\b\f\n\r\t\0\x1f\x7f\x85\u2028é日🙂,{}[]:')
_EDGES = [
    sign * 10.0**n * by for n in range(-7, 20) for by in (1, 1 - 2e-16, 1.5) for sign in (1, -1)
]
doubles = (
    st.floats()
    | st.integers(-(10**18), 10**18).map(float)
    | st.decimals(-(10**12), 10**12, places=4).map(float)
    | st.sampled_from([0.0, -0.0, 0.1, 5.0, -811.0, *_EDGES])
)
DAY = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**digits, 10**digits - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -places))
    )


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


PLAIN: list[tuple[pa.DataType, st.SearchStrategy]] = [
    (pa.bool_(), st.booleans()),
    *((kind, whole(kind.bit_width)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    (pa.float64(), doubles),
    (pa.float32(), st.floats(width=32) | st.integers(-(10**6), 10**6).map(float)),
    (pa.string(), characters),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), instants),
    (pa.timestamp("us", "Asia/Tokyo"), instants),
    (pa.timestamp("us"), st.datetimes()),
    *(
        (pa.decimal128(digits, places), decimals(digits, places))
        for digits, places in ((9, 2), (38, 0), (38, 10), (38, 38))
    ),
]


def or_null(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | values


def nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Types, each with what makes its values: lists, maps and structs of the inner ones."""
    fields = st.lists(inner, max_size=3)
    return st.one_of(
        inner.map(lambda of: (pa.list_(of[0]), st.lists(or_null(of[1]), max_size=3))),
        inner.map(lambda of: (pa.large_list(of[0]), st.lists(or_null(of[1]), max_size=3))),
        st.tuples(st.sampled_from(PLAIN[:9]), inner).map(
            lambda of: (
                pa.map_(of[0][0], of[1][0]),
                st.lists(
                    st.tuples(of[0][1], or_null(of[1][1])),
                    max_size=3,
                    unique_by=lambda pair: pair[0],
                ),
            )
        ),
        fields.map(
            lambda of: (
                pa.struct([(f'"{n}é', each[0]) for n, each in enumerate(of)]),
                st.fixed_dictionaries({f'"{n}é': or_null(each[1]) for n, each in enumerate(of)}),
            )
        ),
    )


types = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows of one to four columns of any type, in pieces as files have them, and cut out of a larger table."""
    found = draw(st.lists(types, min_size=1, max_size=4))
    schema = pa.schema([(f"c{n}\n", of) for n, (of, _) in enumerate(found)])
    row = st.tuples(*(or_null(values) for _, values in found))
    pieces = draw(st.lists(st.lists(row, max_size=6), min_size=1, max_size=3))
    made = [
        pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in rows], schema)
        for rows in pieces
    ]
    together = pa.concat_tables(made)
    first = draw(st.integers(0, together.num_rows))
    return together.slice(first, draw(st.integers(0, together.num_rows)))


def check(table: pa.Table) -> None:
    rows = rows_of(table)
    assert texts.values_of(table) == [value_of(row) for row in rows]
    for name in table.column_names:
        values = [row[name] for row in rows]
        for one in (json_of, text_of):
            written = [None if value is None else one(value) for value in values]
            assert texts.cells(table, name, one).to_pylist() == written
    key = [*table.column_names, table.column_names[0]][:2]
    assert texts.keys_of(table, key) == [key_of(row, key) for row in rows]


@ANY
@pytest.mark.parametrize(("kind", "values"), PLAIN, ids=[str(kind) for kind, _ in PLAIN])
@given(data=st.data())
def test_a_column_of_each_type_is_written_as_each_value_is(kind, values, data):
    found = data.draw(st.lists(or_null(values), min_size=1, max_size=40))
    within = pa.array([[{"x": value}] for value in found], pa.list_(pa.struct([("x", kind)])))
    check(pa.table({"plain": pa.array(found, kind), "within": within}))


def test_all_doubles_of_edges_are_written_as_each_is():
    check(
        pa.table({"x": [0.0, -0.0, 1.0, -1.0, *_EDGES, float("inf"), float("-inf"), float("nan")]})
    )
    noughts = pa.table({"x": [0.0, -0.0], "many": [[{"x": 0.0}], [{"x": -0.0}]]})
    for key in (["x"], ["many"], ["x", "many"]):
        assert len(set(texts.keys_of(noughts, key))) == 1, "Spark takes the two for one key"


@ANY
@given(tables())
def test_columns_nested_and_in_pieces_are_written_as_each_value_is(table):
    check(table)


@ANY
@given(tables())
def test_changes_in_arrow_are_those_of_their_rows(table):
    kinds = [("insert", "update", "delete")[n % 3] for n in range(table.num_rows)]
    ours, plain = Columns(kinds, table), Rows(list(map(RowChange, kinds, rows_of(table))))
    key, places = table.column_names[:1] * 2, range(table.num_rows)[::-2]
    for one, other in ((ours, plain), (ours.take(places), plain.take(places))):
        assert value_texts(one) == value_texts(other)
        assert one.kinds == other.kinds and one.values() == other.values()
        assert one.keys(key) == other.keys(key) and one.cells(key) == other.cells(key)
        assert encoded.of(one) is one and len(one) == len(other)
    assert [ours[n].kind for n in places] == [plain[n].kind for n in places]


def value_texts(changes: encoded.Changes) -> list[tuple[str, str]]:
    return [(change.kind, value_of(change.row)) for change in changes]


def test_a_large_version_is_written_in_parts_in_its_order(monkeypatch):
    table = pa.table({"n": range(1_000), "text": ["x" * n for n in range(1_000)]})
    monkeypatch.setattr(texts, "_ROWS", 300)
    monkeypatch.setattr(texts, "_BYTES", 50_000)
    changes = Columns(["insert"] * 1_000, table)
    sizes = [len(part) for part in changes.parts()]
    assert sum(sizes) == 1_000 and max(sizes) <= 300 and min(sizes) < 100
    rows = rows_of(table)
    assert [text for part in changes.parts() for text in part.values()] == list(map(value_of, rows))
    assert changes.keys(["n"]) == [str(n) for n in range(1_000)]
    assert [change.row for change in changes] == rows and changes[-1].row == rows[-1]
    assert not list(Columns([], table.slice(0, 0)).parts())


def test_a_row_without_a_key_and_a_year_that_no_reader_knows_are_refused():
    table = pa.table({"account": pa.array(["a", None]), "n": pa.array([None, 1])})
    with pytest.raises(SinkError, match="key=account: a row in which it is null has no key"):
        texts.keys_of(table, ["account"])
    assert json.loads(texts.keys_of(table, ["account", "n"])[1]) == {"account": None, "n": 1}
    for kind, first, last in (
        (pa.timestamp("us", "UTC"), *(each.replace(tzinfo=UTC) for each in DAY)),
        (pa.timestamp("us"), *DAY),
        (pa.date32(), date.min, date.max),
    ):
        ends = pa.array([first, None, last], kind)
        assert texts.values_of(pa.table({"at": ends})) == [
            value_of({"at": v}) for v in (first, None, last)
        ]
        number = pa.int32() if kind == pa.date32() else pa.int64()
        for end, step, year in ((first, -1, "0000"), (last, 1, "10000")):
            beyond = pa.array([pa.scalar(end, kind).cast(number).as_py() + step], number).cast(kind)
            with pytest.raises(SinkError, match=f"column=at, value={year}-.*the years 1 to 9999"):
                texts.values_of(pa.table({"at": beyond}))
            within = pa.MapArray.from_arrays([0, 1], pa.array(["x"]), beyond)
            for rows in (pa.table({"n": [1], "at": beyond}), pa.table({"n": [1], "at": within})):
                with pytest.raises(SinkError, match=r"column=at, value=.*the years 1 to 9999"):
                    rows_of(rows)
