"""Changes as rows: events of Debezium (envelope, types of databases, the order of a log), and versions of a Delta table.

The declared type of a column decides how its value is read. The unit of an instant and the scale of a
decimal are in the part `schema` of a message, if that is sent. A value that could only be guessed
quarantines its record.
"""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakehouse.declare.columns import helper
from lakehouse.declare.inputs.changes import ADDED, WHOLE
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.errors import DeclarationError
from lakehouse.storage.foreign.foreign_log import READ, TYPE, VERSION
from lakehouse.transform.decoding import values

_ORIGIN = (
    "lsn BIGINT, sequence STRING, file STRING, pos BIGINT, row BIGINT, snapshot STRING, ts_ms BIGINT, "
    "ts_us BIGINT, txId BIGINT"
)
_VALUES = f"MAP<STRING, {values.TOKEN.simpleString()}>"
_PAYLOAD = (
    f"before {_VALUES}, after {_VALUES}, op STRING, "
    f"source STRUCT<{_ORIGIN}>, transaction STRUCT<id STRING>"
)
_FIELD = "field STRING, type STRING, name STRING, parameters MAP<STRING, STRING>"
_SCHEMA = f"fields ARRAY<STRUCT<field STRING, fields ARRAY<STRUCT<{_FIELD}>>>>"
WIRE = f"{_PAYLOAD}, payload STRUCT<{_PAYLOAD}>, schema STRUCT<{_SCHEMA}>"
"""An envelope in JSON, inside of one with its schema or without."""
FEED_WIRE = f"{TYPE} STRING, {VERSION} BIGINT"
"""The columns of each record of a Delta table's changes, besides the table's own."""
_FEED_OPERATIONS = {
    READ: "r",
    "insert": "c",
    "update_preimage": "b",
    "update_postimage": "u",
    "delete": "d",
}
_OPERATIONS = ("r", "c", "u", "d", "t", "m")
_INITIAL = ("true", "first", "first_in_data_collection", "last_in_data_collection", "last")
_CHANGED = "1"  # the position of all that Debezium sends afterwards begins with it
_NOT_SENT = r'^([\[{]?"?__debezium_unavailable_value|X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==$)'
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_PLAIN = (*_WHOLE, T.BooleanType, T.FloatType, T.DoubleType, T.StringType)
# a text or number alone is none of these
_OF_KIND = (T.DecimalType, T.DateType, T.TimestampType, T.BinaryType)
_READ = (*_PLAIN, *_OF_KIND)
_MICROSECONDS = {  # of a unit of time, by the name of its type
    "io.debezium.time.MicroTimestamp": 1,
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
}
_DAYS = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_DATES = (-719_162, 2_932_896)  # days of the years 1 to 9999
_INSTANTS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_ZONED = r"T.*(Z|[+-]\d\d:\d\d)$"
_DATE = r"^\d{4}-\d\d-\d\dZ?$"
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\z"
_NAMED = ("NaN", "Infinity", "-Infinity", "Inf", "-Inf")  # numbers that JSON has as text
_SCALES = 76  # of a decimal of 38 digits at most; more zeros than that fill the memory
_TWO_TO_64 = "18446744073709551616"
_SHOWN = 40  # characters of a value that cannot be read
_TRUNCATED = (
    "truncate: all rows were deleted from the database's table, and which these were is not sent; the rows of keyed and "
    "versioned tables stay. Have the table read again into a new topic; delete with DELETE, which is sent row by row"
)
_UNIT = (
    "a number without its unit; have the connector send schemas, or time.precision.mode=isostring"
)
_SCALE = (
    "a decimal without its scale; have the connector send schemas, or decimal.handling.mode=double"
)
_LARGE = "not sent, for it is large and did not change; have it sent with ALTER TABLE ... REPLICA IDENTITY FULL"
Rules = list[tuple[Column, Column | str]]


def passed_over(value: Column) -> Column:
    """Returns a condition that a message, parsed into the columns of `WIRE`, is no change but a tombstone or a user's message."""
    return value.isNull() | F.coalesce(_part("op") == "m", F.lit(False))


def stages(schema: T.StructType, keys: tuple[str, ...]) -> list[list[Column]]:
    """Returns successive selections from messages parsed into the columns of `WIRE`, for `columns` and `rules`.

    The generators keep the optimiser from copying computed values into every place that needs them.
    """
    op, log, transaction = _part("op"), _part("source"), _part("transaction")
    row = F.when(op == "d", _part("before")).otherwise(_part("after"))
    of_values = F.filter(F.col("schema")["fields"], lambda each: each["field"] == "after")
    types = F.get(of_values, F.lit(0))["fields"]
    facts = {
        "op": op,
        "sent": _of_micros(F.coalesce(log["ts_us"], F.try_multiply(log["ts_ms"], F.lit(1_000)))),
        "position": position(log),
        "transaction": F.coalesce(log["txId"].cast("string"), transaction["id"]),
        "fields": F.map_keys(row),
    }
    for number, field in enumerate(schema):
        kind, text = (row[field.name][part] for part in values.TOKEN.names)
        facts[f"text_{number}"] = text
        facts[f"token_{number}"] = F.coalesce(kind, F.lit(""))
        if isinstance(field.dataType, _OF_KIND):
            facts[f"kind_{number}"] = F.get(F.filter(types, _named(field.name)), F.lit(0))
    read = {}
    for number, field in enumerate(schema):
        parts = (_fact(f"{name}_{number}") for name in ("text", "kind", "token"))
        # for a deleted row a database sends the key alone, and Debezium writes 0 for the rest
        counts = F.lit(True) if field.name in keys else _fact("op") != "d"
        read[f"value_{number}"] = F.when(counts, _read(field.dataType, *parts))
    return [[F.col("*"), _generated(facts)], [F.col("*"), _generated(read)]]


def columns(schema: T.StructType) -> dict[str, Column]:
    """Returns the columns of a row."""
    declared = {field.name: _fact(f"value_{number}") for number, field in enumerate(schema)}
    own = (_fact("op"), _fact("op") == "d", *map(_fact, ADDED[2:]))
    return declared | dict(zip(ADDED, own, strict=True))


def feed_columns(at: Column) -> dict[str, Column]:
    """Returns the columns besides the declared ones of a change that a version of a Delta table made, committed `at`."""
    pairs = (F.lit(text) for pair in _FEED_OPERATIONS.items() for text in pair)
    op, version = F.create_map(*pairs)[F.col(TYPE)], F.col(VERSION).cast("string")
    gone = op.isin("b", "d")
    # as for changes of a database: the first reading comes before all else; in a version, removed rows come before added ones
    position = F.concat(
        F.when(op == "r", "0/").otherwise("1/"),
        F.lpad(version, 20, "0"),
        F.when(gone, "/0").otherwise("/1"),
    )
    return dict(zip(ADDED, (op, gone, at, position, version), strict=True))


def reading() -> Column:
    """Returns the position that all rows of one of Debezium's snapshots share, which identifies the reading.

    Null for a change, and for rows that Debezium reads incrementally, which are in the order of the log.
    """
    return F.when(F.startswith(_fact("position"), F.lit(WHOLE)), _fact("position"))


def rules(source: RecordSource, schema: T.StructType, key: Column) -> Rules:
    """Returns the conditions under which a message is no change of a row, with their reasons; `key` is the message's."""
    checks = _rules_of_message(source, key)
    fields = _fact("fields")
    for number, field in enumerate(schema):
        name, text, value = field.name, _fact(f"text_{number}"), _fact(f"value_{number}")
        counts = F.lit(True) if name in source.keys else _fact("op") != "d"
        wanted = F.lit(f" cannot be read as {field.dataType.simpleString()}")
        why = F.coalesce(
            F.when(text.rlike(_NOT_SENT), _LARGE),
            _unclear(source, field.name, field.dataType, number),
            F.concat(F.substring(text, 1, _SHOWN), wanted),
        )
        unread = text.rlike(_NOT_SENT) | (text.isNotNull() & value.isNull())
        checks.append((counts & ~F.array_contains(fields, name), f"column {name}: not there"))
        checks.append((counts & unread, F.concat(F.lit(f"column {name}: "), why)))
        if not field.nullable or name in source.keys:
            checks.append((counts & value.isNull(), f"missing field: {name}"))
    if source.unknown_fields == "quarantine":
        others = F.array_sort(F.array_except(fields, F.lit(schema.fieldNames())))
        named = F.concat(F.lit("fields not declared: "), F.array_join(others, ", "))
        checks.append((F.size(others) > 0, named))
    return checks


def position(log: Column) -> Column:
    """Returns the place of a change in its database's log (`source`), as text in the order of the log; null if unknown.

    PostgreSQL logs transactions side by side, and sends each at its end. The end of the one sent before
    (`sequence`) may then be further than the change itself. A row of Debezium's initial read comes before all
    that was sent after it, also before a change that was logged before that read and committed later.
    """
    ended = F.get_json_object(log["sequence"], "$[0]").try_cast("bigint")
    numbers = F.regexp_extract(log["file"], r"\.(\d+)$", 1)
    by_lsn = _ordered(F.greatest(ended, log["lsn"]), log["lsn"])
    by_file = _ordered(numbers, log["pos"], log["row"])
    places = F.when(log["lsn"].isNotNull(), by_lsn).when(numbers != "", by_file)
    is_initial = log["snapshot"].isin(*_INITIAL)
    return F.concat(F.when(is_initial, WHOLE).otherwise(_CHANGED), places)


def _ordered(*numbers: Column) -> Column:
    return F.concat(
        *(F.concat(F.lit("/"), F.lpad(number.cast("string"), 20, "0")) for number in numbers)
    )


def _part(name: str) -> Column:
    return F.coalesce(F.col("payload")[name], F.col(name))


def _fact(name: str) -> Column:
    return F.col(helper(name))


def _generated(facts: dict[str, Column]) -> Column:
    made = (column.alias(helper(name)) for name, column in facts.items())
    return F.inline(F.array(F.struct(*made)))


def _named(name: str) -> Callable[[Column], Column]:
    return lambda entry: entry["field"] == name


def _rules_of_message(source: RecordSource, key: Column) -> Rules:
    op = _fact("op")
    text = F.try_validate_utf8(key.cast("string"))
    fields = F.json_object_keys(text)
    wrapped = F.array_contains(fields, "payload") & F.array_contains(fields, "schema")
    within = F.json_object_keys(F.get_json_object(text, "$.payload"))
    fields = F.when(wrapped, within).otherwise(fields)
    named = F.array_join(F.array_sort(fields), ", ")
    declared = ", ".join(sorted(source.keys))
    return [
        (op.isNull(), "no change event of Debezium: it has no op"),
        (~op.isin(*_OPERATIONS), F.concat(F.lit("no operation of Debezium: op="), op)),
        (op == "t", _TRUNCATED),
        (
            _fact("position").isNull(),
            "no position: the source has neither lsn (PostgreSQL) nor file and pos (MySQL, MariaDB)",
        ),
        (
            _fact("sent").isNull(),
            "no time: the source has neither ts_us nor ts_ms of the years 1 to 9999",
        ),
        (key.isNull(), "no key: the database's table has no primary key, or message.key.columns"),
        (fields.isNull(), "the key is no JSON object: key.converter is another than JsonConverter"),
        (
            named != declared,
            F.concat(F.lit("the message's key is "), named, F.lit(f", and declared as {declared}")),
        ),
        (_fact("fields").isNull(), F.concat(F.lit("no row: op="), op)),
    ]


def _unclear(source: RecordSource, name: str, declared: T.DataType, number: int) -> Column:
    """Returns why a value's type is not enough to read it; null if it is. Raises DeclarationError for a type that is not read."""
    text, kind, token = (_fact(f"{part}_{number}") for part in ("text", "kind", "token"))
    is_number = token == "number"
    if isinstance(declared, T.ArrayType):
        read = isinstance(declared.elementType, _PLAIN)
    else:
        read = isinstance(declared, _READ)
    if not read:
        raise DeclarationError(
            f"topic={source.address}, column={name}, type={declared.simpleString()}: values of that type are not read from "
            "change events; declare it as STRING, which gives the value in JSON, or leave it out"
        )
    if isinstance(declared, T.TimestampType):
        return F.when(is_number & kind.isNull(), _UNIT)
    if isinstance(declared, T.DecimalType):
        return F.when(_either(text, kind, is_number), _SCALE)
    return F.lit(None).cast("string")


def _read(declared: T.DataType, text: Column, kind: Column, token: Column) -> Column:
    """Returns a value as the declared type; null if it is none.

    `kind` is its entry in the message's schema, null without one; `token` its kind of JSON.
    """
    is_number, is_text = token == "number", token == "text"
    if isinstance(declared, T.DecimalType):
        return _decimal(declared, text, kind, token)
    if isinstance(declared, _WHOLE):
        return F.when(is_number, values.exact(declared, text))
    if isinstance(declared, T.DateType):
        return _date(text, kind, is_number)
    if isinstance(declared, T.TimestampType):
        return _instant(text, kind, is_number)
    if isinstance(declared, T.BinaryType):
        is_bytes = kind.isNull() | (kind["type"] == "bytes")
        return F.when(is_bytes & is_text, _bytes(text))
    if isinstance(declared, T.ArrayType):
        return values.exact(declared, text, "json")
    if isinstance(declared, T.BooleanType):  # MySQL has numbers for it
        of_number = F.when(text.isin("0", "1"), text == "1")
        return F.when(is_number, of_number).when(~is_text, values.exact(declared, text))
    if isinstance(declared, T.FloatType | T.DoubleType):
        return F.when(is_number | text.isin(*_NAMED), values.exact(declared, text))
    return text


def _let(value: Column, then: Callable[[Column], Column]) -> Column:
    """Returns what `then` makes of a value, which is computed once."""
    return F.get(F.transform(F.array(value), then), F.lit(0))


def _date(text: Column, kind: Column, is_number: Column) -> Column:
    days = values.exact(T.IntegerType(), text)
    counted = F.when(days.between(*_DATES), F.date_add(F.lit("1970-01-01").cast("date"), days))
    written = F.when(text.rlike(_DATE), values.exact(T.DateType(), F.left(text, F.lit(10))))
    of_days = kind.isNull() | kind["name"].isin(*_DAYS)
    return F.when(~is_number, written).when(of_days, counted)


def _instant(text: Column, kind: Column, is_number: Column) -> Column:
    """Returns the instant of a text with its zone, or of a number with its unit."""
    factor = F.lit(None).cast("bigint")
    for unit, microseconds in _MICROSECONDS.items():
        factor = F.when(kind["name"] == unit, F.lit(microseconds)).otherwise(factor)
    counted = F.try_multiply(values.exact(T.LongType(), text), factor)
    written = F.when(text.rlike(_ZONED), values.exact(T.TimestampType(), text))
    return F.when(is_number, _of_micros(counted)).otherwise(written)


def _of_micros(counted: Column) -> Column:
    """Returns the instant a number of microseconds after 1970; null outside the years 1 to 9999."""
    return F.when(counted.between(*_INSTANTS), F.timestamp_micros(counted))


def _either(text: Column, kind: Column, is_number: Column) -> Column:
    """Returns the condition that a text may be a decimal or the bytes of one: bytes have no point and no sign."""
    return kind.isNull() & ~is_number & text.rlike(r"^([A-Za-z0-9+/=]{4})+$")


def _decimal(declared: T.DecimalType, text: Column, kind: Column, token: Column) -> Column:
    """Returns the decimal of a text, of a number, or of the bytes of a whole number with a scale."""
    of_schema = kind["parameters"]["scale"].try_cast("int")
    is_bytes = (kind["name"] == _DECIMAL) & (token == "text")
    bytes_of_schema = F.when(is_bytes, F.struct(of_schema.alias("scale"), text.alias("value")))
    beside = F.from_json(F.when(F.startswith(text, F.lit("{")), text), "scale INT, value STRING")

    def written(value: Column) -> Column:
        of_bytes = _let(_whole(value["value"]), lambda whole: _with_point(whole, value["scale"]))
        return F.when(value.isNotNull(), of_bytes).otherwise(text)

    decimal = values.exact(declared, _let(F.coalesce(bytes_of_schema, beside), written))
    return F.when(~_either(text, kind, token == "number"), decimal)


def _whole(base64: Column) -> Column:
    """Returns the whole number of up to 16 bytes (two's complement, the highest first), as text."""

    def number(long: Column) -> Column:
        high = F.conv(F.substring(long, 1, 16), 16, -10).cast("decimal(20,0)")
        low = F.conv(F.substring(long, 17, 16), 16, 10).cast("decimal(20,0)")
        shifted = F.try_multiply(high, F.lit(_TWO_TO_64).cast("decimal(20,0)"))
        return F.try_add(shifted, low).cast("string")

    def extended(digits: Column) -> Column:
        sign = F.when(F.substring(digits, 1, 1) >= "8", "F").otherwise("0")
        return F.when(F.length(digits) <= 32, F.lpad(digits, F.lit(32), sign))

    return _let(_let(F.hex(_bytes(base64)), extended), number)


def _bytes(text: Column) -> Column:
    """Returns the bytes of base64 that is whole and without blanks; null for anything else."""
    return F.when(text.rlike(_BASE64), F.try_to_binary(text, F.lit("base64")))


def _with_point(whole: Column, scale: Column) -> Column:
    """Returns the text of a whole number divided by a power of ten."""
    behind = F.greatest(scale, F.lit(0))

    def pointed(digits: Column) -> Column:
        before = F.left(digits, F.length(digits) - behind)
        return F.concat(before, F.lit("."), F.right(digits, behind))

    sign = F.when(F.startswith(whole, F.lit("-")), "-").otherwise("")
    zeros = F.repeat(F.lit("0"), F.greatest(-scale, F.lit(0)))
    digits = F.concat(F.ltrim(whole, F.lit("-")), zeros)
    long = F.lpad(digits, F.greatest(F.length(whole), behind + 1), F.lit("0"))
    text = F.concat(sign, _let(F.when(scale < 0, digits).otherwise(long), pointed))
    return F.when(scale.between(-_SCALES, _SCALES), text)
