"""The tables that hostile messages are sent to, by topics, files and a source of one's own, and what must become of each message.

Spark reads all messages of a format in one micro-batch.
"""

import base64
import gzip
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from lakehouse import (
    SourceReader,
    SourceRecord,
    changes,
    folder,
    ingest_table,
    kafka,
    python_source,
)
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.testing import Stage
from stories import hostile, hostile_events
from stories.hostile import Message
from support.schema_registry import served

_there = TemporaryDirectory(prefix="hostile-messages-")
FILES, OWN = Path(_there.name) / "files", Path(_there.name) / "own"


class Messages(SourceReader):
    """Messages of a file, in base64; every other one that is text is given as text."""

    def __init__(self, path: str) -> None:
        file = Path(path)
        self.messages = json.loads(file.read_text()) if file.exists() else []

    def latest_offset(self) -> int:
        return len(self.messages)

    def read(self, partition: int, start: int, end: int) -> Iterator[SourceRecord]:
        for number in range(start, end):
            sent = self.messages[number]
            value = None if sent is None else base64.b64decode(sent)
            try:
                text = value.decode() if value and number % 4 < 2 else value
            except UnicodeDecodeError:
                text = value
            yield SourceRecord(text, key="key", timestamp=hostile.SENT)


SOURCES: dict[str, RecordSource] = {
    "json": kafka("hostile-json", schema=hostile.SCHEMA),
    "json_schema": kafka("hostile-json-schema", format="json_schema", schema=hostile.SCHEMA),
    "csv": folder("/data/hostile", format="csv", schema=hostile.SCHEMA),
    "text": kafka(
        "hostile-text",
        format="text",
        schema="line STRING NOT NULL",
        max_bytes=hostile.TEXT_BYTES,
    ),
    "avro": kafka("hostile-avro", format="avro", schema=hostile_events.AVRO_SCHEMA),
    "protobuf": kafka("hostile-protobuf", format="protobuf", schema=hostile_events.PROTOBUF_SCHEMA),
    "changes": changes("hostile-changes", key="id", schema=hostile_events.CHANGES_SCHEMA),
    "folder": folder(str(FILES), schema=hostile.SCHEMA, settle="0 seconds"),
    "own": python_source(
        "hostile-own", Messages, schema=hostile.SCHEMA, options={"path": str(OWN)}
    ),
}
_TIMES = {"text": "ingestion_time", "changes": "sent"}
Format = Callable[[Random, int], Message]
FORMATS: dict[str, tuple[Format, tuple[str, ...]]] = {
    "json": (hostile.of_json, hostile.JSON_KINDS),
    "json_schema": (hostile.of_registry_json, hostile.REGISTRY_KINDS),
    "csv": (hostile.of_csv, hostile.CSV_KINDS),
    "text": (hostile.of_text, hostile.TEXT_KINDS),
    "avro": (hostile_events.of_avro, hostile_events.AVRO_KINDS),
    "protobuf": (hostile_events.of_protobuf, hostile_events.PROTOBUF_KINDS),
    "changes": (hostile_events.of_changes, hostile_events.CHANGE_KINDS),
    "folder": (hostile.of_line, hostile.LINE_KINDS),
    "own": (hostile.of_json, hostile.JSON_KINDS),
}
"""What makes the messages of a format, and the kinds that they have."""
HOSTILE = "hostile"
PLACES = ("good", "quarantined", "passed over")


def _ingest(format: str) -> Table:
    """The table `<format>_rows`, which keeps the rows of `<format>_source` as they are."""

    def rows(**source: DataFrame) -> DataFrame:
        (read,) = source.values()
        return read

    reads = Parameter(f"{format}_source", Parameter.POSITIONAL_OR_KEYWORD)
    rows.__signature__ = Signature([reads])  # type: ignore[attr-defined]  # its parameter names its input
    rows.__name__ = f"{format}_rows"
    return ingest_table(layer="bronze", event_time=_TIMES.get(format, "at"), delay="0 seconds")(
        rows
    )


for _format, _source in SOURCES.items():
    globals().update({f"{_format}_source": _source, f"{_format}_rows": _ingest(_format)})


@contextmanager
def staged(spark: SparkSession, root: Path) -> Iterator[Stage]:
    """A stage with these tables, and a registry that knows their schemas."""
    with served() as registry:
        registry.register(hostile_events.AVRO_ID, hostile_events.AVRO, "hostile-avro-value")
        registry.register(
            hostile.JSON_ID,
            {"type": "object", "properties": {}},
            "hostile-json-schema-value",
            schemaType="JSON",
        )
        registry.register(
            hostile_events.PROTOBUF_ID,
            hostile_events.PROTOBUF,
            "hostile-protobuf-value",
            schemaType="PROTOBUF",
        )
        yield Stage(spark, root, sys.modules[__name__], registry={"url": registry.url})


def messages(format: str, seed: int, count: int) -> list[Message]:
    """The same of a seed each time."""
    random, made = Random(f"{seed} {format}"), FORMATS[format][0]
    return [made(random, number) for number in range(count)]


def _send(stage: Stage, format: str, sent: list[Message]) -> None:
    name = f"{format}_rows"
    if format == "folder":
        _write_files([message.value or b"" for message in sent])
        stage.run(name)
    elif format == "own":
        values = [m.value if m.value is None else base64.b64encode(m.value).decode() for m in sent]
        OWN.write_text(json.dumps(values))
        stage.run(name)
    else:
        values = [SourceRecord(message.value, key=message.key) for message in sent]
        stage.feed(name, values, sent=hostile.SENT)


def _write_files(lines: list[bytes]) -> None:
    """Two files, the second one compressed; the first line of each is a good message."""
    FILES.mkdir(exist_ok=True)
    half = len(lines) // 4 * 2
    for file, content in (("1.json", lines[:half]), ("2.json.gz", lines[half:])):
        text = b"\n".join(content)
        path = FILES / file
        path.write_bytes(gzip.compress(text) if file.endswith(".gz") else text)
        os.utime(path, (hostile.SENT.timestamp(),) * 2)


def play(stage: Stage, format: str, seed: int, count: int) -> Counter[str]:
    """How many messages were sent, in all, of each kind and by where they are; each is in one place, as it must be."""
    sent = messages(format, seed, count)
    _send(stage, format, sent)
    name = f"{format}_rows"
    rows = _by_offset(stage.rows(name).toArrow().to_pylist())
    quarantined = _by_offset(stage.rows(name, "quarantine").toArrow().to_pylist())
    counts = Counter({"sent": count, "good": len(rows), "quarantined": len(quarantined)})
    wrong: dict[str, list[tuple]] = {}
    for offset, message in enumerate(sent):
        row, bad = rows.pop(offset, None), quarantined.pop(offset, None)
        counts[f"of {message.kind}"] += 1
        counts["passed over"] += row is None and bad is None
        if not _is_right(message, row, bad):
            example = (message.value, message.row, row, bad and bad["reason"])
            wrong.setdefault(message.kind, []).append(example)
    number = sum(map(len, wrong.values()))
    shown = "\n".join(f"{kind}: {example}" for kind, of in wrong.items() for example in of[:20])
    assert not wrong, f"seed {seed}, {format}: {number} messages of {len(wrong)} kinds:\n{shown}"
    assert not rows and not quarantined, f"seed {seed}, {format}: more than was sent"
    return Counter({f"{format} {what}": times for what, times in counts.items()})


def play_all(spark: SparkSession, root: Path, seed: int, counts: dict[str, int]) -> Counter[str]:
    """The counts of all formats, each with so many messages."""
    with staged(spark, root) as stage:
        found = (play(stage, format, seed, count) for format, count in counts.items())
        return sum(found, Counter())


def never_sent(occurred: Counter[str]) -> list[str]:
    """The kinds of messages that did not occur."""
    return [
        f"{kind} (hostile {format})"
        for format, (_, kinds) in FORMATS.items()
        for kind in kinds
        if not occurred[f"{format} of {kind}"]
    ]


def shown(occurred: Counter[str]) -> str:
    """How many messages of each format were sent, of how many kinds, and how many are in which place."""
    kinds = sum(len(kinds) for _, kinds in FORMATS.values())
    sent = f"{kinds - len(never_sent(occurred))} of {kinds} kinds; "
    return sent + "; ".join(
        f"{format.replace('_', ' ')} {occurred[f'{format} sent']:,} sent, "
        + ", ".join(
            f"{number:,} {place}" for place in PLACES if (number := occurred[f"{format} {place}"])
        )
        for format in FORMATS
    )


def _is_right(message: Message, row: dict | None, bad: dict | None) -> bool:
    if message.passed_over:
        return row is None and bad is None
    if message.row is None:
        given = bool(bad and bad["reason"] and message.reason in bad["reason"])
        return given and row is None and bad is not None and bad["value"] == message.value
    return row is not None and bad is None and _same(row, message.row)


def _by_offset(rows: list[dict]) -> dict[int, dict]:
    found = {row["_arrival"]["offset"]: row for row in rows}
    assert len(found) == len(rows), "no offset is there twice"
    return found


def _same(got: dict, wanted: dict) -> bool:
    return all(_alike(got[name], value) for name, value in wanted.items())


def _alike(got: object, wanted: object) -> bool:
    if isinstance(wanted, float) and isinstance(got, float):
        if math.isnan(wanted):
            return math.isnan(got)
        return got == wanted and math.copysign(1, got) == math.copysign(1, wanted)
    return type(got) is type(wanted) and got == wanted
