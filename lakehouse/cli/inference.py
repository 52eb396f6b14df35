"""Columns, event time and key of a topic, inferred from a file of JSON lines, each choice with its reason."""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from lakehouse.declare.columns import INGESTION, WINDOW, quoted
from lakehouse.errors import SettingsError

_DELAY = timedelta(seconds=10)
_SKEW = timedelta(minutes=5)  # the default of `kafka(…, max_future_skew=…)`
_OLDEST = datetime(2000, 1, 1, tzinfo=UTC)  # the default of `kafka(…, min_event_time=…)`
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_TIMES = {"time", "timestamp", "datetime", "date", "ts", "at"}  # the last word of such a field
_KEYS = {"id", "key", "uuid", "guid"}
_UNITS = {"epoch milliseconds": 10**12, "epoch seconds": 10**9}  # from 2001-09-09 to 2286-11-20
_REFUSED = set(" ,;{}()\n\t=")  # characters that Delta refuses in names of columns
_BIGINT = 1 << 63
_KINDS = {
    bool: "booleans",
    int: "whole numbers",
    Decimal: "decimal numbers",
    float: "NaN",
    dict: "objects",
    list: "lists",
}


@dataclass(slots=True)
class Values:
    """The values of one field: their kinds, and the values of the fields or elements below."""

    count: int = 0  # without nulls
    kinds: dict[str, None] = field(default_factory=dict)  # a set with an order
    fields: "dict[str, Values]" = field(default_factory=dict)
    elements: "Values | None" = None
    digits: tuple[int, int] = (0, 0)  # the most digits before the point, and after it
    bounds: tuple[int, int] | None = None  # the least and the greatest whole number
    declared: str = ""  # the type of an event time, regardless of its kinds

    def add(self, value: object) -> None:
        if value is None:
            return
        self.count += 1
        self.kinds[_kind(value)] = None
        if isinstance(value, dict):
            for name, below in value.items():
                self.fields.setdefault(name, Values()).add(below)
        elif isinstance(value, list):
            self.elements = self.elements or Values()
            for below in value:
                self.elements.add(below)
        elif isinstance(value, int | Decimal) and not isinstance(value, bool):
            self._add_number(value)

    def _add_number(self, value: int | Decimal) -> None:
        _, digits, exponent = Decimal(value).as_tuple()
        after = max(0, -int(exponent))
        before = max(0, len(digits) + int(exponent))
        self.digits = max(self.digits[0], before), max(self.digits[1], after)
        if isinstance(value, int):
            low, high = self.bounds or (value, value)
            self.bounds = min(low, value), max(high, value)

    def type(self) -> str:
        """Returns the type of Spark that holds all of the values."""
        kinds = self.kinds.keys()
        if self.declared or not kinds:
            return self.declared or "STRING"
        if kinds == {"objects"} and self._can_be_struct():
            below = (f"{quoted(name)}: {values.type()}" for name, values in self.fields.items())
            return f"STRUCT<{', '.join(below)}>"
        if kinds == {"lists"} and self.elements:
            return f"ARRAY<{self.elements.type()}>"
        if kinds <= {"whole numbers", "decimal numbers", "NaN"}:
            return self._number_type()
        if kinds <= {"times", "dates"}:
            return "DATE" if kinds == {"dates"} else "TIMESTAMP"
        return "BOOLEAN" if kinds == {"booleans"} else "STRING"

    def _number_type(self) -> str:
        before, after = self.digits
        low, high = self.bounds or (0, 0)
        if self.kinds.keys() == {"whole numbers"} and -_BIGINT <= low <= high < _BIGINT:
            return "BIGINT"
        if "NaN" in self.kinds or before + after > 38:
            return "DOUBLE"
        return f"DECIMAL({18 if before + after <= 18 else 38},{after})"

    def epoch(self) -> str:
        """Returns the unit of epoch times as large as these whole numbers; empty if none fits, or there are other values."""
        low, high = self.bounds or (0, 0)
        units = (unit for unit, least in _UNITS.items() if least <= low and high < 10 * least)
        return next(units, "") if self.kinds.keys() == {"whole numbers"} else ""

    def _can_be_struct(self) -> bool:
        lower = {name.lower() for name in self.fields}
        return bool(lower) and len(lower) == len(self.fields) and not _REFUSED & set("".join(lower))

    def reason(self) -> str:
        """Returns the reason for the type, in a few words."""
        if not self.kinds:
            return "null alone, so any type; STRING takes all"
        kinds = " and ".join(self.kinds)
        if self.declared:
            return f"{kinds}, the event time"
        if self.type() == "STRING" and self.kinds.keys() != {"texts"}:
            why = (
                "which no other type holds" if len(self.kinds) > 1 else "whose names no STRUCT has"
            )
            return f"{kinds}, {why}: STRING keeps what was sent"
        if self.type() == "DOUBLE":
            return f"{kinds} of more than 38 digits, or NaN: rounded to a double"
        if self.type().startswith("DECIMAL"):
            return f"{kinds} of up to {self.digits[0]} digits before the point and {self.digits[1]} after it"
        return f"{kinds}, as large as epoch milliseconds" if "milli" in self.epoch() else kinds

    def remarks(self, path: str) -> Iterator[str]:
        """Yields a remark on each field below whose values are not plainly of one kind."""
        below = dict(self.fields) if self.type().startswith("STRUCT") else {}
        if self.type().startswith("ARRAY") and self.elements:
            below = {"element": self.elements}
        for name, values in below.items():
            if len(values.kinds) != 1 or values.type() == "DOUBLE":
                yield f"{path}.{name}: {values.reason()}"
            yield from values.remarks(f"{path}.{name}")


@dataclass(frozen=True, slots=True)
class EventTime:
    """The field of a line that has its event time, and the way in which it is written."""

    path: tuple[str, ...]
    unit: str  # times, dates, epoch milliseconds or epoch seconds
    values: Values

    def instant_of(self, line: dict) -> datetime | None:
        value: object = line
        for name in self.path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return None
        if isinstance(value, int):
            return datetime.fromtimestamp(value / (1000 if "milli" in self.unit else 1), UTC)
        return _instant(str(value))

    def at(self, line: dict, instant: datetime) -> dict:
        """Returns the line with another event time, written as the others are."""
        seconds = int(instant.timestamp())
        epoch = seconds * 1000 if "milli" in self.unit else seconds
        value: object = epoch if "epoch" in self.unit else f"{instant:%Y-%m-%dT%H:%M:%SZ}"
        *above, last = self.path
        inner = line = dict(line)
        for name in above:
            inner[name] = dict(inner.get(name) or {})
            inner = inner[name]
        inner[last] = value
        return line


@dataclass(frozen=True, slots=True)
class Inferred:
    """The declaration for the lines. `names`: field -> column, which differ if a table cannot have the field's name."""

    lines: list[dict]
    columns: dict[str, Values]
    names: dict[str, str]
    event_time: EventTime
    key: str | None
    key_reason: str
    first: datetime
    last: datetime
    remarks: tuple[str, ...]

    def always(self, name: str) -> bool:
        """Returns True if each line has a value of the field."""
        return self.columns[name].count == len(self.lines)

    def choices(self) -> Iterator[tuple[str, str, str]]:
        """Yields each choice as its subject, its value and its reason."""
        path, unit = ".".join(self.event_time.path), self.event_time.unit
        span = f"{self.first:%Y-%m-%d %H:%M:%S} to {self.last:%Y-%m-%d %H:%M:%S} UTC"
        yield "event time", path, f"{unit}, {span}"
        yield "key", self.key or "none", self.key_reason
        for name, values in self.columns.items():
            rare = "" if self.always(name) else f"; in {values.count} of {len(self.lines)} lines"
            below = "".join(f"; {remark}" for remark in values.remarks(name))
            other = f"; the column is {self.names[name]}" if self.names[name] != name else ""
            yield f"field {name}", values.type(), f"{values.reason()}{rare}{below}{other}"


def inferred(file: str, raw: Sequence[bytes]) -> Inferred:
    """Returns the declaration inferred from the lines of a file; raises SettingsError with the line that is unusable."""
    lines: list[dict] = []
    whole = Values()
    for number, line in enumerate(raw, 1):
        if line.strip():
            lines.append(_object(file, number, line, whole))
    if not lines:
        raise SettingsError(f"file={file}: a line is an event, and it has none; name another file")
    lower = [name.lower() for name in whole.fields]
    if twice := [name for name in whole.fields if not name or lower.count(name.lower()) > 1]:
        raise SettingsError(
            f"file={file}, fields={', '.join(map(repr, twice))}: a column has a name of its own, whatever its case; rename them"
        )
    event_time = _event_time(file, whole, len(lines))
    if event_time.unit != "epoch milliseconds":  # the library reads seconds, and no milliseconds
        event_time.values.declared = "TIMESTAMP"
    instants = [instant for line in lines if (instant := event_time.instant_of(line))]
    key, reason = _key(whole, lines, event_time)
    return Inferred(lines, whole.fields, _columns(whole.fields), event_time, key, reason, min(instants),
                    max(instants), tuple(_remarks(instants, len(lines))))  # fmt: skip


def _object(file: str, number: int, line: bytes, whole: Values) -> dict:
    """Returns the object of a line, and adds its values to those of the earlier lines."""
    try:
        value = json.loads(line.decode(), parse_float=Decimal)
        whole.add(value)
    except RecursionError as err:
        raise SettingsError(
            f"file={file}, line={number}: objects and lists within each other go too deep; shorten the line"
        ) from err
    except ValueError as err:
        raise SettingsError(
            f"file={file}, line={number}: a line is a JSON object, and this is no JSON ({err}); correct the line"
        ) from err
    if not isinstance(value, dict):
        kind = "null" if value is None else f"a {_kind(value).removesuffix('s')}"
        raise SettingsError(
            f"file={file}, line={number}: a line is a JSON object, and this is {kind}; write one object a line"
        )
    return value


def _kind(value: object) -> str:
    if not isinstance(value, str):
        return _KINDS[type(value)]
    if not _instant(value):
        return "texts"
    return "dates" if _DATE.fullmatch(value) else "times"


def _instant(text: str) -> datetime | None:
    """Returns the instant of a text in ISO 8601, in UTC if it names no zone; None for another text."""
    if not (_TIME.fullmatch(text) or _DATE.fullmatch(text)):
        return None
    try:
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # such as the 30th of February
        return None


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)] or [""]


def _event_time(file: str, whole: Values, lines: int) -> EventTime:
    """Returns the likeliest event time: in each line, with a name that says so, a text, not within another object."""
    order = ["times", "epoch milliseconds", "epoch seconds", "dates"]

    def likely(time: EventTime) -> tuple:
        named = _words(time.path[-1])[-1] in _TIMES
        complete = time.values.count == lines
        return not complete, not named, order.index(time.unit), len(time.path)

    fields = whole.fields.items()
    if times := [time for name, values in fields for time in _times(values, (name,))]:
        return min(times, key=likely)
    raise SettingsError(
        f"file={file}: no field is an event time: a text in ISO 8601, or epoch milliseconds or seconds; add such a field"
    )


def _times(values: Values, path: tuple[str, ...]) -> Iterator[EventTime]:
    kinds = values.kinds.keys()
    if kinds and kinds <= {"times", "dates"}:
        yield EventTime(path, "times" if "times" in kinds else "dates", values)
    elif unit := values.epoch():
        yield EventTime(path, unit, values)
    elif values.type().startswith("STRUCT"):
        for name, below in values.fields.items():
            yield from _times(below, (*path, name))


def _key(whole: Values, lines: list[dict], time: EventTime) -> tuple[str | None, str]:
    """Returns the likeliest key, and the reason: a field with such a name, or with values that repeat."""
    choices: list[tuple] = []
    for name, values in whole.fields.items():
        plain = values.kinds.keys() in ({"texts"}, {"whole numbers"}) and (name,) != time.path
        if plain and values.count == len(lines) and name.isidentifier():
            distinct = len({line[name] for line in lines})
            called, repeats = _words(name)[-1] in _KEYS, distinct < len(lines)
            if called or (repeats and distinct > 1 and values.kinds.keys() == {"texts"}):
                choices.append((not (called and repeats), not called, len(choices), name, distinct))
    if not choices:
        return None, "no field of all lines is called id or key, or has texts that repeat"
    *_, name, distinct = min(choices)
    return name, f"in all {len(lines)} lines, different values: {distinct}"


def _columns(names: Collection[str]) -> dict[str, str]:
    """Returns field -> column: plain words, and none that the library reserves."""
    free = {name: name.isidentifier() and not name.startswith("_") and name not in (WINDOW, INGESTION)
            for name in names}  # fmt: skip
    used = {name.lower() for name in names if free[name]} | {WINDOW, INGESTION}
    columns = {}
    for name in names:
        column = name if free[name] else re.sub(r"\W", "_", name).strip("_") or "field"
        while not free[name] and column.lower() in used:
            column += "_"
        columns[name] = column
        used.add(column.lower())
    return columns


def _remarks(instants: list[datetime], lines: int) -> Iterator[str]:
    """Yields what becomes of lines whose event times do not fit the declaration."""
    latest, late = instants[0], 0
    for instant in instants:
        late += instant < latest - _DELAY
        latest = max(latest, instant)
    outside = sum(not _OLDEST <= instant <= datetime.now(UTC) + _SKEW for instant in instants)
    if late:
        yield f"lines more than 10 seconds older than an earlier one: {late}; they may be late, so correct the delay"
    if outside:
        yield f"lines of before 2000, or of the future: {outside}; they are quarantined, so correct their times"
    if len(instants) < lines:
        yield f"lines without event time: {lines - len(instants)}; they are quarantined, so name another field if there is one"
