"""Expressions that read a clock: functions such as now(), and texts read as instants, where a time alone means today."""

import re
from collections.abc import Iterator

from pyspark.sql import DataFrame

from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.transform.analysis.plan_tree import analyzed, expressions_of, kind_of, nodes, seq

UNVERIFIABLE = "or declare deterministic=False, and its ranges stay UNVERIFIABLE"
_CLOCK = {
    "CurrentTimestamp",
    "Now",
    "CurrentDate",
    "CurrentTime",
    "LocalTimestamp",
    "UnixTimestampNow",
    "CurrentBatchTimestamp",
}
_NOWS = {"now", "today", "tomorrow", "yesterday"}
_TIME_ALONE = re.compile(r"\s*T?\d{1,2}:")
_DATE_FIRST = re.compile(r"\s*[+-]?\d{4,}-")
_CLOCK_IN_SQL = re.compile(
    rf"\b(?:date|timestamp\w*)\s*'(?:\s*(?:{'|'.join(sorted(_NOWS))})\b|{_TIME_ALONE.pattern}).*?'",
    re.IGNORECASE,
)
_TWO_CLOCKS = (
    "two runs have two clocks; use the event time, or _arrival.time for the time of arrival"
)
_OF_TODAY = "a text that is a time alone, such as '12:30:00', is read as an instant of today"
_BY_FORMAT = f"{_OF_TODAY}; write try_to_timestamp(value, format)"
_BY_OPTION = f"{_OF_TODAY}; give it the option timestampFormat"
_PARSERS = {"JsonToStructs", "CsvToStructs", "XmlToStructs"}


def check(where: str, rows: DataFrame) -> None:
    """Raises DeclarationError if the plan of `rows` reads texts as instants of the present day."""
    for node in nodes(analyzed(rows)):
        for expression, kind, _ in expressions_of(node):
            if rule := _of_texts(expression, kind):
                raise DeclarationError(f"{where}, expression={expression.sql()}: {rule}")


def in_sql(table: Table) -> Iterator[tuple[str, str]]:
    """Yields literals in the table's SQL that read a clock, each with its rule. The plan shows only their values."""
    for literal in _CLOCK_IN_SQL.finditer(table.sql):
        yield f"expression={literal[0]}", _TWO_CLOCKS


def rule_of(expression, kind: str) -> str:
    """Returns why two runs compute the expression differently, with the remedy; empty if no clock decides it."""
    if kind in _CLOCK or _is_now(expression, kind):
        return _TWO_CLOCKS
    return _of_texts(expression, kind)


def _is_now(expression, kind: str) -> bool:
    """Returns True for a cast of a text that means the present: CAST('now' AS TIMESTAMP)."""
    if kind not in ("Cast", "ParseToDate", "ParseToTimestamp"):
        return False
    if not expression.dataType().typeName().startswith(("date", "timestamp")):
        return False
    text = _literal(expression.children().apply(0))
    return text.strip().lower().partition(" ")[0] in _NOWS


def _of_texts(expression, kind: str) -> str:
    """Returns the rule for an expression that reads texts as TIMESTAMP without a format; empty for another one."""
    if kind in _PARSERS:
        instants = _has_instants(expression.dataType())
        return _BY_OPTION if instants and not _has_format(expression) else ""
    if kind == "VariantGet":
        return _BY_FORMAT if _has_instants(expression.dataType()) else ""
    if kind not in ("Cast", "ParseToTimestamp"):
        return ""
    value = expression.children().apply(0)
    has_format = kind == "ParseToTimestamp" and expression.children().size() > 1
    if has_format or not _reads_texts(value.dataType(), expression.dataType()):
        return ""
    return "" if _has_date(value) else _BY_FORMAT


def _reads_texts(source, target) -> bool:
    """Returns True if a cast from one type to another turns a text into a TIMESTAMP, at any depth."""
    name, source_name = target.typeName(), source.typeName()
    if source_name == "variant":
        return _has_instants(target)
    if name == "array" == source_name:
        return _reads_texts(source.elementType(), target.elementType())
    if name == "map" == source_name:
        return _reads_texts(source.keyType(), target.keyType()) or _reads_texts(
            source.valueType(), target.valueType()
        )
    if name == "struct" == source_name:
        pairs = zip(source.fields(), target.fields(), strict=True)
        return any(_reads_texts(a.dataType(), b.dataType()) for a, b in pairs)
    return name == "timestamp" and source_name.startswith(("string", "varchar", "char"))


def _has_instants(data_type) -> bool:
    return bool(re.search(r"\btimestamp\b", data_type.simpleString()))


def _has_format(parser) -> bool:
    """Returns True if a parser has a format of instants, and no fallback."""
    options = parser.options()
    names = {name.lower(): name for name in seq(options.keys().toSeq())}
    fallback = names.get("enabledatetimeparsingfallback")
    return "timestampformat" in names and (
        fallback is None or options.apply(fallback).lower() == "false"
    )


def _has_date(text) -> bool:
    """Returns True if each value of a text begins with a date, or is a literal other than a time alone."""
    if kind_of(text) == "Literal":
        return not _TIME_ALONE.match(_literal(text))
    while kind_of(text) == "Concat" and text.children().size():
        text = text.children().apply(0)
    kind = kind_of(text)
    if kind == "Literal":
        return bool(_DATE_FIRST.match(_literal(text)))
    source = text.children().apply(0).dataType().typeName() if kind == "Cast" else ""
    return source.startswith(("date", "timestamp"))


def _literal(text) -> str:
    """Returns the text of a literal; empty for another expression, and for null."""
    if kind_of(text) != "Literal" or text.nullable():
        return ""
    return text.toString() if text.dataType().typeName().startswith("string") else ""
