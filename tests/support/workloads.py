"""Workloads of the producers that tests draw from."""

from benchmarks.nexmark import producer as nexmark
from examples.visits import producer as visits
from lakehouse.examples.ads import producer as ads
from lakehouse.examples.sensors import producer as sensors
from lakehouse.producers.workload import Workload

START = 1_795_255_200_000  # 2026-11-21T10:00:00Z
ROUGH = Workload(
    rate=2_000,
    disorder_ms=3_000,
    late_share=0.02,
    duplicate_share=0.03,
    malformed_share=0.05,
    partitions=3,
)
PRODUCERS = {
    "sensors": sensors.PRODUCER,
    "ads": ads.PRODUCER,
    "visits": visits.PRODUCER,
    "nexmark": nexmark.PRODUCER,
}

# a line of an access log, as the documentation of Apache has it
LINE = b'192.0.2.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326 "-" "Mozilla/4.08 [en] (\\"W\\")"'
