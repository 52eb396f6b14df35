"""Transfers between accounts, and the customers and accounts they are of, which change now and then."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from zlib import crc32

from lakehouse.producers.faults import Form, spoiled, with_faults
from lakehouse.producers.workload import ORDINARY, Producer, Record, Workload, draws, iso, moments

TRANSACTIONS, CUSTOMERS, ACCOUNTS = "transactions", "customers", "accounts"
_MINUTE = 60_000
_COUNTRIES = ("AT", "CH", "DE", "FR", "IT", "NO")
_SEGMENTS = ("basic", "plus", "private")
_GONE = 10  # every so many minutes a customer leaves, and is back a minute later


def records(
    workload: Workload, start_ms: int, end_ms: int | None = None, accounts: int = 1_000
) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`: first who there is, then transfers.

    Each minute a customer or account changes.

    Two accounts a customer. Transfers are keyed by the account that pays; customers and accounts,
    compacted topics of one partition, by their own key.
    """
    yield from _beginning(workload, start_ms, accounts)
    minute = start_ms // _MINUTE
    for record in with_faults(_transfers(workload, start_ms, end_ms, accounts), _FORM):
        while record.time_ms // _MINUTE > minute:
            minute += 1
            yield from _changes(workload, minute, accounts)
        yield record


def malformed(kind: str, time_ms: int) -> Record:
    """One bad transfer of `kind`, sent at `time_ms`."""
    good = next(_transfers(Workload(), time_ms, None, 10))
    return spoiled(good._replace(kind=ORDINARY), kind, _FORM)


_FORM = Form("from_account", iso)


def _transfers(
    workload: Workload, start_ms: int, end_ms: int | None, accounts: int
) -> Iterator[Record]:
    rng = Random(workload.seed)
    names = [f"account-{n:05d}" for n in range(accounts)]
    keys = [(name.encode(), crc32(name.encode()) % workload.partitions) for name in names]
    payers, steps = draws(rng, range(accounts)), draws(rng, range(1, accounts))
    # most payments are small, a few are very large
    cents = draws(
        rng,
        (
            rng.randint(1, 100),
            *(rng.randint(100, 20_000) for _ in range(97)),
            rng.randint(50_000, 1_000_000),
        ),
    )
    numbers = draws(rng, range(1 << 30))
    drawn = zip(moments(workload, start_ms, end_ms), payers, steps, cents, numbers, strict=False)
    for (index, time_ms, event_ms, kind), payer, step, amount, number in drawn:
        value = (
            f'{{"transaction_id": "{start_ms:x}-{index:x}-{number:x}", "from_account": "{names[payer]}", '
            f'"to_account": "{names[(payer + step) % accounts]}", "amount": "{amount // 100}.{amount % 100:02d}", '
            f'"event_time": "{iso(event_ms)}"}}'
        ).encode()
        yield Record(
            *((key := keys[payer])[0], value, key[1]), time_ms, event_ms, kind, TRANSACTIONS
        )


def _beginning(workload: Workload, start_ms: int, accounts: int) -> Iterator[Record]:
    """All customers and accounts, as they were a day before."""
    then = start_ms - 86_400_000
    rng = Random(f"bank {workload.seed}")
    for n in range((accounts + 1) // 2):
        yield _customer(n, start_ms, then, rng)
    for n in range(accounts):
        yield _account(n, n // 2, start_ms, then)


def _changes(workload: Workload, minute: int, accounts: int) -> Iterator[Record]:
    """What changes at the full minute: a customer moves or leaves, and an account goes to the next customer."""
    now, customers, rng = (
        minute * _MINUTE,
        (accounts + 1) // 2,
        Random(f"bank {workload.seed} {minute}"),
    )
    if minute % _GONE == 0:
        yield Record(
            f"customer-{minute % customers:05d}".encode(), None, 0, now, now, ORDINARY, CUSTOMERS
        )
    elif minute % _GONE == 1:
        yield _customer((minute - 1) % customers, now, now, rng)
    else:
        yield _customer(rng.randrange(customers), now, now, rng)
    yield _account(rng.randrange(accounts), rng.randrange(customers), now, now)


def _customer(number: int, time_ms: int, event_ms: int, rng: Random) -> Record:
    name, country, segment = f"customer-{number:05d}", rng.choice(_COUNTRIES), rng.choice(_SEGMENTS)
    row = {
        "customer_id": name,
        "country": country,
        "segment": segment,
        "event_time": _stamp(event_ms),
    }
    return Record(
        name.encode(), json.dumps(row).encode(), 0, time_ms, event_ms, ORDINARY, CUSTOMERS
    )


def _account(number: int, customer: int, time_ms: int, event_ms: int) -> Record:
    name = f"account-{number:05d}"
    row = {
        "account_id": name,
        "customer_id": f"customer-{customer:05d}",
        "event_time": _stamp(event_ms),
    }
    return Record(name.encode(), json.dumps(row).encode(), 0, time_ms, event_ms, ORDINARY, ACCOUNTS)


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


PRODUCER = Producer(
    TRANSACTIONS,
    Workload(rate=50, disorder_ms=2_000, late_share=0.001, malformed_share=0.001, partitions=5),
    records,
    malformed,
    compacted=(CUSTOMERS, ACCOUNTS),
)
