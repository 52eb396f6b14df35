"""Tables published to targets, without a broker: which rows a version changes, how they are written, what is refused."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import ModuleType
from typing import Any, get_args

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse import (
    Position,
    around,
    duplicates,
    file_folder,
    folder,
    ingest_table,
    kafka,
    kafka_topic,
    opensearch,
    postgres,
    redis_keys,
    row_table,
    tumbling,
    window_table,
)
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.targets import Corrections
from lakehouse.errors import CommitError, DeclarationError, SinkError, UnknownTable
from lakehouse.maintenance import needs
from lakehouse.settings import Settings
from lakehouse.sinks import base, changes
from lakehouse.sinks.comparison import _repairing, compare, differing
from lakehouse.sinks.follower import Follower, Step
from lakehouse.sinks.formats.encoded import Columns, Rows
from lakehouse.sinks.formats.encoding import key_of, value_of
from lakehouse.sinks.targets import files_folder
from lakehouse.sinks.targets.postgres_database import is_refusal
from lakehouse.storage.delta import delta_log, version_rows
from lakehouse.storage.lakehouse import Lakehouse
from support import ROOT, published

KEY = ("account", "n")


def row(account: str, n: int, amount: str = "1.00") -> dict[str, object]:
    return {"account": account, "n": n, "amount": Decimal(amount)}


ROW = pa.schema([("account", pa.string()), ("n", pa.int64()), ("amount", pa.decimal128(9, 2))])


def difference(went: list[dict], came: list[dict]) -> Columns:
    before, after = (pa.Table.from_pylist(rows, ROW) for rows in (went, came))
    return changes.difference(before, after, KEY)


def sent(found: Sequence) -> list[tuple[str, str, int]]:
    return [(change.kind, change.row["account"], change.row["n"]) for change in found]


# ---- which rows a version changes


def test_what_came_alone_is_inserted_in_its_order():
    found = difference([], [row("b", 2), row("a", 1), row("a", 1)])
    assert sent(found) == [("insert", "b", 2), ("insert", "a", 1), ("insert", "a", 1)]


def test_rows_that_only_moved_are_no_change():
    rows = [row("a", 1), row("b", 2), row("b", 2)]
    assert not difference(rows, rows[::-1])


def test_a_replaced_partition_is_deletions_then_what_differs():
    went = [row("a", 1), row("a", 2), row("b", 3)]
    came = [row("c", 4), row("a", 2, "5.00"), row("b", 3)]
    found = difference(went, came)
    assert sent(found) == [("delete", "a", 1), ("insert", "c", 4), ("update", "a", 2)]
    assert found[2].row["amount"] == Decimal("5.00")


def test_a_repeated_row_that_becomes_one_is_no_deletion():
    assert not difference([row("a", 1), row("a", 1)], [row("a", 1)])


amounts = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3)), st.sampled_from(["1.00", "2.00"])
)


@settings(deadline=None)  # a machine may be busy
@given(st.lists(amounts, max_size=6))
def test_what_a_reader_keeps_by_key_is_the_table_at_each_version(versions):
    kept: dict[str, str] = {}
    before: list[dict] = []
    for wanted in versions:
        now = [row(account, n, amount) for (account, n), amount in wanted.items()]
        for change in difference(before, now):
            if change.kind == "delete":
                del kept[key_of(change.row, KEY)]
            else:
                assert (key_of(change.row, KEY) in kept) == (change.kind == "update")
                kept[key_of(change.row, KEY)] = value_of(change.row)
        assert kept == {key_of(each, KEY): value_of(each) for each in now}
        before = now


def test_a_correction_is_what_the_stream_did_not_write_and_goes_by_the_policy():
    for policy in get_args(Corrections):
        assert changes.disposal(policy, has_partitions=True, by_stream=False) == policy
        assert changes.disposal(policy, has_partitions=True, by_stream=True) == "send"
        # a keyed table has no rows that were final
        assert changes.disposal(policy, has_partitions=False, by_stream=False) == "send"


# ---- of a real table, written without Spark


@pytest.fixture
def payments(tmp_path):
    path = tmp_path / "payments"
    published.make_payments(path)
    published.append(path, 0, [("a", 0, "1.00"), ("b", 1, "1.00"), ("a", 2, "1.00")])
    published.append(path, 1, [("a", 3, "1.00")], "1")
    return path


def planned(path, version: int, key=KEY) -> Columns:
    went, came = version_rows.moved(path, version)
    return changes.difference(changes.ordered(went), changes.ordered(came), key)


def test_rows_of_a_commit_come_in_the_order_of_their_topic(payments):
    assert sent(planned(payments, 1)) == [
        ("insert", "a", 0),
        ("insert", "b", 1),
        ("insert", "a", 2),
    ]
    assert set(planned(payments, 1)[0].row) == {"account", "n", "amount", "at"}


def test_a_batch_run_that_replaces_a_partition_changes_what_differs_alone(payments):
    published.replace(payments, [("a", 0, "1.00"), ("b", 1, "7.00")], "0")
    assert sent(planned(payments, 3)) == [("delete", "a", 2), ("update", "b", 1)]
    change = delta_log.change(payments, 3)
    assert change is not None and not change.by_stream
    assert delta_log.change(payments, 2).by_stream
    kept = Counter(row["n"] for row in version_rows.all_at(payments, 3).to_pylist())
    assert kept == {0: 1, 1: 1, 3: 1} and version_rows.all_at(payments, 1).num_rows == 3


def test_steps_of_a_keyed_table_are_upserts_and_deletions_however_its_files_are_merged(tmp_path):
    path = tmp_path / "balances"
    published.make_balances(path)
    held: dict[str, str] = {}
    merged = 0
    for batch in range(12):
        new = {f"a{batch % 5}": f"{batch}.00", f"b{batch}": "1.00"}
        gone = (f"b{batch - 1}",) if batch % 2 else ()
        version = published.upsert(path, batch, new, gone)
        went, _ = version_rows.moved(path, version)
        merged += went.num_rows > 2
        for change in planned(path, version, ("account",)):
            name = key_of(change.row, ("account",))
            if change.kind == "delete":
                del held[name]
            else:
                held[name] = str(change.row["balance"])
        there = version_rows.all_at(path, version).to_pylist()
        assert held == {row["account"]: str(row["balance"]) for row in there}
    assert merged, "files were merged on the way"


def test_columns_are_those_of_the_version_however_versions_are_asked_for(payments):
    note = [("note", pa.string())]
    new = pa.Table.from_pylist([{"account": "a", "n": 4, "note": "new"}], pa.schema([*ROW, *note]))
    new = new.append_column(PARTITION, pa.array(["0"]))
    for _ in range(2):
        write_deltalake(str(payments), new, mode="append", schema_mode="merge")
    narrow, wide = (["account", "n", "amount", "at", *more] for more in ([], ["note"]))
    for version, names in ((1, narrow), (2, narrow), (3, wide), (4, wide), (2, narrow), (4, wide)):
        came = changes.ordered(version_rows.moved(payments, version)[1])
        assert came.column_names == names == version_rows.columns(payments, version).names
        assert came.schema == version_rows.columns(payments, version)
    assert changes.ordered(version_rows.moved(payments, 3)[1])["note"].to_pylist() == ["new"]
    shutil.rmtree(payments)
    published.make_balances(payments)
    assert version_rows.columns(payments, 0).names == ["account", "balance"]


def test_a_version_whose_log_or_file_is_gone_is_refused_by_name(payments):
    with pytest.raises(CommitError, match="version=9: its log does not have this version"):
        version_rows.moved(payments, 9)
    published.replace(payments, [], "0")
    [(_, file)] = [each for each in delta_log.moved(payments, 1) or () if each[0] == "add"]
    delta_log.data_file(payments, file).unlink()
    with pytest.raises(CommitError, match="not on disk any more"):
        version_rows.moved(payments, 3)


# ---- a target of one's own


def test_a_position_is_read_as_it_was_written_and_nothing_else_is():
    position = Position("id", 7, "2026-01-01 00:00:00+00:00", (3, 5))
    assert Position.from_json(position.to_json()) == position
    for text in (b"\xff", "[]", "{}", '{"table": "id", "version": "x", "written": "", "held": []}'):
        with pytest.raises(ValueError):
            Position.from_json(text)


def test_the_target_of_the_docs_holds_the_table_and_refuses_a_zombie(tmp_path):
    pages = (ROOT / "docs" / "how-to" / name for name in ("publish.md", "own-sink.md"))
    text = "".join(page.read_text() for page in pages)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        given: dict[str, Any] = {"__name__": "docs"}
        if "assert_exactly_once" not in code:  # `tests/system/test_sink_trial.py` runs that one
            exec(code, given)
            target = given.get("target")
    target = replace(target, path=str(tmp_path / "balances.db"))
    lakehouse = Lakehouse(Settings(root=tmp_path), catalog_of([published]))
    table = lakehouse.catalog.table("balances")
    path = lakehouse.path(table)
    published.make_balances(path)
    published.upsert(path, 0, {"a": "1.00", "b": "2.00"})
    first, second = (Follower(lakehouse, table, target) for _ in range(2))
    first.begin()
    assert first.step() == Step(1, sent=2) and first.step() is None
    published.upsert(path, 1, {"a": "3.00"}, ("b",))
    second.begin()
    with pytest.raises(SinkError, match="another process has taken the target over"):
        first.step()
    assert second.step() == Step(2, sent=2)
    second.end()
    found = compare(lakehouse, table, target)
    assert (found.verdict, found.version, found.rows) == ("EQUAL", 2, 1)
    held_there = target.sink(lakehouse.settings, "balances").position()
    other = replace(held_there, written="2020-01-01 00:00:00+00:00")
    heir = Follower(lakehouse, table, target)
    heir.sink.open()
    heir.sink.commit(other)
    with pytest.raises(SinkError, match="so it was restored"):
        heir.begin()
    kept_for = needs.needed(lakehouse, replace(table, publish=(target,)))
    assert kept_for == {"the follower of balances": 2}


# ---- how rows are written


def test_values_are_written_as_a_source_reads_them_back():
    tokyo = timezone(timedelta(hours=9))
    wide = {
        "n": 1, "none": None, "price": Decimal("1.50"), "text": "é", "yes": True, "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 1, 9, 0, 0, 250, tokyo), "local": datetime(2026, 1, 1), "raw": b"\x00\xff",
        "nan": float("nan"), "window": {"start": datetime(2026, 1, 1, tzinfo=UTC), "end": None},
        "list": [Decimal("1"), None], "map": {"a": 1, "b": None}, "empty": {}, "by_day": {date(2026, 1, 2): 1},
        "yes_no": {True: -0.0},
    }  # fmt: skip
    assert json.loads(value_of(wide)) == {
        "n": 1, "price": "1.50", "text": "é", "yes": True, "day": "2026-01-02",
        "at": "2026-01-01T00:00:00.000250Z", "local": "2026-01-01T00:00:00", "raw": "AP8=",
        "nan": "nan", "window": {"start": "2026-01-01T00:00:00Z"}, "list": ["1", None], "map": {"a": 1},
        "empty": {}, "by_day": {"2026-01-02": 1}, "yes_no": {"true": 0.0},
    }  # fmt: skip


def test_columns_whose_names_have_dots_are_written_by_them():
    rows = pa.table({"log.level": ["warn", None], "n.of": [1, 2], "log": [{"level": "x"}, None]})
    written = [
        '{"log.level":"warn","n.of":1,"log":{"level":"x"}}',
        '{"n.of":2}',
    ]
    columns = Columns(["insert", "update"], rows)
    assert columns.values() == written == Rows([*columns]).values()
    assert columns.keys(["n.of", "log.level"]) == [
        '{"n.of":1,"log.level":"warn"}',
        '{"n.of":2,"log.level":null}',
    ]
    assert columns.cells(["log.level", "n.of"]).to_pylist() == [
        {"log.level": "warn", "n.of": "1"},
        {"log.level": None, "n.of": "2"},
    ]
    kinds = {name: str(rows.schema.field(name).type) for name in rows.column_names}
    for form in get_args(files_folder.Format):
        content = files_folder.encoded(form, rows.to_pylist(), rows.schema)
        back = files_folder.decoded(form, content, kinds)
        assert [value_of(each) for each in back] == written
    targets = (kafka_topic("t", key="n.of"), postgres("t", key="n.of"), redis_keys("t", key="n.of"))
    for target in (*targets, file_folder("/out", key="n.of"), opensearch("t", key="n.of")):
        base.check_columns("rows", target, rows.schema)
    for form in ("avro", "protobuf"):
        with pytest.raises(
            SinkError, match=r"log\.level: a name in .* has letters, digits and '_'"
        ):
            base.check_columns("rows", kafka_topic("t", key="n.of", format=form), rows.schema)


def test_a_key_is_text_of_one_column_and_an_object_of_several():
    assert key_of(row("a", 1), ["account"]) == "a" and key_of(row("a", 1), ["n"]) == "1"
    assert key_of(row("a", 1), KEY) == '{"account":"a","n":1}'
    assert key_of({"account": None, "n": 1}, KEY) == '{"account":null,"n":1}'
    with pytest.raises(SinkError, match="key=account: a row in which it is null has no key"):
        key_of({"account": None}, ["account"])


# ---- what differs, and what makes it equal


def test_each_key_that_differs_has_its_cause():
    wanted = {key: Counter([key]) for key in ("same", "missing", "edited", "held", "other")}
    wanted |= {"repeated": Counter({"repeated": 2}), "several": Counter(["x", "y"])}
    found = {key: (key, True) for key in ("same", "repeated", "extra", "several")}
    found |= {"edited": ("?", False), "held": ("old", True), "other": ("old", True)}
    causes = {each.key: each.cause for each in differing(wanted, found, ["held"], {"same"})}
    assert causes == {
        "missing": "missing", "edited": "edited", "held": "held", "other": "other row", "several": "several rows",
        "extra": "extra", "same": "twice",
    }  # fmt: skip


def test_a_repair_sends_what_differs_alone():
    rows = [row("a", 1), row("a", 2), row("b", 3)]
    found = {key_of(rows[0], KEY): value_of(rows[0]), key_of(rows[1], KEY): "other"}
    found[key_of(row("z", 9), KEY)] = value_of(row("z", 9))
    assert sent(_repairing(rows, found, KEY)) == [
        ("delete", "z", 9), ("update", "a", 2), ("insert", "b", 3)
    ]  # fmt: skip
    with pytest.raises(SinkError, match="somebody else wrote it"):
        _repairing([], {"no json": ""}, KEY)


def test_a_connection_that_is_refused_is_not_one_that_is_away():
    at = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
    for said in (
        'FATAL:  password authentication failed for user "bob"',
        "fe_sendauth: no password supplied",
        'FATAL:  role "nobody" does not exist',
        'FATAL:  pg_hba.conf rejects connection for host "127.0.0.1"',
    ):
        assert is_refusal(at + said)
    for said in ("Connection refused", "FATAL:  the database system is starting up"):
        assert not is_refusal(at + said)


# ---- what is declared


def declared(**publish) -> ModuleType:
    module = ModuleType("shop")
    module.source = kafka("orders-in", schema="id STRING, at TIMESTAMP")

    @ingest_table(layer="bronze", event_time="at")
    def orders(source):
        return source

    @row_table(layer="silver", publish=publish.get("rows", ()))
    def paid(orders):
        return orders

    @window_table(
        layer="gold", window=tumbling("1 hour"), keys=["id"], publish=publish.get("windows", ())
    )
    def hourly(orders):
        return orders.groupBy("window", "id").count()

    for each in (orders, paid, hourly):
        each.transformation.__module__ = "shop"
        setattr(module, each.name, each)
    return module


def test_a_target_is_found_by_its_name():
    catalog_of(
        [
            declared(
                rows=[
                    postgres("out", key="id"),
                    postgres("out2", key="id"),
                    redis_keys("out3", key="id"),
                ]
            )
        ]
    )
    catalog = catalog_of([declared(rows=[kafka_topic("paid", key="id")])])
    found, target = catalog.target("paid")
    assert (found.name, target.key, target.corrections) == ("paid", ("id",), "send")
    assert list(catalog.targets()) == ["paid"] and not catalog.targets(["other"])
    with pytest.raises(UnknownTable, match=r"target='payd': .*did you mean paid\?"):
        catalog.target("payd")


@pytest.mark.parametrize(
    ("publish", "message"),
    [
        (
            {"rows": [kafka_topic("out", key="id")], "windows": [kafka_topic("out", key=["id", "window"])]},
            "target='out': paid is published there, too",
        ),
        ({"windows": [kafka_topic("out", key="id")]}, "known by id, window; add window to the key"),
        ({"rows": [kafka_topic("orders-in", key="id")]}, "it would read what it publishes"),
        (
            {"windows": [kafka_topic("out", key=["id", "window"], latency="real-time")]},
            "latency='real-time': each of its rows must be made of one record of a topic, and hourly is a window table",
        ),
        (
            {"rows": [postgres("out", key="id")], "windows": [postgres("out", key=["id", "window"], name="other")]},
            "table=hourly, target='other': the target 'out' of paid writes to the same place",
        ),
        (
            {"rows": [redis_keys("out", key="id", name="a"), redis_keys("out:x", key="id", name="b")]},
            "table=paid, target='b': the target 'a' of paid writes to the same place",
        ),
        (
            {"rows": [file_folder("/srv/out/part", key="id"), file_folder("/srv/out", key="id", name="all")]},
            "table=paid, target='all': the target 'part' of paid writes to the same place, or",
        ),
    ],
)  # fmt: skip
def test_targets_that_cannot_be_are_refused(publish, message):
    with pytest.raises(DeclarationError, match=message):
        catalog_of([declared(**publish)])


ORDER = "id STRING, at TIMESTAMP"


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        (kafka("in", schema=ORDER), {}, ""),
        (kafka("in", schema="line STRING", format="text"), {}, ""),
        (kafka("in", schema=ORDER, format="avro"), {}, "topic in has format='avro'"),
        (folder("/data", schema=ORDER), {}, "orders reads folder /data"),
        (
            kafka("in", schema=ORDER),
            {"deduplicate": duplicates("id", within="1 hour")},
            "paid has a deduplicate",
        ),
        (kafka("in", schema=ORDER), {"context": around(before="1 hour")}, "paid has a context"),
    ],
)
def test_only_rows_of_one_record_are_sent_before_their_commit(source, options, why):
    module = ModuleType("shop")

    @ingest_table(layer="bronze", event_time="ingestion_time" if "line" in source.schema else "at")
    def orders(source):
        return source

    target = kafka_topic("out", key="id", latency="real-time")

    @row_table(layer="silver", publish=[target], **options)
    def paid(orders):
        return orders

    vars(module).update(source=source, orders=orders, paid=paid)
    for each in (orders, paid):
        each.transformation.__module__ = "shop"
    if why:
        with pytest.raises(DeclarationError, match=f"one record of a topic, and .*{why}"):
            catalog_of([module])
    else:
        catalog_of([module])
        assert target.real_time == "out.real-time" and not kafka_topic("out", key="id").real_time


def test_messages_before_the_commit_are_json():
    with pytest.raises(DeclarationError, match="format='avro': messages in real time are JSON"):
        kafka_topic("out", key="id", latency="real-time", format="avro")
    with pytest.raises(DeclarationError, match="latency='now'"):
        kafka_topic("out", key="id", latency="now")  # type: ignore[arg-type]


def test_columns_that_a_target_cannot_hold_are_refused():
    spans = pa.struct([("start", pa.int64())])
    nested = pa.map_(pa.string(), pa.list_(pa.struct([("by_span", pa.map_(spans, pa.int64()))])))
    of = {"id": pa.string(), "m": pa.map_(pa.string(), pa.int64())}
    every = (kafka_topic("out", key="id"), postgres("out", key="id"), redis_keys("out", key="id"))
    for target in every:
        base.check_columns("paid", target, pa.schema(of))
        with pytest.raises(SinkError, match=r"column=m.value.by_span: a key of a map becomes the"):
            base.check_columns("paid", target, pa.schema(of | {"m": nested}))
        with pytest.raises(SinkError, match="key='id': paid has no such column; name one of n"):
            base.check_columns("paid", target, pa.schema({"n": pa.int64()}))
    by_number = pa.schema(of | {"m": pa.map_(pa.int64(), pa.int64())})
    with pytest.raises(SinkError, match="keys of a map in Avro are text"):
        base.check_columns("paid", kafka_topic("out", key="id", format="avro"), by_number)


def test_names_that_postgres_would_cut_are_refused():
    fits, cut = "é" * 31 + "x", "é" * 32
    target = postgres(f"{fits}.{fits}", key="id")
    base.check_columns("paid", target, pa.schema({"id": pa.string(), fits: pa.string()}))
    with pytest.raises(SinkError, match=rf"column='{cut}' \(64 bytes\): a name has at most 63"):
        base.check_columns("paid", target, pa.schema({"id": pa.string(), cut: pa.string()}))
    for into in (cut, f"{cut}.x", f"x.{cut}"):
        with pytest.raises(DeclarationError, match=rf"into='{cut}' \(64 bytes\): .* name it short"):
            postgres(into, key="id")


def test_a_topic_that_cannot_be_is_refused():
    with pytest.raises(DeclarationError, match="order_by='account': a key stays in one partition"):
        kafka_topic("out", key="id", order_by="account")
    with pytest.raises(DeclarationError, match=r"target=out, key=\[\]: at least one column"):
        kafka_topic("out", key=[])
    with pytest.raises(DeclarationError, match="topic='': "):
        kafka_topic("", key="id")
    with pytest.raises(DeclarationError, match="corrections='later': one of send, hold, ignore"):
        kafka_topic("out", key="id", corrections="later")  # type: ignore[arg-type]


def test_where_a_table_is_published_decides_no_rows():
    plain, published_too = declared(), declared(rows=[kafka_topic("out", key="id")])
    assert plain.paid.code_version == published_too.paid.code_version
