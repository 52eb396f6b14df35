"""The 24 queries of Nexmark: streams that crash meanwhile have the rows that DuckDB computes in plain SQL, and those of batch.

800 events of three topics, out of order by up to three seconds, some sent twice, some malformed. They come in four commits;
15 of the 24 tables run after the second one too, and half of these crash there.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import groupby

import pyarrow as pa
import pytest

from benchmarks.nexmark import producer, tables
from lakehouse.producers.workload import DUPLICATE, MALFORMED, Record, Workload
from lakehouse.testing import Stage, assert_stream_equals_batch
from support.nexmark_oracle import QUERIES, Oracle

pytestmark = [pytest.mark.slow, pytest.mark.parallel, pytest.mark.timeout(900)]

START = 1_795_255_200_036  # 2026-11-21T10:00:00Z and a little: the first auction is a 123rd one
WORKLOAD = Workload(
    seed=4,
    rate=10,
    disorder_ms=3_000,
    duplicate_share=0.03,
    malformed_share=0.03,
    partitions=2,
)
SECONDS = 80
LATER = datetime.fromtimestamp(START / 1000, UTC) + timedelta(hours=2)
INGEST = {
    producer.PEOPLE: ("nexmark_people",),
    producer.AUCTIONS: ("nexmark_auctions",),
    producer.BIDS: ("nexmark_bids", "nexmark_bids_by_arrival"),
}
NAMES = {
    "emailAddress": "email_address",
    "creditCard": "credit_card",
    "dateTime": "date_time",
    "itemName": "item_name",
    "initialBid": "initial_bid",
}
KEPT = ("people", "auctions")
EARLIER = (  # all that may change rows which are there, and of the other kinds one or two
    *("q9_winning_bids", "q3_local_items", "q4_average_prices", "q6_average_selling_prices"),
    *("q15_bids_by_day", "q16_bids_by_channel", "q17_bids_by_auction", "q18_last_bids"),
    *("q19_top_bids", "q20_bids_with_auctions", "q23_bids_of_sellers"),
    *("q5_hot_items", "q8_new_sellers", "q11_bidder_sessions", "q21_channel_ids"),
)


def read(record: Record) -> dict | None:
    """What was sent, if it has fields of the right types: a clock may be wrong."""
    try:
        value = json.loads((record.value or b"").decode())
        for name in value.keys() & {"dateTime", "expires"}:
            value[name] = datetime.fromisoformat(value[name]).replace(tzinfo=None)
    except (ValueError, TypeError):
        return None
    readable = "dateTime" in value and None not in value.values()
    return {NAMES.get(name, name): each for name, each in value.items()} if readable else None


class House:
    """The stage, and beside it what was sent to it, for the oracle."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.sent: dict[str, list[dict]] = {topic: [] for topic in INGEST}
        self.malformed = Counter[str]()
        self._offsets = Counter[tuple[str, int]]()
        self._clock = datetime(2030, 1, 1)  # of the stage: it goes on a second with what is fed

    def wait(self, time: timedelta) -> None:
        self.stage.wait(time)
        self._clock += time

    def feed(self, topic: str, records: list[Record], abort_at: str | None = None) -> None:
        values = [(each.partition, each.value) for each in records]
        sent = datetime.fromtimestamp(max(each.time_ms for each in records) / 1000, UTC)
        for name in INGEST[topic]:
            self.stage.feed(name, values, sent=sent, abort_at=abort_at)
            self._clock += timedelta(seconds=1)
        for record in records:
            offset = self._offsets[topic, record.partition]
            self._offsets[topic, record.partition] += 1
            good = record.kind != MALFORMED
            self.malformed[topic] += not good
            value = read(record)
            if value is not None and topic == producer.BIDS:
                place = {"partition": record.partition, "offset": offset, "arrived": self._clock}
                self.sent[topic].append(value | place | {"good": good})
            elif good:
                self.sent[topic].append(value)

    def close(self) -> None:
        """Moves event time on by two hours, and the clock too, by a row of each topic on all of its partitions."""
        self.wait(timedelta(hours=2))
        later = producer.records(Workload(rate=50), int(LATER.timestamp() * 1000))
        last = {each.topic: each for each in (next(later) for _ in range(10))}
        for topic, record in last.items():
            for _ in range(2):  # the second one carries the watermark that follows from the first
                rows = [record._replace(partition=p) for p in range(WORKLOAD.partitions)]
                self.feed(topic, rows)


@pytest.fixture(scope="module")
def house(spark, tmp_path_factory) -> House:
    stage = Stage(spark, tmp_path_factory.mktemp("nexmark"), tables)
    house = House(stage)
    records = list(producer.records(WORKLOAD, START, START + SECONDS * 1000))
    assert {each.kind for each in records} >= {DUPLICATE, MALFORMED}
    for number, commit in groupby(records, lambda each: (each.time_ms - START) // (SECONDS * 250)):
        house.wait(timedelta(seconds=7))
        found = list(commit)
        for topic in INGEST:
            rows = [each for each in found if each.topic == topic]
            house.feed(topic, rows, abort_at="rows" if number == 1 else None)
        if number == 1:
            stage.run(*KEPT, *EARLIER[::2])
            stage.run(*EARLIER[1::2], abort_at="commit_log")
    house.close()
    stage.run(*KEPT, *sorted(QUERIES, key=lambda name: name != "q9_winning_bids"))
    return house


@pytest.fixture(scope="module")
def oracle(house) -> Oracle:
    closed = (LATER - timedelta(seconds=10)).replace(tzinfo=None)
    people, auctions, bids = (house.sent[topic] for topic in INGEST)
    return Oracle(people, auctions, bids, closed)


def ours(house: House, query: str) -> pa.Table:
    found = house.stage.rows(query)
    if "window" in found.columns:
        found = found.select("window.start", "window.end", *found.columns).drop("window")
    return found.select(*(name for name in found.columns if not name.startswith("_"))).toArrow()


def plain(value: object) -> object:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


def test_malformed_events_are_quarantined_and_all_others_are_there(house):
    """Of bids by their arrival those with a wrong clock are good."""
    assert len(house.malformed) > 1, house.malformed
    wrong_clock = sum(not bid["good"] for bid in house.sent[producer.BIDS])
    assert wrong_clock
    for topic, names in INGEST.items():
        for name in names:
            accepted = wrong_clock if name == "nexmark_bids_by_arrival" else 0
            good = sum(each.get("good", True) for each in house.sent[topic])
            assert house.stage.rows(name).count() == good + accepted
            quarantined = house.stage.rows(name, "quarantine").count()
            assert quarantined == house.malformed[topic] - accepted


@pytest.mark.parametrize("query", QUERIES)
def test_the_stream_has_the_rows_of_the_oracle(house, oracle, query):
    found = ours(house, query)
    names, expected = oracle.rows(query)
    assert set(found.column_names) == set(names)
    rows = Counter(
        tuple(plain(row[name]) for name in names) for row in found.select(names).to_pylist()
    )
    assert expected and rows == Counter(expected)


@pytest.mark.parametrize("table", [*KEPT, *QUERIES])
def test_the_stream_has_the_rows_of_batch(house, table):
    assert_stream_equals_batch(house.stage, table)
