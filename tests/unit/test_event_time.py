"""Ranges, partitions and the watermark, as plain values; no session."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from lakehouse import folder, ingest_table, kafka, window_table
from lakehouse.declare.inputs import source_checks
from lakehouse.declare.inputs.changes import changes
from lakehouse.declare.inputs.delta import delta_table
from lakehouse.declare.inputs.iceberg import iceberg_table
from lakehouse.declare.inputs.own_sources import python_source
from lakehouse.declare.inputs.readers import SourceReader
from lakehouse.declare.table import Table
from lakehouse.declare.windows import Window, count, sliding, tumbling
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.ranges import (
    BEGINNING,
    Range,
    floor,
    parse_instant,
    parse_range,
    partition_range,
    past_beginning,
)
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.small_commits import _shown
from lakehouse.storage.keyed.row_index import Truncated
from lakehouse.transform.ranges_of import closes, context
from lakehouse.watermarks import MOST_VALUES, Head, Holders, advanced, watermark


class Places(SourceReader):
    """A reader that is declared and never asked."""

    def latest_offset(self):
        return 0

    def read(self, partition, start, end):
        return iter(())


@ingest_table(layer="bronze", event_time="at")
def events(event_topic):
    return event_topic


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def declared(window: Window | None) -> Table:
    def computed(rows):
        return rows

    return window_table(layer="gold", window=window)(computed)


@pytest.mark.parametrize(
    "start, end", [("2026-01-01T01:00Z", "2026-01-01T01:00Z"), ("2026-01-02", "2026-01-01")]
)
def test_empty_and_inverted_ranges_are_refused(start, end):
    with pytest.raises(RangeError, match="the end lies after the start"):
        parse_range(start, end)


def test_an_instant_without_a_zone_is_utc_and_any_zone_is_converted():
    assert parse_instant("2026-01-01T12:00:00") == NOON
    assert parse_instant("2026-01-01T14:00:00+02:00") == NOON
    with pytest.raises(RangeError, match="start='noon': an ISO 8601 instant"):
        parse_instant("noon", "start")


def test_a_range_knows_the_partitions_that_it_touches():
    span = Range(NOON + 59 * 60 * SECOND, NOON + timedelta(hours=2))
    assert list(span.partitions("hour")) == ["2026-01-01-12", "2026-01-01-13"]
    assert list(span.partitions("day")) == ["2026-01-01"]
    assert not span.aligned("hour")
    assert partition_range("2026-01-01-13", "hour") == Range(
        NOON + timedelta(hours=1), NOON + timedelta(hours=2)
    )


def test_a_range_across_1970_knows_the_partitions_that_it_touches():
    midnight = datetime(1970, 1, 1, tzinfo=UTC)
    span = Range(midnight - SECOND, midnight + SECOND)
    assert list(span.partitions("hour")) == ["1969-12-31-23", "1970-01-01-00"]
    assert list(span.partitions("day")) == ["1969-12-31", "1970-01-01"]
    first = Range(datetime(1800, 3, 1, tzinfo=UTC), datetime(1800, 3, 2, tzinfo=UTC))
    assert list(first.partitions("day")) == ["1800-03-01"]
    assert partition_range("1800-03-01", "day") == first


def test_hours_and_statistics_of_files_are_cut_downwards_before_1970_too():
    instant = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    column = pa.chunked_array([pa.array([instant], pa.timestamp("us", "UTC"))])
    assert Truncated("at", "hour").of(column)[0].as_py() == floor(instant, timedelta(hours=1))
    assert Truncated("at", "date").of(column)[0].as_py() == instant.date()
    action = {
        "stats": f'{{"minValues":{{"at":"{_shown(instant)}"}},"maxValues":{{"at":"{_shown(instant)}"}}}}'
    }
    held = delta_log.span_of(action, "at")
    assert held.start <= instant < held.end


@pytest.mark.parametrize("instant", [BEGINNING, datetime(1500, 1, 1, tzinfo=UTC)])
def test_an_event_time_may_not_be_what_stands_for_none(instant):
    with pytest.raises(DeclarationError, match="event times are later than 1678-01-01T00:00:00Z"):
        kafka("events", schema="at TIMESTAMP", min_event_time=instant)
    kafka("events", schema="at TIMESTAMP", min_event_time=BEGINNING + SECOND)


@pytest.mark.parametrize(
    "declare",
    [
        lambda first: kafka("events", schema="at TIMESTAMP", min_event_time=first),
        lambda first: kafka(
            "events",
            schema="at TIMESTAMP",
            history=folder("/h", schema="at TIMESTAMP"),
            starting=first,
        ),
        lambda first: changes("events", schema="id INT", key="id", min_event_time=first),
        lambda first: folder("/h", schema="at TIMESTAMP", min_event_time=first),
        lambda first: delta_table("/d", schema="at TIMESTAMP", min_event_time=first),
        lambda first: iceberg_table("/i/t", schema="at TIMESTAMP", min_event_time=first),
        lambda first: python_source("own", Places, schema="at TIMESTAMP", min_event_time=first),
    ],
    ids=["kafka", "history", "changes", "folder", "delta", "iceberg", "own"],
)
@pytest.mark.parametrize(
    "first, words",
    [
        (1500, "=1500: a datetime with its time zone"),
        ("1500-01-01", "='1500-01-01': a datetime with its time zone"),
        (date(2026, 1, 1), "a datetime with its time zone"),
        (datetime(1500, 1, 1), "a datetime with its time zone; write for example"),
        (
            datetime(1500, 1, 1, tzinfo=UTC),
            "=1500-01-01T00:00:00Z: event times are later than 1678",
        ),
    ],
)
def test_an_instant_that_is_none_is_refused_in_a_line(declare, first, words):
    with pytest.raises(DeclarationError, match=words) as refused:
        source_checks.check_history(events, {"event_topic": declare(first)})
    assert "\n" not in str(refused.value)


def test_a_frontier_before_any_row_is_shown_as_none():
    assert past_beginning(BEGINNING) is None and past_beginning(None) is None
    assert past_beginning(BEGINNING + SECOND) == BEGINNING + SECOND


def test_the_context_of_a_range_is_that_of_the_windows_which_end_in_it():
    span = Range(NOON, NOON + timedelta(hours=1))
    assert context(span, declared(None)) == span
    assert context(span, declared(tumbling("10 seconds"))) == span
    assert context(span, declared(tumbling("10 seconds", offset="3 seconds"))) == Range(
        NOON - 7 * SECOND, span.end - 7 * SECOND
    )
    assert context(span, declared(sliding("10 seconds", "5 seconds"))) == Range(
        NOON - 5 * SECOND, span.end
    )
    short = Range(NOON + 3 * SECOND, NOON + 12 * SECOND)
    assert context(short, declared(tumbling("10 seconds"))) == Range(NOON, NOON + 10 * SECOND)
    assert closes(declared(tumbling("10 seconds")), short)
    assert not closes(declared(tumbling("10 seconds")), Range(NOON, NOON + 9 * SECOND)), (
        "one ends at its start, none within"
    )
    assert closes(declared(tumbling("10 seconds")), Range(NOON, NOON + 10 * SECOND)), (
        "a window ends with its last instant"
    )
    within = Range(NOON + 60 * SECOND, span.end)
    assert context(within, declared(count(3))) == span, (
        "count windows are counted from the start of the partition"
    )


def test_the_watermark_is_the_least_head_less_the_delay():
    heads = {"0": Head(NOON, NOON), "1": Head(NOON - 60 * SECOND, NOON)}
    assert (
        watermark(BEGINNING, heads, 5 * SECOND, dict.fromkeys(heads, 30 * SECOND))
        == NOON - 65 * SECOND
    )


def test_a_partition_silent_while_another_is_not_no_longer_holds_the_watermark_back():
    heads = {"0": Head(NOON, NOON), "1": Head(NOON - 60 * SECOND, NOON - 31 * SECOND)}
    assert (
        watermark(BEGINNING, heads, 5 * SECOND, dict.fromkeys(heads, 30 * SECOND))
        == NOON - 5 * SECOND
    )


def test_a_stopped_job_makes_no_partition_idle():
    """Both had records in the last batch before the stop; however long it lasted, both still count."""
    heads = {"0": Head(NOON, NOON), "1": Head(NOON - 60 * SECOND, NOON)}
    assert (
        watermark(BEGINNING, heads, 5 * SECOND, dict.fromkeys(heads, SECOND)) == NOON - 65 * SECOND
    )


def test_the_watermark_never_moves_back_and_is_the_epoch_before_any_row():
    assert watermark(BEGINNING, {}, 5 * SECOND, {}) == BEGINNING
    assert watermark(NOON, {"0": Head(NOON - 60 * SECOND, NOON)}, SECOND, {"0": SECOND}) == NOON


def test_heads_never_move_back_and_remember_when_they_were_active():
    heads = advanced(
        {"0": Head(NOON, NOON), "1": Head(NOON, NOON)},
        {"0": NOON - SECOND, "2": NOON},
        NOON + SECOND,
    )
    assert heads == {
        "0": Head(NOON, NOON + SECOND),
        "1": Head(NOON, NOON),
        "2": Head(NOON, NOON + SECOND),
    }


@pytest.mark.parametrize("text", ["", "5", "five seconds", "-1 second", "1 fortnight"])
def test_a_duration_is_a_number_and_a_unit(text):
    with pytest.raises(DeclarationError, match="a duration is a number and a unit"):
        duration(text, "delay")


def test_a_partition_that_is_not_marked_yet_holds_the_watermark_until_it_is_idle():
    idle = {"p-0": 30 * SECOND, "p-1": 30 * SECOND}
    heads = advanced({}, {"p-0": NOON, "p-1": BEGINNING}, NOON)
    assert watermark(BEGINNING, heads, SECOND, idle) == BEGINNING
    heads = advanced(heads, {"p-0": NOON + 9 * SECOND}, NOON + 31 * SECOND)
    assert watermark(BEGINNING, heads, SECOND, idle) == NOON + 8 * SECOND
    heads = advanced(heads, {"p-1": BEGINNING}, NOON + 40 * SECOND)  # it is back: nothing goes back
    assert watermark(NOON + 8 * SECOND, heads, SECOND, idle) == NOON + 8 * SECOND


def values(**moments: datetime) -> dict[tuple[str, str], datetime]:
    return {("clicks", name): moment for name, moment in moments.items()}


def test_a_value_holds_the_watermark_back_as_a_partition_does_and_is_forgotten_once_it_is_idle():
    holders = Holders({"clicks-0": 30 * SECOND}, {"clicks": 30 * SECOND}, "site")
    came = holders.named(values(north=NOON, south=NOON - 60 * SECOND) | {("other", "x"): BEGINNING})
    assert len(came) == 2 and not any("north" in name for name in came)
    heads = holders.advanced({}, {"clicks-0": NOON, **came}, NOON)
    assert holders.watermark(BEGINNING, heads, 5 * SECOND) == NOON - 65 * SECOND
    # a new value, further behind: nothing moves back
    later = holders.named(values(north=NOON + SECOND, west=BEGINNING))
    heads = holders.advanced(heads, {"clicks-0": NOON + SECOND, **later}, NOON + SECOND)
    mark = holders.watermark(NOON - 65 * SECOND, heads, 5 * SECOND)
    assert (mark, len(heads)) == (NOON - 65 * SECOND, 4)
    north = holders.named(values(north=NOON + 40 * SECOND))
    heads = holders.advanced(heads, {"clicks-0": NOON + 40 * SECOND, **north}, NOON + 40 * SECOND)
    assert set(heads) == {"clicks-0", *north}
    assert holders.watermark(mark, heads, 5 * SECOND) == NOON + 35 * SECOND
    # no time has passed since for anybody: a job that was stopped silences nobody
    assert holders.heads({name: (h.event_time, h.active) for name, h in heads.items()}) == heads


def test_heads_of_another_column_or_of_a_partition_that_is_gone_hold_nothing_back():
    two = Holders(dict.fromkeys(("clicks-0", "clicks-1"), SECOND), {"clicks": SECOND}, "site")
    latest = {"clicks-0": NOON, "clicks-1": NOON, **two.named(values(north=BEGINNING))}
    heads = two.advanced({}, latest, NOON)
    stored = {name: (head.event_time, head.active) for name, head in heads.items()}
    for column in ("", "tenant"):
        other = Holders({"clicks-0": SECOND}, {"clicks": SECOND}, column)
        assert set(other.heads(stored)) == {"clicks-0"}


def test_as_many_values_as_may_hold_the_watermark_back_those_furthest_behind():
    holders = Holders({"clicks-0": SECOND}, {"clicks": SECOND}, "user")
    many = {("clicks", str(n)): NOON + n * SECOND for n in range(MOST_VALUES + 200)}
    latest = {"clicks-0": NOON, **holders.named(many)}
    heads = holders.advanced({}, latest, NOON)
    assert holders.is_full(heads) and len(heads) == MOST_VALUES + 1
    assert max(h.event_time for h in heads.values()) == NOON + (MOST_VALUES - 1) * SECOND
    one = holders.named({("clicks", "new"): NOON + 9_999 * SECOND})
    heads = holders.advanced(heads, one, NOON + SECOND)
    assert len(heads) == MOST_VALUES + 1 and set(one) <= set(heads), "what came last stays"
