"""The bank: millions of transfers between ten accounts, whose balances add up to zero at every version; how many a second."""

import json
import sys
from dataclasses import dataclass, replace

from benchmarks import measure, topic
from examples.bank import producer as bank
from lakehouse.producers.sender import send
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment

ACCOUNTS, RATE, DISORDER_MS = 10, 1_000, 10_000
BATCHES = 40  # micro-batches of the record
LIMIT = 3_600.0  # seconds


@dataclass(frozen=True, slots=True)
class Bank:
    """Seconds from the topic into the totals; how many versions these have, each of which was added up."""

    transfers: int
    seconds: float
    versions: int

    @property
    def rate(self) -> float:
        return self.transfers / self.seconds


def run(base: Settings, transfers: int) -> Bank:
    """Raises BenchmarkError if a version does not add up to zero, or an account has not what its transfers say."""
    workload = replace(
        bank.PRODUCER.workload,
        rate=RATE,
        disorder_ms=DISORDER_MS,
        late_share=0.0,
        duplicate_share=0.0,
        malformed_share=0.0,
    )
    end_ms = topic.START_MS + transfers * 1000 // RATE
    with topic.brokers(base) as servers:
        settings = replace(
            base,
            bootstrap_servers=servers,
            tables=("examples.bank.tables",),
            max_offsets_per_trigger=transfers // BATCHES,
        )
        partitions = {bank.TRANSACTIONS: workload.partitions, bank.CUSTOMERS: 1, bank.ACCOUNTS: 1}
        kafka_broker.ensure_topics(settings, partitions, topic.TOPIC)
        send(
            bank.records(workload, topic.START_MS, end_ms, ACCOUNTS),
            bank.TRANSACTIONS,
            client_config(settings),
        )
        result = settings.root / "bank.json"
        command = [sys.executable, "-m", "benchmarks.bank_run", str(transfers), str(result)]
        measure.run(command, to_environment(settings), settings.root / "run.log", LIMIT)
    return Bank(transfers, **json.loads(result.read_text()))
