"""A folder or a table of others as the history of a topic: what is refused, where the topic begins, what is said afterwards."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from assets import tables
from lakehouse import delta_table, folder, ingest_table, kafka
from lakehouse.cli import table_status
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import CommitError, DeclarationError
from lakehouse.ranges import BEGINNING
from lakehouse.settings import Settings
from lakehouse.storage.disk.files import digest_of
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_delta import TableFeed
from lakehouse.storage.foreign.foreign_sources import files_of
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state
from lakehouse.stream.reading import topic_starts
from lakehouse.stream.reading.offsets import Broker, Gap
from support import starts
from support.lines import note_read

SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL"
CUT = datetime(2026, 1, 1, tzinfo=UTC)
ARCHIVE = folder("/data/archive", schema="n  bigint, AT timestamp")
TOPIC = kafka("events", schema=SCHEMA, history=ARCHIVE, starting=CUT, quiet_timeout="1 minute")


def readings(incoming): ...


def united(incoming, others): ...


def catalog(function=readings, event_time="at", **sources):
    module = ModuleType(__name__)
    for name, source in sources.items():
        setattr(module, name, source)
    setattr(
        module, function.__name__, ingest_table(layer="bronze", event_time=event_time)(function)
    )
    return catalog_of([module])


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (replace(TOPIC, history=None), "give both, or neither"),
        (replace(TOPIC, starting=None), "give both, or neither"),
        (replace(TOPIC, starting=datetime(2026, 1, 1)), "with its time zone"),
        (replace(TOPIC, starting=BEGINNING), "topic=events, starting=1678-01-01T00:00:00Z: event times are later than"),
        (replace(TOPIC, key="n"), "files do not say that a key was deleted"),
        (
            kafka("events", schema=SCHEMA, history=folder("/a", schema="at TIMESTAMP, n BIGINT"), starting=CUT),
            "the same columns in the same order, with the same types",
        ),
        (
            kafka("events", schema=SCHEMA, history=delta_table("/a", schema="n INT, at TIMESTAMP"), starting=CUT),
            "the same columns in the same order, with the same types",
        ),
        (
            kafka("events", schema=SCHEMA, history=delta_table("/a", schema=SCHEMA, changes=True), starting=CUT),
            "the topic has rows and no changes of rows",
        ),
        (
            kafka("events", schema=SCHEMA, history=folder("/a", schema=SCHEMA, quiet_timeout="1 minute"), starting=CUT),
            "give it to the topic",
        ),
    ],
)  # fmt: skip
def test_a_history_that_cannot_stand_before_its_topic_is_refused(topic, said):
    with pytest.raises(DeclarationError, match=said):
        catalog(incoming=topic)


def test_it_is_read_alone_and_parted_by_the_time_of_events():
    with pytest.raises(DeclarationError, match="a topic with a history is read alone"):
        catalog(united, incoming=TOPIC, others=kafka("others", schema=SCHEMA))
    with pytest.raises(DeclarationError, match="name the column of event time"):
        catalog(event_time="ingestion_time", incoming=TOPIC)


def test_both_are_sources_of_one_ingest_table_and_shown():
    found = catalog(incoming=TOPIC)
    ingest = found.table("readings")
    assert [each.address for each in found.sources_of(ingest).values()] == [
        "events",
        "/data/archive",
    ]
    assert found.topics() == ["events"] and found.quiet_timeout(ingest) == timedelta(minutes=1)
    assert table_status._input(found, "incoming") == "incoming (topic events, behind /data/archive)"
    spec = tables._source(found.sources["incoming"])
    assert (
        spec.metadata["history"] == "/data/archive" and "its rows before 2026" in spec.description
    )


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (replace(TOPIC, history=None, starting=None), TOPIC),
        (TOPIC, replace(TOPIC, history=None, starting=None)),
        (
            TOPIC,
            kafka("events", schema=SCHEMA, history=replace(ARCHIVE, address="/b"), starting=CUT),
        ),
        (TOPIC, kafka("events", schema=SCHEMA, history=ARCHIVE, starting=CUT + timedelta(days=1))),
    ],
)
def test_a_table_with_rows_keeps_its_history_or_none(tmp_path, then, now):
    settings, found = Settings(root=tmp_path), catalog(incoming=then)
    ingest = found.table("readings")
    starts.begin(Lakehouse(settings, found), ingest)
    note_read(settings, ingest, 1)
    changed = catalog(incoming=now)
    with pytest.raises(DeclarationError, match="declare it under another name"):
        declared_state.check(Lakehouse(settings, changed), [changed.table("readings")])
    same = catalog(incoming=then)
    declared_state.check(Lakehouse(settings, same), [same.table("readings")])


def begins(first: int, end: int, sent: int, gaps=()) -> int:
    found, of = Broker("id", {"0": first}, {"0": end}), SimpleNamespace(name="readings")
    return topic_starts.starts(of, "events", found, {"0": sent}, gaps, CUT)["0"]


def test_a_topic_begins_with_the_first_message_of_the_instant_or_with_its_end():
    assert begins(0, 9, 5) == 5
    assert begins(0, 9, 0) == 0, "nothing was ever removed"
    assert begins(0, 9, -1) == 9 and begins(0, 0, -1) == 0
    assert begins(4, 9, 5) == 5 and begins(4, 9, -1) == 9, "an earlier message is still there"


def test_an_instant_that_is_still_to_come_is_refused(tmp_path):
    topic = replace(TOPIC, starting=datetime.now(UTC) + timedelta(hours=1))
    table_of = catalog(incoming=topic).table("readings")
    with pytest.raises(DeclarationError, match="cannot have all rows before an instant"):
        topic_starts.resolve(Settings(root=tmp_path), table_of, topic)


@pytest.mark.parametrize(("first", "end", "sent"), [(4, 9, 4), (9, 9, -1)])
def test_a_topic_that_may_have_lost_messages_of_that_time_is_refused_until_it_is_accepted(
    first, end, sent
):
    with pytest.raises(CommitError, match=r"topic=events, partition=0, offset=.*accept-gap"):
        begins(first, end, sent)
    found = {"events": Broker("id", {"0": first, "1": 0}, {"0": end, "1": 3})}
    (gap,) = topic_starts.removed(found, ())
    assert gap == Gap("events", "0", 0, first) and topic_starts.removed(found, [gap]) == []
    assert begins(first, end, sent, [gap]) == first
    with pytest.raises(CommitError, match="accept-gap"):
        begins(first + 1, end + 1, sent if sent < 0 else sent + 1, [gap])


def test_the_watermark_of_the_last_commit_says_whether_the_history_is_read():
    def read(source, watermark):
        return topic_starts.is_history_read(source, SimpleNamespace(watermark=watermark))

    assert TOPIC.history is not None
    assert not read(TOPIC.history, None) and not read(TOPIC.history, BEGINNING)
    assert read(TOPIC.history, CUT)
    assert not read(ARCHIVE, CUT), "a folder that is no history has no end"


def put(path: Path, text: str, age: int) -> None:
    path.write_text(text)
    os.utime(path, (CUT.timestamp() + age,) * 2)


def test_what_others_do_to_a_folder_after_it_was_read_is_said(tmp_path):
    archive, source = tmp_path / "archive", folder(str(tmp_path / "archive"), schema=SCHEMA)
    archive.mkdir()
    register = Register(Settings(root=tmp_path), catalog(incoming=source).table("readings"))
    for number, name in enumerate(("a", "b", "c")):
        put(archive / name, f"{name}\n", number)
        stat = (archive / name).stat()
        digest = digest_of(archive / name)
        register.add([Registered(name, stat.st_size, stat.st_mtime_ns, 1, digest=digest)])
    watch = files_of(source, register)
    assert watch.look() == ""
    (archive / "a").unlink()
    (archive / "b").rename(archive / "renamed")
    put(archive / "c", "c\n", 99)
    assert watch.look() == "", "removed, renamed, or written again as it was"
    put(archive / "c", "d\n", 100)
    assert f"history={archive}: file c, which was written to since; it was read" in watch.look()
    put(archive / "copy", "b\n", 200)
    said = watch.look()
    assert "file c, which was written to since, and 1 more" in said
    assert files_of(source, register).look() == said, "the same after a restart"


def test_versions_that_come_after_a_table_was_read_are_said_and_compaction_is_not(tmp_path):
    there = str(tmp_path / "orders")
    for n in range(2):
        write_deltalake(there, pa.table({"n": [n]}), mode="append")
    source = delta_table(there, schema=SCHEMA)
    register = Register(Settings(root=tmp_path), catalog(incoming=source).table("readings"))
    register.add([], 1)
    watch = files_of(source, register)
    DeltaTable(there).optimize.compact()
    assert watch.look() == ""
    write_deltalake(there, pa.table({"n": [2]}), mode="append")
    DeltaTable(there).delete("n = 0")
    said = watch.look()
    assert f"history={there}: version 3 (rows were added), and 1 more; it was" in said
    assert watch.look() == said


def test_of_the_versions_of_a_table_that_are_read_a_feed_remembers_the_last_one(tmp_path):
    there = str(tmp_path / "orders")
    source = delta_table(there, schema=SCHEMA)
    register = Register(Settings(root=tmp_path), catalog(incoming=source).table("readings"))
    feed = TableFeed(source, register, {"n": "bigint"})
    for n in range(5):
        write_deltalake(there, pa.table({"n": [n]}), mode="append")
        assert not feed.has_read(n, n)
        feed.look(n, 10)
        assert not feed.has_read(n, n) and feed.has_read(n, n + 1) and not feed.has_read(9, n + 1)
    assert feed._ends == [(3, 4), (4, 5)]
