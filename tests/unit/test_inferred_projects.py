"""`lakehouse init --from`: what a file of JSON lines says of a topic, and what it cannot say."""

import ast
import gzip
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.cli.inference import inferred
from lakehouse.settings import from_environment

AT = '"at": "2026-01-01T00:00:00Z"'


def init(tmp_path: Path, *lines: str, name: str = "rides.jsonl"):
    (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    words = ["init", str(tmp_path / "own"), "--from", str(tmp_path / name)]
    return CliRunner().invoke(main.app(), words)


def types(*lines: dict | str) -> dict[str, str]:
    raw = [(line if isinstance(line, str) else json.dumps(line)).encode() for line in lines]
    return {name: values.type() for name, values in inferred("x.jsonl", raw).columns.items()}


def chosen(*lines: dict) -> tuple[str, str, str | None]:
    found = inferred("x.jsonl", [json.dumps(line).encode() for line in lines])
    return ".".join(found.event_time.path), found.event_time.unit, found.key


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ("1 | 2", "BIGINT"),
        ("1 | 1.25", "DECIMAL(18,2)"),
        ("1.10 | 123456789012345678", "DECIMAL(38,2)"),
        ("9223372036854775808", "DECIMAL(38,0)"),
        ("1e40", "DOUBLE"),
        ("0.5 | NaN", "DOUBLE"),
        ("true | false | null", "BOOLEAN"),
        ('"a" | 1', "STRING"),
        ("true | 1", "STRING"),
        ('[1] | {"a":1}', "STRING"),
        ("null | null", "STRING"),
        ("{}", "STRING"),
        ('{"a":1,"A":2}', "STRING"),
        ('{"a,b":1}', "STRING"),
        ("[]", "ARRAY<STRING>"),
        ("[null]", "ARRAY<STRING>"),
        ("[] | [1,null]", "ARRAY<BIGINT>"),
        ('[1,"a"]', "ARRAY<STRING>"),
        ('[{"a":1}] | [{"b":[true]}]', "ARRAY<STRUCT<`a`: BIGINT, `b`: ARRAY<BOOLEAN>>>"),
        ('{"a":{"b":1.5}} | {"a":null,"c":"x"}', "STRUCT<`a`: STRUCT<`b`: DECIMAL(18,1)>, `c`: STRING>"),
        ('"2026-01-31" | "2026-02-28"', "DATE"),
        ('"2026-01-31" | "2026-01-31T12:30:00.123456+01:00"', "TIMESTAMP"),
        ('"2026-01-31 12:30" | null', "TIMESTAMP"),
        ('"2026-01-31" | "soon"', "STRING"),
        ('"2026-02-30"', "STRING"),
        ('"2026-01-31T12:30:00.1234567Z"', "STRING"),
    ],
)  # fmt: skip
def test_the_type_of_a_field_holds_all_of_its_values(values, type):
    assert types(*(f'{{{AT}, "x": {value}}}' for value in values.split(" | ")))["x"] == type


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ({"day": "2026-01-01", "ms": 1767225600123}, ("ms", "epoch milliseconds")),
        ({"born": "2001-01-01T00:00:00Z", "created_at": 1767225600123}, ("created_at", "epoch milliseconds")),
        ({"sent": 1767225600123, "eventTime": "2026-01-01T00:00:00Z"}, ("eventTime", "times")),
        ({"meta": {"ts": "2026-01-01T00:00:00Z"}, "n": 5}, ("meta.ts", "times")),
        ({"seconds": 1767225600}, ("seconds", "epoch seconds")),
        ({"day": "2026-01-01"}, ("day", "dates")),
        ({"x": "2026-01-01T00:00:00Z", "ts": None}, ("x", "times")),
        ({"from": "2026-01-01T00:00:00Z", "amount": 1767225600}, ("from", "times")),
    ],
)  # fmt: skip
def test_the_event_time_is_the_likeliest_field(line, time):
    assert chosen(line)[:2] == time
    assert types(line).get(time[0], "") in ("", "BIGINT" if "milli" in time[1] else "TIMESTAMP")


def test_a_field_of_all_lines_goes_before_one_of_some():
    at, x = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    assert chosen({"at": at, "x": x}, {"x": x}, {"at": None, "x": x})[0] == "x"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ([{"order_id": 1, "shop_id": 1}, {"order_id": 2, "shop_id": 1}], "shop_id"),
        ([{"shop": "a", "orderId": "1"}, {"shop": "a", "orderId": "2"}], "orderId"),
        ([{"shop": "a", "n": 1}, {"shop": "b", "n": 1}, {"shop": "b", "n": 1}], "shop"),
        ([{"id": 1}, {"id": None}], None),
        ([{"id": 1}, {}], None),
        ([{"n": 1, "price": 2}, {"n": 2, "price": 2}], None),
        ([{"my id": "a"}, {"my id": "a"}], None),
    ],
)
def test_the_key_is_called_so_or_repeats(lines, key):
    assert chosen(*(line | {"at": "2026-01-01T00:00:00Z"} for line in lines))[2] == key


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "a line is an event, and it has none"),
        (["", "  "], "a line is an event, and it has none"),
        (["", "{"], "line=2: a line is a JSON object, and this is no JSON"),
        ([f"{{{AT}}}", "[1]"], "line=2: a line is a JSON object, and this is a list"),
        (["7"], "line=1: a line is a JSON object, and this is a whole number"),
        (['"a"'], "line=1: a line is a JSON object, and this is a text"),
        (["null"], "line=1: a line is a JSON object, and this is null"),
        (['{"a": 1, "b": "soon"}'], "no field is an event time"),
        (["{}"], "no field is an event time"),
        ([f'{{{AT}, "At": 1}}'], "fields='at', 'At': a column has a name of its own"),
        ([f'{{{AT}, "": 1}}'], "fields='': a column has a name of its own"),
        ([f"\ufeff{{{AT}}}"], "line=1: a line is a JSON object, and this is no JSON"),
    ],
)
def test_a_file_that_says_nothing_is_refused_in_one_line(tmp_path, lines, problem):
    refused = init(tmp_path, *lines)
    assert refused.exit_code == 2 and problem in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and not (tmp_path / "own").exists()
    missing = CliRunner().invoke(main.app(), ["init", str(tmp_path / "own"), "--from", "nowhere"])
    assert missing.exit_code == 2 and "there is no such file" in missing.stderr


def test_each_choice_is_shown_and_stands_in_the_tables_file(tmp_path):
    shown = init(
        tmp_path,
        '{"_id": 1, "ride_id": "a", "ts": 1767225600123, "window": {"n": 1}, "x": 1, "gone": null, "was": 1767225600123}',
        '{"_id": 1, "ride_id": "b", "ts": 1767225500123, "window": {"n": "1"}, "x": "a\\u001b[31m"}',
        '{"_id": 1, "ride_id": "b", "ts": 4102444800000, "window": {"n": "1"}}',
    )
    assert shown.exit_code == 0, shown.output
    file = (tmp_path / "own" / "rides.py").read_text()
    comments = [line for line in file.splitlines() if line.startswith("# - ")]
    for choice in (
        "event time: ts (epoch milliseconds, 2025-12-31 23:58:20 to 2100-01-01 00:00:00 UTC)",
        "key: _id (in all 3 lines, different values: 1)",
        "field _id: BIGINT (whole numbers; the column is id)",
        "field window: STRUCT<`n`: STRING> (objects; window.n: whole numbers and texts",
        "field x: STRING (whole numbers and texts, which no other type holds: STRING keeps what was",
        "field was: BIGINT (whole numbers, as large as epoch milliseconds; in 1 of 3 lines)",
        "field gone: STRING (null alone, so any type; STRING takes all; in 0 of 3 lines)",
    ):
        assert [line for line in comments if line.startswith(f"# - {choice}")], choice
        what, value, *_ = re.split(r": | \(", choice)
        assert re.search(rf"{what} +{re.escape(value)}", shown.stdout), choice
    assert "lines more than 10 seconds older than an earlier one: 1" in shown.stderr
    assert "or of the future: 1" in shown.stderr
    assert "_id BIGINT NOT NULL," in file and "ride_id STRING," in file
    assert 'keys=["id"]' in file and 'groupBy("window", "id")' in file
    assert '.withColumnRenamed("window", "window_")' in file
    assert "--key _id" in (tmp_path / "own" / "README.md").read_text()


def test_a_project_is_whole_and_has_the_lines(tmp_path):
    (tmp_path / "Some Rides.jsonl.gz").write_bytes(
        gzip.compress(f'{{{AT}}}\n\n{{{AT}, "$x": "$"}}\r\n'.encode())
    )
    words = ["init", str(tmp_path / "own"), "--from", str(tmp_path / "Some Rides.jsonl.gz")]
    done = CliRunner().invoke(main.app(), words)
    assert done.exit_code == 0, done.output
    project = tmp_path / "own"
    assert (project / "some_rides.jsonl").read_text() == f'{{{AT}}}\n{{{AT}, "$x": "$"}}\n'
    settings = from_environment({"LAKEHOUSE_CONFIG": str(project / "lakehouse.toml")})
    assert (settings.tables, settings.since) == (("some_rides",), "2026-01-01")
    for file in project.rglob("*.py"):
        ast.parse(file.read_text())
    again = CliRunner().invoke(main.app(), words)
    assert again.exit_code == 2 and "it has some_rides.py, test_some_rides.py" in again.stderr


@pytest.mark.parametrize(
    ("file", "module"),
    [("json.jsonl", "events_json"), ("2026-01.jsonl", "events_2026_01"), ("é.jsonl", "events"),
     ("class.jsonl", "events_class"), ("pipelines.jsonl", "events_pipelines"), ("a__B-c.jsonl", "a_b_c")],
)  # fmt: skip
def test_the_module_has_the_name_of_the_file_if_that_is_free(tmp_path, file, module):
    assert init(tmp_path, f"{{{AT}}}", name=file).exit_code == 0
    assert (tmp_path / "own" / f"{module}.py").exists()
