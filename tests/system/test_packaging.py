"""What is handed over: the version, the wheel and its metadata, and `make verify`, which ends within its time or says so."""

import email
import json
import os
import stat
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakehouse
from lakehouse.cli import main
from lakehouse.declare import catalog
from lakehouse.settings import Settings
from support import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel of this checkout, built as an installer builds it, without downloading anything."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
    )
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_string(wheel.read(path).decode())


def test_the_wheel_has_the_version_of_the_package(metadata):
    assert metadata["Version"] == lakehouse.__version__


def test_the_command_line_prints_the_version():
    printed = CliRunner().invoke(main.app(), ["--version"])
    assert (printed.exit_code, printed.stdout) == (0, f"lakehouse {lakehouse.__version__}\n")


def test_the_changelog_has_an_entry_for_the_version():
    assert f"## {lakehouse.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_metadata_name_the_licence_and_hold_the_readme(metadata):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Author"] == "unified-lakehouse contributors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()


def test_the_wheel_holds_what_the_packages_need_at_run_time(wheel):
    packed = set(wheel.namelist())
    for package in ("lakehouse", "streaming_jobs", "batch_jobs", "assets"):
        files = {
            str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*") if path.is_file()
        }
        needed = {path for path in files if "__pycache__" not in path}
        assert needed <= packed, f"{package}: {needed - packed}"
    runtime = {
        f"lakehouse/runtime/{name}" for name in ("jars.sha256", "ivy.xml", "log4j2.properties")
    }
    assert {"lakehouse/py.typed", "lakehouse/examples/ads/ad_campaigns.csv"} | runtime <= packed
    assert not [name for name in packed if name.startswith(("examples/", "benchmarks/", "tests/"))]


def test_the_wheel_holds_the_whole_licence(wheel):
    (path,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    licence = wheel.read(path).decode()
    assert "Apache License" in licence and "END OF TERMS AND CONDITIONS" in licence


@pytest.mark.parametrize(("minutes", "code"), [("45", 0), ("-1", 2)])
def test_verify_runs_every_part_and_fails_above_its_time(tmp_path, minutes, code):
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name in ("ruff", "mypy", "pytest"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    command = ["make", "--old-file=setup", "verify", f"BIN={programs}", f"VERIFY_MINUTES={minutes}"]
    verified = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert verified.returncode == code, verified.stdout + verified.stderr
    assert ("must end within it" in verified.stderr) == (code != 0)
    called = calls.read_text().splitlines()
    tested = [line for line in called if line.startswith("pytest") and "--durations=20" in line]
    assert len(tested) == 2
    assert sorted(map(str.strip, set(called) - set(tested))) == ["mypy", "ruff check"]
    assert all(" --turn=" in line for line in tested)
    calls.unlink()
    assert subprocess.run([*command, "ALL=1"], cwd=ROOT, capture_output=True).returncode == code
    assert "pytest" in calls.read_text() and "--turn" not in calls.read_text()
    assert "make verify took" in verified.stdout


def dg(*arguments: str, home: Path) -> subprocess.CompletedProcess:
    environment = {
        "DAGSTER_HOME": str(home),
        "DAGSTER_DG_UPDATE_CHECK_ENABLED": "0",
        "LAKEHOUSE_ROOT": str(home / "root"),
    }
    (home / "dagster.yaml").write_text((ROOT / "assets" / "dagster.yaml").read_text())
    program = Path(sys.executable).with_name("dg")
    return subprocess.run(
        [str(program), *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_dg_checks_and_lists_the_definitions(tmp_path):
    checked = dg("check", "defs", home=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = dg("list", "defs", "--json", home=tmp_path)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    keys = {asset["asset_key"] for asset in json.loads(listed.stdout)["assets"]}
    declared = catalog.load(Settings())
    assert {table.name for table in declared} <= keys
    assert {f"streaming_job/{pipeline}" for pipeline in declared.pipelines()} <= keys
