"""Output of the command line: errors as one line, tables that people like to read, JSON where a script wants it.

Only functions that print with `rich` import it: it costs as much CPU as all of `lakehouse --help`.
"""

import atexit
import errno
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from lakehouse import logs
from lakehouse.errors import LakehouseError
from lakehouse.settings import from_environment

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

T = TypeVar("T")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts")]
Pipelines = Annotated[list[str] | None, typer.Argument(help="Pipelines; by default all")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes one that is free")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask")]
Wait = Annotated[
    float | None,
    typer.Option(help="Seconds within which the job must run; by default LAKEHOUSE_START_WITHIN"),
]
_STYLES = {"EQUAL": "green", "DIFFERENT": "bold red"}
_STYLES |= dict.fromkeys(("PENDING", "OPEN", "UNVERIFIABLE"), "yellow")
EXTRAS = {  # top-level module -> the extra that installs it
    "dagster": "dagster",
    "prometheus_client": "metrics",
    "starlette": "serve",
    "uvicorn": "serve",
    "openlineage": "lineage",
    "apprise": "notify",
    "psycopg": "postgres",
    "redis": "redis",
    "fastavro": "avro",
    "pyiceberg": "iceberg",
    "grpc_tools": "protobuf",
}
_RIGHTS = "run it as the user whom the folder belongs to, or give this user the right"
_ROOM = "make room, and run it again"
_REMEDIES = {  # remedies for a disk that belongs to somebody else, or is full
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "run it where that is mounted to be written to",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
}
_LINE_BREAK = re.compile(r"(?<!\n)\n(?=\S)(?![-*\n])")  # within a paragraph
_ANY_WIDTH = 100_000
_COLUMN = 16  # a column of a table needs this width, or its values could not be read
_PIPE_WIDTH = 160  # the width if there is no terminal


class Commands(TyperGroup):
    """A group of commands in which an error of the library is one red line on stderr and exit code 2."""

    def get_command(self, ctx, cmd_name):
        """Returns the command, with each paragraph of its help on one line, so that it is wrapped to the terminal.

        The first paragraph is its text in the list of commands.
        """
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            command.help = _LINE_BREAK.sub(" ", inspect.cleandoc(command.help))
            command.short_help = command.help.partition("\n\n")[0]
        if command is not None:
            _have_defaults(command, ctx)
        return command

    def parse_args(self, ctx, args):
        _have_defaults(self, ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except LakehouseError as err:
            print_error(err)
            raise typer.Exit(2) from err
        except ModuleNotFoundError as err:
            package = (err.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            print_error(
                f"command={' '.join(sys.argv[1:]) or ctx.info_name}, package={package}: it is not installed, for it belongs to "
                f"an extra; pip install 'unified-lakehouse[{EXTRAS[package]}]'"
            )
            raise typer.Exit(2) from err
        except OSError as err:
            if (remedy := _REMEDIES.get(err.errno or 0)) is None:
                raise
            import psutil  # for a user without a name, it gives the number

            user = psutil.Process().username()
            root = from_environment(required=False).root
            where = f"file={err.filename}" if err.filename else f"root={root}"
            print_error(
                f"{where}, user={user}: the command must read or write there, and cannot ({err.strerror}); {remedy}"
            )
            raise typer.Exit(2) from err


def _have_defaults(command, ctx) -> None:
    """Gives typer's own flags, as `--help`, the default False: for a None typer imports pydantic, 0.1 CPU seconds."""
    for param in command.get_params(ctx):
        if param.default is None and not param.expose_value:
            param.default = False


def group(text: str = "", groups: Mapping[str, typer.Typer] | None = None) -> typer.Typer:
    """Returns an app whose commands fail in one line, explained by `text`, with the `groups` below it by name."""
    made = typer.Typer(cls=Commands, no_args_is_help=True, help=text or None)
    for name, below in (groups or {}).items():
        made.add_typer(below, name=name)
    return made


def run(app: typer.Typer, arguments: Sequence[str] | None = None, name: str | None = None) -> None:
    """Runs `app` as this process. An unforeseen error is a traceback and exit code 2, since 1 is a verdict of some commands."""
    with suppress(LakehouseError):  # the command itself reports wrong settings
        logs.configure(from_environment(required=False))
    exit_code = 2
    # registered before a command runs, so it runs after everything that the command registers
    atexit.register(lambda: _leave(exit_code))
    try:
        app(args=arguments, prog_name=name)
    except SystemExit as err:
        exit_code = err.code if isinstance(err.code, int) else int(err.code is not None)
        raise
    except Exception:
        traceback.print_exc()
        raise SystemExit(2) from None


def _leave(exit_code: int) -> None:
    """Ends the process without shutting the interpreter down.

    A thread of Arrow that releases a Python object during a shutdown would abort the process and lose its exit code.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe without a reader, or a closed stream
            stream.flush()
    os._exit(exit_code)


def out() -> "Console":
    """Returns the console for results: as wide as the terminal, and of a fixed width in a pipe or a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def print_error(err: object) -> None:
    from rich.text import Text

    line = Text.assemble(("error: ", "bold red"), (f"{err}", "red"))
    _err().print(line, soft_wrap=True)


def print_note(text: str) -> None:
    """Prints a remark that is no part of the result, on stderr."""
    from rich.text import Text

    _err().print(Text(text, style="dim"), soft_wrap=True)


def _err() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


def print_text(text: "str | Text") -> None:
    out().print(text, soft_wrap=True, highlight=False, markup=False)


def print_json(values: Iterable[object]) -> None:
    for value in map(_fields, values):
        typer.echo(json.dumps(value, default=plain, ensure_ascii=False))


def _fields(value: Any) -> Any:
    """Returns an instance of a dataclass as a mapping, and others as they are."""
    is_instance = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_instance else value


def print_records(records: Sequence[object], as_json: bool = False) -> None:
    """Prints mappings, or instances of a dataclass, as JSON or as rows under the names of their fields."""
    if as_json:
        print_json(records)
    elif records:
        rows = [_fields(record) for record in records]
        print_rows(rows[0], (row.values() for row in rows))


def print_rows(names: Iterable[str], rows: Iterable[Iterable[object]], title: str = "") -> None:
    """Prints rows under their names, with numbers to the right.

    If a terminal is too narrow for that, each row is a list of its values. In a pipe or a file, lines are as long as
    they need to be.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns, lines = list(names), [tuple(row) for row in rows]
    table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        numbers = any(_is_number(line[i]) for line in lines)
        table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    for line in lines:
        table.add_row(*(_cell(value) for value in line))
    console = out()
    width = console.measure(table, options=console.options.update(max_width=_ANY_WIDTH)).maximum
    if width <= console.width:
        console.print(table)
    elif not sys.stdout.isatty():
        Console(width=width, highlight=False).print(table)
    elif lines and console.width < _COLUMN * len(columns):
        for number, line in enumerate(lines, 1):
            heading = f"{title}{', ' if title else ''}row {number} of {len(lines)}"
            console.print(Text(heading, style="bold"))
            print_facts(dict(zip(columns, line, strict=True)))
    else:
        console.print(table)


def print_columns(
    items: Iterable[T], columns: Mapping[str, Callable[[T], object]], title: str = ""
) -> None:
    """Prints a row for each item; `columns` has each column's name and the function that gives its value."""
    rows = ([value(item) for value in columns.values()] for item in items)
    print_rows(columns, rows, title)


def print_facts(facts: Mapping[str, object], as_json: bool = False) -> None:
    """Prints names and values, one pair a line, or as JSON."""
    if as_json:
        print_json([facts])
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), _cell(value))
    out().print(grid)


def shown(value: object) -> str:
    """Returns a value for people: instants as ISO 8601, a window as a range, nothing that could steer a terminal."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return plain(value)
    if isinstance(value, Mapping):
        if set(value) == {"start", "end"}:
            return f"[{shown(value['start'])}, {shown(value['end'])})"
        return json.dumps(value, default=plain, ensure_ascii=False)
    if isinstance(value, bytes):
        value = plain(value)
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in str(value))


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows a spinner with the time elapsed on stderr, if that is a terminal; yields a function that changes the text."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = _err()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=None)
        yield lambda text: progress.update(task, description=text)


def awaited(what: str, items: Iterable[T]) -> Iterator[T]:
    """Yields the items as they come, with a spinner while it waits for the next one, so that each can be printed at once."""
    rest = iter(items)
    while True:
        with working(what):
            try:
                item = next(rest)
            except StopIteration:
                return
        yield item


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr, if that is a terminal: how many of `total` are done, rows a second, the time left.

    Yields a function to call for each one that is done, with the number of its rows.
    """
    from rich import progress as bars

    console, rows = _err(), 0
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[rate]}"),
        bars.TimeRemainingColumn(),
    )
    hidden = not console.is_terminal
    with bars.Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=total, rate="")

        def done(more: int) -> None:
            nonlocal rows
            rows += more
            now = progress.tasks[task]
            rate = f"{rows / now.elapsed:,.0f} rows/s" if now.elapsed else ""
            progress.update(task, advance=1, total=max(total, now.completed + 1), rate=rate)

        yield done


def _cell(value: object) -> "Text":
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if _is_number(value) and isinstance(value, int):
        return Text(f"{value:,}")
    return Text(shown(value), style=_STYLES.get(str(value), ""))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(value: object) -> str:
    """Returns a value that JSON does not have as text: an instant in ISO 8601, bytes as UTF-8, others as Python shows them."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
