"""The shop: seconds from a click to the message that recommends by it.

The pipeline `shop` and the follower of its topic, with the shop's own producer beside. Each second one more customer views two
products that nobody has viewed before, one after the other. So the first message of either product is there because of that
click.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from confluent_kafka import Producer

from benchmarks import latency, measure, topic
from benchmarks.commands import awaited
from benchmarks.lag import Lag
from benchmarks.measure import BenchmarkError
from benchmarks.publishing import TopicReader
from examples.shop.producer import CLICKS, PRODUCER, PRODUCTS
from lakehouse.producers.sender import send
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.testing import change_event

RATE, EVERY = 50, 1.0  # clicks a second beside, and seconds between two customers who are measured
TARGET, PARTITIONS = "shop.recommendations", 3
_FIRST = 100_000  # of the products that they view
_UP, _LIMIT = 120.0, 120.0  # seconds until the first message is there, and until the last is


def run(settings: Settings, seconds: int) -> Lag:
    """Customers for so long; the first half, at most two minutes, does not count. Raises BenchmarkError."""
    settings = replace(settings, tables=("examples.shop.tables",))
    workload = replace(
        PRODUCER.workload, rate=RATE, late_share=0.0, duplicate_share=0.0, malformed_share=0.0
    )
    customers = round(seconds / EVERY)
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(
            settings,
            {CLICKS: workload.partitions, PRODUCTS: workload.partitions, TARGET: PARTITIONS},
            topic.TOPIC,
        )
        begin_ms = int(time.time() * 1000)
        send(_on_sale(customers, begin_ms), PRODUCTS, client_config(settings))
        command = [sys.executable, "-m", "streaming_jobs.exporters.follower", TARGET]
        log, beside = settings.root / "follower.log", PRODUCER.records(workload, begin_ms, None)
        with (
            latency.our_job(settings, "shop") as job,
            measure.started(command, to_environment(settings), log) as follower,
            TopicReader(settings, TARGET, once=False, partitions=PARTITIONS) as reader,
            topic.sending(settings, beside, CLICKS),
        ):
            awaited(lambda: reader.seen, "shop: the first recommendation", _UP)
            cpu = job.cpu()
            clicked = _browse(settings, customers)
            cpu = (job.cpu() - cpu) / seconds
            wanted = {_FIRST + n for n in range(2 * customers)}
            awaited(lambda: wanted <= reader.seen.keys(), "shop: all recommendations", _LIMIT)
            follower.root.terminate()
            follower.end(_UP)
        _check(reader, customers)
    warm = clicked[0] + min(latency.WARM_UP_MS / 1000, seconds / 2)
    delays = [
        max(reader.seen[_FIRST + 2 * n], reader.seen[_FIRST + 2 * n + 1]) - at
        for n, at in enumerate(clicked)
        if at >= warm
    ]
    return Lag("shop", "a click to its recommendation", tuple(delays), cpu)


def _on_sale(customers: int, now_ms: int) -> Iterator[Record]:
    """The products that they will view."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    for number in range(_FIRST, _FIRST + 2 * customers):
        row = {
            "product_id": number,
            "name": f"product {number}",
            "category": "new",
            "price": "9.50",
        }
        event = change_event("c", row, position=now_ms, sent=at)
        key = json.dumps({"product_id": number}).encode()
        yield Record(key, json.dumps(event).encode(), number % 2, now_ms, now_ms, ORDINARY)


def _browse(settings: Settings, customers: int) -> Sequence[float]:
    """Each views two products; when the second was clicked, in seconds since the epoch."""
    sender = Producer(client_config(settings) | {"linger.ms": 0})
    clicked, began = [], time.monotonic()
    for n in range(customers):
        time.sleep(max(began + n * EVERY - time.monotonic(), 0))
        for product in (_FIRST + 2 * n, _FIRST + 2 * n + 1):
            now = time.time()
            click = {
                "session_id": f"measured-{n}",
                "customer_id": "measured",
                "product_id": product,
                "event_time": datetime.fromtimestamp(now, UTC).isoformat(),
            }
            sender.produce(
                CLICKS, json.dumps(click), f"measured-{n}".encode(), timestamp=int(now * 1000)
            )
        sender.flush()
        clicked.append(now)
    return clicked


def _check(reader: TopicReader, customers: int) -> None:
    """That the products of each customer name each other, and nothing else."""
    found = {
        each["product_id"]: [other["product_id"] for other in each["others"]]
        for each in map(json.loads, filter(None, reader.values))
        if each["product_id"] >= _FIRST
    }
    pairs = ((_FIRST + 2 * n, _FIRST + 2 * n + 1) for n in range(customers))
    wanted = {one: [other] for pair in pairs for one, other in (pair, pair[::-1])}
    if found != wanted:
        wrong = sum(found.get(product) != others for product, others in wanted.items())
        raise BenchmarkError(
            f"shop: {wrong:,} of {len(wanted):,} products have other recommendations than were clicked; the run is void"
        )
