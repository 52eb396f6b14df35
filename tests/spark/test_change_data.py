"""Changes of a database: what Debezium sends is read exactly or quarantined, and tables follow its log row for row."""

import json
import random
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import Row

from lakehouse import changes, versioned_table
from lakehouse.cli import query
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.errors import DeclarationError
from lakehouse.reconcile import reconciliation
from lakehouse.stream.reading import readings
from lakehouse.testing import COMMIT_POINTS, Stage, change_event
from lakehouse.transform.decoding import decode
from support import ROOT, changed_accounts
from support.change_events import events
from support.torn_logs import cut

START = datetime(2026, 1, 1, tzinfo=UTC)
PAGE = (ROOT / "docs" / "how-to" / "change-data.md").read_text()
CUSTOMERS = changes(
    "shop.public.customers",
    key="id",
    schema="""
        id BIGINT, n INT, small SMALLINT, open BOOLEAN, name STRING, balance DECIMAL(12,2), rate DECIMAL(38,20), share DOUBLE,
        ratio FLOAT, born DATE, at_noon BIGINT, seen TIMESTAMP, seen_ms TIMESTAMP, seen_at TIMESTAMP, code STRING, doc STRING,
        picture BINARY, tags ARRAY<STRING>, numbers ARRAY<INT>, feeling STRING, cash DECIMAL(10,2)
    """,
)
LETTERS = "id BIGINT, title STRING, pages INT NOT NULL, long STRING"
ANN: dict[str, Any] = {
    "id": 1, "n": -7, "small": 3, "open": True, "name": 'Ann "é" €', "balance": Decimal("1234567890.12"),
    "rate": Decimal("3.14159265358979"), "share": 0.1, "ratio": 0.5, "born": date(2024, 2, 29), "at_noon": 45_296_789_000,
    "seen": datetime(2024, 2, 29, 12, 34, 56, 789_012), "seen_ms": datetime(2024, 2, 29, 12, 34, 56, 789_000),
    "seen_at": datetime(2024, 2, 29, 10, 34, 56, 789_012), "code": "0e37df36-f698-11e6-8dd4-cb9ced3df976",
    "doc": '{"a": [1, null]}', "picture": b"\x00\xff\x10", "tags": ["a", None, "c d"], "numbers": [1, 2], "feeling": "sad",
    "cash": Decimal("12.50"),
}  # fmt: skip
TRUNCATED, INFINITE = "truncate", "column seen_at: infinity cannot be read as timestamp"
NO_SCALE = "a decimal without its scale"
NO_UNIT = "a number without its unit"


def decoded(spark, source: KafkaSource, configured: str) -> list[dict[str, Any]]:
    """The rows of what was recorded, each with why it is none."""
    sent = [each for each in events(configured) if each["topic"] == source.address]
    rows = [
        (
            each["key"] and each["key"].encode(),
            each["value"] and each["value"].encode(),
            0,
            n,
            START,
        )
        for n, each in enumerate(sent)
    ]
    found = decode.decoded(spark.createDataFrame(rows, decode.KAFKA_SCHEMA), source).collect()
    return [{**row.asDict(), "problem": row["_record"]["problem"]} for row in found]


def test_what_the_connector_sends_is_read_as_it_was(spark):
    rows = decoded(spark, CUSTOMERS, "default")
    assert {name: rows[0][name] for name in ANN} == ANN
    nothing = rows[1]
    assert nothing["problem"] is None
    assert [name for name in ANN if nothing[name] is not None] == ["id"]
    odd = rows[2]
    assert odd["problem"] == INFINITE  # which no instant is
    assert (odd["balance"], odd["rate"]) == (Decimal("-0.01"), Decimal("-1E-20"))
    assert str(odd["share"]) == "nan" and odd["ratio"] == float("-inf") and odd["picture"] == b""
    assert [(r["op"], r["id"], r["name"], r["deleted"]) for r in rows[3:]] == [
        ("c", 4, "Dan", False),
        ("u", 1, "Anna", False),
        ("d", 4, None, True),  # another key is the end of one row and the beginning of another
        ("c", 5, "Dan", False),
        ("d", 2, None, True),
        ("u", 5, "B1", False),
        ("u", 5, "B2", False),
        ("t", None, None, False),
        ("c", 1, "Again", False),
    ]
    (problem,) = [r["problem"] for r in rows[3:] if r["problem"]]
    assert problem.startswith(TRUNCATED)
    assert len({r["transaction"] for r in rows if r["id"] == 5 and r["op"] == "u"}) == 1
    positions = [r["position"] for r in rows]
    assert positions == sorted(positions) and len(set(positions[3:])) == len(positions[3:]) - 1


@pytest.mark.parametrize(
    "configured, unreadable",
    [
        ("plain", {"rate": None, "balance": None, "seen": NO_UNIT, "seen_ms": NO_UNIT}),
        ("doubles", {"seen": NO_UNIT}),
        ("untyped", {"balance": NO_SCALE, "seen": NO_UNIT, "cash": NO_SCALE, "rate": None}),
    ],
)
def test_what_only_a_schema_says_is_not_guessed(spark, configured, unreadable):
    for name, why in unreadable.items():
        of = "TIMESTAMP" if name.startswith("seen") else "DECIMAL(38,20)"
        source = changes(CUSTOMERS.address, key="id", schema=f"id BIGINT, {name} {of}")
        row = decoded(spark, source, configured)[0]
        if why is None:
            assert (row["problem"], row[name]) == (None, ANN[name])
        else:
            assert row["problem"].startswith(f"column {name}: {why}")


def test_a_delete_has_its_key_alone_and_a_value_that_was_not_sent_is_no_value(spark):
    letters = changes("shop.public.letters", key="id", schema=LETTERS)
    first, second, last = decoded(spark, letters, "plain")
    assert first["problem"] is None and len(first["long"]) > 2_000
    assert second["problem"].startswith("column long: not sent")
    # Debezium sent 0 for what the database had not logged
    assert (last["problem"], last["deleted"], last["pages"]) == (None, True, None)
    notes = changes("shop.public.notes", key="id", schema=LETTERS)  # REPLICA IDENTITY FULL
    assert [row["problem"] for row in decoded(spark, notes, "default")] == [None] * 3


@pytest.mark.parametrize(
    "topic, key, schema, more, why",
    [
        ("letters", "title", "id BIGINT, title STRING", {}, "the message's key is id, and declared as title"),
        ("letters", "id", "id BIGINT, author STRING", {}, "column author: not there"),
        ("letters", "id", "id BIGINT, title INT", {}, "column title: first cannot be read as int"),
        ("notes", "id", "id BIGINT, title STRING", {"unknown_fields": "quarantine"}, "fields not declared: long, pages"),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_is_said(spark, topic, key, schema, more, why):
    source = changes(f"shop.public.{topic}", key=key, schema=schema, **more)
    assert decoded(spark, source, "plain")[0]["problem"] == why


def test_poison_costs_one_row(spark):
    source = b'{"op": "c", "source": {"lsn": 1, "ts_ms": 1}}'
    values = [
        b"{",
        b"[1]",
        b"{}",
        b'{"op": "x"}',
        b'{"op": "c", "after": 5}',
        source,
        b'{"op": "c", "after": {"id": 1}}',
    ]
    values += [b'{"op": "m"}', None, b"\xff", source.replace(b"1", b'"one"', 1)]
    source = changes("letters", key="id", schema="id BIGINT")
    rows = [(b'{"id": 1}', value, 0, n, START) for n, value in enumerate(values)]
    found = decode.decoded(spark.createDataFrame(rows, decode.KAFKA_SCHEMA), source).collect()
    problems = {row["_record"]["offset"]: row["_record"]["problem"] for row in found}
    none = "no change event of Debezium: it has no op"
    bad = "not a JSON object of the declared types"
    place = "no position: the source has neither lsn (PostgreSQL) nor file and pos (MySQL, MariaDB)"
    unknown = "no operation of Debezium: op=x"
    ends, listed = f"{bad}: it is not JSON, at character 1 of 1", f"{bad}: got a list"
    five = f"{bad}: field=after: declared MAP, got 5"
    expected = [ends, listed, none, unknown, five, "no row: op=c", place]
    one = f'{bad}: field=source.lsn: declared BIGINT, got "one"'
    assert problems == dict(enumerate(expected)) | {9: "not UTF-8", 10: one}


def test_the_binary_log_of_mysql_has_an_order(spark):
    source = changes("letters", key="id", schema="id BIGINT")
    places = [("bin.999999", 900, 0), ("bin.1000000", 4, 0), ("bin.1000000", 4, 1)]
    rows = []
    for number, (file, pos, row) in enumerate([*places, ("bin.1000000", 10, 0)]):
        log = {"file": file, "pos": pos, "row": row, "ts_ms": 1}
        value = json.dumps({"op": "u", "after": {"id": 1}, "source": log}).encode()
        rows.append((b'{"id": 1}', value, 0, number, START))
    found = decode.decoded(spark.createDataFrame(rows, decode.KAFKA_SCHEMA), source)
    positions = [row["position"] for row in found.orderBy("_record.offset").collect()]
    assert positions == sorted(set(positions))


class Database:
    """A table under random transactions: its log, its rows, and what each row was at which instant."""

    def __init__(self, random_: random.Random) -> None:
        self.random, self.rows, self.log = random_, {}, []
        self.history: dict[int, list[tuple[datetime, dict | None]]] = {}
        self.at, self.place, self.number = START, 1_000, 0

    def commit(self, *, snapshot: bool = False) -> None:
        """One transaction: up to three changes, often of one key, within one instant. The clock is set back now and then."""
        passed = self.random.choice((-300_000, 1, 400, 700_000, 3_000_000))
        self.at += timedelta(microseconds=passed)
        self.number += 1
        keys = self.random.choices(range(4), k=self.random.randint(1, 3))
        for key in [0, 1, 2] if snapshot else keys:
            self.place += 8
            there = self.rows.get(key)
            gone = there is not None and not snapshot and self.random.random() < 0.3
            row = {"id": key, "owner": self.random.choice("abc"), "balance": Decimal(self.number)}
            op = "r" if snapshot else "d" if gone else "u" if there else "c"
            event = change_event(
                op,
                there if gone else row,
                position=self.place,
                sent=self.at,
                transaction=self.number,
            )
            self.log.append((key % 2, event))
            self.rows[key] = None if gone else row
            of_key = self.history.setdefault(key, [])
            while of_key and of_key[-1][0] >= self.at:
                of_key.pop()  # what was known at no instant
            of_key.append((self.at, self.rows[key]))


def played(stage: Stage, database: Database, seed: int) -> None:
    """The log in steps cut anywhere, with a connector that dies and sends again, and with crashes of every table."""
    choose, sent = random.Random(seed), 0
    while sent < len(database.log):
        begin = sent if choose.random() < 0.6 else max(0, sent - choose.randint(1, 12))
        sent = min(len(database.log), sent + choose.randint(1, 7))
        lot = [*database.log[begin:sent]]
        lot += [(partition, None) for partition, event in lot if event["op"] == "d"]  # tombstones
        lot.sort(key=lambda each: each[0])  # partitions apart, each in its order
        crash = choose.choice((None, *COMMIT_POINTS))
        stage.feed("account_log", lot, sent=database.at, abort_at=crash)
        if choose.random() < 0.6:
            stage.run(
                "accounts", "account_versions", abort_at=choose.choice((None, "rows", "commit_log"))
            )
    stage.run("accounts", "account_versions")


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("seed", [2])
def test_tables_follow_the_log_row_for_row(spark, tmp_path, seed):
    database = Database(random.Random(seed))
    database.commit(snapshot=True)
    for _ in range(25):
        database.commit()
    stage = Stage(spark, tmp_path, changed_accounts)
    played(stage, database, seed)

    expected = sorted(tuple(row.values()) for row in database.rows.values() if row)
    assert (
        sorted(map(tuple, stage.rows("accounts").select("id", "owner", "balance").collect()))
        == expected
    )
    assert versions_of(stage) == {
        key: [(at, row and (row["owner"], row["balance"])) for at, row in of_key]
        for key, of_key in database.history.items()
    }
    for name in ("accounts", "account_versions"):
        table = stage.session.catalog.table(name)
        assert reconciliation.reconcile(stage.session, table).verdict == "EQUAL"
    assert stage.crashes and stage.resumed
    assert stage.rows("account_log").count() > len(database.log)  # it was sent again


def versions_of(stage: Stage) -> dict[int, list[tuple[datetime, tuple | None]]]:
    """Of each key when it changed (as the database says) and to what, each version until the next."""
    found: dict[int, list[tuple[datetime, tuple | None]]] = {}
    ends: dict[int, datetime | None] = {}
    for row in stage.rows("account_versions").orderBy("id", "valid_from").collect():
        if row["id"] in ends:
            assert ends[row["id"]] == row["valid_from"]
        ends[row["id"]] = row["valid_to"]
        value = None if row["deleted"] else (row["owner"], row["balance"])
        found.setdefault(row["id"], []).append((row["sent"].replace(tzinfo=UTC), value))
    assert not any(ends.values())
    return found


def test_a_change_logged_before_a_snapshot_and_committed_after_it_counts(spark, tmp_path):
    stage = Stage(spark, tmp_path, changed_accounts)
    old, new = ({"id": 1, "owner": each, "balance": Decimal(1)} for each in ("old", "new"))
    read = change_event("r", old, position=20, sent=START)
    stage.feed("account_log", [read, change_event("u", new, position=10, sent=START)])
    stage.run("accounts", "account_versions")
    assert [row["owner"] for row in stage.rows("accounts").collect()] == ["new"]
    assert [
        row["owner"] for row in stage.rows("account_versions").where("valid_to IS NULL").collect()
    ] == ["new"]


def row_of(id: int, balance: int) -> dict[str, Any]:
    return {"id": id, "owner": "a", "balance": Decimal(balance)}


def test_a_second_reading_is_noted_and_said(spark, tmp_path):
    """It has another position than the first, in whatever step; a row that it lacks stays, so that is said."""
    stage = Stage(spark, tmp_path, changed_accounts)
    table_of = stage.session.catalog.table("account_log")
    topic = changed_accounts.account_changes.address

    def known() -> Mapping[str, tuple[str, str]]:
        return next(stage.session.commit_log(table_of).by_stream()).readings

    first = [change_event("r", row_of(n, 1), position=20, sent=START) for n in (1, 2)]
    stage.feed("account_log", first)
    of_first = "0/00000000000000000020/00000000000000000020"
    assert known() == {topic: (of_first, of_first)}
    incremental: Any = change_event("r", row_of(3, 1), position=25, sent=START)
    incremental["source"]["snapshot"] = "incremental"
    changed = change_event("u", row_of(2, 5), position=30, sent=START)
    stage.feed("account_log", [incremental, changed])
    assert known() == {topic: (of_first, of_first)} and not readings.remark("account_log", known())
    later = START + timedelta(seconds=9)
    again = change_event("r", row_of(2, 6), position=90, sent=later)  # 1 was deleted meanwhile
    stage.feed("account_log", [again], abort_at="rows")
    stage.feed("account_log", [change_event("u", row_of(3, 7), position=95, sent=later)])
    assert known() == {topic: (of_first, of_first.replace("20", "90"))}
    said = readings.remark("account_log", known())
    assert said.startswith(f"table=account_log, topic={topic}: Debezium has read the database's")
    assert "first at 20/20, later at 90/90" in said and "a new topic (another topic.prefix)" in said
    stage.run("accounts")
    rows = {row["id"]: row["balance"] for row in stage.rows("accounts").collect()}
    assert rows == {1: 1, 2: 5, 3: 7}, "the first is no more, and the second is old"
    (asked,) = re.findall(r"```sql\n(SELECT id .*?)```", PAGE, re.DOTALL)
    of_page = {"customers": "accounts", "customer_log": "account_log"}
    sql = re.sub(r"customers|customer_log", lambda found: of_page[found[0]], asked)
    assert query.run(stage.session, sql).rows == [(1,)], "those that are too many"

    noted = known()
    cut(stage.session.settings, "account_log", 2)
    stage.session.commit_log(table_of).read_on()
    assert known() == noted


@pytest.mark.slow
@pytest.mark.parallel
def test_an_instant_behind_the_frontier_has_whole_transactions_though_steps_end_within_them(
    spark, tmp_path
):
    """The keyed table has half a transfer until the next step."""
    stage = Stage(spark, tmp_path, changed_accounts)
    stage.feed(
        "account_log", [change_event("r", row_of(n, 50), position=9, sent=START) for n in (1, 2)]
    )
    halves, at = [], START
    for number in (1, 2):
        at += timedelta(seconds=3)  # more than the delay
        moved = {"sent": at, "transaction": number}
        halves += [
            [change_event("u", row_of(1, 50 - number), position=20 * number, **moved)],
            [change_event("u", row_of(2, 50 + number), position=20 * number + 1, **moved)],
        ]
    sums, instants = set(), 0
    for before, now in pairwise([[], *halves, []]):
        stage.feed("account_log", [*before, *now])  # what was sent before is sent again
        stage.run("accounts", "account_versions")
        sums.add(sum(row["balance"] for row in stage.rows("accounts").collect()))
        frontier = stage.frontier("account_versions")
        versions = stage.rows("account_versions").collect()
        for instant in (START + timedelta(seconds=n) for n in range(7)):
            if frontier and instant < frontier:
                valid = [row["balance"] for row in versions if is_valid(row, instant)]
                assert sum(valid) == 100, instant
                instants += 1
    assert sums == {100, 99} and instants > 7


def is_valid(row: Row, instant: datetime) -> bool:
    since, until = (each and each.astimezone(UTC) for each in (row["valid_from"], row["valid_to"]))
    return since <= instant and (until is None or instant < until) and not row["deleted"]


def test_a_versioned_table_without_the_position_is_refused(spark, tmp_path):
    module = ModuleType(__name__)
    vars(module).update(
        account_changes=changed_accounts.account_changes, account_log=changed_accounts.account_log
    )

    @versioned_table(layer="silver", keys=["id"])
    def owners(account_log):
        return account_log.select("id", "owner", "sent", "_arrival")

    module.owners = owners
    with pytest.raises(DeclarationError, match="have the function keep the column position"):
        Stage(spark, tmp_path, module)
