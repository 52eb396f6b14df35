"""The pipeline `visits`: what it makes of access-log lines good and bad, and that live and batch runs and an oracle agree."""

import re
import shlex
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

from examples.visits import producer
from examples.visits import tables as visits
from lakehouse.cli import query
from lakehouse.producers.workload import MALFORMED, Workload
from lakehouse.ranges import partition_range
from lakehouse.storage.log import report_files
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import ROOT

START = 1_795_255_200_000  # 2026-11-21T10:00:00Z
BATCH = 45 * 60_000
END = START + 2 * BATCH
DERIVED = ["visits", "visitors_by_country", "visitor_sessions", "page_views", "top_pages"]
WORKLOAD = Workload(
    rate=1, disorder_ms=5_000, duplicate_share=0.02, malformed_share=0.01, partitions=2
)
DAY_BEFORE = "20/Nov/2026:10:00:00 +0000"


def line(
    ip="192.0.2.1",
    user="-",
    at=DAY_BEFORE,
    request="GET / HTTP/1.1",
    status="200",
    size="5",
    agent="a",
    more="",
):
    return f'{ip} - {user} [{at}] "{request}" {status} {size} "-" "{agent}"{more}'


GOOD = [  # a line, and what it is parsed to
    (
        line(agent=r"say \"hi\" \\ there"),
        {"agent": r'say "hi" \ there', "user": None, "referrer": None, "bytes": 5},
    ),
    (
        line(request="-", status="408", size="-", agent="-"),
        {"method": None, "path": None, "bytes": None, "agent": None},
    ),
    (
        line(ip="2001:db8::1", user="frank"),
        {"ip": "2001:db8::1", "user": "frank", "status": 200, "protocol": "HTTP/1.1"},
    ),
    (line(at="20/Nov/2026:03:00:00 -0700"), {"event_time": datetime(2026, 11, 20, 10, tzinfo=UTC)}),
    (line(at="20/Nov/2026:15:30:00 +0530"), {"event_time": datetime(2026, 11, 20, 10, tzinfo=UTC)}),
    (
        line(request="GET /s?q=a?b&c HTTP/2.0"),
        {"method": "GET", "path": "/s", "query": "q=a?b&c", "protocol": "HTTP/2.0"},
    ),
    (line(request=r"\x16\x03\x01"), {"method": r"\x16\x03\x01", "path": None, "query": None}),
    (line(agent="Ünïcode 浏览器", size=str(2**40)), {"agent": "Ünïcode 浏览器", "bytes": 2**40}),
    (line(agent=""), {"agent": ""}),
]
MISSING = "event time missing: event_time"
BAD = [  # a value, and why it is quarantined
    (line(at="20/Nox/2026:10:00:00 +0000"), MISSING),
    (line(at="31/Feb/2026:10:00:00 +0000"), MISSING),
    (line(at="20/Nov/2026:10:00:00"), MISSING),
    ("", "empty value (tombstone)"),
    (None, "empty value (tombstone)"),
    (b"\x00\xff\xfe\x80", "not UTF-8"),
    ("\x00\x01\x02", MISSING),
    ("no line of a log", MISSING),
    (line()[:-1], MISSING),
    (line()[:60], MISSING),
    (line(more=" 0.003"), MISSING),
    (line() + "\n" + line(), MISSING),
    (line(status="OK"), MISSING),
    (line(size="many"), MISSING),
    (line(agent=" " * 20_000), "larger than max_bytes=20000"),
    (" " * 20_000, MISSING),
    ('"' * 20_000, MISSING),
    ("\\" * 20_000, MISSING),
    (line(agent=r"\"" * 9_000)[:-1], MISSING),
    (line(ip="-"), "expectation: expect_column_values_to_not_be_null(column='ip')"),
    (line(status="42"), MISSING),
    (line(status="-"), MISSING),
    (line(size="9" * 30), MISSING),
    (line(status="600"), "expectation: expect_column_values_to_be_between"),
    (line(at="20/Nov/1996:10:00:00 +0000"), "event time before 2000-01-01"),
    (line(at="21/Nov/2026:10:06:00 +0000"), "ahead of the record's timestamp"),
]


@pytest.fixture(scope="module")
def told(spark, tmp_path_factory) -> Stage:
    """Lines good and bad of the day before, then an hour and a half of a web site."""
    stage = Stage(spark, tmp_path_factory.mktemp("visits"), visits)
    stage.feed("requests", [value for value, _ in GOOD + BAD], sent=instant(START))
    sent = list(producer.records(WORKLOAD, START, END))
    for begin in range(START, END, BATCH):
        batch = [(r.partition, r.value) for r in sent if begin <= r.time_ms < begin + BATCH]
        stage.feed("requests", batch, sent=instant(begin + BATCH))
    stage.advance("requests", line(at="21/Nov/2026:15:00:00 +0000"))
    stage.run(*DERIVED)
    return stage


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def first_batch(stage: Stage, side: str = "") -> dict[int, dict]:
    """The rows of the first lines, by offset."""
    ours = (F.col("_arrival.partition") == 0) & (F.col("_arrival.offset") < len(GOOD + BAD))
    rows = stage.rows("requests", side).where(ours).collect()
    return {row["_arrival"].offset: row.asDict() for row in rows}


def test_lines_are_parsed_with_quotes_dashes_zones_and_ipv6(told):
    rows = first_batch(told)
    assert sorted(rows) == list(range(len(GOOD)))
    for offset, (text, expected) in enumerate(GOOD):
        row = rows[offset]
        found = {name: row[name] for name in expected}
        if "event_time" in found:
            found["event_time"] = found["event_time"].astimezone(UTC)
        assert found == expected, text
    assert {(r["ip"], r["method"], r["path"]) for r in rows.values()} >= {
        ("2001:db8::1", "GET", "/")
    }


def test_what_is_no_log_line_costs_one_row_and_is_kept_with_its_reason(told):
    aside = first_batch(told, "quarantine")
    assert sorted(aside) == list(range(len(GOOD), len(GOOD + BAD)))
    for offset, (value, reason) in enumerate(BAD, len(GOOD)):
        assert reason in aside[offset]["reason"], (value, aside[offset]["reason"])
        kept = value.encode() if isinstance(value, str) else value
        assert (aside[offset]["value"] or b"") == (kept or b""), "the value is kept as it came"


def test_a_visitor_has_the_country_of_its_network_and_is_a_bot_by_its_agent(told):
    drawn = {producer.Visitor(*v) for v in map(producer._visitor, range(producer.VISITORS))}
    known = {v.pseudonym: (v.country, v.is_bot) for v in drawn}
    seen = told.rows("visits").where(F.col("event_time") >= instant(START - 60_000))
    found = {
        r.visitor: (r.country, r.is_bot)
        for r in seen.select("visitor", "country", "is_bot").distinct().collect()
    }
    last = producer.Visitor("192.0.2.1", "ZZ", "a", False).pseudonym
    assert found.pop(last) == ("ZZ", False)
    assert {country for country, _ in found.values()} == {
        country for _, country in producer.NETWORKS
    }
    assert found == {visitor: known[visitor] for visitor in found}


@pytest.mark.parametrize("table", DERIVED)
def test_stream_equals_batch(told, table):
    certificate = assert_stream_equals_batch(told, table)
    assert certificate.rows_in_table > 50


def closed(stage: Stage, table: str) -> list:
    """The rows without those of the day before."""
    return stage.rows(table).where(F.col("window.start") > instant(START - 3_600_000)).collect()


def test_visitors_by_country_are_those_that_were_sent(told):
    found = {
        (r.country, ms(r.window.start)): (r.visits, r.visitors)
        for r in closed(told, "visitors_by_country")
    }
    assert found == producer.expected_visitors(WORKLOAD, START, END)


def test_visitor_sessions_are_those_that_were_sent(told):
    rows = closed(told, "visitor_sessions")
    found = {(r.visitor, ms(r.started)): (ms(r.ended), r.pages, r.country) for r in rows}
    assert found == producer.expected_sessions(WORKLOAD, START, END)
    assert all(
        r.window.start == r.started and ms(r.window.end) == ms(r.ended) + 1_800_000 for r in rows
    )


def test_page_views_are_those_that_were_sent(told):
    found = {
        (r.path, ms(r.window.start)): (r.views, r.visitors) for r in closed(told, "page_views")
    }
    assert found == producer.expected_page_views(WORKLOAD, START, END)


def test_top_pages_are_those_viewed_most(told):
    found = {(r.rank, ms(r.window.start)): (r.path, r.views) for r in closed(told, "top_pages")}
    windows = defaultdict(list)
    for (path, start), (views, _) in producer.expected_page_views(WORKLOAD, START, END).items():
        windows[start].append((-views, path))
    assert found == {
        (rank, start): (path, -views)
        for start, pages in windows.items()
        for rank, (views, path) in enumerate(sorted(pages)[:10], 1)
    }


def test_all_that_was_sent_is_in_the_table_or_put_aside(told):
    sent = [r.kind for r in producer.records(WORKLOAD, START, END)]
    assert told.rows("requests", "quarantine").count() == sent.count(MALFORMED) + len(BAD)
    # to advance
    assert told.rows("requests").count() == len(sent) - sent.count(MALFORMED) + len(GOOD) + 4


def test_the_queries_of_the_docs_are_answered(told):
    text = (ROOT / "docs" / "start" / "visits.md").read_text()
    words = [
        word
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for word in shlex.split(block, comments=True)
    ]
    queries = [word for word in words if word.startswith("SELECT")]
    answers = [query.run(told.session, sql).records() for sql in queries]
    assert len(answers) == 3 and all(answers)
    assert [row["path"] for row in answers[0]][:3] == list(producer.PAGES[:3])


def test_the_report_of_a_day_ranks_its_pages_and_draws_them(told):
    told.backfill("pages_of_a_day", partition_range("2026-11-20", "day"))
    seen = told.rows("visits").where("is_page AND NOT is_bot AND _partition LIKE '2026-11-20%'")
    visitors = defaultdict(list)
    for row in seen.collect():
        visitors[row["path"]].append(row["visitor"])
    ranked = sorted(visitors, key=lambda path: (-len(visitors[path]), path))
    assert len(ranked) > 1
    found = told.rows("pages_of_a_day").orderBy("rank").collect()
    assert [(r["rank"], r["path"], r["views"], r["visitors"]) for r in found] == [
        (rank, path, len(visitors[path]), len(set(visitors[path])))
        for rank, path in enumerate(ranked, 1)
    ]
    assert 99.9 < sum(r["share"] for r in found) < 100.1
    table = told.session.catalog.table("pages_of_a_day")
    drawn = report_files.file(told.session.settings, table, "2026-11-20").read_text()
    assert drawn.count("<rect") == len(ranked) and f'<text x="0" y="14">{ranked[0]}<' in drawn
