"""The auction house of Nexmark: of fifty events one is a new person, three are new auctions, and 46 are bids.

Numbers, names and probabilities are those of the generator for Flink. Ids differ: they are unique
and increase over runs, and no person or auction is named that is older than the run.
"""

import json
from collections.abc import Iterator
from random import Random
from string import ascii_lowercase
from typing import NamedTuple
from zlib import crc32

from lakehouse.producers.faults import Form, spoiled, with_faults
from lakehouse.producers.workload import (
    ORDINARY,
    Moment,
    Producer,
    Record,
    Workload,
    draws,
    iso,
    moments,
)

PEOPLE, AUCTIONS, BIDS = "nexmark-people", "nexmark-auctions", "nexmark-bids"
AUCTIONS_A_PERSON, BIDS_A_PERSON = 3, 46
_ROUND = 1 + AUCTIONS_A_PERSON + BIDS_A_PERSON  # a person, three auctions, 46 bids, in this order
_HOT = 100  # one in so many people or auctions is a hot one
_ACTIVE_PEOPLE, _IN_FLIGHT = (
    1_000,
    100,
)  # who sells and bids, and what is bid on: so many of the last
_LEAD = 10  # ids that are named although they are still to come: bids overtake their auction
_CATEGORIES = range(10, 15)
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
_LAST_NAMES = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000
_FORMS = {
    PEOPLE: Form("id", iso, time="dateTime"),
    AUCTIONS: Form("id", iso, time="dateTime"),
    BIDS: Form("auction", iso, time="dateTime"),
}


def records(workload: Workload, start_ms: int, end_ms: int | None = None) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`, in the order of sending; keyed by the person's or auction's id.

    Ids count from the start in milliseconds. So a later run has higher ones, up to 50,000 events a
    second.
    """
    return with_faults(_good(workload, start_ms, end_ms), _FORMS)


def malformed(kind: str, time_ms: int) -> Record:
    """One bad bid of `kind`, sent at `time_ms` to partition 0."""
    good = next(each for each in _good(Workload(), time_ms, None) if each.topic == BIDS)
    return spoiled(good._replace(kind=ORDINARY, time_ms=time_ms), kind, _FORMS[BIDS])


class _Ids(NamedTuple):
    """The ids that there are: the first of the run, and the last so far."""

    first_person: int
    last_person: int
    first_auction: int
    last_auction: int

    def hot_person(self) -> int:
        return max(self.last_person // _HOT * _HOT, self.first_person)

    def hot_auction(self) -> int:
        return max(self.last_auction // _HOT * _HOT, self.first_auction)

    def person(self, rng: Random) -> int:
        least = max(self.last_person - _ACTIVE_PEOPLE + 1, self.first_person)
        return rng.randint(least, self.last_person + _LEAD)

    def auction(self, rng: Random) -> int:
        least = max(self.last_auction - _IN_FLIGHT, self.first_auction)
        return rng.randint(least, self.last_auction + _LEAD)


def _good(workload: Workload, start_ms: int, end_ms: int | None) -> Iterator[Record]:
    rng = Random(workload.seed)
    texts = draws(rng, [_text(rng, 100) for _ in range(1_000)])
    pages = _pages(Random(f"nexmark {workload.seed}"))
    first_auction = start_ms * AUCTIONS_A_PERSON
    for moment in moments(workload, start_ms, end_ms):
        turn, place = divmod(moment.number, _ROUND)
        of_turn = min(max(place, 1), AUCTIONS_A_PERSON)
        last_auction = first_auction + turn * AUCTIONS_A_PERSON + of_turn - 1 - (place == 0)
        ids = _Ids(start_ms, start_ms + turn, first_auction, last_auction)
        if place == 0:
            topic, key, value = PEOPLE, ids.last_person, _person(rng, ids, moment, texts)
        elif place <= AUCTIONS_A_PERSON:
            value = _auction(rng, ids, moment, texts, workload.rate)
            topic, key = AUCTIONS, ids.last_auction
        else:
            value = _bid(rng, ids, moment, texts, pages)
            topic, key = BIDS, int(str(value["auction"]))
        name = str(key).encode()
        partition = crc32(name) % workload.partitions
        _, time_ms, event_ms, kind = moment
        encoded = json.dumps(value).encode()
        yield Record(name, encoded, partition, time_ms, event_ms, kind, topic)


def _person(rng: Random, ids: _Ids, moment: Moment, texts: Iterator[str]) -> dict[str, object]:
    return {
        "id": ids.last_person,
        "name": f"{rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)}",
        "emailAddress": f"{_text(rng, 7)}@{_text(rng, 5)}.com",
        "creditCard": " ".join(f"{rng.randrange(10_000):04d}" for _ in range(4)),
        "city": rng.choice(_CITIES),
        "state": rng.choice(_STATES),
        "dateTime": iso(moment.event_ms),
        "extra": next(texts),
    }


def _auction(
    rng: Random, ids: _Ids, moment: Moment, texts: Iterator[str], rate: int
) -> dict[str, object]:
    first = _price(rng)
    # as long, on average, as it takes to open as many auctions as are in flight
    average_ms = _IN_FLIGHT * _ROUND * 1000 // AUCTIONS_A_PERSON // rate
    # three of four are of the hot seller
    seller = ids.hot_person() if rng.randrange(4) else ids.person(rng)
    return {
        "id": ids.last_auction,
        "itemName": next(texts)[:20],
        "description": next(texts),
        "initialBid": first,
        "reserve": first + _price(rng),
        "dateTime": iso(moment.event_ms),
        "expires": iso(moment.event_ms + 1 + rng.randrange(max(2 * average_ms, 1))),
        "seller": seller,
        "category": rng.choice(_CATEGORIES),
        "extra": next(texts) + next(texts),
    }


def _bid(
    rng: Random, ids: _Ids, moment: Moment, texts: Iterator[str], pages: list[tuple[str, str]]
) -> dict[str, object]:
    # half of the bids are on the hot auction, three of four by the hot bidder, who comes after the hot seller
    auction = ids.hot_auction() if rng.randrange(2) else ids.auction(rng)
    bidder = ids.hot_person() + 1 if rng.randrange(4) else ids.person(rng)
    hot = len(_HOT_CHANNELS)
    channel, url = pages[rng.randrange(hot) if rng.randrange(2) else rng.randrange(hot, len(pages))]
    return {
        "auction": auction,
        "bidder": bidder,
        "price": _price(rng),
        "channel": channel,
        "url": url,
        "dateTime": iso(moment.event_ms),
        "extra": next(texts)[:60],
    }


def _price(rng: Random) -> int:
    """In cents, of one dollar to a million: each power of ten is as likely as the others."""
    return round(10 ** (rng.random() * 6) * 100)


def _text(rng: Random, length: int) -> str:
    return "".join(rng.choices(ascii_lowercase, k=length))


def _pages(rng: Random) -> list[tuple[str, str]]:
    """Channels with their pages: first the hot ones.

    Nine of ten of the others name the channel in the address.
    """
    found = [(channel, _page(rng)) for channel in _HOT_CHANNELS]
    for number in range(_CHANNELS):
        named = f"&channel_id={number * 7919 % 1_000_003}" if rng.randrange(10) else ""
        found.append((f"channel-{number}", _page(rng) + named))
    return found


def _page(rng: Random) -> str:
    folders = "/".join(_text(rng, 5) for _ in range(3))
    return f"https://www.nexmark.com/{folders}/item.htm?query=1"


PRODUCER = Producer(
    BIDS,
    Workload(
        rate=1_000, disorder_ms=1_000, late_share=0.000_1, malformed_share=0.000_1, partitions=4
    ),
    records,
    malformed,
    beside=(PEOPLE, AUCTIONS),
)
