"""Messages of which half are hostile, in each format, and what is right of each, worked out in Python without Spark or Java.

A field's text is drawn from what people send by mistake; the rest of the message is as it should be. Of whole messages some are
cut off, doubled, or not of the format at all. The oracle reads each text by the rules of docs/values.md.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from support.schema_registry import avro, framed, record

SCHEMA = (
    "id STRING NOT NULL, at TIMESTAMP NOT NULL, n BIGINT, small INT, amount DECIMAL(12,2), ratio DOUBLE, flag BOOLEAN, "
    "day DATE, note STRING"
)
TYPES = {
    "id": "string",
    "at": "instant",
    "n": "bigint",
    "small": "int",
    "amount": "decimal",
    "ratio": "double",
    "flag": "boolean",
    "day": "date",
    "note": "string",
}
SENT = datetime(2026, 1, 2, tzinfo=UTC)
AVRO = record(
    ("id", "string"), ("at", {"type": "long", "logicalType": "timestamp-micros"}), ("n", ["null", "long"])
)  # fmt: skip
AVRO_ID, JSON_ID = 1, 2
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_LAST = SENT + timedelta(minutes=5)
_LIMITS = {"bigint": 2**63, "int": 2**31}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?: ?(Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?))?)?"
)
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Refused(Exception):
    """The value is none of the type."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a kind; `row`: the values that it must give, None if it must be quarantined."""

    kind: str
    value: bytes | None
    row: dict[str, Any] | None


NUMBERS = """12,50|0,5|1.005|1.5d|1.0|1e2|1E+2|0x10|1_000|1 000|+5|-0|007|.5|5.|--5|1e400|1e-400|12345678901234567.89|1.10
9223372036854775807|9223372036854775808|-9223372036854775809|2147483648|99999999999.99|9999999999.99|0.001|1.500|NaN|Infinity
-Infinity|nan|INF|١٢|５| 5|5 |5\t|1/2|5%|€5|1e|e5|-|+|0b1|1f|5L|(5)|true|null|∞|1,000.00|1.000,00|12'000""".replace(
    "\n", "|"
).split("|")
TIMES = """12:30:00|T12:30|2026|2026-1|2026-01|2026-1-1|2026-01-32|2026-02-29|2024-02-29|2026-13-01|2026-01-01T24:00:00Z
2026-01-01T12:30|2026-01-01 12:30:00|2026-01-01T12:30:00+02:00|2026-01-01T12:30:00+0200|2026-01-01T12:30:00+19:00
2026-01-01T12:30:60Z|2026-01-01T12:30:00.123456Z|2026-01-01T12:30:00.1234567Z|2026-01-01T12:30:00.1234560Z|01.02.2026|1/2/2026
20260101|now|today|epoch|+10000-01-01|9999-12-31|0000-01-01|-0001-01-01|2026-01-01T|2026-01-01Z|2026-01-01 |1767225600000
1767225600|57971-02-25|2026-01-01T12:30:00 Europe/Berlin|２０２６-01-01|1969-12-31T23:59:59Z|2026-01-01T1:2:3Z""".replace(
    "\n", "|"
).split("|")
FLAGS = ["true", "false", "TRUE", "True", "yes", "no", "1", "0", "t", "on", "wahr", "truefalse"]
NOTES = ["", " ", "ä", "\u0000", "a\u2028b", "😀", "null", "NaN", 'a "b"', "a,b", "\\", "x" * 5_000]
TEXTS = {"n": NUMBERS, "small": NUMBERS, "amount": NUMBERS, "ratio": NUMBERS, "flag": FLAGS, "day": TIMES, "at": TIMES,
         "note": NOTES, "id": NOTES}  # fmt: skip
TOKENS = [
    "null",
    "true",
    "{}",
    "[]",
    '{"a": 1.10}',
    "[1.0, 2]",
    '"\\ud800"',
    "NaN",
    "-0.0",
    "1.0",
    "12345678901234567.89",
]


def read(kind: str, text: str) -> Any:
    """What a text that stands alone is as a value of the type."""
    if kind == "string":
        return text
    if kind == "boolean":
        if text.lower() in ("true", "false") and text.isascii():
            return text.lower() == "true"
    elif kind in _LIMITS:
        if _WHOLE.fullmatch(text) and -_LIMITS[kind] <= int(text) < _LIMITS[kind]:
            return int(text)
    elif kind == "decimal" and _NUMBER.fullmatch(text):
        return _decimal(text)
    elif kind == "double":
        return _double(text)
    elif kind == "date" and _DAY.fullmatch(text):
        return _date(text)
    elif kind == "instant":
        return _instant(text)
    raise Refused


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value and not -2 <= value.adjusted() < 10:
        raise Refused
    if value != round(value, 2):
        raise Refused
    return round(value, 2)


def _double(text: str) -> float:
    if text in _NAMED or text in ("Inf", "-Inf"):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise Refused
    value = float(text)
    if math.isinf(value) or (not value and Decimal(text)):
        raise Refused
    return value


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refused from None


def _instant(text: str) -> datetime:
    found = _INSTANT.fullmatch(text)
    if not found:
        raise Refused
    day, hour, minute, second, fraction, zone = found.groups()
    if (fraction or "")[6:].strip("0"):
        raise Refused
    try:
        at = datetime.fromisoformat(day).replace(
            hour=int(hour or 0),
            minute=int(minute or 0),
            second=int(second or 0),
            microsecond=int((fraction or "")[:6].ljust(6, "0")),
            tzinfo=UTC,
        )
        ahead = _ahead(zone or "Z")
        return at - ahead
    except (ValueError, OverflowError):
        raise Refused from None


def _ahead(zone: str) -> timedelta:
    if zone in ("Z", "UTC", "GMT"):
        return timedelta(0)
    digits = zone[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    if int(digits[2:] or 0) > 59 or ahead > timedelta(hours=18):
        raise Refused
    return -ahead if zone[0] == "-" else ahead


def read_json(kind: str, token: str) -> Any:
    """What a value of JSON, as it stands in the message, is as a value of the type."""
    token = token.strip(" \t\r\n")
    if token == "null":
        return None
    if token.startswith('"'):
        try:
            text = json.loads(token)
        except ValueError:
            raise Refused from None
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused
        named = kind == "double" and text in (*_NAMED, "Inf", "-Inf")
        if kind in ("string", "decimal", "date", "instant") or named:
            return read(kind, text)
        raise Refused
    if token in ("true", "false"):
        return token if kind == "string" else read(kind, token) if kind == "boolean" else _refuse()
    if token[0] in "{[":
        return token if kind == "string" else _refuse()
    return _read_json_number(kind, token)


def _read_json_number(kind: str, token: str) -> Any:
    if token in _NAMED:  # which many programs write
        return token if kind == "string" else _NAMED[token] if kind == "double" else _refuse()
    if not _JSON_NUMBER.fullmatch(token):
        raise Refused
    if kind == "string":
        return token
    if kind == "instant" and _WHOLE.fullmatch(token):
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(token))
        except OverflowError:
            raise Refused from None
    return read(kind, token) if kind in (*_LIMITS, "decimal", "double") else _refuse()


def _refuse() -> Any:
    raise Refused


def judged(values: dict[str, Callable[[], Any]]) -> dict[str, Any] | None:
    """The row of these values, None if one is none, if one is missing that must not, or if its time is out of bounds."""
    try:
        row = {name: value() for name, value in values.items()}
    except Refused:
        return None
    if row["id"] is None or row["at"] is None or not _FIRST <= row["at"] <= _LAST:
        return None
    return row


def _good(random: Random, number: int) -> dict[str, str]:
    """The texts of a message's fields."""
    at = SENT - timedelta(microseconds=random.randrange(86_400_000_000))
    return {
        "id": f"a-{number}",
        "at": at.isoformat().replace("+00:00", "Z"),
        "n": str(random.randrange(-(2**63), 2**63)),
        "small": str(random.randrange(-(2**31), 2**31)),
        "amount": f"{random.randrange(-(10**12) + 1, 10**12) / 100:.2f}",
        "ratio": repr(random.uniform(-1e9, 1e9)),
        "flag": random.choice(("true", "false")),
        "day": f"20{random.randrange(100):02}-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}",
        "note": random.choice(("", "plain", "with, comma", 'with "quotes"', "ünï", "1.10")),
    }


_BARE = ("n", "small", "amount", "ratio", "flag")


def _token(name: str, text: str) -> str:
    return text if name in _BARE else json.dumps(text)


def _object(tokens: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {token}' for name, token in tokens.items()) + "}"


def of_json(random: Random, number: int) -> Message:
    tokens = {name: _token(name, text) for name, text in _good(random, number).items()}
    if random.random() < 0.5:
        row = judged({n: lambda n=n: read_json(TYPES[n], tokens[n]) for n in TYPES})
        return Message("good", _object(tokens).encode(), row)
    if random.random() < 0.25:
        return _whole(random, _object(tokens))
    name = random.choice(list(TYPES))
    text = random.choice(TEXTS[name])
    token = random.choice((_token(name, text), json.dumps(text), random.choice(TOKENS), text))
    if (
        ('"' in text and token == text)
        or token != token.strip()
        or not token
        or token[0] in "ax\\\0😀ä"
    ):
        token = json.dumps(text)
    tokens[name] = token
    row = judged({n: lambda n=n: read_json(TYPES[n], tokens[n]) for n in TYPES})
    if _breaks(token):
        row = None
    return Message(f"{name}: {token[:40]}", _object(tokens).encode(), row)


def _breaks(token: str) -> bool:
    """Whether the message with this token is no JSON."""
    try:
        json.loads(token, parse_float=str, parse_int=str)
    except ValueError:
        return True
    return False


def _whole(random: Random, text: str) -> Message:
    """A message that as a whole is none."""
    kinds: dict[str, bytes | None] = {
        "two objects": f"{text}{text}".encode(),
        "two lines": f"{text}\n{text}".encode(),
        "garbage behind": f"{text} garbage".encode(),
        "a brace behind": f"{text}}}".encode(),
        "a comma behind": f"{text},".encode(),
        "cut off": text[: random.randrange(1, len(text))].encode(),
        "a list": f"[{text}]".encode(),
        "a text": json.dumps(text).encode(),
        "a number": b"5",
        "null": b"null",
        "empty": b"",
        "blank": b" ",
        "tombstone": None,
        "not UTF-8": text.encode()[:-1] + b"\xff}",
        "UTF-16": text.encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + text.encode(),
        "single quotes": text.replace('"', "'").encode(),
        "comment": f"/* */{text}".encode(),
        "twice": text.replace('"n":', '"n": 5, "n":').encode(),
        "a comma too many": text.replace("}", ",}").encode(),
        "zeros behind": text.encode() + b"\0\0",
        "bare names": re.sub(r'"(\w+)":', r"\1:", text).encode(),
    }
    kind = random.choice(list(kinds))
    return Message(f"whole: {kind}", kinds[kind], None)


def of_registry_json(random: Random, number: int) -> Message:
    message = of_json(random, number)
    if message.kind == "whole: tombstone":
        return message
    head = random.random()
    if head < 0.03:
        return Message("frame: none", message.value, None)
    if head < 0.06:
        return Message("frame: id unknown", framed(77, message.value or b""), None)
    return Message(message.kind, framed(JSON_ID, message.value or b""), message.row)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in '",') else text


def of_csv(random: Random, number: int) -> Message:
    texts, kind = _good(random, number), "good"
    if random.random() < 0.5:
        if random.random() < 0.2:
            return _whole_line(random, ",".join(map(_field, texts.values())))
        name = random.choice(list(TYPES))
        texts[name] = random.choice(TEXTS[name])
        kind = f"{name}: {texts[name][:40]}"
    line = ",".join(map(_field, texts.values()))

    def value(name: str) -> Any:
        return read(TYPES[name], texts[name]) if texts[name] else None

    return Message(kind, line.encode(), judged({n: lambda n=n: value(n) for n in TYPES}))


def _whole_line(random: Random, line: str) -> Message:
    kinds: dict[str, bytes | None] = {
        "a field more": f"{line},5".encode(),
        "a field less": line.rpartition(",")[0].encode() if '"' not in line else b"a,b",
        "a quote that does not end": f'"{line.replace(chr(34), "")}'.encode(),
        "semicolons": line.replace(",", ";").encode(),
        "tabs": line.replace(",", "\t").encode(),
        "empty": b"",
        "tombstone": None,
        "not UTF-8": line.encode() + b"\xff",
        "a list of JSON": b"[1, 2]",
    }
    kind = random.choice(list(kinds))
    return Message(f"whole: {kind}", kinds[kind], None)


def of_text(random: Random, number: int) -> Message:
    kinds: dict[str, bytes | None] = {
        "good": f"line {number}".encode(),
        "blank": b" ",
        "zeros": b"a\0b",
        "lines": b"a\nb\r\n",
        "astral": "😀".encode(),
        "long": b"x" * 50_000,
        "not UTF-8": b"a\xff",
        "half a character": b"\xc3",
        "surrogate": b"\xed\xa0\x80",
        "overlong": b"\xc0\xaf",
        "empty": b"",
        "tombstone": None,
    }
    kind = "good" if random.random() < 0.5 else random.choice(list(kinds))
    value = kinds[kind]
    bad = kind in ("not UTF-8", "half a character", "surrogate", "overlong", "empty", "tombstone")
    return Message(kind, value, None if bad else {"line": value.decode()})  # type: ignore[union-attr]


def of_avro(random: Random, number: int) -> Message:
    at = SENT - timedelta(microseconds=random.randrange(86_400_000_000))
    micros = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    n = random.choice((None, 0, -(2**63), 2**63 - 1, random.randrange(10**6)))
    good = avro(AVRO_ID, AVRO, f"a-{number}", micros, n)
    if random.random() < 0.5:
        return Message("good", good, {"id": f"a-{number}", "at": at, "n": n})
    kinds: dict[str, bytes | None] = {
        "cut off": good[: random.randrange(6, len(good))],
        "a head alone": good[:5],
        "half of a head": good[:3],
        "no frame": good[5:],
        "id unknown": framed(77, good[5:]),
        "another magic byte": b"\1" + good[1:],
        "milliseconds of microseconds": avro(AVRO_ID, AVRO, "a", micros // 1000, n),
        "nanoseconds": avro(AVRO_ID, AVRO, "a", micros * 1000, n),
        "the last instant there is": avro(AVRO_ID, AVRO, "a", 2**63 - 1, n),
        "the first instant there is": avro(AVRO_ID, AVRO, "a", -(2**63), n),
        "a text of negative length": framed(AVRO_ID, b"\1" + good[6:]),
        "a third branch": framed(AVRO_ID, avro(AVRO_ID, AVRO, "a", micros, None)[5:-1] + b"\4"),
        "JSON": b'{"id": "a"}',
        "empty": b"",
        "tombstone": None,
    }
    kind = random.choice(list(kinds))
    return Message(kind, kinds[kind], None)


FORMATS: dict[str, Callable[[Random, int], Message]] = {
    "json": of_json,
    "json_schema": of_registry_json,
    "csv": of_csv,
    "text": of_text,
    "avro": of_avro,
}


def messages(format: str, seed: int, many: int) -> Iterator[Message]:
    random = Random(f"{seed} {format}")
    return (FORMATS[format](random, number) for number in range(many))
