"""The folder of a target: its manifest, the epoch of its writer, and its files, which are Parquet, CSV or JSON.

Values come back as JSON has them where the format has no types of its own.
"""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakehouse.declare.targets import Position, Row
from lakehouse.errors import SinkAway
from lakehouse.paths import within
from lakehouse.sinks import base
from lakehouse.sinks.formats.encoding import rows_of, text_of, value_of
from lakehouse.storage.disk import locks
from lakehouse.storage.disk.files import replace_bytes

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "_manifest.json"
_EPOCH, _LOCK, _STAGING = "_epoch", "_lock", "_writer-"
_FOREIGN = "_foreign"  # where a repair moves files that no follower wrote
_LOCKED = 30.0  # seconds to wait for another process that replaces the manifest
Format = Literal["parquet", "csv", "json"]
# types of Arrow whose values are no texts in JSON
_NO_TEXT = ("int", "uint", "float", "double", "halffloat", "bool", "struct", "list", "map")


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
                        what = f"the files in {self.path} have {name}={manifest[name]!r}, not {value!r}"
                        raise base.unsound(self.target, what)
            return manifest | {name: manifest[name] for name in ("columns", "files", "left")}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as err:
            what = f"{self.path / MANIFEST} cannot be read ({err})"
            raise base.unsound(self.target, what) from err

    def publish(self, manifest: Mapping[str, Any], epoch: int) -> bool:
        """Replaces the manifest; False if a process of a later epoch has taken the folder over.

        It is renamed from the folder of its epoch, which that process has removed: no lock has to reach both.
        """
        beside = self.path / f"{_STAGING}{epoch}" / MANIFEST
        try:
            with beside.open("w") as file:
                json.dump(manifest, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path / MANIFEST)
        except FileNotFoundError:
            return False
        _sync(self.path)
        return True

    def remove(self, name: str) -> None:
        within(self.path, name).unlink(missing_ok=True)

    def set_aside(self, name: str) -> None:
        """Moves a file that no follower wrote out of the way."""
        aside = within(self.path / _FOREIGN, name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        within(self.path, name).rename(aside)

    def store(self, partition: str, name: str, content: bytes) -> dict[str, Any]:
        """Writes a new file, and returns its entry in the manifest."""
        place = f"{partition}/{name}" if partition else name
        path = within(self.path, place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)
        sha256 = hashlib.sha256(content).hexdigest()
        return {"path": place, "partition": partition, "bytes": len(content), "sha256": sha256}

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
            raise base.unsound(self.target, f"{within(self.path, entry['path'])} is a {fault}")
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

    def take_over(self, epoch: int) -> None:
        """Makes the epoch the only one that replaces the manifest."""
        replace_bytes(self.path / _EPOCH, str(epoch).encode())
        for former in self.path.glob(f"{_STAGING}*"):
            shutil.rmtree(former)
        (self.path / f"{_STAGING}{epoch}").mkdir()

    def lock(self) -> AbstractContextManager[object]:
        """Holds the lock of the folder. Raises SinkAway if another process has it for too long."""
        path = self.path / _LOCK
        message = f"target={self.target}, file={path}: one process at a time has it, and another does; wait for that"
        return locks.alone(path, _LOCKED, refusal=lambda holder: SinkAway(message))


def _sync(folder: Path) -> None:
    """Makes the names in a folder outlast a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def encoded(format: Format, rows: Sequence[Row], schema: "pa.Schema") -> bytes:
    """Returns the content of a file of these rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format == "json":
        return "".join(f"{value_of(row)}\n" for row in rows).encode()
    if format == "csv":
        lines = [dict(zip(schema.names, schema.names, strict=True)), *rows]
        cells = ((_cell(row.get(name)) for name in schema.names) for row in lines)
        return "".join(",".join(line) + "\n" for line in cells).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), sink)
    return sink.getvalue().to_pybytes()


def decoded(format: Format, content: bytes, types: Mapping[str, str]) -> list[Row]:
    """Returns the rows of a file. `types` are those of the columns, as Arrow names them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format == "json":
        return [json.loads(line) for line in content.decode().split("\n") if line]
    if format == "csv":
        return [_of_texts(row, types) for row in _texts(content)]
    return rows_of(pq.read_table(pa.BufferReader(content)))


def _cell(value: object) -> str:
    return "" if value is None else '"' + text_of(value).replace('"', '""') + '"'


def _texts(content: bytes) -> list[dict[str, str | None]]:
    """Returns the cells of CSV. Only a cell without quotation marks is null, which the module `csv` does not say."""
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    header = next(csv.reader([content.partition(b"\n")[0].decode()]))
    texts = ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = ParseOptions(newlines_in_values=True)
    # in one piece: a row that does not fit into one is refused
    whole = ReadOptions(block_size=len(content) + 1)
    return read_csv(pa.BufferReader(content), whole, parse, texts).to_pylist()


def _of_texts(row: Mapping[str, str | None], types: Mapping[str, str]) -> Row:
    def value(name: str, text: str | None) -> object:
        # a file may have a column that the table has not any more
        if text is None or not types.get(name, "").startswith(_NO_TEXT):
            return text
        try:
            return json.loads(text)
        except ValueError:  # a double that is no number
            return text

    return {name: value(name, text) for name, text in row.items()}
