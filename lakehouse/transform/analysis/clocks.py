"""What of a plan reads a clock: functions that say so, and texts read as instants, of which a time alone becomes one of today."""

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
    """Raises DeclarationError if the plan of `rows` reads texts as instants of the day on which they are read."""
    for node in nodes(analyzed(rows)):
        for expression, kind, _ in expressions_of(node):
            if rule := _of_texts(expression, kind):
                raise DeclarationError(f"{where}, expression={expression.sql()}: {rule}")


def in_sql(table: Table) -> Iterator[tuple[str, str]]:
    """Literals in the table's SQL that read a clock, of which the plan shows the value alone, with the rule of each."""
    for written in _CLOCK_IN_SQL.finditer(table.sql):
        yield f"expression={written[0]}", _TWO_CLOCKS


def rule_of(expression, kind: str) -> str:
    """Why two runs compute the expression differently, with the remedy; empty if no clock decides it."""
    if kind in _CLOCK or _is_now(expression, kind):
        return _TWO_CLOCKS
    return _of_texts(expression, kind)


def _is_now(expression, kind: str) -> bool:
    """Whether it reads a text that says when it is read: CAST('now' AS TIMESTAMP)."""
    if kind not in ("Cast", "ParseToDate", "ParseToTimestamp"):
        return False
    if not expression.dataType().typeName().startswith(("date", "timestamp")):
        return False
    text = _literal(expression.children().apply(0))
    return text.strip().lower().partition(" ")[0] in _NOWS


def _of_texts(expression, kind: str) -> str:
    """The rule for an expression that reads texts as TIMESTAMP without a format; empty for another one."""
    if kind in _PARSERS:
        instants = _has_instants(expression.dataType())
        return _BY_OPTION if instants and not _has_format(expression) else ""
    if kind == "VariantGet":
        return _BY_FORMAT if _has_instants(expression.dataType()) else ""
    if kind not in ("Cast", "ParseToTimestamp"):
        return ""
    value = expression.children().apply(0)
    if kind == "ParseToTimestamp" and expression.children().size() > 1:
        return ""
    if not _reads_texts(value.dataType(), expression.dataType()) or _has_date(value):
        return ""
    return _BY_FORMAT


def _reads_texts(source, target) -> bool:
    """Whether a cast from one type to another has a text become a TIMESTAMP, at any depth."""
    name, of = target.typeName(), source.typeName()
    if of == "variant":
        return _has_instants(target)
    if name == "array" == of:
        return _reads_texts(source.elementType(), target.elementType())
    if name == "map" == of:
        return _reads_texts(source.keyType(), target.keyType()) or _reads_texts(
            source.valueType(), target.valueType()
        )
    if name == "struct" == of:
        pairs = zip(source.fields(), target.fields(), strict=True)
        return any(_reads_texts(a.dataType(), b.dataType()) for a, b in pairs)
    return name == "timestamp" and of.startswith(("string", "varchar", "char"))


def _has_instants(of) -> bool:
    return bool(re.search(r"\btimestamp\b", of.simpleString()))


def _has_format(parser) -> bool:
    """Whether a parser has a format of instants, and falls back on no other."""
    options = parser.options()
    names = {name.lower(): name for name in seq(options.keys().toSeq())}
    fallback = names.get("enabledatetimeparsingfallback")
    return "timestampformat" in names and (
        fallback is None or options.apply(fallback).lower() == "false"
    )


def _has_date(text) -> bool:
    """Whether each value of a text begins with a date, or is written in the function and no time alone."""
    if kind_of(text) == "Literal":
        return not _TIME_ALONE.match(_literal(text))
    return any(_begins_with_date(part) for part in _beginnings(text))


def _beginnings(text) -> Iterator:
    """The expression, and what it begins with as long as it joins texts."""
    yield text
    while kind_of(text) == "Concat" and text.children().size():
        text = text.children().apply(0)
        yield text


def _begins_with_date(text) -> bool:
    kind = kind_of(text)
    if kind == "Literal":
        return bool(_DATE_FIRST.match(_literal(text)))
    of = text.children().apply(0).dataType().typeName() if kind == "Cast" else ""
    return of.startswith(("date", "timestamp"))


def _literal(text) -> str:
    """The text of a literal; empty of another expression, and of null."""
    if kind_of(text) != "Literal" or text.nullable():
        return ""
    return text.toString() if text.dataType().typeName().startswith("string") else ""
