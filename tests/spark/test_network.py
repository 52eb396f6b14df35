"""The pipeline `network`: streams that crash meanwhile have the rows of batch and of plain Python, and intrusions are posted."""

import json
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from ipaddress import ip_address, ip_network

import pytest

from examples.network import producer
from examples.network import tables as network
from lakehouse.cli import query
from lakehouse.producers.workload import MALFORMED, Record, Workload
from lakehouse.sinks.follower import Follower
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import ROOT, acting

pytestmark = [pytest.mark.slow, pytest.mark.parallel, pytest.mark.timeout(600)]

START = 1_795_255_200_000  # 2026-11-21T10:00:00Z
MINUTES = 20
WORKLOAD = Workload(rate=10, disorder_ms=2_000, malformed_share=0.01, partitions=2)
DERIVED = (
    "cell_ten_seconds",
    "cell_minutes",
    "cell_hours",
    "cell_alerts",
    "refused_requests",
    "intrusions",
)
INGEST = {producer.MEASUREMENTS: "cell_measurements", producer.REQUESTS: "gateway_requests"}
LISTED = {
    ip_network(network): reason
    for network, reason in (
        ("198.18.0.0/15", "port scanner"),
        ("203.0.113.0/24", "botnet"),
        ("203.0.113.64/26", "password guessing"),
        ("192.0.2.17/32", "open proxy"),
    )
}


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@cache
def sent() -> list[Record]:
    return list(producer.records(WORKLOAD, START, START + MINUTES * 60_000))


def events(topic: str) -> list[tuple[int, dict]]:
    good = [r for r in sent() if r.topic == topic and r.kind != MALFORMED]
    return [(r.event_ms, json.loads(r.value)) for r in good]


def feed(stage: Stage, begin: int, end: int) -> None:
    """What is sent from one minute to another."""
    for topic, table in INGEST.items():
        of_topic = [
            r for r in sent() if r.topic == topic and begin <= (r.time_ms - START) // 60_000 < end
        ]
        stage.feed(
            table, [(r.partition, r.value) for r in of_topic], sent=instant(of_topic[-1].time_ms)
        )


def measurement(ms: int, cell: str = "cell-00") -> dict:
    return {
        "cell_id": cell,
        "event_time": instant(ms).isoformat(),
        "attempts": 1,
        "failures": 0,
        "sinr_db": 9.0,
    }


def request(ms: int) -> dict:
    return {
        "address": "10.0.0.1",
        "event_time": instant(ms).isoformat(),
        "path": "/",
        "status": 401,
    }


@pytest.fixture(scope="module")
def served(spark, tmp_path_factory) -> tuple[Stage, acting.Server]:
    """Two steps, of which the last one crashes; between them a follower begins to post intrusions."""
    stage = Stage(spark, tmp_path_factory.mktemp("network"), network)
    feed(stage, 0, 9)
    stage.run(*DERIVED)
    with acting.serving() as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("FIREWALL", f"127.0.0.1:{server.port}")
        follower = Follower(stage.session, *stage.session.catalog.target("intrusions"))
        follower.begin()
        follower.step()
        feed(stage, 9, MINUTES)
        late = START + 60_000
        stage.feed("cell_measurements", [measurement(late, "cell-late")], sent=instant(late))
        stage.advance("cell_measurements", measurement(START + 2 * 3_600_000))
        stage.advance("gateway_requests", request(START + 2 * 3_600_000))
        stage.run(*DERIVED[:-1])
        stage.run(DERIVED[-1], abort_at="rows")
        while follower.step():
            pass
        follower.end()
    assert sum(stage.crashes.values()) == 1 and stage.resumed == len(DERIVED)
    return stage, server


@pytest.fixture(scope="module")
def stage(served) -> Stage:
    return served[0]


def test_what_is_malformed_is_quarantined(stage):
    for topic, table in INGEST.items():
        bad = sum(r.topic == topic and r.kind == MALFORMED for r in sent())
        assert bad and stage.rows(table, "quarantine").count() == bad


@pytest.mark.parametrize("table", DERIVED)
def test_the_stream_has_the_rows_of_batch(stage, table):
    assert_stream_equals_batch(stage, table)


def minutes() -> dict[tuple[str, int], tuple]:
    """(measurements, attempts, failures, signal, failure rate, bad) by cell and start of the minute."""
    of = defaultdict(list)
    for at, value in events(producer.MEASUREMENTS):
        of[value["cell_id"], at // 60_000 * 60_000].append(value)
    return {cell_minute: rated(values) for cell_minute, values in of.items()}


def rated(values: list[dict]) -> tuple:
    attempts, failures = (sum(each[name] for each in values) for name in ("attempts", "failures"))
    signal = sum(Decimal(str(each["sinr_db"])) for each in values) / len(values)
    signal = signal.quantize(Decimal("0.01"), ROUND_HALF_UP)
    rate = Decimal(failures) / attempts if attempts else Decimal(0)
    rate = rate.quantize(Decimal("0.0001"), ROUND_HALF_UP)
    return len(values), attempts, failures, signal, rate, rate >= Decimal("0.05") or signal < 0


def test_minutes_and_hours_are_those_that_were_sent(stage):
    found = {
        (r.cell_id, ms(r.window.start)): (
            r.measurements,
            r.attempts,
            r.failures,
            r.sinr_db,
            r.failure_rate,
            r.bad,
        )
        for r in stage.rows("cell_minutes")
        .where(f"window.start < timestamp '{instant(START + 3_600_000)}'")
        .collect()
    }
    assert found == minutes()
    hours = Counter(cell for cell, _ in minutes())
    bad = Counter(cell for (cell, _), found in minutes().items() if found[-1])
    rows = (
        stage.rows("cell_hours").where("window.start < timestamp '2026-11-21 11:00:00Z'").collect()
    )
    # rows of the two seconds before the start lie in the hour before
    assert sum(r.minutes for r in rows) == hours.total()
    assert sum(r.bad_minutes for r in rows) == bad.total()


def test_a_cell_alerts_once_when_three_of_five_minutes_are_bad(stage):
    bad = {cell_minute for cell_minute, found in minutes().items() if found[-1]}
    expected, alerting = set(), set()
    for n in range(MINUTES):
        minute = START + n * 60_000
        for cell in producer.CELLS:
            of_five = sum((cell, minute - back * 60_000) in bad for back in range(5))
            if of_five >= 3 and cell not in alerting:
                expected.add((cell, minute + 60_000, of_five))
            (alerting.add if of_five >= 3 else alerting.discard)(cell)
    found = {
        (r.cell_id, ms(r.window_time + timedelta(microseconds=1)), r.bad_minutes)
        for r in stage.rows("cell_alerts").collect()
    }
    assert found == expected and len(expected) >= 5


def reason(address: str) -> tuple[str, str] | tuple[None, None]:
    within = [each for each in LISTED if ip_address(address) in each]
    smallest = max(within, key=lambda each: each.prefixlen, default=None)
    return (str(smallest), LISTED[smallest]) if smallest else (None, None)


def expected_intrusions() -> dict[tuple[str, int], tuple]:
    refused = Counter(
        (value["address"], at // 60_000 * 60_000)
        for at, value in events(producer.REQUESTS)
        if value["status"] in (401, 403)
    )
    return {
        (address, minute): (times, *reason(address))
        for (address, minute), times in refused.items()
        if times >= (5 if reason(address)[0] else 30)
    }


def test_intrusions_are_found_by_the_smallest_bad_network_or_by_their_number(stage):
    found = {
        (r.address, ms(r.window.start)): (r.refused, r.network, r.reason)
        for r in stage.rows("intrusions").collect()
    }
    assert found == expected_intrusions()
    reasons = {reason for _, _, reason in found.values()}
    assert reasons == {None, *LISTED.values()}, "in each network, and in none"


def test_each_intrusion_after_the_follower_began_is_posted_once(served):
    stage, server = served
    begun = stage.rows("intrusions").where("_origin = 'stream'").count()
    posted = [(p.value["row"]["address"], p.value["row"]["window"]["start"]) for p in server.posted]
    assert len(posted) == len(set(posted)) and 0 < len(posted) < begun
    last = [key for key in expected_intrusions() if key[1] >= START + 10 * 60_000]
    assert {address for address, _ in last} <= {address for address, _ in posted}


def test_the_queries_of_the_page_are_answered(stage):
    text = (ROOT / "docs" / "start" / "network.md").read_text()
    queries = re.findall(r'lakehouse query "(SELECT .*)"', text)
    assert len(queries) == 2 and all(query.run(stage.session, sql).records() for sql in queries)


ADDRESSES = (
    "0.0.0.0",
    "255.255.255.255",
    "203.0.113.255",
    "198.17.255.255",
    "198.20.0.0",
    "1.2.3",
    "1.2.3.256",
    "::1",
    "01.2.3.4",
    "a.b.c.d",
    "",
)


def test_an_address_is_the_number_that_it_stands_for(spark):
    def number(address: str) -> int | None:
        try:
            parsed = ip_address(address)
        except ValueError:
            return None
        return int(parsed) if parsed.version == 4 else None

    rows = spark.createDataFrame([(each,) for each in ADDRESSES], "address STRING")
    found = rows.select("address", network._as_number(rows["address"]).alias("number")).collect()
    assert {r.address: r.number for r in found} == {each: number(each) for each in ADDRESSES}
