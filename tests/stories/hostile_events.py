"""Hostile messages of the formats that are no plain texts: Avro, Protobuf, and changes as Debezium sends them.

What is right of each is worked out by the rules of docs/reference/values.md, docs/how-to/schema-registry.md and
docs/how-to/change-data.md.
"""

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from stories.hostile import (
    BASE64,
    GOOD,
    SCHEMA,
    SENT,
    TYPES,
    WHOLE_JSON,
    Message,
    Refused,
    breaks,
    good_texts,
    hostile_token,
    judged,
    read,
    read_json,
    turn,
)
from support.schema_registry import avro, framed, record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAGIC = "no schema id: the value does not begin with the byte 0"

AVRO = record(
    ("id", "string"), ("at", {"type": "long", "logicalType": "timestamp-micros"}), ("n", ["null", "long"])
)  # fmt: skip
AVRO_ID, PROTOBUF_ID = 1, 3
AVRO_SCHEMA = "id STRING NOT NULL, at TIMESTAMP NOT NULL, n BIGINT"
Breaking = Callable[[bytes, int], bytes | None]
"""Makes a message of a kind of a good one, whose time is so many microseconds since 1970."""


def _instant(random: Random) -> tuple[datetime, int]:
    at = SENT - timedelta(microseconds=random.randrange(86_400_000_000))
    return at, (at - EPOCH) // _MICROSECOND


def _of_avro(micros: int, n: int | None = None) -> bytes:
    return avro(AVRO_ID, AVRO, "a", micros, n)


BROKEN_AVRO: dict[str, Breaking] = {
    "cut off": lambda good, _: good[:-1],
    "cut off behind its head": lambda good, _: good[:6],
    "a head alone": lambda good, _: good[:5],
    "half of a head": lambda good, _: good[:3],
    "no frame": lambda good, _: good[5:],
    "id unknown": lambda good, _: framed(77, good[5:]),
    "another magic byte": lambda good, _: b"\1" + good[1:],
    "milliseconds of microseconds": lambda _, micros: _of_avro(micros // 1000),
    "nanoseconds": lambda _, micros: _of_avro(micros * 1000),
    "the last instant there is": lambda *_: _of_avro(2**63 - 1),
    "the first instant there is": lambda *_: _of_avro(-(2**63)),
    "a text of negative length": lambda good, _: framed(AVRO_ID, b"\1" + good[6:]),
    "a text longer than the message": lambda good, _: framed(AVRO_ID, b"\xfe\xff\x03" + good[6:]),
    "a third branch": lambda _, micros: framed(AVRO_ID, _of_avro(micros)[5:-1] + b"\4"),
    "JSON": lambda *_: b'{"id": "a"}',
    "empty": lambda *_: b"",
    "tombstone": lambda *_: None,
}
AVRO_KINDS = (GOOD, *BROKEN_AVRO)


def of_avro(random: Random, number: int) -> Message:
    at, micros = _instant(random)
    n = random.choice((None, 0, -(2**63), 2**63 - 1, random.randrange(10**6)))
    good = avro(AVRO_ID, AVRO, f"a-{number}", micros, n)
    hostile = turn(number)
    if hostile is None:
        return Message(GOOD, good, {"id": f"a-{number}", "at": at, "n": n})
    kind = list(BROKEN_AVRO)[hostile % len(BROKEN_AVRO)]
    return Message(kind, BROKEN_AVRO[kind](good, micros), None)


PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Row {
  string id = 1; google.protobuf.Timestamp at = 2; optional int64 n = 3; int32 small = 4; double ratio = 5;
  bool flag = 6; repeated string tags = 7; string note = 8;
}
message Other { int64 id = 1; google.protobuf.Timestamp at = 2; }
"""
PROTOBUF_SCHEMA = (
    "id STRING NOT NULL, at TIMESTAMP NOT NULL, n BIGINT, small INT, ratio DOUBLE, flag BOOLEAN, "
    "tags ARRAY<STRING>, note STRING"
)
_VARINT, _BYTES, _GROUP = 0, 2, 3


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes((*digits, number))


def _tagged(field: int, wire: int, content: bytes) -> bytes:
    sized = _varint(len(content)) + content if wire == _BYTES else content
    return _varint(field << 3 | wire) + sized


def _time(seconds: int, nanos: int) -> bytes:
    content = _tagged(1, _VARINT, _varint(seconds)) + _tagged(2, _VARINT, _varint(nanos))
    return _tagged(2, _BYTES, content)


def _payload(of: bytes) -> bytes:
    return framed(PROTOBUF_ID, b"\0" + of)


_ID = _tagged(1, _BYTES, b"a")
_NOON = _time((SENT - EPOCH) // timedelta(seconds=1), 0)
BROKEN_PROTOBUF: dict[str, Breaking] = {
    "cut off": lambda good, _: good[:-1],
    "a head alone": lambda good, _: good[:5],
    "half of a head": lambda good, _: good[:3],
    "no frame": lambda good, _: good[6:],
    "id unknown": lambda good, _: framed(77, good[5:]),
    "another magic byte": lambda good, _: b"\1" + good[1:],
    "no such message": lambda good, _: framed(PROTOBUF_ID, b"\2\x0a" + good[6:]),
    "another message": lambda good, _: framed(PROTOBUF_ID, b"\2\2" + _NOON),
    "a negative index": lambda good, _: framed(PROTOBUF_ID, b"\2\1" + good[6:]),
    "an index that does not end": lambda *_: framed(PROTOBUF_ID, b"\2\xff"),
    "nothing": lambda *_: _payload(b""),
    "no time": lambda *_: _payload(_ID),
    "a text for a number": lambda good, _: good + _tagged(3, _BYTES, b"5"),
    "a number for a text": lambda good, _: good + _tagged(8, _VARINT, b"\5"),
    "a number for a time": lambda *_: _payload(_ID + _tagged(2, _VARINT, b"\5")),
    "a text that is not UTF-8": lambda good, _: good + _tagged(8, _BYTES, b"\xff"),
    "a list's text that is not UTF-8": lambda good, _: good + _tagged(7, _BYTES, b"\xed\xa0\x80"),
    "before the year 1": lambda *_: _payload(_ID + _time(-62_135_596_801, 0)),
    "after the year 9999": lambda *_: _payload(_ID + _time(253_402_300_800, 0)),
    "the last second there is": lambda *_: _payload(_ID + _time(2**63 - 1, 0)),
    "the first second there is": lambda *_: _payload(_ID + _time(-(2**63), 0)),
    "negative nanoseconds": lambda *_: _payload(_ID + _time(1_767_225_600, -1)),
    "nanoseconds of a second": lambda *_: _payload(_ID + _time(1_767_225_600, 10**9)),
    "milliseconds": lambda _, micros: _payload(_ID + _time(micros // 1000, 0)),
    "a number that does not end": lambda good, _: good + _tagged(3, _VARINT, b"\xff" * 11),
    "a group that does not end": lambda good, _: good + _tagged(99, _GROUP, b""),
    "the field 0": lambda good, _: good + b"\0\5",
    "a length behind the end": lambda good, _: good + _varint(8 << 3 | _BYTES) + b"\x7f",
    "a negative length": lambda good, _: good + _varint(8 << 3 | _BYTES) + _varint(-1),
    "JSON": lambda *_: b'{"id": "a"}',
    "empty": lambda *_: b"",
    "tombstone": lambda *_: None,
}
_ODD = "a field unknown", "a field twice", "fields in another order"  # and good all the same
PROTOBUF_KINDS = (GOOD, *_ODD, *BROKEN_PROTOBUF)


def of_protobuf(random: Random, number: int) -> Message:
    at, micros = _instant(random)
    n = random.choice((None, 0, -(2**63), 2**63 - 1, random.randrange(10**6)))
    small = random.choice((0, -(2**31), 2**31 - 1, random.randrange(10**6)))
    ratio = random.choice((0.0, random.uniform(-1e9, 1e9)))
    row = {"id": f"a-{number}", "at": at, "n": n, "small": small, "ratio": ratio, "flag": bool(small % 2),
           "tags": [f"t{tag}" for tag in range(number % 3)], "note": random.choice(("plain", "ünï", "1.10"))}  # fmt: skip
    fields = _protobuf_fields(row, micros)
    good = _payload(b"".join(fields))
    hostile = turn(number)
    if hostile is None:
        return Message(GOOD, good, row)
    kind = PROTOBUF_KINDS[1 + hostile % (len(PROTOBUF_KINDS) - 1)]
    if kind == "a field unknown":
        return Message(kind, good + _tagged(99, _BYTES, b"x"), row)
    if kind == "a field twice":  # the last one counts
        return Message(kind, good + _tagged(3, _VARINT, b"\7"), row | {"n": 7})
    if kind == "fields in another order":
        return Message(
            kind, _payload(b"".join(reversed(fields))), row | {"tags": row["tags"][::-1]}
        )  # type: ignore[index]
    return Message(kind, BROKEN_PROTOBUF[kind](good, micros), None)


def _protobuf_fields(row: dict[str, Any], micros: int) -> list[bytes]:
    """The fields of a message as they are sent; the last one is a text that is not empty."""
    import struct

    seconds, rest = divmod(micros, 10**6)
    number = [] if row["n"] is None else [_tagged(3, _VARINT, _varint(row["n"]))]
    return [
        _tagged(1, _BYTES, row["id"].encode()),
        _time(seconds, rest * 1000),
        *number,
        _tagged(4, _VARINT, _varint(row["small"])),
        _varint(5 << 3 | 1) + struct.pack("<d", row["ratio"]),
        _tagged(6, _VARINT, _varint(row["flag"])),
        *(_tagged(7, _BYTES, tag.encode()) for tag in row["tags"]),
        _tagged(8, _BYTES, row["note"].encode()),
    ]


CHANGES_SCHEMA = f"{SCHEMA}, raw BINARY"
_KINDS = TYPES | {"raw": "binary"}
_AMBIGUOUS = re.compile(r"([A-Za-z0-9+/=]{4})+")
_ZONED = re.compile(r"T.*(Z|[+-]\d\d:\d\d)$", re.DOTALL)
_KEY = b'{"id": "a"}'
MICROS = {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"}
DECIMAL = {
    "field": "amount",
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2"},
}
DAYS = {"field": "day", "type": "int32", "name": "io.debezium.time.Date"}
BYTES = {"field": "raw", "type": "bytes"}
_WITH_SCHEMA = {"fields": [{"field": "after", "fields": [MICROS, DECIMAL, DAYS, BYTES]}]}
_NUMBERS_OF_TIME = [
    "0", "1767225600000000", "253402300799999999", "253402300800000000", "-62135596800000000",
    "-62135596800000001", "9223372036854775807", "9223372036854775808", "1e15", "1.5", "NaN", "true", '"1767225600000000"',
    '"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00"', '"2026-01-01"', "{}", "null",
]  # fmt: skip
_DAYS_SINCE_1970 = ["0", "-719162", "-719163", "2932896", "2932897", "1.0", "1e3", "99999999999", '"2026-02-29"',
                    '"2026-01-31Z"', '"2026-01-31"', '"20"', "true", "NaN", "null"]  # fmt: skip


def _bytes_of(number: int, size: int) -> str:
    return json.dumps(base64.b64encode(number.to_bytes(size, signed=True)).decode())


_DECIMALS = [
    _bytes_of(0, 1), _bytes_of(-1, 1), _bytes_of(-1, 8), _bytes_of(10**12 - 1, 6), _bytes_of(10**12, 6), _bytes_of(2**126, 16),
    _bytes_of(5, 17), '"!!!!"', '"AA="', '"A"', "1250", "12.50", "1e2", "true", "{}", '{"scale": 2, "value": "BNI="}',
    '{"scale": 2147483647, "value": "AQ=="}', '{"scale": -2147483648, "value": "AQ=="}', '{"scale": "2", "value": "AQ=="}',
    '{"value": "AQ=="}', "null",
]  # fmt: skip
_BINARIES = ['"AP8="', '"AP8"', '"A P8="', '""', '"é"', "1250", "1.5", "true", "{}", '["AP8="]', "NaN", "null"]  # fmt: skip
_OWN_TOKENS = {
    "at": _NUMBERS_OF_TIME,
    "day": _DAYS_SINCE_1970,
    "amount": _DECIMALS,
    "raw": _BINARIES,
}


def read_change(name: str, token: str, has_schema: bool) -> Any:
    """What a value of a change event is as a value of its column."""
    kind, token = _KINDS[name], token.strip(" \t\r\n")
    if token == "null":
        return None
    is_text, is_number = token[0] == '"', token[0] not in '"{[tf'
    text = read_json("string", token)
    if kind == "instant":
        return (
            _read_instant(text, is_number, has_schema) if is_text or is_number else read("int", "")
        )
    if kind == "date":
        return _read_date(text, is_number) if is_text or is_number else read("int", "")
    if kind == "decimal":
        return _read_decimal(token, text, is_number, has_schema)
    if kind == "binary":
        if not is_text or not BASE64.fullmatch(text):
            raise Refused
        return base64.b64decode(text)
    if kind == "boolean" and token in ("0", "1"):
        return token == "1"
    return read_json(kind, token)


def _read_instant(text: str, is_number: bool, has_schema: bool) -> datetime:
    if not is_number:
        if not _ZONED.search(text):
            raise Refused
        return read("instant", text)
    if not has_schema:
        raise Refused
    try:
        return EPOCH + read("bigint", text) * _MICROSECOND
    except OverflowError:
        raise Refused from None


def _read_date(text: str, is_number: bool) -> date:
    if not is_number:
        return read("date", text.removesuffix("Z"))
    try:
        return date.fromordinal(date(1970, 1, 1).toordinal() + read("int", text))
    except (ValueError, OverflowError):
        raise Refused from None


def _read_decimal(token: str, text: str, is_number: bool, has_schema: bool) -> Decimal:
    if is_number:
        return read("decimal", text)
    if token[0] == "{":
        parts = json.loads(token)
        if set(parts) != {"scale", "value"}:
            raise Refused
        return _of_bytes(parts["value"], parts["scale"])
    if token[0] != '"':
        raise Refused
    if has_schema:
        return _of_bytes(text, 2)
    if _AMBIGUOUS.fullmatch(text):  # a text, or the bytes of a number
        raise Refused
    return read("decimal", text)


def _of_bytes(text: str, scale: int) -> Decimal:
    is_scale = isinstance(scale, int) and abs(scale) <= 76
    if not is_scale or not BASE64.fullmatch(text) or not 0 < len(base64.b64decode(text)) <= 16:
        raise Refused
    sent = base64.b64decode(text)
    return read("decimal", str(Decimal(int.from_bytes(sent, signed=True)).scaleb(-scale)))


Event = dict[str, str]
"""The parts of an envelope, each as it stands in the message."""
_SOURCE = '{"lsn": %s, "ts_ms": %s, "snapshot": "false", "txId": 7}'
_LONG = 2**63 - 1


def _source(lsn: object = 5, ts_ms: object = 1767312000000) -> str:
    return _SOURCE % (lsn, ts_ms)


WHOLE_EVENTS: dict[str, Event] = {
    "no op": {"op": "null"},
    "an op of nobody": {"op": '"x"'},
    "an op that is a number": {"op": "5"},
    "a truncate": {"op": '"t"', "after": "null"},
    "no row": {"after": "null"},
    "a row that is a number": {"after": "5"},
    "a row that is a list": {"after": "[1]"},
    "a delete without its row": {"op": '"d"'},
    "no source": {"source": "null"},
    "no position": {"source": _source("null")},
    "a position that is a text": {"source": _source('"one"')},
    "a position that is no whole number": {"source": _source(1.5)},
    "no time": {"source": _source(5, "null")},
    "a time that is a text": {"source": _source(5, '"now"')},
    "the last millisecond there is": {"source": _source(5, _LONG)},
    "the first millisecond there is": {"source": _source(5, -_LONG - 1)},
    "seconds": {"source": _source(5, 1767312000)},
    "a time ahead": {"source": _source(5, 1798848000000)},
}
_KEYS: dict[str, bytes | None] = {
    "no key": None,
    "a key that is a number": b"5",
    "a key that is cut off": b'{"id": ',
    "another key": b'{"name": "a"}',
    "a key with another field": b'{"id": "a", "name": "b"}',
    "a key that is not UTF-8": b'{"id": "\xff"}',
}
_PASSED = {"a tombstone": None, "a message of somebody's": b'{"op": "m", "source": {"lsn": 5}}'}
_OTHERS = (
    "a delete",
    "a key with its schema",
    "a column more",
    "a column less",
    "a value that was not sent",
)
_WHOLE_TEXTS = {
    kind: broken for kind, broken in WHOLE_JSON.items() if kind not in ("null", "tombstone")
}
CHANGE_KINDS = (
    GOOD, "without a schema", *(f"field {name}" for name in _KINDS), *WHOLE_EVENTS, *_KEYS, *_PASSED, *_OTHERS, *_WHOLE_TEXTS
)  # fmt: skip


def of_changes(random: Random, number: int) -> Message:
    has_schema = number % 4 < 2
    hostile = turn(number)
    tokens = _good_change(random, number, has_schema)
    if hostile is None:
        return _change(GOOD if has_schema else "without a schema", tokens, has_schema)
    if hostile % 2:
        name = list(_KINDS)[hostile // 2 % len(_KINDS)]
        own = name in _OWN_TOKENS and (name not in TYPES or random.random() < 0.7)
        tokens[name] = random.choice(_OWN_TOKENS[name]) if own else hostile_token(random, name)
        return _change(f"field {name}", tokens, has_schema)
    return _whole_change(random, hostile // 2, tokens, has_schema)


def _whole_change(random: Random, place: int, tokens: Event, has_schema: bool) -> Message:
    """A message that as a whole is none, or an unusual one."""
    kinds = (*WHOLE_EVENTS, *_KEYS, *_PASSED, *_OTHERS, *_WHOLE_TEXTS)
    kind = kinds[place % len(kinds)]
    row = _row_of(tokens, has_schema)
    after = _object_of(tokens)
    if kind in WHOLE_EVENTS:
        return Message(
            kind,
            _envelope(**{"after": after, "has_schema": has_schema} | WHOLE_EVENTS[kind]),
            None,
            _KEY,
        )
    if kind in _KEYS:
        return Message(kind, _envelope(after, has_schema), None, _KEYS[kind])
    if kind in _PASSED:
        return Message(kind, _PASSED[kind], None, _KEY, passed_over=True)
    if kind in _WHOLE_TEXTS:
        text = _envelope(after, has_schema).decode()
        return Message(kind, _WHOLE_TEXTS[kind](random, text), None, _KEY)
    if kind == "a delete":
        gone = dict.fromkeys(_KINDS) | {"id": json.loads(tokens["id"]), "deleted": True}
        return Message(kind, _envelope("null", has_schema, op='"d"', before=after), gone, _KEY)
    if kind == "a key with its schema":
        key = b'{"schema": {"type": "struct"}, "payload": {"id": "a"}}'
        return Message(kind, _envelope(after, has_schema), row, key)
    if kind == "a column more":
        return Message(kind, _envelope(_object_of(tokens | {"more": "5"}), has_schema), row, _KEY)
    if kind == "a column less":
        del tokens["small"]
        value = _envelope(_object_of(tokens), has_schema)
        return Message(kind, value, None, _KEY, reason="column small: not there")
    tokens["note"] = '"__debezium_unavailable_value"'
    value = _envelope(_object_of(tokens), has_schema)
    return Message(kind, value, None, _KEY, reason="column note: not sent")


def _good_change(random: Random, number: int, has_schema: bool) -> Event:
    texts = good_texts(random, number)
    tokens = {
        n: t if TYPES[n] not in ("string", "instant", "date") else json.dumps(t)
        for n, t in texts.items()
    }
    tokens["raw"] = json.dumps(base64.b64encode(random.randbytes(number % 5)).decode())
    if has_schema:
        micros = (datetime.fromisoformat(texts["at"]) - EPOCH) // _MICROSECOND
        days = (date.fromisoformat(texts["day"]) - date(1970, 1, 1)).days
        tokens |= {"at": str(micros), "day": str(days)}
        tokens["amount"] = _bytes_of(int(Decimal(texts["amount"]) * 100), 6)
    return tokens


def _change(kind: str, tokens: Event, has_schema: bool) -> Message:
    row = None if any(map(breaks, tokens.values())) else _row_of(tokens, has_schema)
    return Message(kind, _envelope(_object_of(tokens), has_schema), row, _KEY)


def _row_of(tokens: Event, has_schema: bool) -> dict[str, Any] | None:
    """What the columns of a row must be; None if one is none."""
    return judged(
        {n: lambda n=n: read_change(n, tokens[n], has_schema) for n in _KINDS}, is_time=False
    )


def _object_of(tokens: Event) -> str:
    return "{" + ", ".join(f'"{name}": {token}' for name, token in tokens.items()) + "}"


def _envelope(after: str, has_schema: bool, **parts: str) -> bytes:
    envelope = {"before": "null", "after": after, "source": _source(), "op": '"c"'} | parts
    text = _object_of(envelope)
    if has_schema:
        text = f'{{"schema": {json.dumps(_WITH_SCHEMA)}, "payload": {text}}}'
    return text.encode()
