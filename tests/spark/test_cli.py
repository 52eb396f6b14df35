"""The command line over a real, small lakehouse: what it shows, and what it refuses."""

import json
from datetime import timedelta

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakehouse.cli import main

ENVIRONMENT = {"LAKEHOUSE_TABLES": "lakehouse.examples.sensors.tables"}


@pytest.fixture
def run(filled):
    """Runs a command line on the filled lakehouse."""
    app = main.app()

    def invoke(*arguments: str):
        result = CliRunner().invoke(
            app, list(arguments), env=ENVIRONMENT | {"LAKEHOUSE_ROOT": str(filled)}
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    return invoke


def lines(result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_tables_shows_each_table_as_it_stands(run):
    record, row, window, trends = lines(run("table", "list", "--json"))
    assert record | {"version": 0} == {
        "layer": "bronze", "table": "sensor_readings", "kind": "ingest", "pipeline": "sensors", "rows": 36, "version": 0,
        "frontier": "2026-01-01T03:09:55Z", "late": None, "quarantined": 9, "verdict": None, "why": "",
        "waits": "",
    }  # fmt: skip
    assert (row["table"], row["rows"], row["late"], row["quarantined"]) == (
        "valid_readings",
        31,
        2,
        3,
    )
    assert (window["table"], window["rows"], window["late"], window["quarantined"]) == (
        "sensor_averages",
        27,
        2,
        0,
    )
    assert (trends["table"], trends["rows"], trends["frontier"]) == ("sensor_trends", 0, None), (
        "its query has not run"
    )
    assert "sensor_averages" in run("table", "list").stdout


def test_tables_with_a_name_shows_its_declaration(run):
    (found,) = lines(run("table", "show", "sensor_averages", "--json"))
    assert found["declaration"]["inputs"] == ["valid_readings"]
    assert found["columns"]["window"] == "struct<start: timestamp, end: timestamp>"
    assert found["columns"]["average_c"] == "decimal(10,6)"
    shown = run("table", "show", "valid_readings").stdout
    assert "Readings in degrees Celsius" in shown and "expect_column_values_to_match_regex" in shown


def test_query_answers_without_spark(run):
    sql = "SELECT sensor_id, count(*) AS windows, max(max_c) AS warmest FROM sensor_averages GROUP BY 1 ORDER BY 1;"
    assert lines(run("query", sql, "--json")) == [
        {"sensor_id": "sensor-0", "windows": 9, "warmest": "33.44"},
        {"sensor_id": "sensor-1", "windows": 9, "warmest": "37.33"},
        {"sensor_id": "sensor-2", "windows": 9, "warmest": "41.22"},
    ]
    first = run("query", "SELECT * FROM sensor_averages ORDER BY window.start", "--limit", "1")
    assert (
        "[2026-01-01T00:00:00Z, 2026-01-01T00:00:05Z)" in first.stdout
        and "00:07:05" not in first.stdout
    )
    assert "the first 1 rows" in first.stderr
    log_table = "SELECT \"table\", sum(written) AS written FROM _commits WHERE role = 'stream' GROUP BY 1 ORDER BY 1"
    assert [row["written"] for row in lines(run("query", log_table, "--json"))] == [27, 36, 31]


@pytest.mark.parametrize("engine", [[], ["--spark"]], ids=["without Spark", "in Spark"])
def test_a_star_leaves_the_columns_of_the_library_out_unless_they_are_named(run, engine, spark):
    def columns(sql: str) -> list[str]:
        return list(lines(run("query", sql, "--limit", "1", "--json", *engine))[0])

    own = ["sensor_id", "event_time", "temperature_c"]
    assert columns("SELECT * FROM valid_readings") == own
    named = columns("SELECT *, 1 AS _one FROM valid_readings ORDER BY _arrival.offset")
    assert sorted(named) == sorted([*own, "_arrival", "_one"])
    assert columns("SELECT _partition FROM valid_readings") == ["_partition"]
    assert "_arrival" in columns("SELECT * FROM sensor_readings__quarantine")


@pytest.mark.parametrize("engine", [[], ["--spark"]], ids=["without Spark", "in Spark"])
def test_query_reads_only_and_names_what_it_does_not_know(run, engine, spark, tmp_path):
    stolen = tmp_path / "stolen.csv"
    for sql in (
        f"COPY (SELECT 1) TO '{stolen}'",
        "/* a comment */ DELETE FROM sensor_averages",
        "WITH one AS (SELECT * FROM sensor_averages) INSERT INTO sensor_averages SELECT * FROM one",
        "SELECT 1; DROP TABLE sensor_averages",
        "SELECT nonsense FROM sensor_averages",
    ):
        refused = run("query", sql, *engine)
        assert (refused.exit_code, refused.stdout) == (2, ""), sql
        assert refused.stderr.startswith("error: sql=") and refused.stderr.count("\n") == 1
    assert not stolen.exists()
    assert lines(run("query", "SELECT count(*) AS n FROM sensor_averages", "--json", *engine)) == [
        {"n": 27}
    ]
    unknown = run("query", "SELECT * FROM sensor_average", *engine)
    assert unknown.exit_code == 2 and "did you mean sensor_averages" in unknown.stderr


def test_quarantine_shows_why_and_what(run):
    shown = run("table", "quarantine", "sensor_readings").stdout
    assert "empty value (tombstone)" in shown and "[31mjunk" in shown
    assert "\x1b" not in shown, "bad rows must not steer the terminal"
    (row,) = lines(
        run(
            "table",
            "quarantine",
            "sensor_readings",
            "--reason",
            "not UTF-8",
            "--limit",
            "1",
            "--json",
        )
    )
    assert row == {
        "reason": "not UTF-8", "partition": 0, "offset": 37, "arrived": "2030-01-01T00:00:05Z", "value": "� not text",
    }  # fmt: skip


def test_late_rows_are_shown_with_the_window_they_missed(run, spark):
    for rows in (
        run("table", "late", "sensor_averages", "--json"),
        run("query", "SELECT * FROM sensor_averages__late", "--json"),
    ):
        windows = {row["window"]["start"] for row in lines(rows)}
        assert windows == {"2026-01-01T01:30:00Z", "2026-01-01T02:30:00Z"}
    assert [
        row["event_time"][11:19] for row in lines(run("table", "late", "valid_readings", "--json"))
    ] == ["01:59:59", "00:59:59"]


def test_the_histogram_of_lateness_counts_every_row_of_the_record_once(run, filled):
    record = DeltaTable(str(filled / "bronze" / "sensor_readings")).to_pyarrow_table().to_pylist()
    heads = [row["_arrival"]["watermark"] + timedelta(seconds=5) for row in record]
    behind = [
        max((head - row["event_time"]).total_seconds(), 0)
        for head, row in zip(heads, record, strict=True)
    ]
    found = lines(run("table", "lateness", "sensor_averages", "--json"))
    assert sum(bucket["rows"] for bucket in found) == len(record)
    assert [bucket["late"] for bucket in found[1:]] == [
        sum(b >= bucket["behind"] for b in behind) for bucket in found[1:]
    ]
    assert found[1]["late"] <= found[0]["late"] < len(record), "what comes in order is never late"
    assert [bucket["behind"] for bucket in found if bucket["declared"]] == [5.0]
    assert [b["rows"] for b in found if b["behind"] in (600.0, 1800.0)] != [0, 0], (
        "some came half an hour behind"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("table show sensor_averagez", "did you mean sensor_averages"),
        ("table quarantine nothing", "no module declares it"),
        ("table late sensor_readings", "name a row or window table"),
        ("table lateness sensor_averagez", "did you mean sensor_averages"),
        ("query SELECT", "sql='SELECT'"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(run, command, said):
    result = run(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        result.stderr.startswith("error: ")
        and said in result.stderr
        and result.stderr.count("\n") == 1
    )


def test_an_empty_lakehouse_has_tables_and_no_rows(run, tmp_path):
    shown = CliRunner().invoke(
        main.app(),
        ["table", "list", "--json"],
        env=ENVIRONMENT | {"LAKEHOUSE_ROOT": str(tmp_path / "new")},
    )
    assert [row["rows"] for row in lines(shown)] == [None] * 4
    assert not (tmp_path / "new").exists(), "looking makes nothing"
