"""Files of deletion vectors that versions of a table have: the vacuum of deltalake 1.6.6 treats them as unused."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

from lakehouse.paths import within
from lakehouse.storage.delta import log_state

_FILES = "deletion_vector_*.bin"


def any_of(path: Path) -> bool:
    """Returns True if the table has files of deletion vectors."""
    return next(path.glob(_FILES), None) is not None


def removed(path: Path, candidates: Iterable[str], oldest: int, *, dry_run: bool) -> list[str]:
    """Removes, or only lists, the candidates without a vector of the version `oldest`, which has a checkpoint, or a later one."""
    used = of_files(path, log_state.files_since(path, oldest))
    gone = [name for name in candidates if within(path, unquote(name)) not in used]
    for name in gone if not dry_run else ():
        (within(path, unquote(name))).unlink(missing_ok=True)
    return gone


def of_files(path: Path, files: Iterable[Mapping]) -> set[Path]:
    """Returns the files that hold the deletion vectors of these data files."""
    from lakehouse.storage.delta import deletion_vectors

    return {
        deletion_vectors.file_of(path, vector)
        for file in files
        if (vector := file.get("deletionVector"))
    }
