"""A shop: clicks of its customers, and the changes of its products as Debezium sends them.

The envelopes are those of a connector for PostgreSQL with `value.converter.schemas.enable=false` and
`decimal.handling.mode=string`.
"""

import json
from collections.abc import Iterator
from random import Random
from zlib import crc32

from lakehouse.producers.faults import Form, spoiled, with_faults
from lakehouse.producers.workload import ORDINARY, Producer, Record, Workload, draws, iso, moments

CLICKS, PRODUCTS = "shop-clicks", "shop.public.products"
CATEGORIES = ("chair", "desk", "lamp", "rug", "shelf", "sofa")
A_CATEGORY = 10  # products
_ALL = range(len(CATEGORIES) * A_CATEGORY)
_STEP_MS = 10_000  # so often a product changes
_GONE = 6  # every so many steps one is taken off sale, and is back a step later
_SESSION_MS = 60_000
_CLICKS_A_SESSION = 5
_FORM = Form("session_id", iso)


def records(workload: Workload, start_ms: int, end_ms: int | None = None) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`: first all products, then clicks.

    Every ten seconds a product changes. Clicks are keyed by session, changes by product.
    """
    yield from (_sent(workload, "c", n, start_ms) for n in _ALL)
    step = start_ms // _STEP_MS
    for record in with_faults(_clicks(workload, start_ms, end_ms), _FORM):
        while record.time_ms // _STEP_MS > step:
            step += 1
            yield from _changes(workload, step)
        yield record


def malformed(kind: str, time_ms: int) -> Record:
    """One bad click of `kind`, sent at `time_ms`."""
    good = next(_clicks(Workload(), time_ms, None))
    return spoiled(good._replace(kind=ORDINARY), kind, _FORM)


def _clicks(workload: Workload, start_ms: int, end_ms: int | None) -> Iterator[Record]:
    """A session lasts a minute. Four of five clicks are on products of the category that it is about."""
    rng = Random(workload.seed)
    places = draws(rng, range(workload.rate * _SESSION_MS // 1000 // _CLICKS_A_SESSION))
    for moment, place in zip(moments(workload, start_ms, end_ms), places, strict=False):
        # they do not all begin at once
        session = f"{place:x}-{(moment.event_ms + 7_000 * place) // _SESSION_MS:x}"
        number = crc32(session.encode())
        category = number % len(CATEGORIES) if rng.randrange(5) else rng.randrange(len(CATEGORIES))
        # the first of a category are the most wanted
        product = category * A_CATEGORY + min(int(rng.expovariate(0.4)), A_CATEGORY - 1)
        click = {
            "session_id": session,
            "customer_id": f"customer-{number % 5_000:04d}",
            "product_id": product,
            "event_time": iso(moment.event_ms),
        }
        _, time_ms, event_ms, kind = moment
        key, value = session.encode(), json.dumps(click).encode()
        yield Record(key, value, crc32(key) % workload.partitions, time_ms, event_ms, kind, CLICKS)


def _changes(workload: Workload, step: int) -> Iterator[Record]:
    """What changes at a step: a product has another price, goes off sale, or is back."""
    at = step * _STEP_MS
    gone = _ALL[step // _GONE % len(_ALL)]
    if step % _GONE == 0:
        deleted = _sent(workload, "d", gone, at)
        yield from (deleted, deleted._replace(value=None))  # Debezium's tombstone
    elif step % _GONE == 1:
        yield _sent(workload, "c", gone, at)
    else:
        changed = Random(f"shop {workload.seed} {step}").choice(_ALL)
        yield _sent(workload, "u", changed, at)


def _sent(workload: Workload, op: str, product: int, time_ms: int) -> Record:
    """A change, whose place in the database's log is its instant: so it increases over runs."""
    category = CATEGORIES[product // A_CATEGORY]
    cents = Random(f"price {workload.seed} {product} {time_ms}").randint(900, 90_000)
    row = {
        "product_id": product,
        "name": f"{category} {product % A_CATEGORY + 1}",
        "category": category,
        "price": f"{cents // 100}.{cents % 100:02d}",
    }
    source = {
        "version": "3.5.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "snapshot": "false",
        "db": "shop",
        "schema": "public",
        "table": "products",
        "txId": time_ms // _STEP_MS,
        "lsn": time_ms,
        "ts_ms": time_ms,
        "ts_us": time_ms * 1000,
    }
    envelope = {
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "source": source,
        "op": op,
        "ts_ms": time_ms,
    }
    key, value = json.dumps({"product_id": product}).encode(), json.dumps(envelope).encode()
    partition = crc32(key) % workload.partitions
    return Record(key, value, partition, time_ms, time_ms, ORDINARY, PRODUCTS)


PRODUCER = Producer(
    CLICKS,
    Workload(rate=20, disorder_ms=2_000, late_share=0.001, malformed_share=0.001, partitions=3),
    records,
    malformed,
    beside=(PRODUCTS,),
)
