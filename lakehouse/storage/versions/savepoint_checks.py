"""Checks of a savepoint that somebody else made: it may name tables, and hold files that lie in it.

Checksums show damage. The writer of a savepoint also writes its checksums, so each name is checked as well.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from lakehouse.declare.columns import is_table_name
from lakehouse.declare.table import Layer
from lakehouse.paths import below, within
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, log_state
from lakehouse.storage.disk import layout

_LAYERS = get_args(Layer)


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the checksum of a savepoint's description without the checksum itself."""
    others = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(others, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_description(name: str, content: Mapping[str, Any]) -> None:
    """Raises ValueError if the description is of another savepoint, was changed, or names what no table can have."""
    if content["name"] != name:
        raise ValueError(f"name={content['name']!r}: its folder has another name")
    # a savepoint of an earlier version of the library has none
    if content.get("checksum") and content["checksum"] != checksum(content):
        raise ValueError("its checksum is not the one it was created with")
    for table, saved in content["tables"].items():
        if not is_table_name(table):
            raise ValueError(f"table={table!r}: no table can have this name")
        if saved["layer"] not in _LAYERS:
            raise ValueError(
                f"table={table}, layer={saved['layer']!r}: one of {', '.join(_LAYERS)}"
            )


def files(folder: Path) -> Iterator[Path]:
    """Yields everything in a folder that is not a folder, in order; a link to a folder counts as a file."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(path, name).is_symlink()]
        yield from (below(Path(path), name) for name in sorted([*links, *names]))


def contents(listed: Path) -> dict[str, str]:
    """Returns the checksum of each file of a savepoint, by its path."""
    with listed.open() as lines:
        return dict(json.loads(line) for line in lines)


def stranger(settings: Settings, root: Path) -> str:
    """Returns the fault of the first file that does not belong in a savepoint; empty if there is none."""
    from lakehouse.storage.delta import deletion_vectors  # numpy, which most commands do without

    known = {*_LAYERS, *(path(settings).name for path in (layout.commit_logs, layout.checkpoints))}
    for path in files(root):
        if path.is_symlink() or not path.is_file():
            return f"file={path}: it is none of its files, for it is a link or a device"
        if path.relative_to(root).parts[0] not in known:
            return f"file={path}: it is none of its files, for it lies in none of the folders that a savepoint has"
    for log in sorted(root.glob("*/*/_delta_log")):
        table = log.parent
        for file in log_state.files_since(table):
            delta_log.data_file(table, file)
            if vector := file.get("deletionVector"):
                place = deletion_vectors.file_of(table, vector)
                within(table, os.path.relpath(place, table))
    return ""
