"""A job that reads the source of a page is killed while the source grows: each record is in the table once."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehouse.settings import Settings, from_environment, to_environment
from support import own_sources
from support.sensors_job import awaited

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS, AT_ONCE = 6_000, 40
KILLS = 3


def order(number: int) -> tuple[str, str, int]:
    """Ten in a second; of some the instant is none."""
    at = START + timedelta(milliseconds=100 * number)
    return f"shop {number % 3}", "never" if is_bad(number) else at.isoformat(), number


def is_bad(number: int) -> bool:
    return number % 100 == 50


def is_gone(number: int) -> bool:
    return number % 70 == 7


def fill(path: Path, done: threading.Event) -> None:
    """Orders come in transactions, and some are gone when theirs ends."""
    db = sqlite3.connect(path)
    for first in range(1, ORDERS + 1, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, ORDERS + 1))
        with db:
            db.executemany(
                "INSERT INTO orders (shop, at, cents) VALUES (?, ?, ?)", map(order, numbers)
            )
            db.executemany("DELETE FROM orders WHERE id = ?", ([n] for n in numbers if is_gone(n)))
        time.sleep(0.3)
    db.close()
    done.set()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
@pytest.mark.timeout(600)
def test_a_job_that_is_killed_while_its_source_grows_has_each_order_once(tmp_path, quick_jvm):
    path = tmp_path / "orders.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, shop, at, cents)")
    declared = own_sources.DOCS[0].replace("/data/shop/orders.db", str(path))
    (tmp_path / "own_shop.py").write_text(declared)
    settings = Settings(
        root=tmp_path / "root",
        tables=("own_shop",),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
        shuffle_partitions=1,
        max_offsets_per_trigger=300,
    )
    places = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | to_environment(settings) | {"PYTHONPATH": places}

    def job(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "streaming_jobs.driver", "own_shop", *arguments]
        return subprocess.Popen(command, env=environment, start_new_session=True)

    def asked(*command: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "lakehouse", *command]
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    def there(side: str = "") -> Counter[int]:
        folder = settings.root / "bronze" / f"sqlite_orders{side}"
        if not (folder / "_delta_log").is_dir():
            return Counter()
        rows = DeltaTable(str(folder)).to_pyarrow_table(columns=["_arrival"])
        return Counter(each["offset"] for each in rows["_arrival"].to_pylist())

    done = threading.Event()
    threading.Thread(target=fill, args=(path, done), daemon=True).start()
    for _ in range(KILLS):
        before, process = sum(there().values()), job()
        awaited(lambda before=before: sum(there().values()) > before, "rows", 240)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert done.wait(240)
    assert job("--available-now").wait(300) == 0
    kept = [number for number in range(1, ORDERS + 1) if not is_gone(number)]
    assert there() == Counter(n for n in kept if not is_bad(n)), "each good order once"
    assert there("__quarantine") == Counter(filter(is_bad, kept)), "each bad one once, too"
    turnover = DeltaTable(str(settings.root / "gold" / "sqlite_turnover")).to_pyarrow_table()
    found = {
        (each["window"]["start"].replace(tzinfo=UTC), each["shop"]): each["cents"]
        for each in turnover.to_pylist()
    }
    wanted: Counter[tuple[datetime, str]] = Counter()
    for shop, at, cents in (order(n) for n in kept if not is_bad(n)):
        wanted[datetime.fromisoformat(at).replace(second=0, microsecond=0), shop] += cents
    assert len(found) >= 3 * 9 and found == {key: wanted[key] for key in found}, "windows, counted"
    compared = asked("reconcile", "run", "sqlite_turnover", "--json")
    assert compared.returncode == 0 and '"EQUAL"' in compared.stdout, compared
    checked = asked("topic", "check", "sqlite_orders", "--json")
    assert checked.returncode == 0, checked
    partition = json.loads(checked.stdout)
    assert (partition["rows"], partition["missing"], partition["doubled"]) == (len(kept), 0, 0)
    bad = asked("table", "quarantine", "sqlite_orders")
    assert bad.returncode == 0 and "not a JSON object of the declared types" in bad.stdout, bad
    assert (
        "source orders, read by own_shop.Orders" in asked("table", "show", "sqlite_orders").stdout
    )
