"""The rules of the house, held by reading the code: who imports whom, what is imported where, what runs at import.

The last ones are about the rooms of the tests.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support import ROOT

PACKAGES = ("lakehouse", "streaming_jobs", "batch_jobs", "assets", "examples")
NEXMARK = [ROOT / f"benchmarks/nexmark/{name}.py" for name in ("tables", "producer")]  # an example
MODULES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py")) + NEXMARK
ALLOWED = {
    "lakehouse": {"lakehouse"},
    "streaming_jobs": {"lakehouse", "streaming_jobs"},
    "batch_jobs": {"lakehouse", "batch_jobs"},
    "assets": {"lakehouse", "streaming_jobs", "batch_jobs", "assets"},
    "examples": {"lakehouse"},  # and nothing of the wheel imports them
    "benchmarks": {"lakehouse"},  # Nexmark's tables and producer
}

ROOMS = (  # of `lakehouse`, each above what it imports
    {
        "addresses",
        "backoff",
        "errors",
        "logs",
        "object_paths",
        "own_host",
        "paths",
        "processes",
        "durations",
        "ranges",
        "freshness",
        "settings",
        "settings_values",
        "watermarks",
        "stopping",
    },
    {"declare"},
    {"storage"},
    {"runtime"},
    {"sinks"},
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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(params=MODULES, ids=name_of)
def module(request: pytest.FixtureRequest) -> tuple[Path, ast.Module]:
    return request.param, tree_of(request.param)


def test_all_packages_are_looked_at():
    assert {p.relative_to(ROOT).parts[0] for p in MODULES} == set(ALLOWED)


def test_imports_follow_the_direction(module):
    path, tree = module
    ours = {name.partition(".")[0] for name in imports(tree)} & set(ALLOWED)
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
    if name_of(path).startswith(("lakehouse/examples/", "examples/", "benchmarks/")):
        ours = {each for each in imports(tree) if each.partition(".")[0] in ALLOWED}
        assert not [each for each in ours if {"examples", "benchmarks"} & {*each.split(".")}]
        assert path.name != "tables.py" or ours == {"lakehouse"}, f"{name_of(path)} imports {ours}"


def test_dagster_is_imported_in_assets_only(module):
    path, tree = module
    if path.relative_to(ROOT).parts[0] != "assets":
        assert not [n for n in imports(tree) if n.partition(".")[0] == "dagster"]


def test_great_expectations_is_imported_in_functions_of_quality_only(module):
    path, tree = module
    everywhere = [n for n in imports(tree) if n.startswith("great_expectations")]
    assert not everywhere or name_of(path) == "lakehouse/transform/checks/quality.py"
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
        "lakehouse/transform/checks/quality.py",  # turns Great Expectations' telemetry off
        "lakehouse/runtime/spark_session.py",  # says where Spark's pages listen
        "streaming_jobs/supervision/standby.py",  # hands it on to the driver
        "batch_jobs/other_code.py",  # hands it on to the process that runs another version of the tables
        "assets/ui.py",  # hands it on to Dagster, as the demo does
        "assets/tour/command.py",  # hands it on to the commands, without what names a lakehouse
    }
    assert not reads or name_of(path) in allowed


# what touches files, by the name that is called: of a path, or of these modules
OF_PATHS = frozenset({
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "unlink", "rmdir", "mkdir", "glob", "rglob",
    "iterdir", "exists", "is_dir", "is_file", "is_symlink", "stat", "lstat", "rename", "symlink_to", "hardlink_to",
})  # fmt: skip
OF_MODULES = ("os", "os.path", "shutil")
OF_NO_FILE = {"getpid", "killpg", "uname", "_exit", "which"}  # of these modules
# packages that open files themselves
OPENERS = ("deltalake", "pyarrow.parquet", "pyarrow.dataset", "fcntl", "glob")
OTHER_FILES = {  # module -> whose files it touches: none of them is below the root, or a process of its own needs it there
    "lakehouse/settings.py": "the user's: the settings file",
    "lakehouse/settings_values.py": "the user's: the settings file, a file of Spark's pools",
    "lakehouse/object_paths.py": "none: it is the way to objects, as pathlib is to files",
    "lakehouse/declare/expectation_names.py": "the package's: names of expectations",
    "lakehouse/runtime/jars.py": "the cache of jars",
    "lakehouse/runtime/cds_archive.py": "the archive of classes, in the environment",
    "lakehouse/runtime/protobuf.py": "protoc's, in a temporary folder",
    "lakehouse/runtime/kafka_options.py": "the user's: certificates of the broker",
    "lakehouse/runtime/http_client.py": "none: it opens addresses of HTTP",
    "lakehouse/runtime/kafka_broker.py": "the embedded broker's own, which Kafka reads on this machine",
    "lakehouse/runtime/kafka_properties.py": "the embedded broker's own, which Kafka reads on this machine",
    "lakehouse/examples/ads/producer.py": "the package's: campaigns",
    "lakehouse/producers/files.py": "the user's: what is produced",
    "lakehouse/sinks/targets/files_folder.py": "the target's: files of a published table, outside of the root",
    "lakehouse/cli/project.py": "the user's: a project is begun",
    "lakehouse/processes.py": "the kernel's: /proc",
    "streaming_jobs/supervision/holders.py": "the kernel's: /proc",
    "streaming_jobs/supervision/standby.py": "none: two pipes",
    "batch_jobs/side.py": "the answer to `other_code`, in a temporary folder",
    "batch_jobs/other_code.py": "another version of the code, in a temporary folder",
    "assets/component.py": "the user's: the project of a component",
    "lakehouse/transform/checks/quality.py": "rules, in the Python environment",
    "assets/maintenance.py": "Dagster's: the events of a run",
    "assets/parts.py": "the logs of the processes that it starts",
    "assets/tour/command.py": "the project of the tour",
    "assets/tour/guide.py": "the project of the tour",
    "assets/tour/steps.py": "the project of the tour",
    "assets/ui.py": "the home of Dagster, and the workspace of the user",
}


def touches(tree: ast.AST) -> Iterator[str]:
    """What touches files in a module, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imports(node):
                if name.startswith(OPENERS):
                    yield f"{node.lineno}: import of {name}"
                elif isinstance(node, ast.ImportFrom) and name in OF_MODULES:
                    yield from (
                        f"{node.lineno}: import of {name}.{alias.name}"
                        for alias in node.names
                        if alias.name not in OF_NO_FILE
                    )
        elif isinstance(node, ast.Call) and (name := _touching(node)):
            yield f"{node.lineno}: {name}()"


def _touching(call: ast.Call) -> str:
    """The name by which a call touches files; empty if it does not."""
    called = call.func
    if isinstance(called, ast.Name):
        return "open" if called.id == "open" else ""
    if not isinstance(called, ast.Attribute):
        return ""
    owner = ast.unparse(called.value)
    if called.attr == "open" and owner.endswith("sink"):
        return ""  # a target that a table is published to
    if owner in OF_MODULES:
        return "" if called.attr in OF_NO_FILE else f"{owner}.{called.attr}"
    # a path has no arguments where it is only looked at, and one where it is moved; a text is replaced by another
    looked_at = called.attr in ("exists", "is_dir", "is_file", "stat") and call.args
    moved = called.attr == "replace" and len(call.args) == 1 and not call.keywords
    return called.attr if moved or (called.attr in OF_PATHS and not looked_at) else ""


def test_only_storage_touches_what_lies_below_the_root(module):
    path, tree = module
    name = name_of(path)
    if not name.startswith("lakehouse/storage/") and name not in OTHER_FILES:
        assert not list(touches(tree)), f"{name}: `lakehouse/storage` is the door to files"


def test_only_the_layout_knows_where_that_is(module):
    path, tree = module
    joined = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "root"
    ]
    assert not joined or name_of(path) == "lakehouse/storage/disk/layout.py", joined


def test_modules_with_other_files_are_there_and_touch_them():
    for name in OTHER_FILES:
        assert list(touches(ast.parse((ROOT / name).read_text()))), (
            f"{name} is no exception any more"
        )


@pytest.mark.parametrize(
    "text",
    [
        "open(path)",
        "path.open('a')",
        "(folder / 'a').read_text()",
        "layout.note(settings, table, 'a').unlink(missing_ok=True)",
        "folder.glob('*.json')",
        "path.exists()",
        "old.replace(new)",
        "os.replace(old, new)",
        "os.path.getsize(path)",
        "shutil.rmtree(folder)",
        "from shutil import rmtree",
        "import fcntl",
        "from deltalake import DeltaTable",
        "def read():\n    import pyarrow.parquet as pq",
    ],
)
def test_what_touches_files_is_found(text):
    assert list(touches(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "text.replace('a', 'b')",
        "replace(value, name=1)",
        "moment.replace(tzinfo=UTC)",
        "delta_log.exists(path)",
        "files.remove(path)",
        "self.sink.open()",
        "os.environ.get('A')",
        "os.getpid()",
        "shutil.which('java')",
        "from os import getpid",
        "import pyarrow.compute as pc",
    ],
)
def test_what_touches_no_files_is_left_alone(text):
    assert not list(touches(ast.parse(text)))


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


MAPPED = sorted(
    init
    # an example is no room
    for rooms in (
        "lakehouse/*",
        "lakehouse/[!e]*/*",
        "streaming_jobs",
        "streaming_jobs/*",
        "examples",
    )
    for init in ROOT.glob(f"{rooms}/__init__.py")
)


def test_a_room_holds_25_modules_at_most():
    rooms = {path.parent for path in MODULES}
    modules = {name_of(room): len([*room.glob("*.py")]) - 1 for room in rooms}
    assert not {room: many for room, many in modules.items() if many > 25}


@pytest.mark.parametrize("init", [*MAPPED, ROOT / "tests/support/__init__.py"], ids=name_of)
def test_the_map_of_a_room_names_its_modules_and_no_other(init):
    drawn = ast.get_docstring(tree_of(init)) or ""
    lines = re.findall(r"^(\w+)( +)\S", drawn, re.MULTILINE)
    there = {path.stem for path in init.parent.iterdir()}
    modules = {path.stem for path in init.parent.glob("*.py")} - {"__init__"}
    assert not modules - {word for word, _ in lines}, "a module is missing"
    assert not {word for word, gap in lines if len(gap) > 1} - there, "a module is gone"


# ---- the rooms of the tests


TESTS = sorted((ROOT / "tests").rglob("*.py"))
ROOMS_OF_TESTS = ("unit", "spark", "system")
STARTS_PROCESSES = {
    "subprocess",
    "multiprocessing",
    "lakehouse.runtime.kafka_broker",
    "lakehouse.runtime.spark_session",
    "pyspark.sql.SparkSession",
}


def test_the_name_of_a_file_of_tests_is_there_once():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest imports one of two"


def imported(tree: ast.Module) -> set[str]:
    """The modules that are imported anywhere, and each name from one of them with its module."""
    names = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return names | set(imports(tree))


def fixtures(path: Path) -> dict[str, set[str]]:
    """The fixtures of a module, each with those that it asks for."""
    return {
        node.name: parameters(node)
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef)
        and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def parameters(function: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in function.args.args}


def fixtures_with_a_session() -> set[str]:
    """`spark`, and the fixtures of all tests that ask for it, directly or not."""
    shared = fixtures(ROOT / "tests" / "conftest.py")
    shared |= fixtures(ROOT / "lakehouse" / "pytest_plugin.py")
    found = {"spark"}
    while more := {name for name, asked in shared.items() if asked & found} - found:
        found |= more
    return found


def test_each_test_is_in_a_room():
    rooms = {path.parent for path in TESTS if path.name.startswith("test_")}
    assert rooms == {ROOT / "tests" / room for room in ROOMS_OF_TESTS}


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_imports_another_test(path):
    # by the text: code that is handed to another process is looked at too
    found = re.findall(r"^\s*(?:from|import)\s+(?:\w+\.)*test_\w+", path.read_text(), re.MULTILINE)
    assert not found, f"{name_of(path)}: {found}; move what tests share to tests/support"


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "unit").glob("*.py")), ids=name_of)
def test_a_unit_test_has_no_session_no_broker_and_no_process(path):
    """`tests/unit/conftest.py` refuses processes at run time; this names the room before anything runs."""
    assert {"spark", "filled", "stage_of", "player", "testbed"} <= fixtures_with_a_session()
    asked = {
        node.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef) and parameters(node) & fixtures_with_a_session()
    }
    assert not asked, f"{name_of(path)}: {asked}; a test with a session is in tests/spark"
    used = imported(tree_of(path)) & STARTS_PROCESSES
    assert not used, f"{name_of(path)} imports {used}; a test with a process is in tests/system"
