"""Which deletion vectors the versions of a table have: deltalake's vacuum takes their files for nobody's (1.6.6)."""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from lakehouse.storage import log_state

_FILES = "deletion_vector_*.bin"


def any_of(path: Path) -> bool:
    """Whether the table has deletion vectors."""
    return next(path.glob(_FILES), None) is not None


def removed(path: Path, candidates: Iterable[str], oldest: int, *, dry_run: bool) -> list[str]:
    """Removes, or lists, those of the candidates that hold no vector of the version `oldest`, of a checkpoint, or a later one."""
    used = _in_use(path, oldest)
    gone = [name for name in candidates if path / unquote(name) not in used]
    for name in gone if not dry_run else ():
        (path / unquote(name)).unlink(missing_ok=True)
    return gone


def _in_use(path: Path, oldest: int) -> set[Path]:
    from lakehouse.storage import deletion_vectors

    named = log_state.files_at(path, oldest)
    for _, actions in log_state.commits(path, oldest + 1):
        named += [action["add"] for action in actions if action.get("add")]
    return {
        deletion_vectors.file_of(path, vector)
        for file in named
        if (vector := file.get("deletionVector"))
    }
