"""Producers of the pipelines that ship: real records into real topics, the same bytes for the same settings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lakehouse.errors import SettingsError
from lakehouse.producers import ads, bank, sensors, visits
from lakehouse.producers.workload import Record, Workload


@dataclass(frozen=True, slots=True)
class Producer:
    """What fills the topic of one pipeline, and how it does by default."""

    topic: str
    workload: Workload
    # pure; start and end in ms, end open or None
    records: Callable[[Workload, int, int | None], Iterator[Record]]
    malformed: Callable[[str, int], Record]  # one bad record, by kind and time in ms
    # of lines there are, over n partitions
    lines: Callable[[Iterable[bytes], int], Iterator[Record]] | None = None
    # topics of one partition beside it, of which Kafka keeps the last record of each key
    compacted: tuple[str, ...] = ()


def producer(pipeline: str) -> Producer:
    """The producer of a shipped pipeline; raises SettingsError for any other name."""
    if pipeline == "sensors":
        workload = Workload(
            rate=200,
            disorder_ms=2_000,
            late_share=0.001,
            malformed_share=0.001,
            partitions=3,
            offline_ms=180_000,
        )
        return Producer("sensor-readings", workload, sensors.records, sensors.malformed)
    if pipeline == "ads":
        workload = Workload(rate=1_000, disorder_ms=99, late_share=0.000_01, partitions=4)
        return Producer("ad-events", workload, ads.records, ads.malformed)
    if pipeline == "visits":
        workload = Workload(
            rate=50, disorder_ms=2_000, late_share=0.001, malformed_share=0.001, partitions=3
        )
        return Producer("access-log", workload, visits.records, visits.malformed, visits.of_lines)
    if pipeline == "bank":
        workload = Workload(
            rate=50, disorder_ms=2_000, late_share=0.001, malformed_share=0.001, partitions=5
        )
        return Producer(
            bank.TRANSACTIONS,
            workload,
            bank.records,
            bank.malformed,
            compacted=(bank.CUSTOMERS, bank.ACCOUNTS),
        )
    raise SettingsError(
        f"pipeline={pipeline!r}: there are producers for 'sensors', 'ads', 'visits' and 'bank'; name one of them"
    )
