"""The service of a lookup, asked: how many at once, time-outs, retries, the cache, and what ends it."""

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from lakehouse.backoff import Backoff
from lakehouse.declare.lookups import lookup
from lakehouse.errors import DeclarationError, LookupFailed
from lakehouse.runtime import service as asking
from lakehouse.runtime.service import Service
from lakehouse.storage.keyed import lookup_answers

SCHEMA = "country STRING NOT NULL, opinion BIGINT"
COLUMNS = StructType().add("country", StringType(), False).add("opinion", LongType())


def service_of(function, **how) -> Service:
    declared = lookup(**{"schema": SCHEMA, "retries": 0, "timeout": "500 milliseconds"} | how)
    return Service(declared(function), lookup_answers.checker(COLUMNS))


def all_of(service: Service, keys, **how) -> dict:
    return {
        key[0]: each
        for lot in service.ask([(k,) for k in keys], **how)
        for key, each in lot.items()
    }


def test_so_many_are_open_at_once_and_no_more():
    seen = Counter()

    async def place(address):
        seen["open"] += 1
        seen["most"] = max(seen["most"], seen["open"])
        await asyncio.sleep(0.005)
        seen["open"] -= 1
        return {"country": address}

    service = service_of(place, concurrency=3)
    found = all_of(service, map(str, range(20)))
    assert seen["most"] == 3 and len(found) == 20
    assert found["7"].value == {"country": "7", "opinion": None} and not found["7"].failure
    shown = service.counts.shown()
    assert (shown["asked"], shown["failed"], shown["waiting"]) == (20, 0, 0) and shown[
        "p99"
    ] >= 0.005


def test_what_fails_is_tried_again_and_then_has_a_reason(monkeypatch):
    monkeypatch.setattr(asking, "_PAUSES", Backoff(0.001, 10.0))
    tried = Counter()

    async def place(address):
        tried[address] += 1
        if address == "ends":
            raise SystemExit(3)
        if address == "hangs":
            await asyncio.sleep(9)
        if address == "wrong" or (address == "twice" and tried[address] < 3):
            raise ValueError("not\nnow")
        return {"none": None, "odd": ["x"], "lacks": {"opinion": 1}, "typed": {"country": 7}}.get(
            address, {"country": "x", "more": 1}
        )

    service = service_of(place, retries=2)
    keys = ["fine", "none", "twice", "wrong", "hangs", "odd", "lacks", "typed", "ends"]
    found = all_of(service, keys)
    assert found["fine"].value == {"country": "x", "opinion": None}, (
        "what is not declared is left out"
    )
    assert found["none"].value is None and not found["none"].failure
    assert found["twice"].attempts == 3 and not found["twice"].failure
    assert found["wrong"].failure == "ValueError: not now" and tried["wrong"] == 3
    assert found["hangs"].failure == "no answer within 0.5 s"
    assert found["odd"].failure.startswith("TypeError: it returned ['x']")
    assert found["lacks"].failure == "TypeError: it returned {'opinion': 1} without country"
    assert "Arrow" in found["typed"].failure and "SystemExit(3)" in found["ends"].failure
    assert service.counts.failed == 6


def test_a_plain_function_runs_in_threads_and_one_that_hangs_is_left():
    hangs = threading.Event()

    def place(address):
        if address == "hangs":
            hangs.wait(5)
        if address == "stops":
            raise StopIteration
        return {"country": threading.current_thread().name}

    found = all_of(service_of(place), ["hangs", "fine", "stops"])
    hangs.set()
    assert found["fine"].value["country"] == "lookup place"
    assert (
        found["hangs"].failure == "no answer within 0.5 s"
        and "StopIteration" in found["stops"].failure
    )


def test_answers_are_kept_for_a_while_and_failures_are_not():
    asked = Counter()

    async def place(address):
        asked[address] += 1
        if address == "b":
            raise ValueError
        return {"country": address}

    service = service_of(place, cache_for="10 minutes")
    for _ in range(2):
        all_of(service, ["a", "b"])
    assert asked == {"a": 1, "b": 2} and service.counts.cached == 1
    all_of(service, ["a"], fresh=True)
    assert asked["a"] == 2
    since, kept = service._kept["a",]
    service._kept["a",] = since - timedelta(minutes=11).total_seconds(), kept
    all_of(service, ["a"])
    assert asked["a"] == 3


def test_one_that_asks_is_ended_by_another_thread():
    async def place(address):
        await asyncio.sleep(60)

    service = service_of(place, timeout="2 minutes")
    threading.Timer(0.05, service.stop).start()
    began = time.monotonic()
    with pytest.raises(LookupFailed, match="lookup=place: the stream is stopped"):
        all_of(service, ["a"])
    assert time.monotonic() - began < 30 and service.counts.waiting == 0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"on_failure": "retry"}, "one of wait, quarantine, null"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"retries": -1}, "retries=-1"),
        ({"timeout": "0 seconds"}, "must be longer than 0"),
    ],
)
def test_what_is_refused(how, said):
    with pytest.raises(DeclarationError, match=said):
        lookup(**{"schema": SCHEMA} | how)
    with pytest.raises(DeclarationError, match="its parameters, at least one, name columns"):
        lookup(schema=SCHEMA)(lambda: None)
