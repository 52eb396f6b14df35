"""The rules of the house, held by reading the code: who imports whom, what is imported where, what runs at import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("lakehouse", "streaming_jobs", "batch_jobs", "assets")
MODULES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
ALLOWED = {
    "lakehouse": {"lakehouse"},
    "streaming_jobs": {"lakehouse", "streaming_jobs"},
    "batch_jobs": {"lakehouse", "batch_jobs"},
    "assets": set(PACKAGES),
}

ROOMS = (  # of `lakehouse`, each above what it imports
    {
        "addresses",
        "errors",
        "logs",
        "durations",
        "ranges",
        "cron",
        "freshness",
        "settings",
        "settings_values",
        "watermarks",
    },
    {"declare"},
    {"storage"},
    {"runtime"},
    {"transform"},
    {"batch"},
    {"stream"},
    {"reconcile"},
    {"maintenance"},
    {"producers", "testing"},
    {"examples"},
    {"cli", "pytest_plugin", "__main__"},
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def at_import(tree: ast.Module) -> Iterator[str]:
    """What a module imports when it is itself imported: not inside functions, not for types only."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            waiting += node.body + node.orelse
        elif isinstance(node, ast.Try):
            waiting += node.body


@pytest.fixture(params=MODULES, ids=name_of)
def module(request: pytest.FixtureRequest) -> tuple[Path, ast.Module]:
    return request.param, ast.parse(request.param.read_text())


def test_all_packages_are_looked_at():
    assert {p.relative_to(ROOT).parts[0] for p in MODULES} == set(PACKAGES)


def test_imports_follow_the_direction(module):
    path, tree = module
    ours = {name.partition(".")[0] for name in imports(tree)} & set(PACKAGES)
    assert ours <= ALLOWED[path.relative_to(ROOT).parts[0]], f"{name_of(path)} imports {ours}"


def test_each_room_stands_on_those_below_it_alone(module):
    path, tree = module
    package, *rest = path.relative_to(ROOT).with_suffix("").parts
    if package != "lakehouse" or rest == ["__init__"]:
        return
    floor = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    named = {name for name in imports(tree) if name.startswith("lakehouse.")}
    named |= {
        f"lakehouse.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "lakehouse"
        for alias in node.names
    }
    # a name of the public face is of `declare` or `transform`
    used = {floor.get(name.split(".")[1], floor["transform"]) for name in named}
    assert max(used, default=0) <= floor[rest[0]], f"{name_of(path)} imports {sorted(named)}"


def test_an_example_stands_by_itself(module):
    """Its tables are declared with the public face, as a user's are, and it is whole without the other examples."""
    path, tree = module
    if name_of(path).startswith("lakehouse/examples/"):
        ours = {each for each in imports(tree) if each.startswith("lakehouse")}
        assert not [each for each in ours if each.startswith("lakehouse.examples")]
        assert path.name != "tables.py" or ours == {"lakehouse"}, f"{name_of(path)} imports {ours}"


def test_dagster_is_imported_in_assets_only(module):
    path, tree = module
    if path.relative_to(ROOT).parts[0] != "assets":
        assert not [n for n in imports(tree) if n.partition(".")[0] == "dagster"]


def test_great_expectations_is_imported_in_functions_of_quality_only(module):
    path, tree = module
    everywhere = [n for n in imports(tree) if n.startswith("great_expectations")]
    assert not everywhere or name_of(path) == "lakehouse/transform/quality.py"
    assert not [n for n in at_import(tree) if n.startswith("great_expectations")]


def test_the_environment_is_read_in_settings_only(module):
    path, tree = module
    reads = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        # handing the whole environment on to a child process reads no setting; a default keeps telemetry off
        and node.value.id == "os"
    ]
    allowed = {
        "lakehouse/settings.py",
        "lakehouse/transform/quality.py",  # turns Great Expectations' telemetry off
        "lakehouse/runtime/session.py",  # says where Spark's pages listen
        "streaming_jobs/supervisor.py",  # hands it on to the driver
        "batch_jobs/other_code.py",  # hands it on to the process that runs another version of the tables
        "assets/demo.py",  # hands it on to producers and Dagster
    }
    assert not reads or name_of(path) in allowed


def test_no_transformation_asks_whether_it_streams(module):
    path, tree = module
    assert not [
        n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "isStreaming"
    ], name_of(path)


def test_nothing_runs_at_import(module):
    """A module defines; calls at its top level are those that make values (declarations, apps, type variables)."""
    path, tree = module
    bare = [
        node
        for node in tree.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    assert not bare, f"{name_of(path)}:{bare[0].lineno} calls at import"


def test_modules_keep_to_a_size_that_can_be_read(module):
    path, tree = module
    assert len(path.read_text().splitlines()) <= 400, (
        f"{name_of(path)}: look for the second idea in it"
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            docstring = len((ast.get_docstring(node) or "").splitlines())
            length = (node.end_lineno or 0) - node.lineno - docstring
            assert length <= 80, (
                f"{name_of(path)}:{node.name} has {length} lines; look for the second idea in it"
            )
