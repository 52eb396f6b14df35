"""Changes of a database, as they are declared."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from types import ModuleType

import pytest

from lakehouse import changes, ingest_table, kafka
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.storage.position import declared_state
from lakehouse.stream.reading.topics import is_no_change
from lakehouse.testing import change_event
from support import changed_accounts
from support.change_events import events

ACCOUNTS = changes("bank.public.accounts", key="id", schema="id BIGINT, balance DECIMAL(12, 2)")


def module_of(**named: object) -> ModuleType:
    module = ModuleType(__name__)
    vars(module).update(named)
    return module


@pytest.mark.parametrize("key", ["number", (), ("id", "id"), "12"])
def test_a_key_is_of_columns(key):
    with pytest.raises(DeclarationError, match="name the columns of the messages' key"):
        changes("accounts", key=key, schema="id BIGINT, balance DECIMAL(12, 2)")


def test_a_key_may_have_several_columns():
    source = changes("lines", key=["bill", "n"], schema="bill BIGINT, n INT, tags ARRAY<STRING>")
    assert source.keys == ("bill", "n") and source.format == "debezium"


def test_other_messages_have_no_place_in_a_log():
    @ingest_table(layer="bronze", event_time="sent")
    def both(accounts, others):
        return accounts.unionByName(others)

    others = kafka("others", schema="id BIGINT, sent TIMESTAMP")
    with pytest.raises(DeclarationError, match="read them by an ingest table of their own"):
        catalog_of([module_of(accounts=ACCOUNTS, others=others, both=both)])


def test_another_key_or_column_is_another_declaration():
    @ingest_table(layer="bronze", event_time="sent")
    def account_log(accounts):
        return accounts

    def declared(source):
        catalog = catalog_of([module_of(accounts=source, account_log=account_log)])
        return declared_state.declaration(catalog, catalog.table("account_log"))

    topic = ACCOUNTS.address
    others = [
        changes(topic, key="id", schema="id BIGINT, balance DECIMAL(13, 2)"),
        changes(topic, key="balance", schema=ACCOUNTS.schema),
        kafka(topic, schema=ACCOUNTS.schema),
    ]
    found = {declared(source)[f"schema of {topic}"] for source in [ACCOUNTS, *others]}
    assert len(found) == 4


def test_what_follows_a_log_is_known():
    catalog = catalog_of([changed_accounts])
    assert all(any(source.keys for source in catalog.origins_of(table)) for table in catalog)


def test_what_is_passed_over():
    recorded = [each["value"] and each["value"].encode() for each in events("plain")]
    passed_over = [value for value in recorded if is_no_change(value)]
    assert passed_over.count(None) == 4 and len(passed_over) == 5
    others = (b"", b"{", b"[1]", b"7", b'{"op": "c"}', b'{"payload": {"op": "d"}}')
    assert not any(map(is_no_change, others))
    assert is_no_change(b'{"schema": {}, "payload": {"op": "m"}}')


def test_an_event_for_a_test_is_as_debezium_sends_it():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    row = {
        "id": 1,
        "balance": Decimal(1234),
        "born": date(2024, 2, 29),
        "seen": at,
        "picture": b"\x00",
    }
    event = json.loads(json.dumps(change_event("d", row, position=7, sent=at)))
    assert event["after"] is None and event["source"]["ts_us"] == 1_767_225_600_000_000
    assert event["before"] == {
        "id": 1,
        "balance": "1234.",
        "born": "2024-02-29",
        "seen": "2026-01-01T00:00:00Z",
        "picture": "AA==",
    }
    recorded = json.loads(events("plain")[0]["value"])
    assert event.keys() <= recorded.keys() and event["source"].keys() <= recorded["source"].keys()
