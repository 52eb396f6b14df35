"""Windows of zones against a walk through a year of instants by plain `zoneinfo`: none overlap, none leave holes."""

import random
from datetime import timedelta
from zoneinfo import available_timezones

import pytest

from lakehouse import sliding, tumbling
from lakehouse.declare.windows import Clock, clock
from support.zone_oracle import ZONES, Walk, moment

HOUR = timedelta(hours=1)
SIZES = (
    "15 minutes",
    "30 minutes",
    "45 minutes",
    "1 hour",
    "2 hours",
    "8 hours",
    "1 day",
    "7 days",
)


@pytest.fixture(scope="module", params=ZONES)
def walk(request) -> tuple[str, Walk]:
    return request.param, Walk(request.param, moment("2017-11-01"), moment("2019-03-01"))


@pytest.mark.parametrize("size", [*SIZES, "14 days"])
def test_tumbling_windows_of_a_zone_are_those_of_a_walk_by_its_clock(walk, size):
    zone, oracle = walk
    window = tumbling(size, zone=zone)
    draw = random.Random(f"{zone} {size}")
    for _ in range(400):
        instant = moment("2018-01-01") + timedelta(seconds=draw.randrange(365 * 86_400))
        span = window.first_with(instant)
        expected = oracle.windows(instant, window.size, window.slide, timedelta(0))
        assert expected == {(span.start, span.end)}, instant


@pytest.mark.parametrize("size", ["45 minutes", "1 hour", "8 hours", "1 day", "7 days"])
def test_windows_of_a_zone_tile_a_year(walk, size):
    zone, _ = walk
    window = tumbling(size, zone=zone)
    at, end = moment("2018-01-01"), moment("2019-01-01")
    while at < end:
        span = window.first_with(at)
        assert span.start <= at < span.end
        assert window.first_with(span.end).start == span.end == window.last_end(span.end)
        assert window.last_end(span.end - timedelta(microseconds=1)) == span.start
        at = span.end


@pytest.mark.parametrize(
    "size, slide, offset",
    [
        ("1 hour", "45 minutes", "0 seconds"),
        ("3 hours", "1 hour", "0 seconds"),
        ("36 hours", "1 day", "6 hours"),
        ("7 days", "1 day", "0 seconds"),
    ],
)
def test_sliding_windows_of_a_zone_are_those_of_a_walk(walk, size, slide, offset):
    zone, oracle = walk
    window = sliding(size, slide, offset=offset, zone=zone)
    draw = random.Random(f"{zone} {size}")
    for _ in range(200):
        instant = moment("2018-01-01") + timedelta(seconds=draw.randrange(365 * 86_400))
        expected = sorted(oracle.windows(instant, window.size, window.slide, window.offset))
        first = window.first_with(instant)
        assert (first.start, first.end) == expected[0], instant
        assert window.last_end(first.end) == first.end
        assert window.last_end(first.end - timedelta(microseconds=1)) < first.end


def test_shifts_are_an_hour_longer_or_shorter_and_weeks_begin_on_monday():
    shifts = tumbling("8 hours", zone="Europe/Berlin", offset="-2 hours")  # 22:00, 06:00, 14:00
    lengths = []
    for at in ("2026-03-28T22:00", "2026-10-24T22:00", "2026-10-25T12:00"):
        span = shifts.first_with(moment(at))
        lengths.append(((span.end - span.start) // HOUR, span.start.hour))
    assert lengths == [(7, 21), (9, 20), (8, 5)]
    week = tumbling("7 days", zone="Europe/Berlin").first_with(moment("2026-10-25T12:00"))
    assert (week.start, week.end) == (moment("2026-10-18T22:00"), moment("2026-10-25T23:00"))
    hours = tumbling("1 hour", zone="Europe/Berlin")
    doubled = hours.first_with(moment("2026-10-25T01:30"))  # the clock shows 02:30 again
    assert (doubled.start, doubled.end) == (moment("2026-10-25T00:00"), moment("2026-10-25T02:00"))


@pytest.mark.parametrize(
    "zone, instant, start, end",
    [
        # at a minute past midnight the clock went back to a minute past eleven
        ("America/St_Johns", "2009-11-01T03:00", "2009-11-01T02:30", "2009-11-02T03:30"),
        # a day that the islands left out, and one that they had twice
        ("Pacific/Apia", "2011-12-30T10:00", "2011-12-30T10:00", "2011-12-31T10:00"),
        ("Pacific/Kwajalein", "1969-10-01T11:00", "1969-09-29T13:00", "1969-10-01T12:00"),
    ],
)
def test_days_hold_whatever_a_clock_did(zone, instant, start, end):
    span = tumbling("1 day", zone=zone).first_with(moment(instant))
    assert (span.start, span.end) == (moment(start), moment(end))


def test_windows_reach_as_far_back_as_a_clock_was_ever_set():
    # after two hours of summer time
    assert tumbling("1 day", zone="Europe/Berlin").reach == 26 * HOUR
    assert tumbling("1 day", zone="Pacific/Kwajalein").reach >= 47 * HOUR
    assert clock("UTC").most_set_back == timedelta(0)


def test_no_time_is_reached_before_it_is_shown():
    for zone in ("America/Anchorage", "Africa/Monrovia", "Europe/Berlin"):
        of_zone = Clock(zone)
        for year in range(1842, 2198):
            shown = moment(f"{year:04}-07-01T00:00")
            reached = of_zone.reached(shown)
            assert of_zone.shown(reached) >= shown
            assert of_zone.shown(reached - timedelta(microseconds=1)) < shown


def test_each_name_of_a_place_is_accepted_and_its_days_tile_the_years_of_its_changes():
    names = {name for name in available_timezones() if not name.startswith(("posix/", "right/"))}
    accepted = sorted(names - {"Factory", "localtime", "posixrules"})
    assert len(accepted) > 400
    windows = {name: tumbling("1 day", zone=name) for name in accepted}
    for name in random.sample(accepted, 20):
        at = moment("2010-06-01")
        while at < moment("2012-06-01"):  # Samoa left out a day then
            span = windows[name].first_with(at)
            assert span.start <= at < span.end == windows[name].last_end(span.end), name
            at = span.end
