"""Tables as another version of their code declares them. A git ref or a folder names it; it runs in its own process.

The library stays the present one. The modules that the tables' modules import from their repository
come from the other version.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from batch_jobs.side import Side
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import Range, text
from lakehouse.settings import Settings, to_environment

_LIMIT = 6 * 3600.0  # seconds for one side: a range of a day takes minutes
_GIT_LIMIT = 600.0  # seconds for git, which archives a large repository in less
_log = logging.getLogger(__name__)


def compute(settings: Settings, table: Table, span: Range, code: str, place: Path) -> Side:
    """Returns the Side that `side.write` makes by the code that `code` names; its rows are in `place / "after"`.

    Raises JobError.

    `place` is an empty folder, which the caller removes.
    """
    own = _root(table.transformation.__module__)
    top = _repository(own)
    folder = _folder(code, top, place)
    roots = {
        name: root
        for name in settings.tables
        if (root := _root(name)) == own or (top and _repository(root) == top)
    }
    instead = (folder / root.relative_to(top or own) for root in dict.fromkeys(roots.values()))
    path = [_library(place / "library", folder), *instead, *map(Path, sys.path)]
    asked = {
        "table": table.name,
        "start": text(span.start),
        "end": text(span.end),
        "partition_by": table.partition_by,
        "modules": list(roots),
        "folder": str(folder),
        "place": str(place / "after"),
        "answer": str(place / "answer"),
    }
    python_path = {"PYTHONPATH": os.pathsep.join(map(str, path))}
    environment = os.environ | to_environment(settings) | python_path
    command = [sys.executable, "-P", "-m", "batch_jobs.side", json.dumps(asked)]
    hours = f"{_LIMIT / 3600:.0f} hours"
    _log.info(
        f"{table.name} {span}: a process of its own computes it with the code {code}; it is waited for up to {hours}"
    )
    try:
        run = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired as err:
        raise JobError(
            f"code={code!r}, table={table.name}, range={span}: its process must end within {hours} and did not, so it was "
            "ended; compare a shorter range"
        ) from err
    if run.returncode:
        output = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise JobError(
            f"code={code!r}: it cannot be run ({output[-1]}); correct it, or name another version"
        )
    answer = json.loads((place / "answer").read_text())
    if "refused" in answer:
        raise JobError(f"code={code!r}: {answer['refused']}")
    return Side(**answer)


def _root(module: str) -> Path:
    """Returns the folder of the path that a module was imported from."""
    file = Path(sys.modules[module].__file__ or "").resolve()
    return file.parents[module.count(".") + (file.name == "__init__.py")]


def _repository(folder: Path) -> Path | None:
    """Returns the top of the git repository that `folder` is in; None for an installed package, wherever it lies."""
    if folder.is_relative_to(Path(sys.prefix).resolve()):
        return None
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Path(top).resolve() if top else None


def _folder(code: str, top: Path | None, place: Path) -> Path:
    """Returns the folder with the code: a git ref is unpacked from the repository into `place`.

    A name that is no ref is the folder itself. Raises JobError if it is neither.
    """
    arguments = ("rev-parse", "--verify", "--end-of-options", f"{code}^{{commit}}")
    if top and (commit := _git(top, *arguments)):
        packed = place / "code.zip"
        if _git(top, "archive", f"--output={packed}", commit) is None:
            raise JobError(
                f"code={code!r}: git cannot take {commit} out of {top}; see `git archive`"
            )
        shutil.unpack_archive(packed, place / "code")
        return (place / "code").resolve()
    if Path(code).is_dir():
        return Path(code).resolve()
    problem = "the tables' modules are in no git repository"
    if top:
        problem = f"the repository {top} has no such ref"
    raise JobError(
        f"code={code!r}: {problem}, and it is no folder; name a commit, branch or tag, or the top of a checkout"
    )


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns the output of git, or None if git fails or is not installed. Raises JobError if it does not end in time."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_GIT_LIMIT
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired as err:
        raise JobError(
            f"command={' '.join(command)!r}: git must end within {_GIT_LIMIT / 60:g} minutes and did not, so it was ended; run "
            "it by hand to see what it waits for, or name a folder that has the code"
        ) from err
    return None if run.returncode else run.stdout.strip()


def _library(place: Path, folder: Path) -> Path:
    """Returns one folder with the present library and jobs, and with `lakehouse/examples` of `folder` if it has any.

    A checkout of this project has its own library in it, and Spark's workers import by the path alone. Its `examples` and
    `benchmarks` are found in `folder`, which is on the path, too.
    """
    root = _root("lakehouse.settings")
    (place / "lakehouse").mkdir(parents=True)
    (place / "batch_jobs").symlink_to(root / "batch_jobs")
    shipped = {"examples": folder / "lakehouse" / "examples"}
    for each in (root / "lakehouse").iterdir():
        other = shipped.get(each.name, each)
        (place / "lakehouse" / each.name).symlink_to(other if other.exists() else each)
    return place
