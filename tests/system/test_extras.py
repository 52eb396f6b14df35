"""The core without its extras: what needs none of them works, and what does says how to install it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lakehouse.cli.console import EXTRAS
from support import ROOT

# with the packages that `examples.visits` needs, which no extra installs
NOT_INSTALLED = {*EXTRAS, "geoip2fast", "crawlerdetect"}
# stands for an environment without the extras: their modules are not found, whoever asks for them
WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_INSTALLED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def without(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
    )


def command(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    code = "from lakehouse.cli.main import main; main()"
    return without(
        code,
        *arguments,
        LAKEHOUSE_ROOT=str(root),
        LAKEHOUSE_TABLES="examples.bank.tables",
    )


def test_every_extra_names_the_packages_that_the_command_line_knows():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    for module, extra in EXTRAS.items():
        package = {"grpc_tools": "grpcio-tools"}.get(module, module.replace("_", "-"))
        assert any(line.startswith(package) for line in extras[extra]), module
        assert not any(line.startswith(package) for line in declared["dependencies"])


def test_all_modules_but_those_of_an_extra_are_imported_without_it():
    found = without("""
from importlib import import_module
from pathlib import Path
needing = []
for package in ("lakehouse", "streaming_jobs", "batch_jobs", "assets", "examples", "benchmarks/nexmark"):
    for path in sorted(Path(package).rglob("*.py")):
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        if name.endswith("__main__"):
            continue
        try:
            import_module(name)
        except ModuleNotFoundError:
            needing.append(name)
print(*needing)
""")
    assert found.returncode == 0, found.stderr
    needing = {name for name in found.stdout.split() if not name.startswith("assets.")}
    assert needing == {
        "lakehouse.cli.http_server",
        "lakehouse.cli.serve",
        "streaming_jobs.board.server",
        "streaming_jobs.exporters.lineage",
        "streaming_jobs.exporters.metric_families",
        "streaming_jobs.exporters.metrics",
    }


def test_the_command_line_has_all_its_commands_and_reads_a_lakehouse(tmp_path):
    shown = command(tmp_path, "table", "list", "--json")
    assert shown.returncode == 0 and "bank_events" in shown.stdout, shown.stderr
    assert "cannot be loaded" not in command(tmp_path, "--help").stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("metrics", "--once"), "metrics"),
        (("lineage",), "lineage"),
        (("serve",), "serve"),
        (("board",), "serve"),
    ],
)
def test_a_command_of_a_missing_extra_says_how_to_install_it(tmp_path, arguments, extra):
    refused = command(tmp_path, *arguments)
    assert refused.returncode == 2
    assert f"pip install 'unified-lakehouse[{extra}]'" in refused.stderr


def test_an_address_of_apprise_says_how_to_install_it(tmp_path):
    code = "from lakehouse.cli.main import main; main()"
    address = "mailto://ann:s3cret@example.org"
    refused = without(code, "table", "list", LAKEHOUSE_NOTIFICATION_URLS=address)
    assert refused.returncode == 2 and "s3cret" not in refused.stderr
    assert "notification_urls[0]=mailto://***" in refused.stderr
    assert "pip install 'unified-lakehouse[notify]'" in refused.stderr
