"""Plays the tutorials in docs/start as a reader types them.

    python -m tools.tutorials            # exits with 1 if a page shows other output than its commands print
    python -m tools.tutorials --write    # writes what they print into the pages

A page is played from the folder in which the page before it has ended; the first begins in an empty one.

- A block with `title="FILE"` is written to that file.
- A line of a `console` block that begins with `$ ` is typed into bash, and the lines below it are its output. `# exit code 1`
  behind a command says how it ends, if not with 0.
- A command that only reads is repeated until it prints what the page shows, for two minutes at most: a reader looks again, too.
- A notebook is run cell by cell, in the folder of the project. What it shows is the value of a cell's last line.
"""

import difflib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from signal import SIGTERM
from types import TracebackType

DOCS = Path(__file__).parents[1] / "docs" / "start"
NAMES = (
    "own-topic.md",
    "repair.md",
    "test-a-table.md",
    "change.md",
    "dagster.md",
    "read.md",
    "revenue.ipynb",
)
PAGES = [DOCS / name for name in NAMES]
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"# exit code (\d+)$")
_READS = ("lakehouse table ", "lakehouse query ", "lakehouse stream status", "lakehouse upgrade status", "curl ")  # fmt: skip
_CELLS = """
import ast, json, sys
names, results = {}, []
for source in json.load(sys.stdin):
    *steps, last = ast.parse(source).body
    exec(compile(ast.Module(steps, []), "<cell>", "exec"), names)
    results.append(repr(eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)))
print(json.dumps(results))
"""
_RESULT = {"metadata": {}, "output_type": "execute_result"}
_REPEATED = 120.0  # seconds
_SETTLED = 8.0  # seconds after which a new command is expected to print what it prints
_WITHIN = 240.0  # seconds for a command
_NOT_SHOWN = ("━", "WARNING: Using incubator")  # bars, and a word of the JVM
_PORT = "3000"  # of Dagster's pages; a free one is taken for it
# what differs from one run to the next, in this order: a pattern, and what is compared in its place
_DIFFERS = (
    (r"/\S*/shop\b", "/FOLDER/shop"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}(Z|\+00:00)", "NOW"),  # events have whole seconds
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d\+00:00", "NOW"),
    (r"\b[\d,]+ bytes\b", "BYTES"),
    (r"\bpid \d+", "PID"),
    (r"\bversion \d+( \(\w+ at [^)]+\))?", "VERSION"),
    (r'"\d+\.\d+\.\d+"', "VERSION"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b\d+(\.\d+)?( ?s\b| seconds\b)( \(\d:\d\d:\d\d\))?", "SECONDS"),
    (r"\b\d+/s\b", "RATE"),
    (r"(?m)^(seconds +)[\d.]+", "SECONDS"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b", "ID"),
    (r"[─═]+", "─"),
    (r"[ \t]+", " "),  # columns are as wide as their widest value
    (r"(?m)^ | $", ""),
)  # fmt: skip
# columns whose values differ: how often the job commits is a matter of time
_COLUMNS_THAT_DIFFER = {"version", "Delta version", "seconds", "seconds a day", "bytes"}


def as_compared(output: str) -> str:
    """Returns an output without what differs from one run to the next."""
    output = "\n".join(_without_columns(output.splitlines()))
    for pattern, instead in _DIFFERS:
        output = re.sub(pattern, instead, output)
    return output.strip()


def _without_columns(lines: list[str]) -> Iterator[str]:
    """Yields the lines, those of a table without the values of columns that differ."""
    columns: list[str] = []
    for line, below in pairwise([*lines, ""]):
        cells = re.split(r"\s{2,}", line.strip())
        if below.strip().startswith("──"):
            columns = cells
        elif len(cells) == len(columns):
            pairs = zip(columns, cells, strict=True)
            line = "  ".join("-" if name in _COLUMNS_THAT_DIFFER else cell for name, cell in pairs)
        yield line


class Reader:
    """Types what the pages say into one bash, in a folder that is empty at first."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.log = folder.with_suffix(".log")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.environment = environment
        self.seconds: list[tuple[float, str]] = []  # of each command, and the command
        with self.log.open("wb") as log:
            self.bash = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Ends what was started, however far the pages came."""
        stop = "lakehouse stream stop --now; lakehouse broker stop"
        subprocess.run(
            ["bash", "-c", stop],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            timeout=_WITHIN,
        )
        os.killpg(self.bash.pid, SIGTERM)  # what runs in the background, too
        self.bash.communicate()

    def play(self, page: Path) -> str:
        """Returns a page, or a notebook, with what it shows now. Output that differs by nature alone stays."""
        if page.suffix == ".ipynb":
            return self._with_results(page)
        return _BLOCK.sub(self._block, page.read_text())

    def _with_results(self, notebook: Path) -> str:
        """Returns a notebook with the results of its cells as they are now, run in the folder that bash is in."""
        content = json.loads(notebook.read_text())
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        sources = json.dumps(["".join(cell["source"]) for cell in cells])
        command, folder = [sys.executable, "-c", _CELLS], self.folder
        done = subprocess.run(
            command, input=sources, cwd=folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{notebook.name}: {done.stderr}"
        for cell, text in zip(cells, json.loads(done.stdout), strict=True):
            data = {"text/plain": text.splitlines(keepends=True)}
            number = {"execution_count": cells.index(cell) + 1}
            cell |= number | {"outputs": [number | _RESULT | {"data": data}]}
        return json.dumps(content, indent=1) + "\n"

    @property
    def folder(self) -> Path:
        """Returns the folder that bash is in."""
        return Path(f"/proc/{self.bash.pid}/cwd").readlink()

    def _block(self, block: re.Match[str]) -> str:
        language, file, text = block.groups()
        if file:
            (self.folder / file).write_text(text.replace(_PORT, self.port))
        elif language == "console":
            return block[0].replace(text, "".join(self._typed(text)))
        return block[0]

    def _typed(self, text: str) -> Iterator[str]:
        """Yields each command of a block, and what it prints."""
        for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.removeprefix("$ ").partition("\n")
            yield f"$ {command}\n{self._printed(command, shown)}"

    def _printed(self, command: str, shown: str) -> str:
        """Returns what a command prints: as it is shown, if the two differ by nature alone."""
        wait = _REPEATED if shown else _SETTLED
        deadline = time.monotonic() + wait * command.startswith(_READS)
        expected = int(code[1]) if (code := _EXIT_CODE.search(command)) else 0
        while True:
            ended, printed = self._run(command)
            if ended == expected and as_compared(printed) == as_compared(shown):
                return shown
            if time.monotonic() > deadline:
                assert ended == expected, f"exit code {ended} of `{command}`:\n{printed}"
                return printed
            time.sleep(0.5)

    def _run(self, command: str) -> tuple[int, str]:
        """Returns the exit code of a command, and what of its output the pages show."""
        began = time.monotonic()
        code, printed = self._type(command.replace(_PORT, self.port))
        self.seconds.append((time.monotonic() - began, command))
        lines = [line.rstrip() for line in printed.replace(self.port, _PORT).splitlines()]
        kept = [line for line in lines if line and not line.startswith(_NOT_SHOWN)]
        return code, "".join(f"{line}\n" for line in kept)

    def _type(self, command: str) -> tuple[int, str]:
        """Types a command, waits for its end, and returns its exit code and what it printed."""
        assert self.bash.stdin is not None
        began, deadline = self.log.stat().st_size, time.monotonic() + _WITHIN
        self.bash.stdin.write(f"{{ {command}\n}} </dev/null; printf '\\n<ended %d>' $?\n")
        self.bash.stdin.flush()
        while time.monotonic() < deadline:
            printed = self.log.read_bytes()[began:].decode(errors="replace")
            if ended := re.search(r"\n<ended (\d+)>$", printed):
                return int(ended[1]), printed[: ended.start()]
            time.sleep(0.05)
        raise TimeoutError(f"`{command}` has not ended within {_WITHIN:.0f} s")


def environment() -> dict[str, str]:
    """Returns the variables of a reader who has set none of the library's, and has its commands on the PATH."""
    ours = ("LAKEHOUSE_", "DAGSTER_", "PYTEST_", "PYTHON")
    others = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return others | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    }


def main() -> int:
    """Plays all pages, shows what differs or writes it, and returns the exit code."""
    write, differs = "--write" in sys.argv[1:], False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
        folder = Path(parent, "empty")
        folder.mkdir()
        with Reader(folder, environment()) as reader:
            for page in PAGES:
                began, shown = time.monotonic(), page.read_text()
                played = reader.play(page)
                print(f"{page.name}: {time.monotonic() - began:.0f} s", flush=True)
                for seconds, command in sorted(reader.seconds, reverse=True)[:3]:
                    print(f"  {seconds:.0f} s {command}")
                reader.seconds.clear()
                differs = differs or played != shown
                print(difference(shown, played))
                if write:
                    page.write_text(played)
    return int(differs and not write)


def difference(shown: str, played: str) -> str:
    """Returns a diff of a page as it is and as it was played; empty if they are the same."""
    lines = difflib.unified_diff(
        shown.splitlines(), played.splitlines(), "shown", "printed", lineterm=""
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
