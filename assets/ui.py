"""`lakehouse ui`: Dagster's pages and daemon on this lakehouse, with storage below its root and the settings that ship."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, from_environment, settings_file, to_environment

app = typer.Typer()

_SETTINGS = Path(__file__).with_name("dagster.yaml")
# 60, Dagster's own, is too short for a code server beside jobs that start on two cores
_GRPC_SECONDS = "300"


@app.command()
def ui(port: Annotated[int, typer.Option(help="The port of the Dagster UI")] = 3000) -> None:
    """Start Dagster's UI and daemon for this lakehouse, until Ctrl-C.

    Runs and events are kept below the root, in `_dagster`. The first start writes `dagster.yaml`
    there, which is yours to change. A `workspace.yaml` in the current folder, or else beside
    `lakehouse.toml`, names what is loaded.
    """
    settings = from_environment()
    environment = dagster_environment(settings)
    command = dagster_dev(port, loaded(settings_file()))
    # a process that a shell starts in the background ignores these signals, and Dagster would never end
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.execve(command[0], command, environment)  # so that Ctrl-C and the exit code are Dagster's


def loaded(file: Path | None) -> list[str]:
    """Returns the options of `dagster dev` that say what it loads, for a settings file."""
    folders = [Path(), *([file.parent] if file else [])]
    workspaces = (folder / "workspace.yaml" for folder in folders)
    workspace = next(filter(Path.exists, workspaces), None)
    return ["-w", str(workspace)] if workspace else ["-m", "assets.definitions"]


def dagster_environment(settings: Settings) -> Mapping[str, str]:
    """Returns the environment of Dagster's processes and makes their home. Raises SettingsError if it cannot be written."""
    from lakehouse.storage.disk import layout
    from lakehouse.storage.disk.root import make as make_root

    home = layout.dagster_home(settings).absolute()
    try:
        make_root(settings)
        home.mkdir(parents=True, exist_ok=True)
        if not (home / _SETTINGS.name).exists():
            shutil.copy(_SETTINGS, home)
    except OSError as err:
        raise SettingsError(
            f"root={settings.root}: Dagster keeps its runs in {home}, which cannot be written to ({err}); name another root"
        ) from err
    waits = {"DAGSTER_GRPC_TIMEOUT_SECONDS": _GRPC_SECONDS}
    return waits | dict(os.environ) | to_environment(settings) | {"DAGSTER_HOME": str(home)}


def dagster_dev(port: int, loaded: list[str]) -> list[str]:
    """Returns the command of `dagster dev` on loopback."""
    return [sys.executable, "-m", "dagster", "dev", *loaded, "-h", "127.0.0.1", "-p", str(port)]
