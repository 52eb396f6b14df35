"""Notes of a reconciliation that has begun, and why it failed: else a crash would look as if none had been started.

`_commit_log/<table>.reconciling.json` exists from the beginning of a reconciliation until one has
ended with a verdict.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import Range
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_json, remove, replace_file
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.log.certificates import Certificate


@dataclass(frozen=True, slots=True)
class Attempt:
    """A reconciliation that has begun (ISO 8601 UTC), over which range, and why it failed; empty if it has not."""

    at: str
    range: str
    why: str = ""


def failed(settings: Settings, table: Table) -> str:
    """Returns why the last reconciliation of a table ended without a verdict, or that it has not ended.

    Returns "" if it gave a verdict.
    """
    noted = _read(layout.note(settings, table, "reconciling.json"))
    if noted is None:
        return ""
    why = noted.why or "it did not end, or goes on"
    return f"the reconciliation of {noted.range or 'all that is closed'} that began at {noted.at} gave no verdict: {why}"


@contextmanager
def noting_failure(
    settings: Settings, table: Table, span: Range | None
) -> Iterator[list[Certificate]]:
    """Keeps on disk that a reconciliation has begun, and why it failed, until one ends with a verdict.

    Yields the list for its certificates. A RangeError, or a range ahead of the frontier, is not kept.
    """
    path = layout.note(settings, table, "reconciling.json")
    noted = Attempt(datetime.now(UTC).isoformat(timespec="seconds"), str(span) if span else "")
    before = _read(path)
    replace_file(path, asdict(noted))
    certificates: list[Certificate] = []
    try:
        yield certificates
    except RangeError:
        _put_back(path, before)
        raise
    except Exception as err:
        replace_file(path, asdict(replace(noted, why=brief(err))))
        raise
    _put_back(path, before if all(c.verdict == "OPEN" for c in certificates) else None)


def brief(err: Exception) -> str:
    """Returns the error in a line of some 500 characters at most: a failure in Spark has pages."""
    return f"{type(err).__name__}: {' '.join(str(err).split(chr(10))[:2])[:500]}"


def _put_back(path: Path, before: Attempt | None) -> None:
    if before is None:
        remove(path)
    else:
        replace_file(path, asdict(before))


def _read(path: Path) -> Attempt | None:
    try:
        return typed(Attempt, read_json(path))
    except FileNotFoundError:  # none failed, or the running one has just given its verdict
        return None
    except (ValueError, TypeError) as err:
        return Attempt("a time not known", "", f"{path} cannot be read ({err})")
