"""The command `lakehouse tour`: its folder, the steps in their order, and the end of all that was started."""

import json
import os
import select
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assets.parts import Parts
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, from_environment
from lakehouse.stopping import Stop, Stopped

if TYPE_CHECKING:
    import psutil
    from rich.console import Console

    from assets.tour.guide import Guide

_NOTE = ".tour"  # the process of the tour of a folder, and its mark
_MARK = "TOUR_OF_LAKEHOUSE"  # in the environment of each process that the tour starts


def tour(
    directory: Annotated[
        Path, typer.Argument(help="A folder for the project of the tour, new or empty")
    ] = Path("lakehouse-tour"),
    auto: Annotated[
        bool, typer.Option("--auto", help="Wait for no key; so it is without a terminal")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder at the end")] = False,
) -> None:
    """Show in ten minutes what a lakehouse does, in nine steps, each verified.

    The tour makes a project of its own, and starts its own broker and job. All of it ends with the
    command. Exit code 0 if each step is verified, 1 if one is not (the folder stays), 3 if it was
    ended before.
    """
    from lakehouse.cli.console import out

    stopping = Stop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    raise typer.Exit(play(out(), directory.absolute(), stopping, auto=auto, keep=keep))


def play(console: "Console", folder: Path, stopping: Stop, *, auto: bool, keep: bool) -> int:
    """Plays the tour in a folder, and returns its exit code. Raises SettingsError if the folder has something in it."""
    from rich.text import Text

    from assets.tour.guide import CheckError, Guide

    environment = _environment(folder)
    _claim(folder, environment[_MARK])
    parts = Parts(Settings(root=folder / ".lakehouse"), console, stopping, lambda: environment)
    parts.running["what is left"] = [lambda: _end_marked(environment[_MARK])]
    exit_code = 2  # of an error of the library
    try:
        _steps(Guide(folder, parts), auto or not console.is_terminal)
        exit_code = 0
    except Stopped:
        exit_code = 3
        console.print("[yellow]ended before the last step[/yellow]")
    except CheckError as err:
        exit_code = 1
        console.print(Text.assemble(("✗ not verified: ", "bold red"), f"{err}"))
    finally:
        parts.end("job", "board", "what is left")
        stays = keep or exit_code in (1, 2)  # there is something to look at
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)
    left = f"{folder} stays" if stays else f"{folder} is removed (--keep keeps it)"
    console.print(f"[dim]All processes of the tour have ended; {left}.[/dim]", soft_wrap=True)
    return exit_code


def _steps(guide: "Guide", auto: bool) -> None:
    from rich.markup import escape

    from assets.tour.steps import STEPS

    console, took = guide.console, []
    for number, (title, step) in enumerate(STEPS.items(), 1):
        console.print(f"\n[bold]{number} of {len(STEPS)} · {title}[/bold]", highlight=False)
        console.print(" ".join((step.__doc__ or "").split()), highlight=False)
        if not auto:
            _await_key(guide, "any key: do it · q: end the tour")
        began = time.monotonic()
        verified = step(guide)
        took.append(time.monotonic() - began)
        line = f"[bold green]✓ verified:[/bold green] {escape(verified)}"
        console.print(f"{line} [dim]{took[-1]:.1f} s[/dim]", highlight=False)
        if number == 1 and find_spec("uvicorn") and find_spec("starlette"):
            guide.parts.start_board()
    console.print(f"\n[bold]{len(took)} of {len(STEPS)} steps verified in {sum(took):.0f} s[/bold]")
    if not auto:
        _await_key(guide, "all of it still runs · any key: end it")


def _await_key(guide: "Guide", text: str) -> None:
    """Waits for a key. Raises Stopped if it is q, or somebody ends the tour."""
    import termios
    import tty

    guide.console.print(f"[dim]{text}[/dim]")
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            if guide.stopping.is_set():
                raise Stopped("a key")
        if os.read(sys.stdin.fileno(), 1) in (b"q", b""):
            raise Stopped("a key")
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _claim(folder: Path, mark: str) -> None:
    """Makes a folder that of this tour. Raises SettingsError if it has something in it; ends what a killed tour left there."""
    # here, since psutil is not for every command that is listed beside this one
    from lakehouse import processes

    note = folder / _NOTE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError
        with note.open("x") as file:
            json.dump(
                {"pid": os.getpid(), "started": processes.started(os.getpid()), "mark": mark}, file
            )
    except FileExistsError:
        raise SettingsError(
            f"directory={folder}: the tour needs a folder of its own, and this {_occupied(note)}; name another one "
            "(`lakehouse tour DIRECTORY`)"
        ) from None


def _occupied(note: Path) -> str:
    """Returns by what a folder is occupied. The processes of a tour that was killed there are ended."""
    from lakehouse import processes

    try:
        tour = json.loads(note.read_text())
        if processes.running(tour["pid"], tour["started"]):
            return f"is that of a tour that still runs (pid={tour['pid']})"
        _end_marked(tour["mark"])
        return "is that of a tour that was killed, whose processes have been ended now, so it can be removed"
    except (OSError, ValueError, KeyError):
        return "has something in it"


def _environment(folder: Path) -> Mapping[str, str]:
    """Returns the environment of the commands: the user's, with the settings of the folder alone, and a mark of this tour."""
    given = {name: v for name, v in os.environ.items() if not name.startswith("LAKEHOUSE_")}
    return given | {
        "LAKEHOUSE_CONFIG": str(folder / "lakehouse.toml"),
        "LAKEHOUSE_JARS": str(from_environment(required=False).jars),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        _MARK: uuid.uuid4().hex,
    }


def _end_marked(mark: str) -> None:
    """Kills the processes that have the mark of a tour: the broker, and whatever a command has left when it was killed."""
    import psutil

    while marked := [process for process in psutil.process_iter() if _is_marked(process, mark)]:
        for process in marked:  # a supervisor may start another job meanwhile
            with suppress(psutil.Error):
                process.kill()
                process.wait(20)


def _is_marked(process: "psutil.Process", mark: str) -> bool:
    import psutil

    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark
    return False
