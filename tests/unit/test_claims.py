"""What README and docs claim names what shows it: a test that is there, or a command that can be run, and how much it runs.

A bullet of a section whose heading begins with "What is reconciled" or "What is shown" ends with a sentence that begins with
"Shown by". Elsewhere a section that tells of a measurement names the test or the command behind it.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS
from support import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TEST = re.compile(r"`(tests/\w+/test_\w+\.py)(?:::(test_\w+))?`")
TARGET = re.compile(r"\bmake ([a-z]+)\b")
MODULE = re.compile(r"\bpython -m ([a-z_][\w.]*)((?:[ ]+[^`\n#]+)?)")
CLAIMS = ("What is reconciled", "What is shown")
AMOUNT = re.compile(r"\d|\b(?:twice|one|two|three|four|five|six|seven|eight|nine|ten)\b|\]\(docs/")
MEASURED = re.compile(r"\b(?:measured|median|medians|at worst)\b")
RATIO = re.compile(
    r"\d\.\d+ times\b|\babout \d[\d.,]* ?[KMG]iB\b|\d[\d,]* (?:rows|events)(?:/| a )s"
)


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Heading and text of each section, code blocks left in; what stands before the first heading has none."""
    parts = re.split(r"^(#+ .*)$", page.read_text(), flags=re.MULTILINE)
    yield "", parts[0]
    yield from (
        (heading.lstrip("# "), text) for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    )


def bullets(text: str) -> list[str]:
    """The bullets of a text, each as one line."""
    found = re.findall(r"^- (.*(?:\n  .*)*)", without_code(text), re.MULTILINE)
    return [re.sub(r"\s+", " ", bullet) for bullet in found]


def names_evidence(text: str) -> bool:
    return bool(
        TEST.search(text) or TARGET.search(text) or re.search(r"python -m benchmarks", text)
    )


@cache
def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def command_of_a_module(name: str) -> Path | None:
    at = ROOT.joinpath(*name.split("."))
    return next(
        (path for path in (at.with_suffix(".py"), at / "__main__.py") if path.exists()), None
    )


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_the_readme_has_claims():
    assert [heading for heading, _ in sections(ROOT / "README.md") if heading.startswith(CLAIMS)]


def test_each_claim_says_what_shows_it_and_how_much_that_runs(page):
    for heading, text in sections(page):
        for bullet in bullets(text) if heading.startswith(CLAIMS) else ():
            _, shown_by, evidence = bullet.rpartition("Shown by")
            assert shown_by and names_evidence(evidence), (
                f"{page.name}: no test or command behind: {bullet}"
            )
            assert AMOUNT.search(TEST.sub("", evidence)), (
                f"{page.name}: how much does it run: {bullet}"
            )


def test_what_was_measured_names_its_command_or_test(page):
    for heading, text in sections(page):
        told = without_code(text)
        if (MEASURED.search(told) and re.search(r"\d", told)) or RATIO.search(told):
            assert names_evidence(text), f"{page.name}, {heading!r}: measured by what?"


def test_the_tests_and_commands_a_page_names_are_there(page):
    text = page.read_text()
    for file, function in TEST.findall(text):
        assert (ROOT / file).exists(), f"{page.name} names {file}"
        assert not function or function in functions_of(ROOT / file), (
            f"{page.name} names {file}::{function}"
        )
    every_test = {name for path in ROOT.glob("tests/*/test_*.py") for name in functions_of(path)}
    for function in re.findall(r"`(test_\w+)`", text):
        assert function in every_test, f"{page.name} names {function}"
    inline = [found.replace("\n", " ") for found in re.findall(r"`([^`]+)`", without_code(text))]
    commands = "\n".join([*inline, *re.findall(r"```bash\n(.*?)```", text, re.DOTALL)])
    for target in TARGET.findall(commands):
        assert target in make_targets(), f"{page.name} names make {target}"
    for module, arguments in MODULE.findall(commands):
        assert command_of_a_module(module), f"{page.name} names python -m {module}"
        only = (
            re.search(r"--only ((?:[a-z][\w-]* ?)+)", arguments) if module == "benchmarks" else None
        )
        assert not only or set(only[1].split()) <= set(PARTS), (
            f"{page.name} names the benchmark {only[1]}"
        )


def test_every_number_of_the_speed_page_has_its_benchmark():
    text = (ROOT / "docs" / "why" / "speed.md").read_text()
    named = re.findall(r"^\| `([\w-]+)`[^|]*\|", text, re.MULTILINE)
    assert sorted(named) == sorted(PARTS), "each benchmark has its line"
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)):
        names = set(re.findall(r"`([\w-]+)`", paragraph)) & set(PARTS)
        assert names or "make bench" in paragraph or not re.search(r"\d", paragraph), (
            f"by which benchmark: {paragraph}"
        )
