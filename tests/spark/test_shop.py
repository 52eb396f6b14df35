"""The pipeline `shop`: streams that crash meanwhile have the rows of batch and of plain Python; Redis has the products."""

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from itertools import permutations

import pytest

from examples.shop import producer
from examples.shop import tables as shop
from lakehouse.producers.workload import DUPLICATE, LATE, MALFORMED, Record, Workload
from lakehouse.sinks.follower import Follower
from lakehouse.stream import queries
from lakehouse.testing import ChangeEvent, Stage, assert_stream_equals_batch
from lakehouse.transform import keeping
from lakehouse.transform.plan import plan_of
from support import redis

pytestmark = [pytest.mark.turn(2), pytest.mark.slow, pytest.mark.parallel, pytest.mark.timeout(600)]

START = 1_795_255_200_000  # 2026-11-21T10:00:00Z
SECONDS = 200
WORKLOAD = Workload(
    rate=4,
    disorder_ms=2_000,
    late_share=0.01,
    duplicate_share=0.02,
    malformed_share=0.02,
    partitions=2,
)
KEPT = ("products", "session_pairs", "viewed_together", "viewed_offers", "recommendations")
INGEST = {producer.PRODUCTS: "product_log", producer.CLICKS: "product_clicks"}


@cache
def sent() -> list[Record]:
    records = list(producer.records(WORKLOAD, START, START + SECONDS * 1000))
    assert {record.kind for record in records} >= {LATE, DUPLICATE, MALFORMED}
    crawler = [
        {
            "session_id": "crawler",
            "product_id": n,
            "event_time": datetime.fromtimestamp(START / 1000 + n, UTC).isoformat(),
        }
        for n in range(30)
    ]
    first = next(record for record in records if record.topic == producer.CLICKS)
    return records + [
        first._replace(value=json.dumps(click).encode(), time_ms=records[-1].time_ms)
        for click in crawler
    ]


def feed(stage: Stage, begin: int, end: int) -> list[Record]:
    """What is sent from one second to another, changes first."""
    given = [r for r in sent() if begin <= (r.time_ms - START) / 1000 < end]
    for topic, table in INGEST.items():
        of_topic = [r for r in given if r.topic == topic]
        values = [
            (r.partition, r.value if topic == producer.CLICKS else change(r)) for r in of_topic
        ]
        stage.feed(table, values, sent=datetime.fromtimestamp(of_topic[-1].time_ms / 1000, UTC))
    return given


def change(record: Record) -> ChangeEvent | None:
    return ChangeEvent(json.loads(record.value)) if record.value else None


def on_sale(given: list[Record]) -> dict[int, tuple[str, Decimal]]:
    """Name and price of each product, as the last change of it says."""
    found = {}
    for record in given:
        if record.topic == producer.PRODUCTS and record.value is not None:
            change = json.loads(record.value)
            found.pop((change["before"] or change["after"])["product_id"], None)
            if after := change["after"]:
                found[after["product_id"]] = (after["name"], Decimal(after["price"]))
    return found


def recommended(given: list[Record]) -> dict[int, list[tuple]]:
    """(other product, name, price, sessions) of the five best of each product."""
    viewed: dict[str, dict[int, datetime]] = defaultdict(dict)
    for record in given:
        if record.topic == producer.CLICKS and record.kind != MALFORMED:
            click = json.loads(record.value)
            at, of = datetime.fromisoformat(click["event_time"]), viewed[click["session_id"]]
            of[click["product_id"]] = min(at, of.get(click["product_id"], at))
    together = Counter[tuple[int, int]]()
    for of in viewed.values():
        first = sorted(of, key=lambda product: (of[product], product))[:20]
        together.update(permutations(first, 2))
    offered, best = on_sale(given), defaultdict(list)
    for (product, other), sessions in sorted(
        together.items(), key=lambda each: (-each[1], each[0])
    ):
        if other in offered and len(best[product]) < 5:
            best[product].append((other, *offered[other], sessions))
    return {product: others for product, others in best.items() if others}


def shown(stage: Stage) -> dict[int, list[tuple]]:
    rows = stage.rows("recommendations").collect()
    assert all(
        [other.place for other in row.others] == [*range(1, len(row.others) + 1)] for row in rows
    )
    return {
        row.product_id: [(o.product_id, o.name, o.price, o.sessions) for o in row.others]
        for row in rows
    }


@pytest.fixture
def cache_server(monkeypatch):
    with redis.running() as server:
        monkeypatch.setenv("SHOP_REDIS", f"127.0.0.1:{server.port}/0")
        yield server.client()


def test_recommendations_follow_clicks_and_products_through_crashes_and_redis_follows(
    spark, tmp_path, cache_server
):
    stage = Stage(spark, tmp_path, shop)
    follower = Follower(stage.session, *stage.session.catalog.target("product"))
    follower.begin()
    given = feed(stage, 0, SECONDS / 2)
    stage.run(*KEPT[:-1])
    stage.run(KEPT[-1], abort_at="rows")
    assert shown(stage) == recommended(given)
    follower.step()

    given += feed(stage, SECONDS / 2, SECONDS)
    stage.run(*KEPT)
    assert shown(stage) == recommended(given) and len(shown(stage)) > 40
    assert sum(stage.crashes.values()) == 1 and stage.resumed == len(KEPT)
    while follower.step():
        pass
    follower.end()
    cached = {
        int(key.split(":")[1]): cache_server.hgetall(key)
        for key in cache_server.scan_iter("product:*")
    }
    assert {n: (row["name"], Decimal(row["price"])) for n, row in cached.items()} == on_sale(given)
    assert stage.rows("product_log").where("deleted").count() >= 3
    for name in KEPT:
        assert_stream_equals_batch(stage, name)
    queries.prepare(stage.session, [stage.session.catalog.table(name) for name in KEPT])  # restarts
    assert {name: connected_by(stage, name) for name in KEPT} == {
        "products": ("product_id",),
        "session_pairs": ("session_id",),
        "viewed_together": ("product_id", "other_id"),
        "viewed_offers": ("other_id",),
        "recommendations": ("product_id",),
    }, "as the page says: no step computes a table whole"


def connected_by(stage: Stage, name: str) -> tuple[str, ...]:
    table = stage.session.catalog.table(name)
    return keeping.group_uses(plan_of(stage.session, table)).columns
