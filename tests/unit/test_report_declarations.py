"""Reports as they are declared, what is refused with which remedy; and the files that are kept of them, without Spark."""

import re
from dataclasses import replace
from types import ModuleType

import pyarrow as pa
import pytest

from lakehouse import ingest_table, kafka, report_table, row_table, tumbling
from lakehouse.declare.catalog import Catalog, catalog_of
from lakehouse.declare.reports import Report
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.ranges import partition_range
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import report_path
from lakehouse.storage.log import report_files
from lakehouse.storage.log.commit_log import frontier
from support import ROOT

topic = kafka("events", schema="k STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at")
def events(topic):
    return topic


@row_table(layer="silver")
def good(events):
    return events


@row_table(layer="silver", partition_by="day")
def by_day(events):
    return events


def page(rows, span):
    return f"{span} {rows.num_rows}"


def other_page(rows, span):
    return "nothing"


def of_good(good):
    return good


def of_events(events):
    return events


def of_topic(topic):
    return topic


def of_days(by_day):
    return by_day


def of_report(daily):
    return daily


def declared(function=of_good, **options) -> Catalog:
    """A catalog with the report `daily` of that function."""
    given = {"suffix": "txt", "draw": page, "layer": "gold"} | options
    daily = replace(report_table(**given)(function), name="daily")
    module = ModuleType(__name__)
    module.__dict__.update(topic=topic, events=events, good=good, by_day=by_day, daily=daily)
    return catalog_of([module])


def test_a_report_is_over_its_partition_and_closes_with_its_inputs():
    catalog = declared(partition_by="day")
    daily = catalog.table("daily")
    assert daily.kind.is_report and daily.window == tumbling("1 day")
    assert [t.name for t in daily.closes_with] == ["good"]
    assert daily.kind.is_derived and not daily.kind.is_streamed
    assert not daily.has_late_rows
    with pytest.raises(RangeError, match="a report has no stream"):
        catalog.check_streamed(daily)


def test_the_function_that_draws_is_part_of_the_code():
    versions = {
        declared(suffix=suffix, draw=draw).table("daily").code_version
        for suffix, draw in (("txt", page), ("txt", other_page), ("md", page), ("", None))
    }
    assert len(versions) == 4


@pytest.mark.parametrize(
    "options, words",
    [
        ({"function": of_topic}, "a report table reads tables"),
        ({"function": of_events}, "never closes; declare a row table"),
        ({"function": of_days}, "declare partition_by='day'"),
    ],
)
def test_what_a_report_cannot_be_is_refused_with_the_remedy(options, words):
    with pytest.raises(DeclarationError, match=words):
        declared(**options)


def test_nothing_reads_a_report():
    module = ModuleType(__name__)
    reader = replace(row_table(layer="gold")(of_report), name="reader")
    module.__dict__.update({**declared().sources, **declared().tables, "reader": reader})
    with pytest.raises(DeclarationError, match="input=daily: no table reads a report"):
        catalog_of([module])


def test_a_module_of_reports_alone_is_refused():
    def elsewhere(good):
        return good

    elsewhere.__module__ = "apart"
    apart, here = ModuleType("apart"), ModuleType(__name__)
    apart.elsewhere = report_table(layer="gold")(elsewhere)
    here.__dict__.update(topic=topic, events=events, good=good)
    with pytest.raises(DeclarationError, match="its module has reports only"):
        catalog_of([here, apart])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("html",), "a file needs both"),
        (("", page), "a file needs both"),
        (("a/b", page), "lower-case letters and digits"),
        (("txt", lambda rows: ""), "give it two parameters"),
    ],
)
def test_a_file_needs_a_suffix_and_a_function_of_rows_and_range(arguments, words):
    with pytest.raises(DeclarationError, match=words):
        report_table(layer="gold", **dict(zip(("suffix", "draw"), arguments, strict=False)))


def test_the_declaration_of_the_docs_is_a_report_and_its_page_is_text():
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "reports.md").read_text(), re.S
    )
    path = ROOT / "docs" / "how-to" / "reports.md"
    names = {"__name__": "docs"}
    exec(compile(code, str(path), "exec"), names)
    assert names["best_shops"].report == Report("md", names["page"])
    rows = pa.table({"place": [1], "shop": ["a"], "cents": [5]})
    assert names["page"](rows, partition_range("2026-01-01", "day")) == "# 2026-01-01\n1. a: 5"


# ---- files


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(root=tmp_path)


def test_what_is_wrong_with_a_file_is_said(settings):
    daily, day = declared().table("daily"), "2026-01-01-00"
    folder = report_path(settings, daily, day)

    def fault(rows: str = "1:a") -> str:
        return report_files.fault(settings, daily, day, rows)

    assert "no file" in fault() and report_files.computed(settings, daily) == set()
    report_files.keep(settings, daily, day, 3, "1:a", b"one")
    assert fault() == "" and report_files.computed(settings, daily) == {day}
    assert "of version 3, whose rows were others" in fault("1:b")
    (folder / "3.txt").write_text("two")
    assert "changed by another hand" in fault()
    (folder / "3.txt").unlink()
    assert "is not there" in fault()
    report_files.keep(settings, daily, day, 7, "1:a", b"one")
    assert fault() == "" and (folder / "3.txt").exists()  # the rows are those of version 3
    report_files.keep(settings, daily, day, 8, "1:b", b"two")
    assert fault("1:b") == "" and (folder / "3.txt").exists()
    report_files.forget(settings, daily, [day])
    assert sorted(p.name for p in folder.iterdir()) == ["8.txt", "current.json"]


def test_a_torn_note_counts_as_not_computed_and_is_said(settings, caplog):
    daily, day = declared().table("daily"), "2026-01-01-00"
    report_files.keep(settings, daily, day, 3, "1:a", b"one")
    (report_path(settings, daily, day) / "current.json").write_text("{")
    assert report_files.file(settings, daily, day) is None
    assert report_files.computed(settings, daily) == set()


def test_without_a_frontier_of_each_input_there_is_none(settings):
    assert frontier(settings, declared().table("daily")) is None
