"""The project that `lakehouse init --from` makes of lines of many shapes: each line is a row, and stream equals batch."""

import importlib
import sys

from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.testing import Stage, assert_stream_equals_batch

LINES = (
    b'{"@id": "r1", "ride_id": 7, "meta": {"ts": 1767225600123, "v": 1, "no": null}, "fare": 12.5, "window": "w",'
    b' "big": 9223372036854775808}',
    b'{"@id": "r2", "ride_id": 7, "meta": {"ts": 1767225700123, "v": "1"}, "fare": 7, "stops": [], "tags": [null, "x"],'
    b' "mixed": 1.10, "day": "2026-01-02"}',
    b"",
    b'{"@id": "r3", "ride_id": 9, "meta": {"ts": 1767225650123, "v": [1]}, "fare": 7.125, "mixed": {"a": 1}, "_x": true,'
    b' "stops": [{"at": "2026-01-01T00:00:00Z", "m": null}], "a b": {"c,d": 1}, "ingestion_time": "2026-01-01 00:00", "x": 1e50}',
)


def test_lines_of_many_shapes_are_rows_in_stream_and_batch(spark, tmp_path, monkeypatch):
    (tmp_path / "rides.jsonl").write_bytes(b"\n".join(LINES))
    words = ["init", str(tmp_path / "own"), "--from", str(tmp_path / "rides.jsonl")]
    done = CliRunner().invoke(main.app(), words)
    assert done.exit_code == 0, done.output
    monkeypatch.syspath_prepend(tmp_path / "own")
    rides, test = importlib.import_module("rides"), importlib.import_module("test_rides")
    for name in ("rides", "test_rides"):  # the names are free again for other tests of this process
        del sys.modules[name]
    stage = Stage(spark, tmp_path / "root", rides)
    test.test_rides_by_minute(lambda module: stage)
    assert stage.rows("rides", side="quarantine").collect() == []
    # the test sends the first line once more, a day later
    rows = {row.id: row for row in stage.rows("rides").where("event_time < '2026-01-02'").collect()}
    first, second, third = rows["r1"], rows["r2"], rows["r3"]
    assert [str(row.fare) for row in (first, second, third)] == ["12.500", "7.000", "7.125"]
    assert f"{first.event_time:%Y-%m-%dT%H:%M:%S.%f}" == "2026-01-01T00:00:00.123000"
    assert (str(first.big), first.window_, first.meta.v) == ("9223372036854775808", "w", "1")
    assert (second.mixed, second.tags, second.stops, f"{second.day}") == (
        "1.10",
        [None, "x"],
        [],
        "2026-01-02",
    )
    assert (third.mixed, third.meta.v, third.a_b, third.x) == (
        '{"a": 1}',
        "[1]",
        '{"c,d": 1}',
        1e50,
    )
    assert third.stops[0].m is None and third.ingestion_time_ is not None and third.x_ is True
    assert sum(row.row_count for row in stage.rows("rides_by_minute").collect()) == 3
    assert assert_stream_equals_batch(stage, "rides_by_minute").rows_recomputed == 3
