"""Ingest tables that read folders and tables of others: each record once, whatever becomes of the files meanwhile."""

import gzip
import json
import math
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import delta_table, folder, ingest_table, tumbling, window_table
from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log
from lakehouse.storage.foreign.file_register import Register
from lakehouse.storage.foreign.foreign_sources import files_of
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading import files
from lakehouse.stream.reading.registry import check
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from streaming_jobs.command_groups import topic_commands
from support.sensors_job import awaited

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL, cents DECIMAL(12,2)"


def readings(source: DataFrame) -> DataFrame:
    return source


def per_minute(readings: DataFrame) -> DataFrame:
    return readings.groupBy("window").agg(F.count("*").alias("rows"), F.sum("cents").alias("cents"))


def stage_of(
    spark, root: Path, source, *, event_time: str = "at", derived: bool = False, **settings
) -> Stage:
    module = ModuleType(__name__)
    module.source = source
    module.readings = ingest_table(layer="bronze", event_time=event_time, delay="5 seconds")(
        readings
    )
    if derived:
        module.per_minute = window_table(layer="gold", window=tumbling("1 minute"))(per_minute)
    return Stage(spark, root, module, **settings)


def row(n: int, second: float | None = None) -> dict:
    at = START + timedelta(seconds=n if second is None else second)
    return {"n": n, "at": at.isoformat(), "cents": f"{n}.25"}


def put(path: Path, *rows: dict | str, age: float = 0) -> Path:
    """A file of these lines, written beside and moved to its place."""
    lines = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    if age:
        at = START.timestamp() + age
        os.utime(beside, (at, at))
    return beside.rename(path)


def numbers(stage: Stage) -> list[int]:
    return sorted(each.n for each in stage.rows("readings").select("n").collect())


def once(stage: Stage) -> None:
    session = stage.session
    (found,) = check(session, session.catalog.table("readings"))
    assert (found.missing, found.doubled) == (0, 0), found


@pytest.mark.slow
@pytest.mark.parallel
def test_a_stream_that_crashes_at_each_commit_point_has_each_record_once_and_equals_batch(
    spark, tmp_path
):
    there = tmp_path / "incoming"
    there.mkdir()
    source = folder(str(there), schema=SCHEMA, pattern="*.json*", settle="0 seconds")
    stage = stage_of(spark, tmp_path / "root", source, derived=True, max_offsets_per_trigger=9)
    sent = 0
    for number, point in enumerate(COMMIT_POINTS):
        for part in range(2):
            rows: list = [row(sent + i, 60 * number + 9 * i + part) for i in range(5)]
            if number > 1:  # of a window that has closed
                rows.append(row(sent + 5, 60 * number - 119))
            rows[2:2] = ["no JSON", ""]
            put(there / f"{number}-{part}.json{'.gz' if part else ''}", *rows, age=number)
            sent += 5 + (number > 1)
        if number == 3:  # of two steps: the first moves the watermark, the second carries it
            put(there / "z.json", *(row(sent + i, 600 + i) for i in range(10)), age=600)
            sent += 10
        stage.run("readings", abort_at=point, by_spark=number == 2)
        if number == 1:
            stage.run("per_minute")
    stage.run("per_minute")
    assert numbers(stage) == list(range(sent))
    assert {each: why for each, (_, why) in quarantined(stage).items()} == {
        f"{n}-{p}.json{'.gz' if p else ''}:3": "not a JSON object of the declared types: it is not JSON, at character 1 of 7"
        for n in range(4)
        for p in (0, 1)
    }
    assert set(stage.crashes) == {("readings", point) for point in COMMIT_POINTS}
    assert_stream_equals_batch(stage, "per_minute")
    windows = stage.session.commit_log(stage.session.catalog.table("per_minute")).by_stream()
    assert sum(commit.late for commit in windows) == 4, "late rows came"
    once(stage)
    (there / "cut.json.gz").write_bytes(gzip.compress(b"{}")[:-3])
    with pytest.raises(StepFailed, match=r"cut.json.gz: it is not read, since it is not whole"):
        stage.run("readings")


def test_lines_of_csv_and_what_is_no_such_line_as_the_test_kit_feeds_them(spark, tmp_path):
    source = folder("/data/in", format="csv", schema=f"{SCHEMA}, text STRING")
    stage = stage_of(spark, tmp_path / "root", source)
    at = START.isoformat()
    stage.feed(
        "readings",
        [
            f'1,{at},1.25,"a, ""quoted"" \\ one"',
            f"2,{at},,",
            f"3,{at},3.25",
            f"4,{at},4.25,x,more",
            f"five,{at},5.25,x",
            f'6,{at},6.25,"not',
            'ended"',
            f"7,{at},7.25,ü",
            f",{at},8.25,x",
            {"n": 9, "at": at, "text": 'a "quote", ü'},
        ],
    )
    rows = stage.rows("readings").orderBy("n").select("n", "cents", "text").collect()
    assert [tuple(each) for each in rows] == [
        (1, Decimal("1.25"), 'a, "quoted" \\ one'),
        (2, None, None),
        (7, Decimal("7.25"), "ü"),
        (9, None, 'a "quote", ü'),
    ]
    bad = stage.rows("readings", side="quarantine").select("_arrival.offset", "reason").collect()
    line, quote = "not a line of CSV with the declared columns", "a quote that does not end in"
    assert {each.offset: each.reason.partition(" its line:")[0] for each in bad} == {
        2: f"{line}: it has 3 fields, and 4 are declared", 3: f"{line}: it has 5 fields, and 4 are declared",
        4: f'{line}: field=n: declared BIGINT, got "five"', 5: quote, 6: quote, 8: "missing field: n",
    }  # fmt: skip


TYPES = """n BIGINT NOT NULL, at TIMESTAMP NOT NULL, day DATE,
    exact DECIMAL(38,9), ratio DOUBLE, small FLOAT, bytes BINARY, flag BOOLEAN,
    list ARRAY<STRUCT<x: TIMESTAMP, y: DECIMAL(5,2)>>, map MAP<STRING, DOUBLE>, text STRING"""
MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)


def typed(n: int, ratio: float | None) -> dict:
    return {
        "n": n, "at": MOMENT, "day": date(1899, 12, 31),
        "exact": Decimal("12345678901234567890123456789.123456789"), "ratio": ratio, "small": 0.1, "bytes": b"\x00\xff",
        "flag": n % 2 == 0, "list": [{"x": MOMENT, "y": Decimal("-1.50")}, {"x": None, "y": None}], "map": {"k": 0.1},
        "text": None if n else 'ü "quoted"\n',
    }  # fmt: skip


def test_values_of_parquet_keep_their_types_and_files_of_other_columns_go_row_by_row(
    spark, tmp_path
):
    there = tmp_path / "in"
    there.mkdir()
    source = folder(
        str(there),
        format="parquet",
        schema=TYPES,
        settle="0 seconds",
        unknown_fields="quarantine",
    )
    stage = stage_of(spark, tmp_path / "root", source)
    wanted = [typed(n, ratio) for n, ratio in enumerate([0.1, float("inf"), 1e300, None])]
    with_types = spark.createDataFrame(wanted, TYPES)
    with_types.coalesce(1).write.parquet(str(tmp_path / "by_spark"))
    (written,) = (tmp_path / "by_spark").glob("*.parquet")
    written.rename(there / "1.parquet")
    pq.write_table(pa.table({"n": [8], "at": [MOMENT], "more": [1]}), there / "2.parquet")
    pq.write_table(pa.table({"n": ["nine", None], "at": [MOMENT, MOMENT]}), there / "3.parquet")
    pq.write_table(
        pa.table({"n": [10], "at": [MOMENT], "ratio": [float("nan")]}), there / "4.parquet"
    )
    for number in range(1, 5):
        os.utime(there / f"{number}.parquet", (MOMENT.timestamp() + number,) * 2)
    stage.run("readings")
    columns = [*wanted[0]]
    rows = stage.rows("readings").where("n < 8").orderBy("n").select(columns).collect()
    assert rows == with_types.orderBy("n").collect()
    (last,) = stage.rows("readings").where("n = 10").select("ratio", "at").collect()
    assert math.isnan(last.ratio) and last.at == MOMENT.replace(tzinfo=None)
    assert {each: why for each, (_, why) in quarantined(stage).items()} == {
        "2.parquet:1": "fields not declared: more",
        "3.parquet:1": 'not a row of the declared types: field=n: declared BIGINT, got "nine"',
        "3.parquet:2": "missing field: n",
    }
    assert json.loads(quarantined(stage)["3.parquet:1"][0])["n"] == "nine"
    once(stage)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_step_that_was_cut_off_is_finished_though_its_file_was_renamed_or_removed_meanwhile(
    spark, tmp_path
):
    there = tmp_path / "in"
    there.mkdir()
    source = folder(str(there), schema=SCHEMA, settle="0 seconds")
    stage = stage_of(spark, tmp_path / "root", source)
    session, readings = stage.session, stage.session.catalog.table("readings")

    def cut_off() -> None:
        """The rows of a step are in the table, and neither its quarantine nor its line is."""
        crashing = stage._aborting("readings", "rows")
        with pytest.raises(StepFailed, match="Aborted: rows"):
            queries.start(
                session, readings, available_now=True, reached=crashing
            ).awaitTermination()

    def accept() -> None:
        last = next(session.commit_log(readings).by_stream(), None)
        topic_commands._accept_files(session, readings, last, yes=True)

    gone = put(there / "a.json", row(0), "no JSON")
    cut_off()
    gone.unlink()
    with pytest.raises(StepFailed, match=r"a.json, records=0 to 1: it is gone before it was read"):
        stage.run("readings")
    accept()
    stage.run("readings")
    assert numbers(stage) == [0] and not quarantined(stage), "its bad line went with it"
    first = put(there / "b.json", row(1), "no JSON")
    put(there / "c.json", row(2), "no JSON", row(3))
    cut_off()
    first.rename(there / "done-b.json")
    stage.run("readings")
    assert numbers(stage) == [0, 1, 2, 3] and set(quarantined(stage)) == {
        "done-b.json:2",
        "c.json:2",
    }
    put(there / "d.json", row(4), "no JSON")
    gone = put(there / "e.json", row(5), "no JSON")
    put(there / "f.json", row(6), "no JSON")
    cut_off()
    gone.unlink()
    accept()
    stage.run("readings")
    assert numbers(stage) == [0, 1, 2, 3, 4, 5, 6]
    assert set(quarantined(stage)) == {"done-b.json:2", "c.json:2", "d.json:2", "f.json:2"}
    once(stage)


def test_a_file_of_more_records_than_a_step_takes_may_be_renamed_before_all_are_read(
    spark, tmp_path
):
    there = tmp_path / "in"
    there.mkdir()
    source = folder(str(there), schema=SCHEMA, settle="0 seconds")
    stage = stage_of(spark, tmp_path / "root", source, max_offsets_per_trigger=2)
    session, readings = stage.session, stage.session.catalog.table("readings")
    moved = put(there / "a.json", *map(row, range(5)))
    crashing = stage._aborting("readings", "quarantine")
    with pytest.raises(StepFailed, match="Aborted: quarantine"):
        queries.start(session, readings, available_now=True, reached=crashing).awaitTermination()
    moved.rename(there / "done-a.json")
    stage.run("readings")
    assert numbers(stage) == [0, 1, 2, 3, 4]
    once(stage)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_of_others_is_followed_version_by_version(spark, tmp_path):
    there = tmp_path / "orders"
    place = f"delta.`{there}`"

    def append(*ns: int) -> None:
        rows = [
            (n, START + timedelta(seconds=n), Decimal(f"{n}.25"), date(2026, 1, 1 + n % 2))
            for n in ns
        ]
        frame = spark.createDataFrame(rows, "n BIGINT, at TIMESTAMP, cents DECIMAL(12,2), day DATE")
        writer = frame.coalesce(1).write.format("delta").partitionBy("day").mode("append")
        writer.option("delta.enableDeletionVectors", "true").save(str(there))

    append(*range(8))
    spark.sql(f"DELETE FROM {place} WHERE n = 3 OR n = 4")  # by deletion vectors
    source = delta_table(str(there), schema=f"{SCHEMA}, day DATE NOT NULL")
    stage = stage_of(spark, tmp_path / "root", source, max_offsets_per_trigger=4)
    stage.run("readings", abort_at="rows")
    assert numbers(stage) == [0, 1, 2, 5, 6, 7]
    append(8, 9)
    spark.sql(f"OPTIMIZE {place}")
    append(10)
    spark.sql(f"DELETE FROM {place} WHERE n = 5")
    version = delta_log.latest(there)
    with pytest.raises(
        StepFailed, match=f"version={version}, operation=DELETE: it removes or changes rows"
    ):
        stage.run("readings")
    append(11)
    catalog, readings = stage.session.catalog, stage.session.catalog.table("readings")
    last = next(stage.session.commit_log(readings).by_stream())
    assert last.inputs == {str(there): {"0": 9}}, "what was appended before it is read"
    topic_commands._accept_files(
        Lakehouse(stage.session.settings, catalog), readings, last, yes=True
    )
    stage.run("readings")
    days = {each.n: each.day for each in stage.rows("readings").select("n", "day").collect()}
    assert days == {n: date(2026, 1, 1 + n % 2) for n in (0, 1, 2, 5, 6, 7, 8, 9, 10, 11)}
    once(stage)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_job_waits_for_its_folder_and_stops_at_a_file_that_is_gone(
    spark, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(files, "_RENAMED", 0.0)
    there = tmp_path / "in"
    source = folder(str(there), schema=SCHEMA, settle="0 seconds")
    stage = stage_of(spark, tmp_path / "root", source)
    session, readings = stage.session, stage.session.catalog.table("readings")
    query = queries.start(session, readings)
    awaited(lambda: "it is waited for" in query.trouble, "it says that the folder is not there")
    there.mkdir()
    put(there / "a.json", row(0), row(1))
    awaited(lambda: numbers(stage) == [0, 1], "it is read once it is there")
    put(there / "a.json", row(0), row(1), row(2))
    awaited(lambda: "a.json: it was written to since it was read" in query.trouble, "it is said")
    put(there / "a.json", row(0), row(1), row(2), row(7))
    put(there / "b.json", row(3))
    query.processAllAvailable()
    assert numbers(stage) == [0, 1, 3] and query.isActive
    query.stop()
    logged = capsys.readouterr().err
    assert logged.count("it is waited for") == logged.count("a.json: it was written to") == 1

    register = Register(session.settings, readings)
    gone = put(there / "c.json", row(4), row(5))
    files_of(source, register).feed(lambda known: False).look(register.end, 10)
    gone.unlink()
    monkeypatch.setattr(files, "_RENAMED", 3 * files.LOOK)  # more than one look
    with pytest.raises(StepFailed, match=r"c.json, records=3 to 4: it is gone before it was read"):
        queries.start(session, readings).awaitTermination()
    assert capsys.readouterr().err.count("it may have been renamed") == 1
    last = next(session.commit_log(readings).by_stream())
    topic_commands._accept_files(session, readings, last, yes=True)
    put(there / "d.json", row(6))
    stage.run("readings")
    stage.run("readings")
    assert numbers(stage) == [0, 1, 3, 6]
    once(stage)
    register.note.unlink()
    with pytest.raises(
        CommitError, match=r"it has 0 of them, and the table has read 6; put it back"
    ):
        queries.start(session, readings)


def quarantined(stage: Stage) -> dict[str, tuple[str, str]]:
    """Value and reason by file and line."""
    rows = stage.rows("readings", side="quarantine").select("key", "value", "reason").collect()
    return {bytes(each.key).decode(): (bytes(each.value).decode(), each.reason) for each in rows}
