"""Names that become paths: none leaves its folder, none is too long for a file system."""

import ast
from pathlib import Path

import pytest

from lakehouse.declare import catalog
from lakehouse.errors import PathError, SavepointError
from lakehouse.paths import below, within
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.versions import savepoints
from support import ROOT

HERE = Path("/srv/folder")
MODULES = sorted(
    path
    for package in ("lakehouse", "streaming_jobs", "batch_jobs", "assets")
    for path in (ROOT / package).rglob("*.py")
)
LONG = "n" * 300


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a/b", "../a", "/etc/passwd", "a\0b", "a/", LONG, "é" * 130]
)
def test_a_name_that_leaves_its_folder_is_refused(name: str):
    with pytest.raises(PathError, match=r"name="):
        below(HERE, name)
    with pytest.raises(PathError, match=r"name="):
        below(HERE, "sound", name)


@pytest.mark.parametrize(
    "name", ["a", "...", "..a", "a b", "é", "publish:target", "-x", "~", "$HOME"]
)
def test_a_name_of_one_file_is_taken(name: str):
    assert below(HERE, name) == HERE / name
    assert below(HERE, "x", name).parent == HERE / "x"


@pytest.mark.parametrize("path", ["", ".", "/a", "../a", "a/../../b", "a/..", "a\0", "//etc"])
def test_a_path_of_a_log_that_leaves_its_table_is_refused(path: str):
    with pytest.raises(PathError, match=r"path="):
        within(HERE, path)


def test_a_path_of_a_log_within_its_table_is_taken():
    assert within(HERE, "_partition=x/part..0.parquet") == HERE / "_partition=x/part..0.parquet"


FROM_SETTINGS = {
    name: function
    for name, function in vars(layout).items()
    if callable(function) and getattr(function, "__module__", "") == layout.__name__
}


@pytest.mark.parametrize("name", sorted(FROM_SETTINGS))
def test_no_function_of_the_layout_takes_a_name_outside(name: str, tmp_path: Path):
    """Whatever text is given for whatever parameter: a path below the root, or PathError."""
    from dataclasses import replace
    from inspect import signature
    from itertools import product

    settings = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    table = next(iter(catalog.load(settings)))
    values: list[list[object]] = []
    for parameter in list(signature(FROM_SETTINGS[name]).parameters)[1:]:
        hostile = ["sound", "..", "../x", "/etc", "a/../../..", "../../../x"]
        tables = [replace(table, name=each, layer=each) for each in hostile]
        values.append(list(tables if parameter == "table" and "failure" not in name else hostile))
    for given in product(*values):
        try:
            made = FROM_SETTINGS[name](settings, *given)
        except PathError:
            continue
        for path in made if isinstance(made, list) else [made]:
            assert ".." not in Path(path).parts
            assert isinstance(path, str) or path.is_relative_to(tmp_path)


# a value of a record that is joined to a folder all the same, with the reason
BY_ITSELF = {
    "lakehouse/storage/foreign/foreign_log.py": {
        "unquote(path)"
    },  # tables of others have files anywhere
    "lakehouse/storage/foreign/foreign_folder.py": {"found.path", "each.path", "known.path"},
    "lakehouse/storage/foreign/foreign_files.py": {"found.path", "known.path"},
    "lakehouse/storage/keyed/state_files.py": {"each.note", "made.note"},  # made of an instant
    "lakehouse/storage/versions/savepoints.py": {"each.note"},
}


def from_records(tree: ast.AST) -> set[str]:
    """The right sides of `/` that come from a record, a dict, or a text of a log."""
    sides = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
            continue
        side, text = node.right, ast.unparse(node.right)
        of_record = isinstance(side, ast.Attribute) and not (
            side.attr.isupper() or side.attr in ("name", "elapsed", "partitions")
        )
        of_dict = isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant)
        if of_record or (of_dict and isinstance(side.slice.value, str)) or "unquote(" in text:
            sides.add(text)
    return sides


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if "examples" not in p.parts],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_what_a_file_names_becomes_a_path_in_one_way(path: Path):
    left = from_records(ast.parse(path.read_text()))
    assert left <= BY_ITSELF.get(str(path.relative_to(ROOT)), set()), "use `below` or `within`"


def test_the_layout_joins_constants_alone():
    tree = ast.parse((ROOT / "lakehouse/storage/disk/layout.py").read_text())
    divisions = [
        n for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)
    ]
    assert divisions and all(isinstance(node.right, ast.Constant) for node in divisions)


def test_long_names_are_refused_in_words(tmp_path: Path):
    settings = Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    with pytest.raises(PathError, match=r"300 bytes"):
        savepoints.check_name(settings, LONG)
    with pytest.raises((SavepointError, PathError)):
        savepoints.savepoint(settings, LONG)
