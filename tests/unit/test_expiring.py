"""Keyed tables with `ttl` and `final_rows`: where these can be declared, which rows count, and which may be erased."""

from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakehouse import ingest_table, kafka, keyed_table, row_table, sql
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.maintenance import erasure
from lakehouse.maintenance.erasure import Erasure
from lakehouse.ranges import Range
from lakehouse.settings import Settings
from lakehouse.storage.keyed import event_time_index
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ROW = {"kind": "row"}
topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


def module_of(**queries) -> ModuleType:
    """Tables of one ingest table, each with its query and options; keyed ones by default."""
    module = ModuleType(__name__)
    module.topic = topic

    def things(topic):
        return topic

    module.things = ingest_table(layer="bronze", event_time="at")(things)
    for name, (query, declared) in queries.items():
        declare = partial(keyed_table, keys=["id"])
        if declared is ROW:
            declare, declared = row_table, {}
        setattr(module, name, declare(layer="gold", **declared)(sql(name, query)))
    return module


COUNTS = "SELECT id, count(*) AS n FROM {things} GROUP BY id"


@pytest.mark.parametrize(
    ("query", "declared", "words"),
    [
        ("SELECT id, n FROM {counts}", {"ttl": "1 day"}, r"ttl=1 day.*inputs=\['counts'\].*before it"),
        ("SELECT id, n FROM {counts}", {"final_rows": True}, "counts: its rows have no event time.*declare it on counts instead"),
        ("SELECT id, count(*) AS n FROM {things} JOIN {counts} AS c USING (id) GROUP BY id", {"final_rows": True},
         "input=counts: its rows have no event time.*read what counts reads"),
    ],
)  # fmt: skip
def test_what_counts_by_time_is_refused_where_rows_have_no_event_time(query, declared, words):
    with pytest.raises(DeclarationError, match=words):
        catalog_of([module_of(counts=(COUNTS, {}), other=(query, declared))])


def test_only_rows_that_expire_may_be_erased_and_only_once_they_have(tmp_path):
    def keeping(**queries) -> list[str]:
        catalog = catalog_of([module_of(**queries)])
        return erasure._keeping(
            Lakehouse(Settings(root=tmp_path), catalog), catalog.table("things")
        )

    expiring, behind = (COUNTS, {"ttl": "1 day"}), ("SELECT id, n FROM {counts}", {})
    row = ("SELECT things.* FROM {things} JOIN {counts} AS c USING (id)", ROW)
    assert keeping(counts=expiring, behind=behind) == []
    assert keeping(counts=(COUNTS, {}), behind=behind) == ["behind", "counts"]
    assert keeping(counts=expiring, rows=row) == ["counts"], "read as of one version"

    settings, catalog = Settings(root=tmp_path), catalog_of([module_of(counts=expiring)])
    counts, lakehouse = catalog.table("counts"), Lakehouse(settings, catalog)
    line = Commit("counts", "stream", 1, 0, 1, AT, counts.code_version, frontier=AT + 25 * HOUR)
    erased = Erasure("things", {AT: 2}, 0, 0, (), {})
    erasure._check_expired(lakehouse, catalog.table("things"), erased)  # it has not begun
    CommitLog(settings, counts).append(line)
    erasure._check_expired(lakehouse, catalog.table("things"), erased)
    later = Erasure("things", {AT + HOUR: 2}, 0, 0, (), {})
    with pytest.raises(
        RangeError, match=r"before 2026-01-01T02:00:00Z may count for counts \(ttl=1 day"
    ):
        erasure._check_expired(lakehouse, catalog.table("things"), later)


def test_rows_of_files_are_chosen_by_their_instant(tmp_path):
    kind = pa.timestamp("us", "UTC")
    window = pa.struct([("start", kind), ("end", kind)])
    arrival = pa.struct([("watermark", kind)])
    schema = pa.schema(
        [
            ("at", kind),
            ("window", window),
            ("_arrival", arrival),
            ("_origin", pa.string()),
            ("n", pa.int64()),
        ]
    )

    def row(n: int, behind: int, origin: str = "stream") -> dict:
        at = AT + timedelta(seconds=n)
        mark = {"watermark": at + timedelta(seconds=behind)}
        return {
            "at": at,
            "window": {"start": AT, "end": at},
            "_arrival": mark,
            "_origin": origin,
            "n": n,
        }

    rows = [row(0, 60), row(1, 61), row(2, -5), row(3, 100, "batch")]
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file, part in zip(files, (rows[:2], rows[2:]), strict=True):
        pq.write_table(
            pa.Table.from_pylist(part, schema).drop(["n"] if file == files[0] else []), file
        )
    span = Range(AT + timedelta(seconds=1), AT + timedelta(seconds=3))
    for column in ("at", "window.end"):
        of_span = [event_time_index.within(column, span)]
        found = event_time_index.chosen(files, schema, of_span, ["n"], 2)
        assert found and found["n"].to_pylist() == [None, 2], "a column that one file has not yet"
        assert event_time_index.chosen(files, schema, of_span, ["n"], 1) is None
        found = event_time_index.chosen(files[:1], schema, of_span, ["_origin"], 2)
        assert found and found.num_rows == 1, "of a file without a column of the condition"
    all_rows = pa.Table.from_pylist(rows, schema)

    def numbers(chosen: pc.Expression) -> list[int]:
        return all_rows.filter(chosen)["n"].to_pylist()

    assert numbers(event_time_index.within("at", Range(span.start, AT + HOUR))) == [1, 2, 3]
    assert numbers(
        event_time_index.within("at", Range(AT, span.end), AT + timedelta(seconds=61))
    ) == [0, 2]
    assert numbers(event_time_index.entering("at", span, None)) == [1, 2]
    late = AT + timedelta(seconds=60)
    assert numbers(event_time_index.entering("at", span, late)) == [0, 1, 2], "0 arrived late"
    assert event_time_index.last_watermark(files[0]) == AT + timedelta(seconds=62)
    assert event_time_index.count_late(files, schema, "at", timedelta(minutes=1)) == 1, (
        "61 s behind"
    )
