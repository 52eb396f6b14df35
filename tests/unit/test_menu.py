"""The menu of the site: it has every page, and the page of the API has every public name."""

import ast
import re
import tomllib
from collections.abc import Iterator

import lakehouse
from support import ROOT

DOCS = ROOT / "docs"


def pages(entry: object) -> Iterator[str]:
    """Yields the pages below an entry of the menu."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(below)


def test_the_menu_has_every_page_once():
    menu = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    written = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(pages(menu)) == written


def test_the_index_of_a_folder_links_its_pages():
    for index in DOCS.glob("*/index.md"):
        linked = set(re.findall(r"\]\(([\w-]+\.md)", index.read_text()))
        own = {page.name for page in index.parent.glob("*.md")} - {"index.md"}
        assert own <= linked, index


def test_the_page_of_the_api_has_every_public_name():
    shown = re.findall(r"^::: lakehouse\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.M)
    assert sorted(shown) == sorted({*lakehouse.__all__, "testing"} - {"__version__", "expect"})


def test_the_page_of_the_api_has_the_test_kit():
    shown = re.findall(
        r"^::: lakehouse\.testing\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.M
    )
    kit = []
    for node in ast.parse((ROOT / "lakehouse/testing.py").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            kit.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            kit += [name.name for name in node.names if name.asname == name.name]
    assert sorted(shown) == sorted(name for name in kit if not name.startswith("_"))
