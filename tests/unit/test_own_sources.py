"""Sources of one's own: what a class must give, what is said if it does not, and how such a source is shown everywhere."""

import json
import threading
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import pytest

from assets import streams, tables
from lakehouse import SourceReader, SourceRecord, folder, ingest_table, kafka, python_source
from lakehouse.cli import table_status
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError, SourceAway, SourceError
from lakehouse.runtime import own_source
from lakehouse.runtime.own_source import OwnReader
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state
from lakehouse.stream import pauses
from lakehouse.stream.reading import offset_ranges, offsets
from lakehouse.testing import assert_resettable
from streaming_jobs.exporters.lineage import Lineage
from support import own_sources, starts
from support.lines import note_read
from support.own_sources import SCHEMA, Filled, Numbers, filled

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lines(reader: type[SourceReader], **how):
    return python_source("lines", reader, schema="line STRING NOT NULL", format="text", **how)


def giving(*records, last=None):
    """A source whose range is always these records."""

    class Given(Numbers):
        def latest_offset(self):
            return len(records) if last is None else last

        def read(self, partition, start, end):
            return iter(records)

    return python_source("given", Given, schema=SCHEMA)


# ---- what is declared


def test_a_class_that_cannot_be_read_by_is_refused_when_it_is_declared():
    class Half(SourceReader):
        def latest_offset(self):
            return 0

    narrow = type("Narrow", (Numbers,), {"read": lambda self, start, end: []})

    class Made(Numbers):
        def __init__(self, url):
            self.url = url

    for reader, options, said in (
        (object, {}, r"it must be a class that extends lakehouse.SourceReader"),
        (Numbers(), {}, r"and no instance; each stream makes its own"),
        (Half, {}, r"reader=Half: it has no method read; write it"),
        (narrow, {}, r"its method read is called with partition, start and end"),
        (Made, {}, r"missing a required argument: 'url'\); options are the parameters of its __init__"),
        (Made, {"url": 1, "port": 2}, r"got an unexpected keyword argument 'port'"),
        (Made, {"url": object()}, r"option url=<object .*>: texts, numbers, true, false and None can be shown"),
    ):  # fmt: skip
        with pytest.raises(DeclarationError, match=said):
            python_source("x", reader, schema=SCHEMA, options=options)
    with pytest.raises(DeclarationError, match=r"name=' ': a source is known by its name"):
        python_source(" ", Numbers, schema=SCHEMA)
    with pytest.raises(DeclarationError, match=r"format='avro': one of json, csv, text"):
        python_source("x", Numbers, schema=SCHEMA, format="avro")
    with pytest.raises(DeclarationError, match=r"text is one column, a STRING"):
        python_source("x", Numbers, schema=SCHEMA, format="text")


def rates(source): ...


def united(source, others): ...


def catalog(function=rates, **sources):
    module = ModuleType(__name__)
    for name, source in sources.items():
        setattr(module, name, source)
    setattr(module, function.__name__, ingest_table(layer="bronze", event_time="at")(function))
    return catalog_of([module])


def test_it_fills_an_ingest_table_alone_and_is_no_topic():
    found = catalog(source=filled("x"))
    ingest = found.table("rates")
    assert ingest.kind.reads_sources and found.topics() == []
    for others in (kafka("t", schema=SCHEMA), folder("/data", schema=SCHEMA), filled("y")):
        with pytest.raises(DeclarationError, match=r"or one source of your own; declare"):
            catalog(united, source=filled("x"), others=others)
    behind = kafka("t", schema=SCHEMA, history=filled("x"), starting=AT)
    with pytest.raises(
        DeclarationError, match=r"a history is a folder, or a Delta or Iceberg table of others"
    ):
        catalog(source=behind)


def test_another_source_is_refused_under_a_table_with_rows_and_another_class_until_it_is_accepted(
    tmp_path,
):
    settings, found = Settings(root=tmp_path), catalog(source=filled("x"))
    starts.begin(Lakehouse(settings, found), found.table("rates"))
    note_read(settings, found.table("rates"), 1)

    def changed(source):
        now = catalog(source=source)
        return Lakehouse(settings, now), now.table("rates")

    lakehouse, ingest = changed(filled("y"))
    with pytest.raises(DeclarationError, match=r"topics=y: its .* with x, .* the source of your"):
        declared_state.check(lakehouse, [ingest])
    with pytest.raises(DeclarationError):
        declared_state.accept(lakehouse, ingest)
    same = {"schema": SCHEMA, "poll_interval": "1 minute", "max_bytes": 9}
    lakehouse, ingest = changed(python_source("x", Filled, options={"name": "x"}, **same))
    declared_state.check(lakehouse, [ingest])
    for other in (
        python_source("x", Numbers, **same),
        python_source("x", Filled, options={"name": "z"}, **same),
    ):
        lakehouse, ingest = changed(other)
        with pytest.raises(
            DeclarationError,
            match=r"reader of x=.*its positions may be those of other records; `lakehouse table accept rates`",
        ):
            declared_state.check(lakehouse, [ingest])
    assert [str(each.field) for each in declared_state.accept(lakehouse, ingest)] == ["reader of x"]
    declared_state.check(lakehouse, [ingest])


def test_it_is_shown_in_dagster_in_the_list_of_tables_and_when_its_job_stops(tmp_path):
    found, settings = catalog(source=filled("x")), Settings(root=tmp_path)
    (job,) = streams.specs(settings, found)
    assert job.kinds == {"spark", "python"} and [d.asset_key.path[-1] for d in job.deps] == [
        "source"
    ]
    spec = tables._source(found.sources["source"])
    assert spec.kinds == {"python"} and spec.metadata["class"] == "support.own_sources.Filled"
    assert table_status._input(found, "source") == (
        "source (source x, read by support.own_sources.Filled)"
    )
    dataset = Lineage(settings, found, None)._dataset(found.table("rates"), "source", None)
    assert dataset == {
        "namespace": "python://support.own_sources.Filled",
        "name": "x",
        "facets": {},
    }
    (line,) = pauses.remarks(Lakehouse(settings, found), found.pipelines()[0], AT)
    assert line.startswith("x: what comes meanwhile is read if it is still there")


# ---- what a class gives


def test_records_become_those_of_a_topic():
    class Mixed(Numbers):
        def latest_offset(self):
            return {0: 5, 7: 2}

        def read(self, partition, start, end):
            given = [
                {"n": 1, "at": AT, "cents": Decimal("1.50"), "day": AT.date(), "raw": b"\xff"},
                '{"n": 2}',
                b"\xff",
                SourceRecord("é", key="k", timestamp=AT.astimezone(timezone(timedelta(hours=2)))),
                SourceRecord(None, key=b"\x00"),
            ]
            return given[start:end]

    reader = OwnReader(python_source("x", Mixed, schema=SCHEMA))
    assert reader.ends() == {"0": 5, "7": 2} and reader.begins(reader.ends()) == {"0": 0, "7": 0}
    rows, reached = reader.table("0", 0, 5)
    assert reached == 5 and rows["offset"].to_pylist() == [0, 1, 2, 3, 4]
    values = rows["value"].to_pylist()
    assert json.loads(values[0]) == {
        "n": 1, "at": "2026-01-01T12:00:00+00:00", "cents": "1.50", "day": "2026-01-01", "raw": "/w==",
    }  # fmt: skip
    assert values[1:] == [b'{"n": 2}', b"\xff", "é".encode(), None]
    assert rows["key"].to_pylist() == [None, None, None, b"k", b"\x00"]
    assert rows["timestamp"].to_pylist() == [None, None, None, AT, None]
    rows, _ = reader.table("7", 1, 2)
    assert rows["partition"].to_pylist() == [7] and rows["offset"].to_pylist() == [1]


def test_a_step_takes_about_so_many_bytes_and_leaves_the_rest():
    source = filled("x", p0=["a" * 10, None, "b" * 10, "c" * 10])
    reader = OwnReader(source)
    rows, reached = reader.table("0", 0, 4, 15)
    assert rows["offset"].to_pylist() == [0, 2] and reached == 3
    rows, reached = reader.table("0", reached, 4, 15)
    assert rows["offset"].to_pylist() == [3] and reached == 4
    rows, reached = reader.table("0", 1, 2)
    assert rows.num_rows == 0 and reached == 2, "a number that is missing is past"
    rows, reached = reader.table("0", 0, 4, seconds=-1.0)
    assert rows.num_rows == 1 and reached == 1, "one that is slow gives at least one"


def test_read_is_asked_for_a_limited_number_at_once(monkeypatch):
    monkeypatch.setattr(own_source, "LOT", 3)
    asked = []

    class Asked(Numbers):
        def read(self, partition, start, end):
            asked.append((start, end))
            return [str(n) for n in range(start, end)]

    rows, reached = OwnReader(lines(Asked)).table("0", 1, 9)
    assert asked == [(1, 4), (4, 7), (7, 9)] and reached == 9
    assert rows["value"].to_pylist() == [str(n).encode() for n in range(1, 9)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), r"range=\[0, 3\): read gave 0 records of 3, so those from 0 on would be lost"),
        (("a", "b"), r"read gave 2 records of 3, so those from 2 on would be lost; give all that latest_offset"),
        (("a", "b", "c", "d"), r"record='d': it is one more than the range has; end is not part of it"),
        (("a", 5, "c"), r"offset=1, record=5: a record is text, bytes or a mapping of fields, or a SourceRecord"),
        ((None,), r"offset=0, record=None: a record is text"),
        (("a", SourceRecord("b", offset=2)), r"offset=2: the next record of the range has an offset from 1 to 1"),
        ((SourceRecord("a", offset=True),), r"offset=True: the next record"),
        ((SourceRecord("a", key=5),), r"offset=0, key=5: a key is text, bytes or None"),
        ((SourceRecord("a", timestamp=datetime(2026, 1, 1)),), r"a timestamp is a datetime with its time zone"),
        ((SourceRecord("a", timestamp=5),), r"timestamp=5: a timestamp is a datetime"),
        (({"a": object()},), r"record=\{'a': <object .*\}: it cannot be written as JSON: a value is of the type object"),
    ],
)  # fmt: skip
def test_what_read_gives_and_must_not_is_said_with_its_range_and_value(given, said):
    reader = OwnReader(giving(*given, last=3))
    with pytest.raises(SourceError, match=rf"source=given, partition=0, .*{said}") as failed:
        reader.table("0", 0, 3)
    assert not isinstance(failed.value, SourceAway)
    assert str(failed.value).endswith("test_own_sources.giving.<locals>.Given")


def test_records_of_a_sparse_source_say_their_offsets_and_may_be_none():
    class Sparse(Numbers):
        sparse = True
        given = ()

        def read(self, partition, start, end):
            return iter(self.given)

    reader = OwnReader(lines(Sparse))
    assert reader.table("0", 5, 9)[0].num_rows == 0
    Sparse.given = (SourceRecord("a", offset=6), SourceRecord("b", offset=8))
    assert reader.table("0", 5, 9)[0]["offset"].to_pylist() == [6, 8]
    for given, said in (
        (("a",), "offset=None: the next record of the range has an offset from 5 to 8"),
        ((SourceRecord("a", offset=4),), "offset=4: the next record of the range has an offset from 5 to 8"),
        ((SourceRecord("a", offset=9),), "offset=9: the next"),
        ((SourceRecord("a", offset=6), SourceRecord("b", offset=6)), "offset=6: .* from 7 to 8"),
        ((SourceRecord("a", offset=8), SourceRecord("b", offset=9)), "it is one more than the range has"),
    ):  # fmt: skip
        Sparse.given = given
        with pytest.raises(SourceError, match=said):
            reader.table("0", 5, 9)


def test_a_single_value_is_no_range_and_a_mapping_is_no_text():
    class Whole(Numbers):
        def read(self, partition, start, end):
            return "abc"

    with pytest.raises(SourceError, match="read='abc': it must give the records of a range, one"):
        OwnReader(lines(Whole)).table("0", 0, 3)

    class Fields(Numbers):
        def read(self, partition, start, end):
            return ({"line": "a"} for _ in range(start, end))

    with pytest.raises(SourceError, match="has format='text', and a mapping becomes JSON"):
        OwnReader(lines(Fields)).table("0", 0, 3)


@pytest.mark.parametrize("given", [-1, True, 1.5, None, "7", {"0": 5}, {0: -1}, {-1: 0}, {1 << 31: 0}, [3]])  # fmt: skip
def test_offsets_are_whole_numbers_by_partition(given):
    class Given(Numbers):
        def latest_offset(self):
            return given

    with pytest.raises(SourceError, match=r"latest_offset=.*: it must be an offset, an int of at"):
        OwnReader(lines(Given)).ends()


def test_first_offsets_are_those_of_all_partitions_or_of_each():
    source = filled("x", p0=["a", "b"], p1=[])
    Filled.earliest["x"] = {0: 1}
    reader = OwnReader(source)
    assert reader.begins(reader.ends()) == {"0": 1, "1": 0}
    Filled.earliest["x"] = {1: 1}
    with pytest.raises(SourceError, match="partition=1, earliest_offset=1: it is behind latest"):
        reader.begins(reader.ends())


def test_a_class_that_raises_is_away_and_another_instance_is_asked_next():
    source = filled("x", p0=["a"])
    reader = OwnReader(source)
    reader.ends()
    first = Filled.made[-1]
    Filled.away |= {"read"}
    with pytest.raises(
        SourceAway,
        match=r"source=x, partition=0, range=\[0, 1\): it must answer read and did not: it raised ConnectionError: no route to "
        r"x in line \d+ of support.own_sources",
    ):
        reader.table("0", 0, 1)
    assert first.closed and Filled.made[-1] is first
    Filled.away.clear()
    assert reader.table("0", 0, 1)[0].num_rows == 1 and Filled.made[-1] is not first
    reader.close()
    assert Filled.made[-1].closed


# ---- what the test kit finds


def test_the_sources_of_the_docs_pass(tmp_path):
    own_sources.test_orders(tmp_path)

    class Endpoint(BaseHTTPRequestHandler):
        def do_GET(self):
            path = urlsplit(self.path)
            asked = {name: int(value) for name, (value,) in parse_qs(path.query).items()}
            given = 250 if path.path == "/count" else [{"n": n} for n in range(*asked.values())]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(given).encode())

        def log_message(self, *_): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        source = python_source("rates", own_sources.Rates, schema="n BIGINT", options={"url": url})
        assert assert_resettable(source) == 250
    finally:
        server.shutdown()
        server.server_close()


def test_it_compares_the_beginning_and_the_end_of_each_partition():
    source = filled("x", p0=[str(n) for n in range(100)], p1=["a", None, "b"], p2=[])
    assert assert_resettable(source, records=10) == 20 + 2
    Filled.earliest["x"] = {0: 95}
    assert assert_resettable(source, records=10) == 5 + 2
    with pytest.raises(AssertionError, match="source=y, seed=0, it has no record, so nothing was"):
        assert_resettable(filled("y", p0=[]))


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (own_sources.Drawn, r"range=\[0, 100\): record 0 is b'0 0\.\d+' when the range is read once more, and was b'0 0"),
        (own_sources.Unordered, r"record \d+ is b'\d+' when the range is read in pieces, and was b'\d+' at first"),
        (own_sources.Cursor, r"record \d+ is b'\d+' when the range is read in pieces, in another order"),
        (own_sources.OfInstance, r"record 0 is b'0 of \d+' when the range is read by a new instance, and was"),
        (own_sources.Left, r"record 0 is b'1' when the range is read after an iterator was left at its first record"),
        (own_sources.GoesBack, r"latest_offset=99: so it is as a new instance says it, and it was 100 before"),
        (own_sources.Inclusive, r"range=\[0, 100\), record='100': it is one more than the range has"),
        (own_sources.Fewer, r"read gave 99 records of 100"),
        (own_sources.Numerals, r"offset=0, record=0: a record is text"),
        (own_sources.EmptyIsAll, r"range=\[0, 0\), record=.*offset=0\): it is one more than the range has"),
        (own_sources.Away, r"it must answer read and did not: it raised ConnectionError: no route to host"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)  # fmt: skip
def test_a_source_that_is_not_resettable_is_found(reader, said):
    with pytest.raises(AssertionError, match=rf"source=lines.*{said}"):
        assert_resettable(lines(reader))


def test_what_lies_between_offsets_is_shared_out():
    begin, end = {"t": {"0": 10, "1": 0, "2": 5}}, {"t": {"0": 110, "1": 1, "2": 5}}
    assert (
        offset_ranges.between(begin, end) == 101 and offset_ranges.limited(begin, end, 101) == end
    )
    assert offset_ranges.limited(begin, end, 10) == {"t": {"0": 19, "1": 1, "2": 5}}, (
        "a partition with something gives at least one"
    )
    assert offset_ranges.between({"t": {"0": 10}}, {"t": {"0": 7}}) == 0


def test_records_that_were_accepted_as_lost_are_left_out_of_a_range():
    gaps = [offsets.Gap("t", "0", 3, 5), offsets.Gap("t", "0", 8, 20)]
    assert [*offsets.outside(gaps, 0, 10)] == [(0, 3), (5, 8)]
    assert [*offsets.outside(gaps, 4, 8)] == [(5, 8)]
    assert [*offsets.outside(gaps, 9, 12)] == []
    assert [*offsets.outside([], 9, 12)] == [(9, 12)]
