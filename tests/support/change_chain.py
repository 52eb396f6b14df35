"""PostgreSQL, Debezium on Kafka Connect, a broker and a streaming job under kills: the tables are those of the database.

    PYTHONPATH=.:tests .venv/bin/python -m support.change_chain --seconds 150

Three clients move money between accounts, open, close and renumber them. The connector takes its
snapshot meanwhile. Connector and job are killed with SIGKILL in turn. In the end the keyed table is
the database's table, and the versioned table is what a trigger wrote in the database, transaction
by transaction. The sum of all accounts is the same at each instant behind the frontier.
"""

import argparse
import os
import random
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import psycopg

from benchmarks import debezium, postgres
from lakehouse.declare.catalog import load
from lakehouse.runtime import jars, kafka_broker, spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.session import Session
from lakehouse.stream.reading import registry
from streaming_jobs.supervision import supervisor
from support import TESTS
from support.sensors_job import awaited

PIPELINE, TOPIC, TOTAL = "changed_accounts", "bank.public.accounts", 40 * 100
CREATED = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance numeric(12, 2));
CREATE TABLE audit (seq bigserial, tx bigint, id bigint, owner text, balance numeric(12, 2), deleted boolean);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND OLD.id <> NEW.id) THEN
    INSERT INTO audit (tx, id, deleted) VALUES (txid_current(), OLD.id, true);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO audit (tx, id, owner, balance, deleted) VALUES (txid_current(), NEW.id, NEW.owner, NEW.balance, false);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION noted();
INSERT INTO accounts SELECT i, 'owner ' || i, 100 FROM generate_series(1, 40) i;
"""


class Clients:
    """Three clients of the bank, until they are stopped."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn, self._ending, self.transactions, self._next = dsn, threading.Event(), 0, 1_000
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed + n),)) for n in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _work(self, choose: random.Random) -> None:
        with psycopg.connect(self._dsn) as database:
            while not self._ending.wait(choose.uniform(0, 0.3)):
                # of two that lock each other the database ends one
                with suppress(psycopg.errors.DeadlockDetected), database.transaction():
                    self._transaction(database, choose)
                    self.transactions += 1

    def _transaction(self, database: psycopg.Connection, choose: random.Random) -> None:
        query = "SELECT id FROM accounts ORDER BY random() LIMIT 2 FOR UPDATE"
        found = [row[0] for row in database.execute(query)]
        if len(found) < 2:
            return
        one, other = found
        amount = choose.randint(1, 500) / 100
        move = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
        database.execute(move, (-amount, one))
        if choose.random() < 0.3:
            time.sleep(0.05)  # others commit in between
        database.execute(move, (amount, other))
        kind = choose.random()
        if kind < 0.05:
            self._next += 1
            database.execute("INSERT INTO accounts VALUES (%s, 'new', 0)", (self._next,))
        elif kind < 0.08:
            query = "DELETE FROM accounts WHERE id = %s RETURNING balance"
            rest = database.execute(query, (one,)).fetchone()[0]
            database.execute(move, (rest, other))
        elif kind < 0.12:
            self._next += 1
            database.execute("UPDATE accounts SET id = %s WHERE id = %s", (self._next, one))
        elif kind < 0.15:
            database.execute("DELETE FROM accounts WHERE id = %s", (one,))
            raise psycopg.Rollback


def run(seconds: float, seed: int, folder: Path) -> None:
    choose = random.Random(seed)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    settings = Settings(
        root=folder / "root", jars=from_environment().jars, tables=(f"support.{PIPELINE}",)
    )
    broker = kafka_broker.start(settings, jars.resolve(settings.jars))
    home = debezium.fetched(settings.jars.parent / "debezium")
    try:
        with postgres.running(debezium.LOGICAL) as server:
            properties = debezium.connector(server.dsn, "public.accounts", topic_prefix="bank")
            worker = debezium.Worker(folder / "connect", home, broker.bootstrap_servers, properties)
            database = psycopg.connect(server.dsn, autocommit=True)
            database.execute(CREATED)
            clients = Clients(server.dsn, seed)
            try:
                kills = disturbed(settings, worker, choose, seconds)
                clients.stop()
                print(f"{clients.transactions} transactions, killed {kills}", flush=True)
                compared(settings, database)
            finally:
                clients.stop()
                worker.kill()
    finally:
        with suppress(Exception):
            supervisor.stop(settings, PIPELINE)
        kafka_broker.stop(settings)


def disturbed(
    settings: Settings, worker: debezium.Worker, choose: random.Random, seconds: float
) -> dict[str, int]:
    """Connector and job started, and killed in turn until the time is over."""
    worker.start()
    supervisor.start(settings, PIPELINE, wait=240)
    until, kills = time.monotonic() + seconds, {"connector": 0, "job": 0}
    while time.monotonic() < until:
        time.sleep(choose.uniform(5, 15))
        if kills["connector"] <= 2 * kills["job"]:
            worker.kill()
            time.sleep(choose.uniform(0, 2))
            worker.start()
            kills["connector"] += 1
        else:
            psutil.Process(supervisor.status(settings, PIPELINE).pid).kill()
            awaited(lambda: supervisor.status(settings, PIPELINE).state == "dead", "it is dead")
            supervisor.start(settings, PIPELINE, wait=240)
            kills["job"] += 1
    return kills


def compared(settings: Settings, database: psycopg.Connection) -> None:
    catalog = load(settings)
    session = Session(settings, catalog, spark_session.create(settings, "compare"))
    present = sorted(database.execute("SELECT id, owner, balance FROM accounts").fetchall())
    (last,) = database.execute("SELECT max(tx) FROM audit").fetchone()
    deadline = time.monotonic() + 240
    while True:
        log = session.read(catalog.table("account_log"))
        rows = sorted(
            map(
                tuple,
                session.read(catalog.table("accounts")).select("id", "owner", "balance").collect(),
            )
        )
        versions = session.read(catalog.table("account_versions")).collect()
        if rows == present and max(int(row["transaction"]) for row in versions) >= last:
            break
        assert time.monotonic() < deadline, f"after 240 s: {sorted(set(rows) ^ set(present))[:20]}"
        time.sleep(2)
    again = log.count() - log.select("position", "id").distinct().count()
    audited = equal_to_audit(versions, database)
    instants = sums(versions, frontier(settings, catalog.table("account_log")))
    checked = registry.check(Lakehouse(settings, catalog), catalog.table("account_log"))
    assert not any(each.missing or each.doubled for each in checked), checked
    quarantined = session.read(catalog.table("account_log"), side="quarantine").count()
    late = sum(
        line.late or 0
        for line in CommitLog(settings, catalog.table("account_versions")).by_stream()
    )
    assert not quarantined, quarantined
    print(
        f"EQUAL: {len(rows)} rows; {len(versions)} versions, {audited} of them as audited; sum of accounts the same at "
        f"{instants} instants; {log.count()} changes, {again} of them sent again; late {late}; "
        f"passed over {sum(each.passed_over for each in checked)}",
        flush=True,
    )


def equal_to_audit(versions: list, database: psycopg.Connection) -> int:
    """How many versions are those that the trigger noted: of each key all since the snapshot, as each transaction left it."""
    noted: dict[int, dict[int, tuple]] = defaultdict(dict)
    for tx, number, *state in database.execute(
        "SELECT tx, id, owner, balance, deleted FROM audit ORDER BY seq"
    ):
        noted[number].pop(tx, None)
        noted[number][tx] = tuple(state)
    found: dict[int, list] = defaultdict(list)
    for row in sorted(versions, key=lambda each: (each["id"], each["valid_from"])):
        found[row["id"]].append(row)
    count = 0
    for number, of_key in found.items():
        audit = list(noted[number].items())
        begins = of_key[0]["op"] == "r"
        streamed = [
            (int(r["transaction"]), (r["owner"], r["balance"], r["deleted"]))
            for r in of_key[begins:]
        ]
        assert streamed == audit[len(audit) - len(streamed) :], (number, streamed, audit)
        before = audit[: len(audit) - len(streamed)]
        if begins:
            assert (of_key[0]["owner"], of_key[0]["balance"], False) == before[-1][1], (
                number,
                of_key[0],
                before,
            )
        count += len(streamed)
    gone = {number for number, states in noted.items() if [*states.values()][-1][2]}
    assert noted.keys() <= found.keys() | gone, noted.keys() - found.keys()
    return count


def sums(versions: list, until: datetime) -> int:
    """At how many instants behind the frontier the accounts were summed up."""
    since = max(row["valid_from"] for row in versions if row["op"] == "r")
    known = sorted({row["valid_from"] for row in versions})
    instants = [at for at in known if since <= at and at.replace(tzinfo=UTC) < until]
    few = instants[:: max(1, len(instants) // 300)]
    for at in few:
        there = [
            row["balance"]
            for row in versions
            if row["valid_from"] <= at and (row["valid_to"] is None or at < row["valid_to"])
        ]
        assert sum(filter(None, there)) == TOTAL, at  # none of those deleted
    return len(few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="change-chain-"))
    print(folder, "is kept if it fails", flush=True)
    run(given.seconds, given.seed, folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
