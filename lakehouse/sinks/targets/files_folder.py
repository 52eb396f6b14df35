"""The folder of a target: its manifest, the epoch of its writer, and its files."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from lakehouse.declare.targets import Position
from lakehouse.errors import SinkAway, SinkError
from lakehouse.paths import within
from lakehouse.storage.disk.files import replace_bytes, replace_file
from lakehouse.storage.disk.locks import Locked, alone

MANIFEST = "_manifest.json"
_EPOCH, _LOCK = "_epoch", "_lock"
_FOREIGN = "_foreign"  # where a repair moves files that no follower wrote
_LOCKED = 30.0  # seconds to wait for another process that replaces the manifest


class Folder:
    """A folder of a target by its name. `layout`: what its manifest says of all its files."""

    def __init__(self, target: str, path: Path, layout: Mapping[str, Any]) -> None:
        self.target, self.path, self.layout = target, path, layout

    def read(self) -> dict[str, Any] | None:
        try:
            manifest = json.loads((self.path / MANIFEST).read_bytes())
            if manifest["position"]:
                Position.from_json(json.dumps(manifest["position"]))
                for name, value in self.layout.items():
                    if manifest[name] != value:
                        raise self.refusal(
                            f"its files have {name}={manifest[name]!r}, not {value!r}"
                        )
            return manifest | {name: manifest[name] for name in ("columns", "files", "left")}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as err:
            raise self.refusal(f"{MANIFEST} cannot be read ({err})") from err

    def publish(self, manifest: Mapping[str, Any]) -> None:
        replace_file(self.path / MANIFEST, manifest)
        _sync(self.path)

    def remove(self, name: str) -> None:
        within(self.path, name).unlink(missing_ok=True)

    def set_aside(self, name: str) -> None:
        """Moves a file that no follower wrote out of the way."""
        aside = within(self.path / _FOREIGN, name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        within(self.path, name).rename(aside)

    def store(self, name: str, content: bytes) -> None:
        path = within(self.path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)

    def load(
        self, entry: Mapping[str, Any]
    ) -> tuple[bytes, Literal["missing file", "damaged file", ""]]:
        """Returns the content of a file and its fault, which is empty for a sound one."""
        try:
            content = within(self.path, entry["path"]).read_bytes()
        except FileNotFoundError:
            return b"", "missing file"
        is_sound = hashlib.sha256(content).hexdigest() == entry["sha256"]
        return content, "" if is_sound else "damaged file"

    def sound_content(self, entry: Mapping[str, Any]) -> bytes:
        """Returns the content of a file. Raises SinkError if it is missing or damaged."""
        content, fault = self.load(entry)
        if fault:
            raise self.refusal(f"{entry['path']} is a {fault}")
        return content

    def names(self) -> set[str]:
        """Returns the names of the files in the folder, without the target's own."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        names = {path.relative_to(self.path).as_posix() for path in files}
        return {name for name in names if not name.startswith("_")}

    def epoch(self) -> int:
        try:
            return int((self.path / _EPOCH).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def write_epoch(self, epoch: int) -> None:
        replace_bytes(self.path / _EPOCH, str(epoch).encode())

    def refusal(self, what: str) -> SinkError:
        return SinkError(
            f"target={self.target}, path={self.path}: {what}; `lakehouse reconcile sink {self.target} --repair` "
            "writes it again"
        )

    def lock(self) -> AbstractContextManager[object]:
        """Holds the lock of the folder. Raises SinkAway if another process has it for too long."""
        try:
            return alone(self.path / _LOCK, wait=_LOCKED)
        except Locked as err:
            raise SinkAway(f"target={self.target}: {err}") from err


def _sync(folder: Path) -> None:
    """Makes the names in a folder outlast a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
