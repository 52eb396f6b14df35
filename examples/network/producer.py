"""What a network reports: measurements of its radio cells, and requests at its gateway.

Of five events four are measurements. Some cells are disturbed for minutes, and all the time somebody
guesses passwords at the gateway.
"""

import json
from collections.abc import Iterator
from random import Random
from zlib import crc32

from lakehouse.producers.faults import Form, spoiled, with_faults
from lakehouse.producers.workload import ORDINARY, Moment, Producer, Record, Workload, iso, moments

MEASUREMENTS, REQUESTS = "cell-measurements", "gateway-requests"
CELLS = tuple(f"cell-{number:02d}" for number in range(12))
_MEASUREMENTS_A_REQUEST = 4
_SPELL_MS = 240_000  # for so long a cell is disturbed, or is not
_DISTURBED = 4  # one of so many spells
_ATTACK_MS = 120_000  # for so long one address guesses
_PATHS = ("/", "/login", "/account", "/bill", "/coverage")
# each of them for a while; the first four are in known bad networks
_ATTACKERS = (
    "203.0.113.70",
    "203.0.113.9",
    "198.19.4.4",
    "192.0.2.17",
    "198.51.100.23",
    "2001:db8::bad",
)
_FORMS = {MEASUREMENTS: Form("cell_id", iso), REQUESTS: Form("address", iso)}


def records(workload: Workload, start_ms: int, end_ms: int | None = None) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`, in the order of sending; keyed by cell or address."""
    return with_faults(_good(workload, start_ms, end_ms), _FORMS)


def malformed(kind: str, time_ms: int) -> Record:
    """One bad measurement of `kind`, sent at `time_ms`."""
    good = next(_good(Workload(), time_ms, None))
    return spoiled(good._replace(kind=ORDINARY), kind, _FORMS[MEASUREMENTS])


def _good(workload: Workload, start_ms: int, end_ms: int | None) -> Iterator[Record]:
    rng = Random(workload.seed)
    for moment in moments(workload, start_ms, end_ms):
        if moment.number % (_MEASUREMENTS_A_REQUEST + 1) < _MEASUREMENTS_A_REQUEST:
            topic, key, value = MEASUREMENTS, *_measurement(rng, workload.seed, moment)
        else:
            topic, key, value = REQUESTS, *_request(rng, moment)
        name, encoded = key.encode(), json.dumps(value).encode()
        partition = crc32(name) % workload.partitions
        _, time_ms, event_ms, kind = moment
        yield Record(name, encoded, partition, time_ms, event_ms, kind, topic)


def _measurement(rng: Random, seed: int, moment: Moment) -> tuple[str, dict[str, object]]:
    cell = rng.choice(CELLS)
    spell = crc32(f"{seed} {cell} {moment.event_ms // _SPELL_MS}".encode())
    disturbed = spell % _DISTURBED == 0
    attempts = rng.randint(0, 40)
    return cell, {
        "cell_id": cell,
        "event_time": iso(moment.event_ms),
        "attempts": attempts,
        "failures": sum(rng.random() < (0.15 if disturbed else 0.01) for _ in range(attempts)),
        "sinr_db": round(rng.gauss(-2 if disturbed else 12, 3), 1),
    }


def _request(rng: Random, moment: Moment) -> tuple[str, dict[str, object]]:
    if rng.randrange(4):
        address, path = _customer(rng), rng.choice(_PATHS)
        # somebody forgets the password now and then
        status = rng.choices((200, 401, 404, 500), (90, 5, 4, 1))[0]
    else:
        turn = moment.event_ms // _ATTACK_MS % len(_ATTACKERS)
        address, path, status = _ATTACKERS[turn], "/login", rng.choice((401, 401, 401, 403))
    return address, {
        "address": address,
        "event_time": iso(moment.event_ms),
        "path": path,
        "status": status,
    }


def _customer(rng: Random) -> str:
    return f"10.{rng.randrange(4)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"


PRODUCER = Producer(
    MEASUREMENTS,
    Workload(rate=50, disorder_ms=2_000, late_share=0.001, malformed_share=0.001, partitions=3),
    records,
    malformed,
    beside=(REQUESTS,),
)
