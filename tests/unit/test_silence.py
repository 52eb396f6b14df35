"""Silence of topics (`quiet_timeout`): when it is noted, and which tables have it."""

from datetime import timedelta
from itertools import pairwise

from lakehouse.declare.catalog import catalog_of
from lakehouse.watermarks import Silence
from support import quiet
from support.quiet import TABLES


def test_a_silence_is_noted_after_its_time_and_then_ever_more_rarely():
    silence, noted = Silence(30, 1000), []
    for now in range(1000, 1000 + 24 * 3600):
        if passed := silence.passed(now):
            noted.append((now - 1000, passed))
    assert noted[0] == (30, 30) and sum(passed for _, passed in noted) <= 24 * 3600
    assert 50 < len(noted) < 100
    for (before, _), (later, passed) in pairwise(noted):
        assert passed == later - before <= max(30, before / 9 + 1)


def test_what_was_not_watched_is_no_silence():
    silence = Silence(30, 0)
    assert not silence.is_due(29) and silence.is_due(30)
    silence.broken(29)
    assert not silence.passed(58) and silence.passed(59) == 30
    assert not Silence(0, 0).is_due(10**9)


def test_all_topics_of_a_table_must_say_so():
    catalog = catalog_of([quiet])
    for name in ("clicks", *TABLES):
        assert catalog.quiet_timeout(catalog.table(name)) == timedelta(seconds=2)
    assert not catalog.quiet_timeout(catalog.table("still_too"))
