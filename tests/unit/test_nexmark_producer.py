"""The auction house of Nexmark: its proportions, its ids, who sells and bids, and bad bids."""

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime
from zlib import crc32

import pytest

from benchmarks.nexmark import producer as nexmark
from lakehouse.producers.faults import KINDS, OVERSIZED
from lakehouse.producers.workload import MALFORMED, Record, Workload
from support.workloads import ROUGH, START

FIELDS = {
    nexmark.PEOPLE: ["id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra"],
    nexmark.AUCTIONS: [
        *("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires"),
        *("seller", "category", "extra"),
    ],
    nexmark.BIDS: ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"],
}  # fmt: skip


def values(records: list[Record], topic: str) -> list[dict]:
    return [json.loads(each.value or b"") for each in records if each.topic == topic]


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_46_are_bids() -> None:
    sent = list(nexmark.records(Workload(rate=1_000, partitions=3), START, START + 10_000))
    assert Counter(each.topic for each in sent) == {
        nexmark.PEOPLE: 200,
        nexmark.AUCTIONS: 600,
        nexmark.BIDS: 9_200,
    }
    for record in sent:
        value = json.loads(record.value or b"")
        assert list(value) == FIELDS[record.topic]
        assert record.key == str(value.get("id", value.get("auction"))).encode()
        assert record.partition == crc32(record.key) % 3
        at = datetime.fromisoformat(value["dateTime"]).timestamp()
        assert round(at * 1000) == record.event_ms
    for auction in values(sent, nexmark.AUCTIONS):
        assert (
            auction["dateTime"] < auction["expires"] and auction["initialBid"] < auction["reserve"]
        )
    prices = [bid["price"] for bid in values(sent, nexmark.BIDS)]
    assert min(prices) >= 100 and max(prices) <= 100_000_000
    assert 0.45 < sum(price < 100_000 for price in prices) / len(prices) < 0.55, "half below 10^5"


def test_ids_are_unique_and_increase_also_over_runs_of_different_rates() -> None:
    runs = [
        list(nexmark.records(Workload(rate=rate, seed=rate), begin, begin + 5_000))
        for rate, begin in ((2_000, START), (50, START + 5_000), (7, START + 10_000))
    ]
    for topic in (nexmark.PEOPLE, nexmark.AUCTIONS):
        ids = [value["id"] for run in runs for value in values(run, topic)]
        assert ids == sorted(set(ids)), topic


def test_who_sells_and_what_is_bid_on_is_of_the_run_and_some_of_it_is_hot() -> None:
    sent = list(nexmark.records(Workload(rate=1_000), START, START + 10_000))
    people = {each["id"] for each in values(sent, nexmark.PEOPLE)}
    auctions = {each["id"] for each in values(sent, nexmark.AUCTIONS)}
    bids = values(sent, nexmark.BIDS)
    named = [bid["auction"] for bid in bids], [bid["bidder"] for bid in bids]
    sellers = [auction["seller"] for auction in values(sent, nexmark.AUCTIONS)]
    for found, there in ((named[0], auctions), (named[1], people), (sellers, people)):
        assert min(there) <= min(found) and max(found) <= max(there) + 10
        assert len(set(found) & there) > len(there) / 3
    hot = {
        share: Counter(found).most_common(8) for share, found in ((0.5, named[0]), (0.75, named[1]))
    }
    for share, most in hot.items():
        assert abs(sum(n for _, n in most) / len(bids) - share) < 0.05
    assert {bid["channel"] for bid in bids} >= {"Google", "Facebook", "Baidu", "Apple"}


def test_each_kind_of_bad_bid_is_bad_in_its_own_way_and_bad_records_are_of_all_topics() -> None:
    bad = {kind: nexmark.malformed(kind, START) for kind in (*KINDS, OVERSIZED)}
    assert {(r.kind, r.partition, r.time_ms, r.event_ms, r.topic) for r in bad.values()} == {
        (MALFORMED, 0, START, None, nexmark.BIDS)
    }
    assert bad["tombstone"].value is None and bad["null_key"].key is None
    parsed = {
        kind: json.loads(bad[kind].value or b"")
        for kind in bad.keys() - {"tombstone", "not_json", "invalid_utf8"}
    }
    assert parsed["wrong_type"]["dateTime"] is True
    assert "dateTime" not in parsed["missing_field"]
    assert parsed["null_key"]["auction"] is None
    ahead = datetime.fromisoformat(parsed["hour_ahead"]["dateTime"])
    assert ahead.timestamp() * 1000 == START + 3_600_000
    assert len(bad[OVERSIZED].value or b"") > 5_000_000
    with pytest.raises(json.JSONDecodeError):
        json.loads(bad["not_json"].value or b"")
    with pytest.raises(UnicodeDecodeError):
        (bad["invalid_utf8"].value or b"").decode()
    all_bad = replace(ROUGH, malformed_share=1.0, late_share=0.0, duplicate_share=0.0)
    sent = list(nexmark.records(all_bad, START, START + 1_000))
    assert {each.topic for each in sent} == set(FIELDS)
