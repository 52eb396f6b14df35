"""Bad input costs one row: each kind ends in quarantine with its reason and offset, and moves nothing else."""

from types import ModuleType

import pytest
from pyspark.sql import functions as F

from examples.visits import producer as visits_producer
from examples.visits import tables as visits
from lakehouse import ingest_table, kafka
from lakehouse.errors import DeclarationError
from lakehouse.examples.ads import producer as ads_producer
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import producer as sensors_producer
from lakehouse.examples.sensors import tables as sensors
from lakehouse.testing import Stage

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z
REASONS = {
    "not_json": ("not a JSON object", "event time missing"),
    "wrong_type": ("not a JSON object", "event time missing"),
    "missing_field": ("missing field: ", "event time missing"),
    "null_key": ("missing field: ", "expect_column_values_to_not_be_null(column='ip')"),
    "year_9999": "ahead of the record's timestamp",
    "hour_ahead": "ahead of the record's timestamp",
    "year_1970": "event time before 2000-01-01",
    "oversized": "larger than max_bytes=",
    "tombstone": "empty value (tombstone)",
    "invalid_utf8": "not UTF-8",
}


@pytest.mark.parametrize(
    "module, producer, record",
    [
        (sensors, sensors_producer, "sensor_readings"),
        (ads, ads_producer, "ad_events"),
        (visits, visits_producer, "requests"),
    ],
)
def test_each_kind_of_bad_input_ends_in_quarantine_with_its_reason_and_offset(
    spark, tmp_path, module, producer, record
):
    stage = Stage(spark, tmp_path, module)
    good = next(r for r in producer.records(workload_of(producer), NOW, NOW + 60_000))
    bad = [producer.malformed(kind, NOW) for kind in REASONS]
    sent = [good, *bad, good]
    stage.feed(record, [r.value for r in sent], key=good.key or b"key", sent=instant(NOW))
    stage.feed(record, [good.value], key=good.key or b"key", sent=instant(NOW))

    aside = {
        row.offset: row
        for row in stage.rows(record, "quarantine")
        .select("reason", "value", "_arrival.offset")
        .collect()
    }
    assert sorted(aside) == list(range(1, len(bad) + 1))
    for offset, (kind, reason) in enumerate(REASONS.items(), 1):
        wanted = (reason,) if isinstance(reason, str) else reason
        assert any(w in aside[offset].reason for w in wanted), (kind, aside[offset].reason)
        assert (aside[offset].value or b"") == (sent[offset].value or b""), (
            f"{kind}: the value is kept as it came"
        )

    table = stage.session.catalog.table(record)
    first, second = sorted(stage.session.commit_log(table).by_stream(), key=lambda c: c.batch)
    assert (first.arrived, first.quarantined, first.written) == (len(sent), len(bad), 2)
    moment = (
        stage.rows(record).agg(F.max("event_time")).head()[0].astimezone(second.watermark.tzinfo)
    )
    assert second.watermark == moment - table.delay, "the watermark follows good rows only"


def test_a_record_without_its_key_is_put_aside_where_the_source_requires_one(spark, tmp_path):
    stage = Stage(spark, tmp_path, sensors)
    stage.feed("sensor_readings", [reading()], key=None, sent=instant(NOW))
    assert [r.reason for r in stage.rows("sensor_readings", "quarantine").collect()] == ["no key"]


def test_an_event_time_that_overflows_costs_one_row(spark, tmp_path):
    stage = Stage(spark, tmp_path, ads)
    event = {"ad_id": "a", "event_type": "view", "event_time": str(2**63 - 1)}
    stage.feed("ad_events", [event, event | {"event_time": str(NOW)}], sent=instant(NOW))
    assert [r.reason for r in stage.rows("ad_events", "quarantine").collect()] == [
        "event time missing: event_time"
    ]
    assert stage.rows("ad_events").count() == 1


def test_a_row_that_breaks_an_expectation_is_put_aside_with_its_name_and_a_null_is_not_between(
    spark, tmp_path
):
    stage = Stage(spark, tmp_path, sensors)
    values = [reading(), reading(sensor_id="toaster"), reading(temperature_f=900)]
    stage.feed("sensor_readings", values, sent=instant(NOW))
    stage.run("valid_readings")
    aside = sorted(
        r.reason.partition("(")[0] for r in stage.rows("valid_readings", "quarantine").collect()
    )
    assert aside == [
        "expectation: expect_column_values_to_be_between",
        "expectation: expect_column_values_to_match_regex",
    ]
    assert stage.rows("valid_readings").count() == 1


@pytest.mark.slow
@pytest.mark.parallel
def test_a_contract_tells_what_a_producer_adds_or_renames(spark, tmp_path):
    agreed = ModuleType("agreed")
    agreed.topic = kafka("agreed", schema="at TIMESTAMP, note STRING", unknown_fields="quarantine")

    @ingest_table(layer="bronze", event_time="at")
    def notes(topic):
        return topic

    notes.transformation.__module__ = "agreed"
    agreed.notes = notes
    stage = Stage(spark, tmp_path, agreed)
    at = "2026-01-01T00:00:00Z"
    sent = [{"at": at, "note": "a"}, {"at": at}, {"at": at, "Note ": "b", "by": "c"}, b"[1]"]
    stage.feed("notes", sent, sent=instant(NOW))
    aside = [
        r.reason for r in stage.rows("notes", "quarantine").orderBy("_arrival.offset").collect()
    ]
    assert aside == [
        "fields not declared: Note , by",
        "not a JSON object of the declared types: got a list",
    ]
    with pytest.raises(
        DeclarationError, match="its values have no names; leave unknown_fields out"
    ):
        kafka("agreed", schema="line STRING", format="text", unknown_fields="quarantine")


@pytest.mark.parametrize(
    "function, operator",
    [
        (lambda topic: topic.where("at IS NOT NULL"), "Filter"),
        (lambda topic: topic.withColumn("each", F.explode(F.array("at", "at"))), "Generate"),
        (lambda topic: topic.limit(1), "GlobalLimit"),
    ],
    ids=["filter", "explode", "limit"],
)
def test_a_record_whose_function_drops_or_multiplies_rows_is_refused_before_it_runs(
    spark, tmp_path, function, operator
):
    things = ModuleType("things")
    things.topic = kafka("things", schema="at TIMESTAMP")

    @ingest_table(layer="bronze", event_time="at")
    def kept(topic):
        return function(topic)

    kept.transformation.__module__ = "things"
    things.kept = kept
    with pytest.raises(DeclarationError, match=f"operators=.*{operator}.*keeps every row"):
        Stage(spark, tmp_path, things)


def reading(**changes):
    return {
        "sensor_id": "sensor-1",
        "event_time": "2026-01-01T00:00:00Z",
        "temperature_f": 70.5,
    } | changes


def instant(milliseconds: int):
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def workload_of(producer):
    from dataclasses import replace

    return replace(producer.PRODUCER.workload, malformed_share=0, late_share=0)
