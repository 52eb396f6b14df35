"""`lakehouse serve`: rows by key over HTTP, of the newest version, beside the steps that write it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from threading import Event
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from lakehouse.settings import Settings, to_environment
from support import payments
from support.payments import move, moved, paid, pay

SERVE = [sys.executable, "-m", "lakehouse", "serve", "--port"]


def environment(root: Path) -> dict[str, str]:
    tests = Path(__file__).parents[1]
    settings = Settings(root=root, tables=(payments.__name__,), module_path=(tests,))
    return os.environ | to_environment(settings)


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of a server of the tables there, a process of its own."""
    with subprocess.Popen(
        [*SERVE, "0"], env=environment(root), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/tables\n", line), line
            yield line.strip()
        finally:
            server.send_signal(signal.SIGTERM)
            # what it was answering is answered; then it ends as the signal says
            assert server.wait(60) == -signal.SIGTERM


def answer(address: str) -> tuple[int, dict]:
    try:
        with urlopen(address, timeout=30) as response:
            return response.status, json.load(response)
    except HTTPError as err:
        return err.code, json.load(err)


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_are_served_by_key_as_of_the_newest_version(stage_of):
    stage = stage_of(payments)
    with served(stage.session.settings.root) as tables:  # made, and without a row
        status, found = answer(f"{tables}/balances?person=a")
        assert (status, found["rows"], found["frontier"]) == (404, [], None)
    pay(stage, paid(0, "a", "b c&d", "2.50"))
    move(stage, moved(0, "a", "Oslo"), moved(20, "a", "Bergen"))
    stage.run("balances", "cities")
    with served(stage.session.settings.root) as tables:
        status, known = answer(tables)
        assert status == 200
        assert {"table": "balances", "kind": "keyed", "keys": ["person"]} in known
        status, found = answer(f"{tables}/balances?person=a")
        assert status == 200 and found["rows"] == [
            {"person": "a", "balance": "-2.50", "payments": 1}
        ]
        assert answer(f"{tables}/balances?person=b%20c%26d")[1]["rows"][0]["balance"] == "2.50"
        cities = answer(f"{tables}/cities?person=a")[1]["rows"]
        assert [row["city"] for row in cities] == ["Oslo", "Bergen"]
        pay(stage, paid(100, "a", "c", "1.00"))
        stage.run("balances")
        later = answer(f"{tables}/balances?person=a")[1]
        assert later["rows"][0]["balance"] == "-3.50" and later["version"] > found["version"]
        assert later["frontier"] >= found["frontier"]
        for asked, status, why in (
            ("balances?person=nobody", 404, "no row has this key"),
            ("balances?person=", 404, "no row has this key"),
            ("balances", 400, "columns=none: a key has one value of each of person"),
            ("balances?name=a", 400, "ask for /tables/balances?person=…"),
            ("balances?person=a&person=b", 400, "columns=person, person"),
            ("happened?person=a", 400, "it has no key"),
            ("balence?person=a", 404, "balances"),
        ):
            given, said = answer(f"{tables}/{asked}")
            assert given == status and why in said["error"], (asked, given, said)


@pytest.mark.slow
@pytest.mark.parallel
def test_many_readers_beside_the_steps_see_whole_versions(stage_of):
    stage, done = stage_of(payments), Event()
    pay(stage, paid(0, "a", "b", "1.00"))
    stage.run("balances")

    def read(address: str) -> dict[int, set]:
        seen: dict[int, set] = {}
        while not done.is_set():
            status, found = answer(address)
            assert status == 200, found
            [row] = found["rows"]
            seen.setdefault(found["version"], set()).add((Decimal(row["balance"]), row["payments"]))
        return seen

    with served(stage.session.settings.root) as tables, ThreadPoolExecutor(6) as readers:
        try:
            reading = [readers.submit(read, f"{tables}/balances?person={p}") for p in "aba"]
            for n in range(1, 6):
                pay(stage, paid(n, "a", "b", "1.00"))
                stage.run("balances")
        finally:
            done.set()
        first, other, second = (each.result() for each in reading)
    assert len(first) >= 3, first
    for version, rows in first.items():
        assert len(rows) == 1 and second.get(version, rows) == rows
        ((balance, payments_made),) = rows
        assert balance == -payments_made
        assert other.get(version, {(-balance, payments_made)}) == {(-balance, payments_made)}


def test_a_table_that_is_not_made_and_a_port_that_is_taken_are_said(tmp_path):
    with served(tmp_path) as tables:
        status, said = answer(f"{tables}/balances?person=a")
        assert status == 503 and "it is not made yet" in said["error"]
        taken = re.search(r":(\d+)/", tables)[1]
        refused = subprocess.run(
            [*SERVE, taken], env=environment(tmp_path), capture_output=True, text=True, timeout=60
        )
        assert refused.returncode == 2 and f"port={taken}" in refused.stderr, refused.stderr
