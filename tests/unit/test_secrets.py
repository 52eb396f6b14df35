"""Values of the environment in a table's function: they are written nowhere."""

import importlib
import json
import pickle
import sys
from pathlib import Path

import pytest

from lakehouse import secret
from lakehouse.declare import code_version
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import load
from lakehouse.storage.position import declared_state

TABLES = """
import os
from datetime import timedelta
from decimal import Decimal
import lakehouse as lh

topic = lh.kafka("t", schema="id STRING, at TIMESTAMP NOT NULL")
PLAIN = os.environ["PLAIN_KEY"]
LIST = ["a", os.environ["PLAIN_KEY"]]
MADE = f"key={PLAIN}"
AGAIN = "default"
if "PLAIN_KEY" in os.environ:
    AGAIN = os.environ["PLAIN_KEY"]
try:
    TRIED = os.environ["PLAIN_KEY"]
except KeyError:
    TRIED = ""
NAMED = lh.secret("NAMED_KEY")
SHOWN = "status = 'active'"
LENGTH = timedelta(minutes=5)
TOGETHER = (SHOWN, Decimal("1.5"))


@lh.ingest_table(layer="bronze", event_time="at", delay="1 second")
def events(topic):
    return topic.where(SHOWN).where(f"{PLAIN} {LIST} {MADE} {AGAIN} {TRIED} {NAMED} {LENGTH} {TOGETHER}")
"""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "secret_tables.py").write_text(TABLES)
    monkeypatch.syspath_prepend(tmp_path)

    def declare(plain: str, named: str):
        monkeypatch.setenv("PLAIN_KEY", plain)
        monkeypatch.setenv("NAMED_KEY", named)
        sys.modules.pop("secret_tables", None)
        importlib.invalidate_caches()
        code_version._assignments.cache_clear()
        lakehouse = load(Settings(root=tmp_path / "root", tables=("secret_tables",)))
        return lakehouse, lakehouse.catalog.table("events")

    yield declare
    sys.modules.pop("secret_tables", None)


def test_a_value_of_the_environment_is_no_text_on_disk(declared, tmp_path: Path):
    lakehouse, table = declared("s3cret-plain", "s3cret-named")
    declared_state.keep(lakehouse, table)
    for path in (tmp_path / "root").rglob("*"):
        assert path.is_dir() or b"s3cret" not in path.read_bytes(), path
    parts = declared_state.declaration(lakehouse.catalog, table)
    assert "s3cret" not in json.dumps(parts)
    assert (
        parts["constant SHOWN"] == "\"status = 'active'\""
        and "digest" not in parts["constant LENGTH"]
    )
    assert parts["constant NAMED"] == "secret('NAMED_KEY')"
    for name in ("PLAIN", "LIST", "MADE", "AGAIN", "TRIED"):
        assert code_version.is_digest(parts[f"constant {name}"]), name


def test_a_new_value_of_a_secret_is_no_change_and_another_one_is(declared):
    lakehouse, before = declared("one", "one")
    parts = declared_state.declaration(lakehouse.catalog, before)
    lakehouse, after = declared("one", "two")
    assert after.code_version == before.code_version
    assert declared_state.declaration(lakehouse.catalog, after) == parts
    lakehouse, other = declared("two", "two")
    assert other.code_version != before.code_version
    changed = declared_state.declaration(lakehouse.catalog, other)
    assert {n for n in parts if parts[n] != changed[n]} == {
        f"constant {name}" for name in ("PLAIN", "LIST", "MADE", "AGAIN", "TRIED")
    }


def test_a_note_that_has_the_value_is_of_the_same_declaration(declared):
    lakehouse, table = declared("one", "two")
    now = declared_state.declaration(lakehouse.catalog, table)
    before = now | {"constant PLAIN": "'one'"}
    assert not declared_state._differs("constant PLAIN", before, now)
    assert declared_state._differs("constant PLAIN", now | {"constant PLAIN": "'two'"}, now)


def test_a_secret_is_a_text_that_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_KEY", "s3cret")
    key = secret("A_KEY")
    assert key == "s3cret" and f"{key}" == "s3cret" and "s3cret" not in repr(key)
    assert "s3cret" not in repr({"key": [key]})
    copied = pickle.loads(pickle.dumps(key))
    assert type(copied) is str and copied == "s3cret"
    with pytest.raises(DeclarationError, match="secret='NO_KEY'"):
        secret("NO_KEY")
