"""Messages of which half are hostile, and what is right of each, worked out in Python without Spark or Java.

A field's text is drawn from what people send by mistake; the rest of the message is as it should be. Of whole messages some are
cut off, doubled, or not of the format at all. The kinds take turns, so that each occurs among 400 messages. The oracle reads each
text by the rules of docs/reference/values.md. `hostile_events` has the formats that are no texts.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from support.schema_registry import framed

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
JSON_ID = 2
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
BASE64 = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Refused(Exception):
    """The value is none of the type."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a kind; `row`: the values that it must give, None if it must be quarantined.

    :param passed_over: it is neither a row nor quarantined.
    :param reason: what the reason of a quarantined message must name.
    """

    kind: str
    value: bytes | None
    row: dict[str, Any] | None
    key: bytes | None = b"key"
    passed_over: bool = False
    reason: str = ""


GOOD = "good"


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


def judged(values: dict[str, Callable[[], Any]], *, is_time: bool = True) -> dict[str, Any] | None:
    """The row of these values, None if one is none, if one is missing that must not, or if its time is out of bounds.

    `is_time`: whether `at` is the event time.
    """
    try:
        row = {name: value() for name, value in values.items()}
    except Refused:
        return None
    if row["id"] is None or row["at"] is None:
        return None
    return row if not is_time or _FIRST <= row["at"] <= _LAST else None


def good_texts(random: Random, number: int) -> dict[str, str]:
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


def turn(number: int) -> int | None:
    """Which of the hostile messages this is; None of the good ones, which are every other one."""
    return number // 2 if number % 2 else None


def of_json(random: Random, number: int) -> Message:
    tokens = {name: _token(name, text) for name, text in good_texts(random, number).items()}
    hostile = turn(number)
    if hostile is None:
        row = judged({n: lambda n=n: read_json(TYPES[n], tokens[n]) for n in TYPES})
        return Message(GOOD, _object(tokens).encode(), row)
    if hostile % 4 == 0:
        kind = list(WHOLE_JSON)[hostile // 4 % len(WHOLE_JSON)]
        return Message(kind, WHOLE_JSON[kind](random, _object(tokens)), None)
    name = list(TYPES)[hostile % len(TYPES)]
    token = hostile_token(random, name)
    tokens[name] = token
    row = None
    if not breaks(token):
        row = judged({n: lambda n=n: read_json(TYPES[n], tokens[n]) for n in TYPES})
    return Message(f"field {name}", _object(tokens).encode(), row)


def hostile_token(random: Random, name: str) -> str:
    """A value of JSON for a field, as it stands in a message, or what is none."""
    text = random.choice(TEXTS[name])
    token = random.choice((_token(name, text), json.dumps(text), random.choice(TOKENS), text))
    bare = token == text and '"' in text
    if bare or token != token.strip() or not token or token[0] in "ax\\\0😀ä":
        return json.dumps(text)
    return token


def breaks(token: str) -> bool:
    """Whether the message with this token is no JSON."""
    try:
        json.loads(token, parse_float=str, parse_int=str)
    except ValueError:
        return True
    return False


Broken = Callable[[Random, str], bytes | None]
WHOLE_JSON: dict[str, Broken] = {
    "two objects": lambda _, text: f"{text}{text}".encode(),
    "two lines": lambda _, text: f"{text}\n{text}".encode(),
    "garbage behind": lambda _, text: f"{text} garbage".encode(),
    "a brace behind": lambda _, text: f"{text}}}".encode(),
    "a comma behind": lambda _, text: f"{text},".encode(),
    "cut off": lambda random, text: text[: random.randrange(1, len(text))].encode(),
    "a list": lambda _, text: f"[{text}]".encode(),
    "a text": lambda _, text: json.dumps(text).encode(),
    "a number": lambda _, text: b"5",
    "null": lambda _, text: b"null",
    "empty": lambda _, text: b"",
    "blank": lambda _, text: b" ",
    "tombstone": lambda _, text: None,
    "not UTF-8": lambda _, text: text.encode()[:-1] + b"\xff}",
    "UTF-16": lambda _, text: text.encode("utf-16"),
    "byte order mark": lambda _, text: b"\xef\xbb\xbf" + text.encode(),
    "single quotes": lambda _, text: text.replace('"', "'").encode(),
    "comment": lambda _, text: f"/* */{text}".encode(),
    "a field twice": lambda _, text: text.replace('"n":', '"n": 5, "n":').encode(),
    "a comma too many": lambda _, text: text.replace("}", ",}").encode(),
    "zeros behind": lambda _, text: text.encode() + b"\0\0",
    "bare names": lambda _, text: re.sub(r'"(\w+)":', r"\1:", text).encode(),
}
"""Messages that as a whole are none, by their kind."""


def of_line(random: Random, number: int) -> Message:
    """A message that is a line of a file: of those that no line can be, a bare number."""
    message = of_json(random, number)
    is_line = message.value and b"\n" not in message.value
    return message if is_line else Message("a number", b"5", None)


NO_FRAME, UNKNOWN_ID = "no frame", "id unknown"


def of_registry_json(random: Random, number: int) -> Message:
    message = of_json(random, number)
    if not message.value:
        return message
    if number % 40 == 1:
        return Message(NO_FRAME, message.value, None, reason="no schema id")
    if number % 40 == 3:
        return Message(UNKNOWN_ID, framed(77, message.value), None, reason="schema id=77")
    return replace(message, value=framed(JSON_ID, message.value))


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in '",') else text


def of_csv(random: Random, number: int) -> Message:
    texts, kind, hostile = good_texts(random, number), GOOD, turn(number)
    if hostile is not None and hostile % 4 == 0:
        kind = list(WHOLE_LINES)[hostile // 4 % len(WHOLE_LINES)]
        line = ",".join(map(_field, texts.values()))
        return Message(kind, WHOLE_LINES[kind](random, line), None)
    if hostile is not None:
        name = list(TYPES)[hostile % len(TYPES)]
        texts[name] = random.choice(TEXTS[name])
        kind = f"field {name}"
    line = ",".join(map(_field, texts.values()))

    def value(name: str) -> Any:
        return read(TYPES[name], texts[name]) if texts[name] else None

    return Message(kind, line.encode(), judged({n: lambda n=n: value(n) for n in TYPES}))


WHOLE_LINES: dict[str, Broken] = {
    "a field more": lambda _, line: f"{line},5".encode(),
    "a field less": lambda _, line: line.rpartition(",")[0].encode() if '"' not in line else b"a,b",
    "a quote that does not end": lambda _, line: f'"{line.replace(chr(34), "")}'.encode(),
    "semicolons": lambda _, line: line.replace(",", ";").encode(),
    "tabs": lambda _, line: line.replace(",", "\t").encode(),
    "empty": lambda _, line: b"",
    "tombstone": lambda _, line: None,
    "not UTF-8": lambda _, line: line.encode() + b"\xff",
    "a list of JSON": lambda _, line: b"[1, 2]",
}


TEXT_BYTES = 60_000
TEXT_MESSAGES: dict[str, bytes | None] = {
    "blank": b" ",
    "zeros": b"a\0b",
    "lines": b"a\nb\r\n",
    "astral": "😀".encode(),
    "long": b"x" * TEXT_BYTES,
    "too long": b"x" * (TEXT_BYTES + 1),
    "not UTF-8": b"a\xff",
    "half a character": b"\xc3",
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\xaf",
    "empty": b"",
    "tombstone": None,
}
_NO_TEXT = (
    "too long", "not UTF-8", "half a character", "surrogate", "overlong", "empty", "tombstone"
)  # fmt: skip


def of_text(random: Random, number: int) -> Message:
    kind, value, hostile = GOOD, f"line {number}".encode(), turn(number)
    if hostile is not None:
        kind = list(TEXT_MESSAGES)[hostile % len(TEXT_MESSAGES)]
        value = TEXT_MESSAGES[kind]
    return Message(kind, value, None if kind in _NO_TEXT else {"line": value.decode()})


JSON_KINDS = (GOOD, *(f"field {name}" for name in TYPES), *WHOLE_JSON)
LINE_KINDS = tuple(kind for kind in JSON_KINDS if kind not in ("two lines", "empty", "tombstone"))
REGISTRY_KINDS = (*JSON_KINDS, NO_FRAME, UNKNOWN_ID)
CSV_KINDS = (GOOD, *(f"field {name}" for name in TYPES), *WHOLE_LINES)
TEXT_KINDS = (GOOD, *TEXT_MESSAGES)
