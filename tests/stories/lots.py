"""How a lot of clicks is put into each kind of source of `sources`, and what is malformed there."""

import csv
import gzip
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from lakehouse.runtime.protobuf import compiled, messages
from lakehouse.storage.position.schemas import Schema
from lakehouse.testing import Value, change_event
from stories import others
from stories.sources import CUT, SOURCES, THERE
from support import schema_registry as registry

if TYPE_CHECKING:
    from stories.filling import Filling

Click = Mapping[str, Any]
Lot = list[tuple[int, Click | None]]
"""Clicks with their partitions; None is to become something malformed."""
Fill = Callable[["Filling", str, Lot, str | None], None]
"""Puts a lot into the source of an ingest table, and has it read, with a crash at a commit point."""
_LINE = ("user", "at", "value")
_COLUMNS = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())]
)

_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
AVRO = {
    1: registry.record(("user", "string"), ("at", _MILLIS), ("value", "int")),
    2: registry.record(
        ("value", ["null", "long"]),
        ("shop", ["null", "string"]),
        ("at", _MICROS),
        ("user", "string"),
    ),
    3: registry.record(("user", "string"), ("at", _MILLIS), ("value", "string")),  # not as declared
}
_HEAD = 'syntax = "proto3"; import "google/protobuf/timestamp.proto";'
_AT = "google.protobuf.Timestamp at"
PROTOBUF = {
    11: f"{_HEAD} message Click {{ string user = 1; {_AT} = 2; int64 value = 3; }}",
    12: f"{_HEAD} message Other {{ string value = 1; }} "
    f"message Click {{ optional int32 value = 7; string shop = 2; {_AT} = 5; string user = 9; }}",
}
_UNKNOWN = 99  # no schema has this id


def micros(click: Click) -> int:
    at = datetime.fromisoformat(click["at"])
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _topic(ingest: str) -> str:
    return SOURCES[ingest.removesuffix("_clicks")].address


def _as_values(encoded: Callable[[Click, int], bytes], malformed: Sequence[bytes | None]) -> Fill:
    """Clicks as values of a topic whose schemas are in a registry; a number chooses the schema, or what is malformed."""

    def fill(stage: "Filling", ingest: str, lot: Lot, abort_at: str | None) -> None:
        sent: list[tuple[int, Value]] = []
        for number, (partition, click) in enumerate(lot, stage.lots):
            value = malformed[number % len(malformed)] if click is None else encoded(click, number)
            sent.append((partition, value))
            stage.note(_topic(ingest), partition, click)
        stage.send(ingest, sent, "", abort_at)

    return fill


def _avro(click: Click, number: int) -> bytes:
    at, user, value = micros(click), click["user"], click["value"]
    if number % 2:
        return registry.avro(1, AVRO[1], user, at // 1000, value)
    return registry.avro(2, AVRO[2], value, "a" if number % 4 else None, at, user)


@cache
def _message(number: int, *indexes: int) -> Any:
    return messages(compiled(Schema(number, "PROTOBUF", PROTOBUF[number])))[indexes]


def _protobuf(click: Click, number: int) -> bytes:
    version, indexes = (11, ()) if number % 2 else (12, (1,))
    value = _message(version, *(indexes or (0,)))(user=click["user"], value=click["value"])
    value.at.seconds, rest = divmod(micros(click), 1_000_000)
    value.at.nanos = 1000 * rest
    return registry.protobuf(version, value, *indexes)


def _as_changes(stage: "Filling", ingest: str, lot: Lot, abort_at: str | None) -> None:
    """Each click a change of its user's row, each fifth value its end; the log has them in the order of their times."""
    malformed = (b"{", b'{"op": "x"}', b"[1]", b'{"op": "u", "after": {"user": "user-1"}}')
    sent: list[tuple[int, Value]] = []
    for number, (partition, click) in enumerate(lot, stage.lots):
        if click is None:
            sent.append((partition, malformed[number % len(malformed)]))
            stage.note(_topic(ingest), partition, None)
            continue
        row = {name: click[name] for name in ("user", "value")}
        ends = click["value"] % 5 == 0
        event = change_event(
            "d" if ends else "u",
            row,
            position=1000 * click["id"] + click["value"] + 100,
            sent=datetime.fromisoformat(click["at"]),
        )
        sent.append((partition, event))
        stage.note(_topic(ingest), partition, {**click, "value": None} if ends else click)
        if ends:  # which Debezium follows by a tombstone
            sent.append((partition, None))
            stage.note_none(_topic(ingest), partition)
    stage.send(ingest, sent, "", abort_at)


def _with_history(stage: "Filling", ingest: str, lot: Lot, abort_at: str | None) -> None:
    """The first lot is the history, and the others the topic; each has clicks that only the other one may bring."""
    is_past = stage.lots == 1
    if stage.lots == 2:
        stage.cut(ingest)
    (topic, topic_name), (past, past_name) = (
        (name, each.address)
        for name, each in stage.session.catalog.sources_of(
            stage.session.catalog.table(ingest)
        ).items()
    )
    sent: list[tuple[int, Value]] = []
    for partition, click in lot:
        place = 0 if is_past else partition
        sent.append((place, b"no JSON" if click is None else click))
        counts = click is not None and (datetime.fromisoformat(click["at"]) < CUT) == is_past
        stage.note(past_name if is_past else topic_name, place, click, counts=counts)
    stage.send(ingest, sent, past if is_past else topic, abort_at)


def _as_files(
    ending: Callable[[int], str], write: Callable[[Path, list[Click | None]], None]
) -> Fill:
    """Clicks of each partition as a file. One that was read is renamed or removed now and then."""

    def fill(stage: "Filling", ingest: str, lot: Lot, abort_at: str | None) -> None:
        there = Path(_topic(ingest))
        there.mkdir(exist_ok=True)
        partitions = sorted({p for p, _ in lot}, reverse=bool(stage.lots % 2))
        files = []
        for partition in partitions:
            clicks = [click for p, click in lot if p == partition]
            files.append(there / f"{stage.lots:03}-{partition}{ending(stage.lots + partition)}")
            beside = files[-1].with_name(f"{files[-1].name}.tmp")
            write(beside, clicks)
            beside.rename(files[-1])
            for click in clicks:
                stage.note(str(there), 0, click)

        def renamed() -> None:
            files[-1] = files[-1].rename(files[-1].with_name(f"moved-{files[-1].name}"))

        stage.read(ingest, abort_at, renamed)
        if stage.lots % 3 == 1:
            files[0].rename(files[0].with_name(f"read-{files[0].name}"))
        elif stage.lots % 3 == 2:
            files[-1].unlink()

    return fill


def _write_json(file: Path, clicks: list[Click | None]) -> None:
    malformed = (b"no JSON", b'{"user": null}', b"\xff\xfe", b"[1]")
    lines = [
        json.dumps(click).encode() if click is not None else malformed[number % len(malformed)]
        for number, click in enumerate(clicks, len(clicks))
    ]
    content = b"\n\n".join(lines)  # an empty line is no record
    file.write_bytes(gzip.compress(content) if ".gz" in file.name else content + b"\n")


def _write_csv(file: Path, clicks: list[Click | None]) -> None:
    malformed = ("five", '"not ended', "a,b,c,d", ",2026-03-28T23:00:00Z,1")
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_LINE)
    for number, click in enumerate(clicks, len(clicks)):
        if click is None:
            text.write(f"{malformed[number % len(malformed)]}\n")
        else:
            lines.writerow([click[name] for name in _LINE])
    file.write_text(text.getvalue())


def _rows(clicks: list[Click | None]) -> pa.Table:
    """Of what is malformed the user is missing."""
    none = {"user": None, "at": None, "value": 1}
    rows = [none if c is None else {**c, "at": datetime.fromisoformat(c["at"])} for c in clicks]
    return pa.Table.from_pylist(rows, _COLUMNS)


def _write_parquet(file: Path, clicks: list[Click | None]) -> None:
    rows = _rows(clicks)
    if len(clicks) % 2:  # a writer with another type, and one column more
        rows = rows.set_column(2, "value", rows["value"].cast(pa.int32()))
        rows = rows.append_column("shop", pa.array(["a"] * len(clicks)))
    pq.write_table(rows, file)


def _as_rows(stage: "Filling", ingest: str, lot: Lot, abort_at: str | None) -> None:
    """Clicks of each partition as a version of a Delta table, which its owner compacts now and then."""
    path = _topic(ingest)
    for partition in sorted({p for p, _ in lot}):
        clicks = [click for p, click in lot if p == partition]
        write_deltalake(path, _rows(clicks), mode="append")
        for click in clicks:
            stage.note(path, 0, click)
    if stage.lots % 3 == 2:
        DeltaTable(path).optimize.compact()
    stage.read(ingest, abort_at, lambda: DeltaTable(path).optimize.compact())


def _as_records(stage: "Filling", ingest: str, lot: Lot, abort_at: str | None) -> None:
    """Clicks as lines of their partition; every third offset is one that is missing."""
    source, there = SOURCES["own"], THERE / "own"
    there.mkdir(exist_ok=True)
    if stage.lots > 1 and stage._now > datetime.now(
        UTC
    ):  # what a story waited is enough for a partition to be idle
        time.sleep(source.idle_timeout.total_seconds())
    for partition, click in lot:
        with (there / str(partition)).open("a") as lines:
            lines.write(f"{'no JSON' if click is None else json.dumps(click)}\n")
            stage.note(source.address, partition, click)
            if len(stage.put[source.address, partition]) % 3 == 2:
                lines.write("\n")
                stage.note_none(source.address, partition)
    stage.read(ingest, abort_at)


_FIRST = registry.avro(1, AVRO[1], "user-1", 0, 1)
FILL: dict[str, Fill] = {
    "avro": _as_values(
        _avro,
        (
            b"\1" + _FIRST[1:],
            _FIRST[:8],
            registry.avro(3, AVRO[3], "user-1", 0, "1"),
            registry.framed(_UNKNOWN, b"1"),
            b"\0\0",
            None,
        ),
    ),
    "protobuf": _as_values(
        _protobuf,
        (
            b"no id",
            registry.framed(11, b"\0\x0a\x7f"),
            registry.framed(12, b"\0"),
            registry.framed(_UNKNOWN, b"\0"),
            registry.framed(11, b"\2\6"),
            None,
        ),
    ),
    "changes": _as_changes,
    "json_folder": _as_files(lambda n: ".json.gz" if n % 2 else ".json", _write_json),
    "csv_folder": _as_files(lambda n: ".csv", _write_csv),
    "parquet_folder": _as_files(lambda n: ".parquet", _write_parquet),
    "delta": _as_rows,
    "delta_changes": others.change,
    "iceberg": others.append,
    "own": _as_records,
    "history": _with_history,
}
