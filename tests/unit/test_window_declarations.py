"""Windows and queries as they are declared: what is refused, and what the docs show."""

import re
from datetime import timedelta
from textwrap import dedent

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    count,
    ingest_table,
    kafka,
    row_table,
    session,
    sliding,
    sql,
    tumbling,
    window_table,
)
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from support import ROOT


@pytest.mark.parametrize(
    "declare, words",
    [
        (lambda: tumbling("0 seconds"), "longer than zero"),
        (
            lambda: tumbling("5 hours", zone="Europe/Berlin"),
            "divides a day or is whole days",
        ),
        (lambda: tumbling("1 day", zone="Europe/Berln"), "no zone of IANA has that name"),
        (lambda: tumbling("1 minute", offset="2 minutes"), "lies below 0:01:00"),
        (lambda: tumbling("1 minute", offset="-2 minutes"), "lies below 0:01:00"),
        (
            lambda: sliding("2 hours", "50 minutes", zone="Europe/Berlin"),
            "slide='50 minutes', .* divides a day or is whole days",
        ),
        (lambda: tumbling("1 day", zone="posixrules"), "no zone of IANA has that name"),
        (lambda: tumbling("1 day", zone="localtime"), "no zone of IANA has that name"),
        (lambda: sliding("2 minutes", "5 minutes"), "the slide is at most the size"),
        (lambda: session("-1 seconds"), "a duration is a number"),
        (lambda: sql("t", "SELECT 1"), "names no input"),
        (lambda: sql("t", "SELECT {} FROM {x}"), "inputs are names in braces"),
        (lambda: sql("t", "SELECT } FROM {x}"), "write a brace"),
        (
            lambda: row_table(layer="gold")(sql("t__late", "SELECT * FROM {x}")),
            "'__', which marks side tables",
        ),
    ],
)
def test_a_window_or_query_that_cannot_be_is_refused_with_the_rule(declare, words):
    with pytest.raises(DeclarationError, match=words):
        declare()


def test_an_offset_may_be_before_and_is_the_rest_of_a_slide_after():
    assert tumbling("1 day", offset="-6 hours") == tumbling("1 day", offset="18 hours")
    assert sliding("1 hour", "40 minutes", offset=timedelta(minutes=-10)).offset == timedelta(
        minutes=30
    )


def test_the_declarations_of_the_docs_are_windows_and_its_code_declares_tables():
    text = (ROOT / "docs" / "how-to" / "windows.md").read_text()
    names = {"tumbling": tumbling, "sliding": sliding, "session": session, "count": count}
    shown = [eval(code, names) for code in re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)]
    assert [window.kind for window in shown] == [
        "tumbling",
        "tumbling",
        "tumbling",
        "tumbling",
        "tumbling",
        "sliding",
        "sliding",
        "session",
        "count",
        "count",
    ]
    names |= {
        "__name__": "docs",
        "ingest_table": ingest_table,
        "row_table": row_table,
        "window_table": window_table,
        "kafka": kafka,
        "sql": sql,
        "DataFrame": DataFrame,
        "F": F,
        "Window": Window,
    }
    blocks = map(dedent, re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    declared, sources = [], []
    for block in blocks:
        shown = dict(names)
        exec(block, shown)
        declared += [
            (each.name, each.inputs, each.description)
            for each in shown.values()
            if isinstance(each, Table)
        ]
        sources += [each for each in shown.values() if isinstance(each, KafkaSource)]
    sessions = ("user_sessions", ("clicks",), "Clicks per user and visit.")
    hours = "Views of an hour, and of its busiest ten seconds."
    busy = "A row table keeps the window of each row, and its `window_time`."
    assert declared == [
        sessions,
        sessions,
        ("top_pages", ("visits",), "The ten pages most viewed in each five minutes."),
        ("views_by_ten_seconds", ("clicks",), ""),
        ("views_by_hour", ("views_by_ten_seconds",), hours),
        ("busy", ("views_by_ten_seconds",), busy),
    ]
    assert [each.quiet_timeout for each in sources] == [timedelta(minutes=1)]
