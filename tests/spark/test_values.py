"""What is taken for a value: hostile texts over every type and format; the table of the page is what this finds."""

import json
import zipfile
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import changes, files, folder, kafka
from lakehouse.declare.inputs.delta import DeltaSource
from lakehouse.declare.inputs.folder import FolderSource
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.errors import DeclarationError
from lakehouse.runtime import jars
from lakehouse.storage.position.schemas import Schema
from lakehouse.transform.decoding import decode, values
from lakehouse.transform.decoding import schemas as schemas_of
from lakehouse.transform.decoding.reference_files import file_rows
from lakehouse.transform.decoding.schemas import Schemas
from support import ROOT
from support.schema_registry import framed
from tools import java_classes

PAGE = ROOT / "docs" / "reference" / "values.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
START = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = (
    "BOOLEAN", "TINYINT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(12,2)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY", "STRING",
    "ARRAY<INT>", "MAP<STRING,INT>", "STRUCT<x:INT>",
)  # fmt: skip
NUMBERS = (
    "7", "-7", "+7", "007", "-0", "1.0", "1.5", ".5", "5.", "1.500", "1.005", "1e2", "1E-2", "12,50", "0,5", "1,234.50", "1_000",
    "1'000", "0x1F", "1.5d", "1f", "10%", "$1", "(5)", "--5", "1 2", " 12", "12 ", "１２", "٣", "−5", "128",
    "9223372036854775808", "12345678901.23", "1e400", "1e-400", "NaN", "Infinity", "-Infinity", "Inf", "nan", "INF",
)  # fmt: skip
TIMES = (
    "2026-01-31", "2026-01-31T12:30:00Z", "2026-01-31 12:30:00", "2026-01-31T12:30", "2026-01-31T12:30:00.123456+01:00",
    "2026-01-31 12:30:00+0100", "2026-01-31 12:30:00 +01", "2026-01-31 12:30:00 UTC", "2026-01-31T12:30:00.123456789Z",
    "2026-01-31T12:30:00.123456000Z", "2026", "2026-01", "2026-1-5", "12:30:00", "T12:30:00", "12:30", "2026-02-29",
    "2026-01-31T24:00:00Z", "2026-01-31T23:59:60Z", "2026-01-31T12", "20260131", "31.01.2026", "01/31/2026", "0000-01-01",
    "+10000-01-01", "-2026-01-01", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00",
    "2026-01-31T12:30:00+19:00", "2026-01-31 12:30:00 Europe/Berlin", "2026-01-31T12:30:00,5Z", "2026-01-31T12:30:00 PM", "now",
    "today", "epoch", "infinity", "1767225600", "1767225600000",
)  # fmt: skip
OTHERS = (
    "true",
    "false",
    "TRUE",
    "yes",
    "t",
    "1",
    "0",
    "null",
    "NULL",
    "a b",
    "AP8=",
    "AP8",
    "A P8=",
    "é",
    "\x00",
)
BARE = (
    "7", "-0", "1.0", "1.10", "1.5", "1.005", "1e2", "1E-2", "128", "9223372036854775808", "12345678901234567.89", "1e400",
    "1e-400", "NaN", "Infinity", "true", "false", "[1,2]", '{"x":1}', '{"x": 1.10}', "[1.0]", '{"x":"1"}', '{"x":1,"x":2}',
    "1767225600", "1767225600000", "1767225600.5", "[]", "{}", '["1"]', "[null]",
)  # fmt: skip
BROKEN = (
    "", "01", "-", "-01", "1.", ".5", "+1", "1e", "1e+", "--1", "1 2", "1a", "0x1", "tru", '"a" "b"', '"a', 'a"', "'a'", ":",
    '"\x01"', '"\x7f"', '"a\nb"', r'"a\n"', r'"\x"', '"\\', "{", "[", "}", ",", '1, "c0 ": 2',
)  # fmt: skip
ESCAPED = (r'"\ud800"', r'"\ud83d\ude00"', r'"\u0000"')


def json_texts() -> list[str]:
    quoted = [json.dumps(each, ensure_ascii=False) for each in ("", *NUMBERS, *TIMES, *OTHERS)]
    return list(dict.fromkeys([*BARE, *quoted, *ESCAPED]))


def csv_texts() -> list[str]:
    sent = dict.fromkeys((*NUMBERS, *TIMES, *OTHERS))
    return [f'"{each}"' if "," in each else each for each in sent]


def taken(
    spark, format: str, types: tuple[str, ...], texts: list[str], more: str = ""
) -> dict[tuple, object]:
    """What each text is as each type, with `more` behind it in an object of JSON.

    Of one that is refused the name of its field and the type are in the reason.
    """
    schema = StructType.fromDDL(", ".join(f"c{n} {type_}" for n, type_ in enumerate(types)))
    sent = [(n, text) for n in range(len(types)) for text in texts]
    if format == "json":
        lines = [f'{{"c{n}": {text}{more}}}' for n, text in sent]
    else:
        lines = [",".join(text if n == at else "" for at in range(len(types))) for n, text in sent]
    rows = spark.createDataFrame(
        [(number, line.encode()) for number, line in enumerate(lines)], "n INT, value BINARY"
    )
    row = F.inline(F.array(values.record(format, schema, F.col("value"))))
    found = {}
    for each in rows.select("n", row).select("n", *map(shown, schema), values.CORRUPT).collect():
        at, text = sent[each.n]
        problem = each[values.CORRUPT]
        assert all(each[f"c{n}"] is None for n in range(len(types)) if n != at or problem)
        if problem is not None:
            assert problem.startswith((f"field=c{at}", "it is not JSON")), (text, problem)
        found[types[at], text] = None if problem else each[f"c{at}"]
    return found


def shown(field):
    kind = field.dataType.typeName()
    column = F.col(field.name)
    if kind in ("array", "map", "struct"):
        return F.to_json(column).alias(field.name)
    if kind == "binary":
        return F.hex(column).alias(field.name)
    return column.cast("string").alias(field.name)


def table_of(found: dict[tuple, object], types: tuple[str, ...], texts: list[str]) -> str:
    lines = ["| declared | taken | quarantined |", "|---|---|---|"]
    for type_ in types:
        by_text = {text: found[type_, text] for text in texts}
        good = [as_code(text, value) for text, value in by_text.items() if value is not None]
        bad = [as_code(text) for text, value in by_text.items() if value is None]
        most = "all" if len(good) == len(texts) else ", ".join(good) or "nothing"
        lines.append(f"| `{type_}` | {most} | {', '.join(bad) or 'nothing'} |")
    return "\n".join(lines) + "\n"


def as_code(text: str, value: object = None) -> str:
    own = f"`{text}`".replace("|", "\\|").replace("\x00", "␀")
    plain = text.strip('"')
    return own if value is None or value == plain else f"{own} → `{value}`".replace("\x00", "␀")


def test_the_table_of_the_page_is_what_is_taken(spark):
    of_json = taken(spark, "json", TYPES, json_texts())
    of_csv = taken(spark, "csv", TYPES[:11], csv_texts())
    written = (
        f"### JSON\n\n{table_of(of_json, TYPES, json_texts())}\n"
        f"### CSV\n\n{table_of(of_csv, TYPES[:11], csv_texts())}"
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    if old != written:
        (PAGE.parent / "values.md.new").write_text(before + BEGIN + written + END + after)
    assert old == written, f"{PAGE}.new has the table as it is now; read what changed in it"


def test_a_flat_object_is_read_as_the_parser_reads_it(spark):
    """An object in the value of an unknown field leaves all of a message to the parser."""
    texts = [*json_texts(), *BROKEN]
    flat = taken(spark, "json", TYPES, texts)
    assert flat == taken(spark, "json", TYPES, texts, ', "x": {}')
    for more in (', "x": "y"', ' ,\t"x":-1.5e+3\r\n', ', "x": "é"', r', "x": "\""'):
        assert flat == taken(spark, "json", TYPES, texts, more), more
    for more in (", 'x': 1", ', "x": 01', ', "x"', ', "x": ', ",", ', "x": "\x01"'):
        assert not any(taken(spark, "json", TYPES, texts, more).values()), more


def test_what_is_taken_is_exactly_what_was_sent(spark):
    """Numbers against Python's decimals, times against Python's own reader."""
    of_json = taken(spark, "json", TYPES, json_texts())
    of_csv = taken(spark, "csv", TYPES[:11], csv_texts())
    compared = 0
    for (type_, text), value in [*of_json.items(), *of_csv.items()]:
        if value is None:
            continue
        plain = text.strip('"')
        if type_.startswith(("DECIMAL", "TINYINT", "BIGINT")):
            assert Decimal(str(value)) == Decimal(plain), (type_, text, value)
        elif type_ in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ") and plain.count("-") > 1:
            sent = plain.replace(" UTC", "Z").replace(" +", "+").replace("456000Z", "456Z")
            instant = datetime.fromisoformat(sent)
            instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
            assert (
                datetime.fromisoformat(f"{value}+00:00" if ":" in value else f"{value}T00Z")
                == instant
            )
        elif type_ == "STRING" and text not in ESCAPED:
            quoted = text.startswith('"')
            wanted = json.loads(text) if quoted and (type_, text) in of_json else plain
            assert value == wanted, (text, value)
        else:
            continue
        compared += 1
    assert compared > 150


SCHEMA = "id STRING NOT NULL, at TIMESTAMP, cents DECIMAL(12,2)"
GOOD = b'{"id": "a", "at": "2026-01-01T00:00:00Z", "cents": 1.25}'
SECOND = {
    "object": GOOD + GOOD,
    "line": GOOD + b"\n" + GOOD,
    "garbage": GOOD + b" garbage",
    "bracket": GOOD + b"}",
    "comma": GOOD + b",",
    "number": GOOD + b"1",
    "NUL": GOOD + b"\x00",
}


def problems(spark, source: RecordSource, sent: list[bytes], schemas=decode.NO_SCHEMAS):
    rows = [(b'{"id": "a"}', value, 0, n, START) for n, value in enumerate(sent)]
    records = spark.createDataFrame(rows, decode.KAFKA_SCHEMA)
    found = decode.decoded(records, source, schemas).collect()
    return {row["_record"]["offset"]: row["_record"]["problem"] for row in found}


def known(schema: object, kind: str, spark) -> Schemas:
    """A registry's schemas, of which this one has the id 1."""
    return Schemas({1: schemas_of._read(spark, Schema(1, kind, json.dumps(schema)))})


def envelope(value: bytes) -> bytes:
    log = b'"source": {"lsn": 1, "ts_ms": 1}'
    return b'{"op": "c", ' + log + b', "after": ' + value + b"}"


@pytest.mark.parametrize("kind", ["topic", "folder", "table of others", "registry", "debezium"])
def test_a_message_of_several_values_is_none(spark, kind):
    sent, schemas = [GOOD, b"  " + GOOD + b"\r\n", *SECOND.values()], decode.NO_SCHEMAS
    source = {
        "topic": lambda: kafka("t", schema=SCHEMA),
        "folder": lambda: folder("/f", schema=SCHEMA),
        "table of others": lambda: DeltaSource("/t", SCHEMA, "delta"),
        "registry": lambda: kafka("t", schema=SCHEMA, format="json_schema"),
        "debezium": lambda: changes("t", key="id", schema=SCHEMA.replace(" NOT NULL", "")),
    }[kind]()
    if kind == "registry":
        sent, schemas = [framed(1, each) for each in sent], known({"type": "object"}, "JSON", spark)
    if kind == "debezium":
        ends = [each.removeprefix(GOOD) for each in SECOND.values()]
        whole = envelope(GOOD)
        sent = [whole, b"  " + whole + b"\r\n", *(whole + each for each in ends)]
    found = problems(spark, source, sent, schemas)
    assert [found.pop(0), found.pop(1)] == [None, None]
    assert len(found) == len(SECOND)
    assert all("more follows behind it, at character" in why for why in found.values()), found


def test_a_reason_names_the_field_its_type_and_what_came(spark):
    sent = {
        b'{"id": "a", "cents": "12,50"}': 'field=cents: declared DECIMAL(12,2), got "12,50"',
        b'{"id": "a", "cents": true}': "field=cents: declared DECIMAL(12,2), got true",
        b'{"id": "a", "cents": [1]}': "field=cents: declared DECIMAL(12,2), got a list",
        b'{"id": "a", "at": "12:30:00"}': 'field=at: declared TIMESTAMP, got "12:30:00"',
        b'{"id": "a", "in": {"seen": [1, 1767225600000]}}': "field=in.seen[1]: declared TIMESTAMP, got 1767225600000",
        b'{"id": "a", "in": 5}': "field=in: declared STRUCT, got 5",
        b'{"id": "a", "id": "b"}': "field=id: it is there twice",
        b'[{"id": "a"}]': "got a list",
        b'{"id": "a"': "it is not JSON, at character 10 of 10",
        b"{'id': 'a'}": "it is not JSON, at character 2 of 11",
        b'{"id": "' + b"9" * 60 + b'", "cents": "' + b"9" * 60 + b'"}': f'field=cents: declared DECIMAL(12,2), got "{"9" * 40}…"',
        b'{"id": "a", "cents": ' + b"[" * 1500 + b"]" * 1500 + b"}": "field=cents: declared DECIMAL(12,2), got a list",
    }  # fmt: skip
    source = kafka("t", schema=f"{SCHEMA}, in STRUCT<seen: ARRAY<TIMESTAMP>>")
    found = problems(spark, source, [*sent])
    what = "not a JSON object of the declared types"
    assert list(found.values()) == [f"{what}: {why}" for why in sent.values()]
    lines = [b"a,2026-01-01,1.25", b'a,,"1,25"', b"a,b,c,d", b'"a"b,,', b'"a,,']
    csv = problems(spark, FolderSource("/f", SCHEMA, "csv"), lines)
    what = "not a line of CSV with the declared columns"
    assert list(csv.values()) == [
        None,
        f'{what}: field=cents: declared DECIMAL(12,2), got "1,25"',
        f"{what}: it has 4 fields, and 3 are declared",
        f"{what}: something follows a quote that ends, in field 1",
        "a quote that does not end in its line: values have no line breaks",
    ]


def test_a_number_for_a_text_stays_as_it_was_sent(spark):
    large = (
        b'{"pad": "' + b"x" * 40_000 + b'", "s": {"n": 12345678901234567.89, "m" : [1.10, 1e2]}}'
    )
    sent = [b'{"s": 12345678901234567.89}', b'{"s": 1.10}', b'{"s": 1e2}', b'{"s": -0.0}', large]
    rows = [(None, value, 0, n, START) for n, value in enumerate(sent)]
    records = spark.createDataFrame(rows, decode.KAFKA_SCHEMA)
    found = decode.decoded(records, kafka("t", schema="s STRING")).collect()
    nested = '{"n": 12345678901234567.89, "m" : [1.10, 1e2]}'
    assert [r.s for r in found] == ["12345678901234567.89", "1.10", "1e2", "-0.0", nested]
    rows = [
        (b'{"id":1}', envelope(b'{"id":1,"s":' + each[6:-1] + b"}"), 0, 0, START)
        for each in sent[:4]
    ]
    records = spark.createDataFrame(rows, decode.KAFKA_SCHEMA)
    source = changes("t", key="id", schema="id BIGINT, s STRING")
    found = decode.decoded(records, source).collect()
    assert [r.s for r in found] == ["12345678901234567.89", "1.10", "1e2", "-0.0"]


def test_a_type_that_no_value_is_read_as_is_refused(spark):
    for schema, source in {
        "m MAP<INT, STRING>": KafkaSource("t", "m MAP<INT, STRING>"),
        "l ARRAY<INT>": FolderSource("/f", "l ARRAY<INT>", "csv"),
    }.items():
        with pytest.raises(DeclarationError, match=f"column={schema[0]}, type=.*: no value of"):
            problems(spark, source, [b"{}"])


def test_a_reference_is_read_by_the_same_rules(spark, tmp_path):
    schema = "id STRING, cents DECIMAL(12,2), at TIMESTAMP"
    for name, good, bad in (
        ("csv", 'a,1.25,2026-01-01\n"b ""c""",,', 'a,"12,50",'),
        ("csv", "a,1.25,", "a,,12:30:00"),
        ("json", '{"id": 1.10, "cents": "1.25"}\n\n', '{"id": "a"}{"id": "b"}'),
        ("json", '{"id": "a"}', '{"id": "a", "cents": 1.005}'),
    ):
        file = tmp_path / f"reference.{name}"
        file.write_text(f"{good}\n")
        header = {"header": False} if name == "csv" else {}
        source = files(str(file), schema=schema, format=name, **header)
        rows = file_rows(spark, source).collect()
        assert rows[0].id in ("a", "1.10") and len(rows) == (2 if "b " in good else 1)
        file.write_text(f"{good}\n{bad}\n")
        with pytest.raises(Exception, match="every row of a reference must be as it is declared"):
            file_rows(spark, source).collect()


@pytest.mark.skipif(not java_classes.compiler(), reason="no javac, so nothing could be compiled")
def test_the_sources_of_the_jar_compile_to_its_classes(tmp_path):
    java_classes.make(tmp_path / "again.jar")
    named = []
    for path in (tmp_path / "again.jar", jars.OWN):
        with zipfile.ZipFile(path) as jar:
            named.append(sorted(jar.namelist()))
    assert named[0] == named[1] and len(named[0]) > 5


def test_the_texts_for_null_of_csv_are_declared(spark, tmp_path):
    lines = [b"NA,1", b"-,NA", b'"NA",""', b",7", b"x,"]
    raw = spark.createDataFrame(
        [(None, line, 0, n, START) for n, line in enumerate(lines)], decode.KAFKA_SCHEMA
    )

    def read(**declared: object) -> list[tuple]:
        source = folder("/in", format="csv", schema="t STRING, n INT", **declared)
        rows = decode.decoded(raw, source).select("t", "n", "_record.problem").collect()
        assert all(p is None or "field=n: declared INT, got" in p for *_, p in rows)
        return [("bad",) if row.problem else (row.t, row.n) for row in rows]

    assert read() == [("NA", 1), ("bad",), ("NA", None), (None, 7), ("x", None)]
    assert read(nulls=["", "NA", "-"]) == [
        (None, 1), (None, None), (None, None), (None, 7), ("x", None),
    ]  # fmt: skip
    assert read(nulls=["NA"]) == [(None, 1), ("-", None), ("bad",), ("", 7), ("bad",)]
    file = tmp_path / "t.csv"
    for nulls, rows in (
        (("",), [("NA", 1), ("x", None), (None, 7)]),
        (("", "NA"), [(None, 1), ("x", None), (None, 7)]),
        (("NA",), [(None, 1), ("x", None), ("", 7)]),
    ):
        empty = "" if "" in nulls else "NA"
        file.write_text(f't,n\n"NA",1\nx,{empty}\n,7\n')
        source = files(str(file), schema="t STRING, n INT", nulls=nulls)
        assert [tuple(row) for row in file_rows(spark, source).collect()] == rows
    file.write_text("t,n\n,1\n,\n")
    with pytest.raises(Exception, match="field=n: declared INT, got "):
        file_rows(spark, files(str(file), schema="t STRING, n INT", nulls=["NA"])).collect()


def test_texts_for_null_are_refused_where_there_are_none():
    for declared in (folder, files):
        with pytest.raises(DeclarationError, match="format='json': only fields of CSV"):
            declared("/in", format="json", schema="t STRING", nulls=["NA"])
        with pytest.raises(
            DeclarationError, match=r"nulls='NA': it is a list of texts; write \['NA'\]"
        ):
            declared("/in", format="csv", schema="t STRING", nulls="NA")
