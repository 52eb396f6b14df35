"""docs/reference/declarations.md has each option of what a module of tables declares, with the default that it has."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest

import lakehouse
from lakehouse.declare.decorators import DECORATORS, options_of
from lakehouse.declare.inputs.sources import RecordOptions, RecordSource
from lakehouse.declare.table import Table
from support import ROOT

PAGE = (ROOT / "docs" / "reference" / "declarations.md").read_text()
SOURCES = ("kafka", "changes", "folder", "delta_table", "python_source", "files")
TARGETS = (
    "kafka_topic",
    "postgres",
    "redis_keys",
    "opensearch",
    "file_folder",
    "webhook",
    "mail",
)
OF_TARGETS = {"key": "required", "corrections": "send"}


def rows(heading: str) -> Iterator[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`@?(\w+)`", cell)


def shown(given: object) -> str:
    """A default as the page has it."""
    if given is inspect.Parameter.empty:
        return "required"
    if isinstance(given, timedelta):
        minutes, seconds = divmod(int(given.total_seconds()), 60)
        return (f"{minutes} minutes" if minutes else f"{seconds} seconds") if given else "-"
    if isinstance(given, datetime):
        return f"{given:%Y-%m-%d}"
    if given == 1 << 20:
        return "1 MiB"
    return str(given).removesuffix(".0") if given else "-"


def declared(function: Callable) -> dict[str, str]:
    parameters = dict(inspect.signature(function).parameters)
    shared: dict[str, object] = {}
    if parameters.pop("records", None):
        fields = {each.name: each.default for each in dataclasses.fields(RecordSource)}
        shared = {name: fields[name] for name in RecordOptions.__annotations__}
    own = {name: parameter.default for name, parameter in parameters.items()}
    return {name: shown(default) for name, default in (own | shared).items()}


def test_each_decorator_is_there_with_its_options():
    text = PAGE.split("\n## A table\n")[1].split("\n## ")[0]
    common = set(names(re.search(r"All of them also take (.*)\.", text)[1]))
    shown = {
        names(cells[0])[0]: (set(names(cells[2])), set(names(cells[3])))
        for cells in rows("A table")
        if len(cells) == 4 and cells[0].startswith("`@")
    }
    assert list(shown) == [f"{kind}_table" for kind in DECORATORS]
    for kind, decorator in DECORATORS.items():
        required, optional = shown[f"{kind}_table"]
        must = {name for name, default in declared(decorator).items() if default == "required"}
        assert required == {"layer", *must} - {"options"}
        assert required | optional | common == options_of(kind)


def test_each_option_of_a_table_is_there_with_its_default():
    written = {
        name: cells[1].strip("`")
        for cells in rows("A table")
        if len(cells) == 3
        for name in names(cells[0])
    }
    written |= {"delay": "-", "keys": "required"}  # no delay is a choice; keys are required of some
    fields = {each.name: each.default for each in dataclasses.fields(Table)}
    given = {
        "suffix": "-",
        "draw": "-",
        "window": "required",
        "layer": "required",
        "event_time": "-",
    }
    given |= {
        name: shown(fields[name])
        for kind in DECORATORS
        for name in options_of(kind)
        if name not in given and name not in ("keys",)
    }
    assert written == given | {"keys": "required"}


@pytest.mark.parametrize("name", [*SOURCES, *TARGETS])
def test_each_option_of_a_source_and_a_target_is_there_with_its_default(name):
    heading, common, own, of = ("A source" if name in SOURCES else "A target"), {}, {}, ""
    for cells in rows(heading):
        if len(cells) == 3:
            common |= {each: cells[1].strip("`") for each in names(cells[0])}
        elif found := names(cells[1]):
            of = (names(cells[0]) or [of])[0]
            own |= {each: cells[2].strip("`") for each in found} if of == name else {}
    if name == "files":  # a reference table has no records
        common = {}
    given = {
        each: "-" if default == "0 seconds" else default
        for each, default in declared(getattr(lakehouse, name)).items()
    }
    assert (OF_TARGETS if name in TARGETS else common) | own == given
