"""A table published to PostgreSQL: each version once, whole for whoever reads beside, however often its follower is killed."""

import dataclasses
import multiprocessing
import random
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Thread

import psycopg
import pyarrow as pa
import pytest

from benchmarks.postgres import Server, running
from lakehouse import Position, RowChange, postgres
from lakehouse.declare import catalog
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks import trial
from lakehouse.sinks.comparison import _repairing, compare, repair
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.formats.encoded import Columns
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.sinks.targets.postgres import PostgresSink
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.testing import assert_exactly_once
from streaming_jobs import progress
from streaming_jobs.exporters.follower import Job
from streaming_jobs.supervision import lease
from streaming_jobs.supervision.jobs import follower_of
from support import published
from support.dying import Dying
from support.sensors_job import awaited

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

LIVES, VERSIONS = 6, 40
SPAN = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
OPENED: list[PostgresSink] = []  # to be closed when a test ends
DEATHS = ("opened", "written", "committed", "at random")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def dsn(server) -> str:
    return server.dsn


@pytest.fixture
def lakehouse(tmp_path) -> Lakehouse:
    settings = Settings(root=tmp_path, tables=("support.published",))
    made = Lakehouse(settings, catalog.load(settings))
    published.make_payments(path_of(made, "payments"))
    published.make_balances(path_of(made, "balances"))
    return made


@pytest.fixture
def database(dsn) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as found:
        yield found
        while OPENED:
            OPENED.pop().close()
    with psycopg.connect(dsn, autocommit=True) as found:  # a test may have ended the first one
        found.execute("DROP TABLE IF EXISTS payments, balances, come, gone, lakehouse_positions")


def path_of(lakehouse: Lakehouse, table: str) -> Path:
    return lakehouse.path(lakehouse.catalog.table(table))


def follower(lakehouse: Lakehouse, dsn: str, table: str, *key: str, **how) -> Follower:
    target = postgres(table, key=key, dsn=dsn, **how)
    made = Follower(lakehouse, lakehouse.catalog.table(table), target)
    OPENED.append(made.sink)
    return made


def caught_up(following: Follower) -> None:
    while following.step():
        pass


def come(row: dict) -> RowChange:
    return RowChange("insert", row)


def rows(database: psycopg.Connection, query: str) -> set[tuple]:
    return set(database.execute(query).fetchall())


def test_rows_come_change_and_go_with_the_versions(lakehouse, dsn, database):
    payments = path_of(lakehouse, "payments")
    following = follower(lakehouse, dsn, "payments", "account", "n")
    following.begin()
    caught_up(following)
    assert rows(database, "SELECT account FROM payments") == set(), "a table without a row is there"
    published.append(payments, 0, [("a", 1, "1.00"), ("b", 2, "2.00")])
    caught_up(following)
    published.append(payments, 1, [("a", 3, "3.00")], "1")
    caught_up(following)
    all_there = {("a", 1, Decimal("1.00")), ("b", 2, Decimal("2.00")), ("a", 3, Decimal("3.00"))}
    assert rows(database, "SELECT account, n, amount FROM payments") == all_there
    # a batch run: one row goes, one changes, one comes
    published.replace(payments, [("a", 1, "9.00"), ("c", 4, "4.00")], "0")
    caught_up(following)
    now = {("a", 1, Decimal("9.00")), ("c", 4, Decimal("4.00")), ("a", 3, Decimal("3.00"))}
    assert rows(database, "SELECT account, n, amount FROM payments") == now
    database.execute("ALTER TABLE payments ADD COLUMN note text DEFAULT 'of others'")
    published.replace(payments, [("a", 1, "8.00"), ("c", 4, "4.00")], "0")
    caught_up(following)
    assert rows(database, "SELECT amount, note FROM payments WHERE n = 1") == {(8, "of others")}
    now = now - {("a", 1, Decimal("9.00"))} | {("a", 1, Decimal("8.00"))}
    following.end()
    found = compare(lakehouse, following.table, following.target)
    assert found.verdict == "EQUAL", found
    database.execute("UPDATE payments SET amount = 7 WHERE n = 4")
    database.execute("DELETE FROM payments WHERE n = 3")
    found = compare(lakehouse, following.table, following.target)
    assert {each.cause for each in found.differences} == {"other row", "missing"}, found
    assert repair(lakehouse, following.table, following.target) == 2
    assert rows(database, "SELECT account, n, amount FROM payments") == now


class Mortal(Dying, PostgresSink):
    """A sink that dies."""


def follow(settings: Settings, dsn: str, point: str) -> None:
    """A process: follows until it dies."""
    following = follower(Lakehouse(settings, catalog.load(settings)), dsn, "balances", "account")
    following.sink = Mortal(following.target)
    following.sink.point = point
    following.begin()
    while True:
        if following.step() is None:
            time.sleep(0.01)


def test_a_reader_beside_sees_whole_versions_though_the_follower_is_killed_again_and_again(
    lakehouse, dsn, database
):
    """Each version moves money between accounts, so that a part of one would not add up to nothing."""
    choose, path = random.Random(4711), path_of(lakehouse, "balances")
    balances = dict.fromkeys("abcdefg", 0)
    published.upsert(path, 0, dict.fromkeys(balances, "0.00"))
    context = multiprocessing.get_context("spawn")
    sums, deaths, batch = set(), [], 1
    for life in range(LIVES):
        point = DEATHS[life % len(DEATHS)]
        process = context.Process(target=follow, args=(lakehouse.settings, dsn, point))
        process.start()
        for _ in range(VERSIONS // LIVES):
            one, other = choose.sample(sorted(balances), 2)
            amount = choose.randint(1, 99)
            balances[one] -= amount
            balances[other] += amount
            changed = {name: f"{balances[name]}.00" for name in (one, other)}
            published.upsert(path, batch, changed)
            batch += 1
            if database.execute("SELECT to_regclass('balances')").fetchone()[0]:
                sums |= rows(database, "SELECT sum(balance) FROM balances")
            time.sleep(0.05)
        if point == "at random":
            time.sleep(choose.random() * 2)
            process.kill()
        process.join(60)
        deaths.append((point, process.exitcode))
    assert deaths == [(DEATHS[n % len(DEATHS)], -signal.SIGKILL) for n in range(LIVES)]
    last = follower(lakehouse, dsn, "balances", "account")
    last.begin()
    caught_up(last)
    last.end()
    there = rows(database, "SELECT account, balance FROM balances")
    assert there == {(name, Decimal(amount)) for name, amount in balances.items()}
    assert sums <= {(Decimal(0),), (None,)} and (Decimal(0),) in sums, sums
    assert compare(lakehouse, last.table, last.target).verdict == "EQUAL"


def test_a_follower_that_was_replaced_is_refused_and_leaves_nothing(lakehouse, dsn, database):
    path = path_of(lakehouse, "payments")
    published.append(path, 0, [("a", 1, "1.00")])
    zombie, heir = (follower(lakehouse, dsn, "payments", "account", "n") for _ in range(2))
    zombie.begin()
    heir.begin()
    caught_up(heir)
    published.append(path, 1, [("b", 2, "2.00")])
    zombie.position = heir.position
    with pytest.raises(SinkError, match="another process has taken it over"):
        caught_up(zombie)
    assert rows(database, "SELECT account FROM payments") == {("a",)}
    caught_up(heir)
    assert rows(database, "SELECT account FROM payments") == {("a",), ("b",)}


def test_a_table_of_postgres_passes_the_test_kit_of_sinks(dsn, database, tmp_path):
    target = postgres("accounts", key=["account"], dsn=dsn)
    try:
        ends = assert_exactly_once(target, tmp_path / "trial", lives=3)
    finally:
        database.execute("DROP TABLE IF EXISTS accounts, lakehouse_positions")
    assert set(ends) > {*trial.DEATHS[:3], "replaced, opened", "replaced, written"}


def test_a_password_that_is_wrong_ends_the_follower_at_once(lakehouse, dsn, database):
    database.execute("CREATE ROLE teller LOGIN PASSWORD 'right'")
    [(rules,)] = rows(database, "SHOW hba_file")
    before = Path(rules).read_text()
    Path(rules).write_text(f"host all teller 127.0.0.1/32 scram-sha-256\n{before}")
    wrong = psycopg.conninfo.make_conninfo(dsn, user="teller", password="wrong")
    try:
        database.execute("SELECT pg_reload_conf()")
        awaited(lambda: refused(wrong), "that the server has read its rules", 30)
        target = postgres("payments", key=("account", "n"), dsn=wrong)
        table = lakehouse.catalog.table("payments")
        lakehouse.catalog.tables["payments"] = dataclasses.replace(table, publish=(target,))
        held = lease.acquire(lakehouse.settings, follower_of("payments"))
        said = "the server refuses it"
        with held as turn, pytest.raises(SinkError, match=said) as failed:
            Job(lakehouse, "payments", turn).run()
        assert not isinstance(failed.value, SinkAway) and "PGPASSFILE" in str(failed.value)
    finally:
        Path(rules).write_text(before)
        database.execute("DROP ROLE teller")


def refused(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError as err:
        return "password authentication failed" in str(err)
    return False


def test_a_database_that_is_away_is_waited_for(lakehouse, server, database):
    path, target = (
        path_of(lakehouse, "payments"),
        postgres("payments", key=("account", "n"), dsn=server.dsn),
    )
    table = lakehouse.catalog.table("payments")
    lakehouse.catalog.tables["payments"] = dataclasses.replace(table, publish=(target,))
    published.append(path, 0, [("a", 1, "1.00")])

    def there() -> set[str]:
        with psycopg.connect(server.dsn) as reader:
            if not reader.execute("SELECT to_regclass('payments')").fetchone()[0]:
                return set()
            return {name for (name,) in reader.execute("SELECT account FROM payments")}

    with lease.acquire(lakehouse.settings, follower_of("payments")) as turn:
        job = Job(lakehouse, "payments", turn)
        process = Thread(target=job.run)
        process.start()
        awaited(lambda: there() == {"a"}, "the first row", 30)
        server.kill()
        published.append(path, 1, [("b", 2, "2.00")])
        awaited(lambda: bool(job.away), "that it is away", 30)
        said = "target=payments, .*: the server must take the request and did not"
        awaited(
            lambda: re.match(said, trouble(lakehouse.settings)) is not None, "that it is said", 30
        )
        server.start()
        awaited(lambda: there() == {"a", "b"}, "the second row", 60)
        awaited(lambda: not trouble(lakehouse.settings), "that it is back", 30)
        job.stopping.set()
        process.join(30)
    assert (
        job.state == "stopped"
        and compare(lakehouse, lakehouse.catalog.table("payments"), target).verdict == "EQUAL"
    )


def test_a_lock_that_another_transaction_holds_is_named_and_waited_for(
    lakehouse, dsn, database, monkeypatch
):
    monkeypatch.setattr("lakehouse.sinks.targets.postgres_database._LOCKED", 1)
    path = path_of(lakehouse, "payments")
    following = follower(lakehouse, dsn, "payments", "account", "n")
    following.begin()
    caught_up(following)
    published.append(path, 0, [("a", 1, "1.00")])
    with psycopg.connect(dsn, application_name="somebody") as other:
        other.execute("LOCK TABLE payments")
        with pytest.raises(SinkAway, match=r"within 1 s, and process \d+ \(somebody, idle in tr"):
            caught_up(following)
        following.sink.close()
    following = follower(lakehouse, dsn, "payments", "account", "n")
    following.begin()
    caught_up(following)
    assert rows(database, "SELECT account FROM payments") == {("a",)}


def test_a_target_that_does_not_answer_for_long_is_said_while_the_follower_waits(
    lakehouse, dsn, database, monkeypatch, capsys
):
    monkeypatch.setattr("streaming_jobs.exporters.follower._SLOW", timedelta(seconds=2))
    path, target = (
        path_of(lakehouse, "payments"),
        postgres("payments", key=("account", "n"), dsn=dsn),
    )
    table = lakehouse.catalog.table("payments")
    lakehouse.catalog.tables["payments"] = dataclasses.replace(table, publish=(target,))
    with lease.acquire(lakehouse.settings, follower_of("payments")) as turn:
        job = Job(lakehouse, "payments", turn)
        process = Thread(target=job.run)
        process.start()
        made = "SELECT to_regclass('payments') IS NOT NULL"
        awaited(lambda: rows(database, made) == {(True,)}, "its table", 30)
        with psycopg.connect(dsn) as other:
            other.execute("LOCK TABLE payments")
            published.append(path, 0, [("a", 1, "1.00")])
            awaited(lambda: "it must answer, and has not" in trouble(lakehouse.settings), "it", 20)
        there = "SELECT account FROM payments"
        awaited(lambda: rows(database, there) == {("a",)}, "the row", 30)
        awaited(lambda: not trouble(lakehouse.settings), "that it goes on", 30)
        job.stopping.set()
        process.join(30)
    assert capsys.readouterr().err.count("target=payments: it must answer, and has not") == 1


def trouble(settings: Settings) -> str:
    status = progress.read(settings, follower_of("payments"))
    return status.queries[0].trouble if status and status.queries else ""


def test_columns_of_another_type_null_as_a_key_and_nul_in_a_text_are_refused(
    lakehouse, dsn, database
):
    database.execute("CREATE TABLE payments (account text, n text, PRIMARY KEY (account, n))")
    published.append(path_of(lakehouse, "payments"), 0, [("a", 1, "1.00")])
    following = follower(lakehouse, dsn, "payments", "account", "n")
    following.begin()
    with pytest.raises(
        SinkError, match=r"column=n: it is text in payments, and its values are bigint"
    ):
        caught_up(following)
    database.execute("DROP TABLE payments")
    schema = pa.schema([("account", pa.string()), ("n", pa.int64())])
    for row, said in (
        ({"account": "a", "n": None}, "key=n: a row in which it is null has no key"),
        ({"account": "a\0b", "n": 1}, r"column=account, account='a\\x00b', n='1': Postg.* NUL"),
    ):
        sink = PostgresSink(following.target)
        OPENED.append(sink)
        sink.open()
        sink.columns(schema)
        with pytest.raises(SinkError, match=said):
            sink.write(1, [come({"account": "", "n": 1}), come(row)])
        sink.close()
    with pytest.raises(DeclarationError, match=r"into='a\.b\.c'"):
        postgres("a.b.c", key="n")


@pytest.mark.parametrize(
    ("column", "of", "value"),
    [
        ("raw", pa.binary(), b"\x00\xff"),
        ("at", pa.timestamp("us", "UTC"), datetime(2026, 1, 2, 3, 4, 5, 678, UTC)),
        ("m", pa.decimal128(12, 3), Decimal("-1.500")),
        ("day", pa.date32(), date(2026, 1, 2)),
        ("window", SPAN, dict.fromkeys(("start", "end"), datetime(2026, 1, 2, tzinfo=UTC))),
        ("many", pa.list_(pa.float64()), [0.0]),
    ],
)
def test_rows_are_found_by_keys_of_every_type(dsn, database, column, of, value):
    """A repair knows them by their text alone."""
    sink = PostgresSink(postgres("payments", key=column, dsn=dsn))
    OPENED.append(sink)
    sink.open()
    sink.columns(pa.schema([(column, of), ("n", pa.int64())]))
    sink.write(1, [come({column: value, "n": 1})])
    sink.commit(Position("id", 1))
    sink.write(2, [RowChange("update", {column: value, "n": 2})])
    sink.commit(Position("id", 2))
    [(key, found, _)] = sink.rows(2)
    assert found == value_of({column: value, "n": 2})
    sink.write(3, _repairing([], {key: ""}, (column,)))
    sink.commit(Position("id", 3))
    assert list(sink.rows(3)) == []


def test_a_table_that_was_dropped_and_rows_of_no_known_version_are_refused_until_a_repair(
    lakehouse, dsn, database
):
    path = path_of(lakehouse, "payments")
    published.append(path, 0, [("a", 1, "1.00"), ("b", 2, "2.00")])
    following = follower(lakehouse, dsn, "payments", "account", "n")
    following.begin()
    caught_up(following)
    for batch, (damage, said) in enumerate(
        [
            ("DROP TABLE payments", "payments is gone, and lakehouse_positions says which version"),
            ("DROP TABLE lakehouse_positions", "payments has rows, and lakehouse_positions does"),
        ],
        1,
    ):
        database.execute(damage)
        published.append(path, batch, [("c", batch + 2, "1.00")], str(batch))
        with pytest.raises(SinkError):
            caught_up(following)
        following.sink.close()
        following = follower(lakehouse, dsn, "payments", "account", "n")
        with pytest.raises(SinkError, match=f"target=payments: {said}.* --repair"):
            following.begin()
        repair(lakehouse, following.table, following.target)
        assert compare(lakehouse, following.table, following.target).verdict == "EQUAL"
        following = follower(lakehouse, dsn, "payments", "account", "n")
        following.begin()
    assert len(rows(database, "SELECT n FROM payments")) == 4


@pytest.mark.parametrize("name", ["come", "gone"])
def test_a_table_of_any_name_is_filled(dsn, database, name):
    """Rows are sent by way of tables that a transaction has for itself."""
    sink = PostgresSink(postgres(name, key="n", dsn=dsn))
    OPENED.append(sink)
    sink.open()
    sink.columns(pa.schema([("n", pa.int64())]))
    sink.write(1, [come({"n": 1}), come({"n": 2})])
    sink.write(2, [RowChange("delete", {"n": 1})])
    sink.commit(Position("id", 2))
    assert rows(database, f"SELECT n FROM {name}") == {(2,)}


@pytest.mark.parametrize("of", [list, Columns])
def test_values_of_every_type_come_back_as_they_are(lakehouse, dsn, database, of):
    """As rows of Python, and in Arrow as a follower has them."""
    target = postgres("payments", key="n", dsn=dsn)
    schema = pa.schema(
        [
            ("n", pa.int64()), ("t", pa.string()), ("b", pa.bool_()), ("d", pa.float64()), ("f", pa.float32()),
            ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("m", pa.decimal128(12, 3)),
            ("many", pa.list_(pa.int64())), ("part", pa.struct([("x", pa.decimal128(4, 1)), ("y", pa.string())])),
            ("by_name", pa.map_(pa.string(), pa.int64())),
        ]
    )  # fmt: skip
    given = {
        "n": 1, "t": "\u00fc\t\\ ' \n", "b": True, "d": 0.1, "f": 0.5, "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "raw": b"\x00\xff", "m": Decimal("123456789.100"),
        "many": [1, 2], "part": {"x": Decimal("1.5"), "y": None}, "by_name": {"a": 1, "b": None},
    }  # fmt: skip
    sink = PostgresSink(target)
    sink.open()
    sink.columns(schema)
    nothing = dict.fromkeys(given) | {"n": 2}
    texts = ["", "\\.", "\\N", "NULL", 'a,"b"\r\n\\.\n', "日\x01\x7f"]
    numbers = [float("nan"), float("-inf"), -0.0, 3.0, 1e16, 5e-324]
    rare = [
        given | {"n": n, "t": text, "d": number, "part": {"x": None, "y": text}, "by_name": {}}
        for n, (text, number) in enumerate(zip(texts, numbers, strict=True), 3)
    ]
    found = [given, nothing, *rare, nothing]  # of a key the last one counts
    rows = pa.Table.from_pylist(found, schema)
    sink.write(1, list(map(come, found)) if of is list else Columns(["insert"] * len(found), rows))
    sink.commit(Position("id", 1))
    assert sorted(value for _, value, _ in sink.rows(1)) == sorted(map(value_of, found[:-1]))
    sink.close()
