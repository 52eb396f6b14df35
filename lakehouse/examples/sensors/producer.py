"""Readings of thermometers, each with a daily curve of its own."""

from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from math import cos, pi
from random import Random
from typing import NamedTuple
from zlib import crc32

from lakehouse.producers.faults import Form, spoiled, with_faults
from lakehouse.producers.workload import (
    DUPLICATE,
    LATE,
    MALFORMED,
    ORDINARY,
    Moment,
    Producer,
    Record,
    Workload,
    draws,
    iso,
    iso_second,
    moments,
)

WINDOW_MS = 5_000
_DAY = 1440  # minutes
_CUT_MS = 20 * 60_000


class Sensor(NamedTuple):
    """A thermometer: its mean and its swing in hundredths of a degree Fahrenheit, and the minute it is warmest."""

    name: str
    key: bytes
    partition: int
    mean: int
    swing: int
    warmest: int


class Readings(NamedTuple):
    """What a sensor measured within one window."""

    readings: int
    min_f: Decimal
    max_f: Decimal


def records(
    workload: Workload, start_ms: int, end_ms: int | None = None, sensors: int = 20
) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`, sensor after sensor, in the order of sending.

    Keyed by sensor.
    """
    sent = with_faults(_good(workload, start_ms, end_ms, sensors), _FORM)
    return _with_outages(sent, workload, sensors) if workload.offline_ms else sent


def _with_outages(records: Iterator[Record], workload: Workload, sensors: int) -> Iterator[Record]:
    """From minute 20 of each hour on, one sensor after the other is offline.

    Its records wait, and none is lost.
    """
    waiting: list[Record] = []
    back_ms = 0
    for record in records:
        if waiting and record.time_ms >= back_ms:
            yield from (_held(each, back_ms) for each in waiting)
            waiting = []
        hour, within = divmod(record.time_ms, 3_600_000)
        offline = f"sensor-{hour % sensors:03d}".encode()
        if record.key == offline and _CUT_MS <= within < _CUT_MS + workload.offline_ms:
            back_ms = hour * 3_600_000 + _CUT_MS + workload.offline_ms
            waiting.append(record)
        else:
            yield record
            last_ms = record.time_ms
    yield from (_held(each, last_ms) for each in waiting)


def _held(record: Record, time_ms: int) -> Record:
    return record._replace(time_ms=time_ms, kind=LATE if record.kind == ORDINARY else record.kind)


def malformed(kind: str, time_ms: int) -> Record:
    """One bad record of `kind`, sent at `time_ms` to partition 0."""
    good = next(_good(Workload(), time_ms, None, 1))
    return spoiled(good._replace(kind=ORDINARY), kind, _FORM)


def expected_readings(
    workload: Workload, start_ms: int, end_ms: int, sensors: int = 20
) -> dict[tuple[str, int], Readings]:
    """Readings by (sensor, start of the 5 s window in ms) in what `records` sends: late or not, duplicates twice."""
    found: dict[tuple[str, int], tuple[int, int, int]] = {}
    for moment, sensor, warmth in _drawn(workload, start_ms, end_ms, sensors):
        if moment.kind != MALFORMED:
            window = sensor.name, moment.event_ms - moment.event_ms % WINDOW_MS
            count, low, high = found.get(window, (0, warmth, warmth))
            times = 2 if moment.kind == DUPLICATE else 1
            found[window] = count + times, min(low, warmth), max(high, warmth)
    return {
        window: Readings(count, Decimal(low).scaleb(-2), Decimal(high).scaleb(-2))
        for window, (count, low, high) in found.items()
    }


_FORM = Form("sensor_id", iso)


def _good(workload: Workload, start_ms: int, end_ms: int | None, sensors: int) -> Iterator[Record]:
    second = lru_cache(4096)(iso_second)  # a second is written once, not once an event
    for (_, time_ms, event_ms, kind), sensor, warmth in _drawn(workload, start_ms, end_ms, sensors):
        s, ms = divmod(event_ms, 1000)
        degrees, hundredths = divmod(warmth, 100)
        value = (
            f'{{"sensor_id": "{sensor.name}", "event_time": "{second(s)}.{ms:03d}Z", '
            f'"temperature_f": {degrees}.{hundredths:02d}}}'
        ).encode()
        yield Record(sensor.key, value, sensor.partition, time_ms, event_ms, kind)


def _drawn(
    workload: Workload, start_ms: int, end_ms: int | None, sensors: int
) -> Iterator[tuple[Moment, Sensor, int]]:
    """Per reading its moment, its sensor and its hundredths of a degree."""
    rng = Random(workload.seed)
    places = [_sensor(rng, n, workload.partitions) for n in range(sensors)]
    curve = [cos(2 * pi * minute / _DAY) for minute in range(_DAY)]  # warmest at 0
    for moment, noise in zip(
        moments(workload, start_ms, end_ms), draws(rng, range(-40, 41)), strict=False
    ):
        sensor = places[moment.number % sensors]
        height = curve[(moment.event_ms // 60_000 - sensor.warmest) % _DAY]
        yield moment, sensor, int(sensor.mean + sensor.swing * height) + noise


def _sensor(rng: Random, number: int, partitions: int) -> Sensor:
    name = f"sensor-{number:03d}"
    # crc32 and not hash(): the same partition in every process
    partition = crc32(name.encode()) % partitions
    return Sensor(
        name,
        name.encode(),
        partition,
        rng.randint(5_500, 8_500),
        rng.randint(300, 1_500),
        rng.randint(780, 960),
    )


PRODUCER = Producer(
    "sensor-readings",
    Workload(
        rate=200,
        disorder_ms=2_000,
        late_share=0.001,
        malformed_share=0.001,
        partitions=3,
        offline_ms=180_000,
    ),
    records,
    malformed,
)
