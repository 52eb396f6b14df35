"""Checks of the checkpoint files that a query of Spark's reads as it starts, by their content.

A machine that loses power leaves files that exist but are empty, cut off or garbage. Spark then ends with an error of its parser
that names no file. Such a file is moved aside, and counts as gone: that case has a remedy (`checkpoints.misfit`).
"""

import json
import logging
import os
import struct
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lakehouse.storage.disk.files import set_aside
from lakehouse.storage.position import checkpoint_files

_log = logging.getLogger(__name__)

_UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OSError,
    EOFError,
    struct.error,
    zipfile.BadZipFile,
)
_CODEC = "spark.sql.streaming.stateStore.compression.codec"
_LZ4_BLOCK = struct.Struct(
    "<8sBiii"
)  # magic, compression method, compressed bytes, decompressed bytes, checksum
_LZ4_MAGIC, _LZ4_RAW = b"LZ4Block", 0x10
_SST_END = bytes.fromhex("f7cff485b741e288")  # the last bytes of a file of RocksDB's rows


def set_unreadable_aside(checkpoint: Path) -> None:
    """Moves aside each unreadable file that Spark would read at a start of the query, with a warning."""
    _judge([checkpoint / "metadata"], _metadata)
    for folder, least in (("offsets", 3), ("commits", 2)):
        # Spark reads the last two; once one is moved aside, an earlier one is among the last two
        numbers = checkpoint_files.numbers(checkpoint / folder)
        sound = 0
        while numbers and sound < 2:
            last = checkpoint / folder / str(numbers.pop())
            sound += _judge([last], partial(_log_entry, least=least))
    _judge((checkpoint / "state").glob("*/_metadata/metadata"), partial(_log_entry, least=2))
    done = checkpoint_files.done(checkpoint)
    codec = _codec(checkpoint)
    for partition in checkpoint_files.state_partitions_of(checkpoint) if done else ():
        _judge([partition / checkpoint_files.STATE_SCHEMA], _schema)
        judged: list[Path] = []
        # without one of them, an earlier file and the changes since may give the same version; the same
        # files come again if one cannot be moved aside
        while (files := checkpoint_files.state_files(partition, done[-1] + 1)) and files != judged:
            if _judge(files, partial(_state, codec=codec)) == len(files):
                break
            judged = files


def _judge(paths: Iterable[Path], check: Callable[[Path], object]) -> int:
    """Returns the number of files that can be read; the others are moved aside."""
    sound = 0
    for path in paths:
        if not path.exists():
            continue
        try:
            check(path)
            sound += 1
        except _UNREADABLE as err:
            where = set_aside(path) or "it is not there any more"
            what = (
                f"it must hold what Spark wrote, and cannot be read ({type(err).__name__}: {err})"
            )
            _log.warning(f"file={path}: {what}; {where}, and counts as gone")
    return sound


def _metadata(path: Path) -> None:
    str(json.loads(path.read_bytes())["id"])


def _log_entry(path: Path, least: int) -> None:
    """Raises unless the file has a version, and then JSON objects: `least` lines in all, or more."""
    lines = path.read_text().splitlines()
    if len(lines) < least or not lines[0].removeprefix("v").isdigit():
        raise ValueError(
            f"{len(lines)} lines, and at least {least} are needed, the first a version"
        )
    for line in lines[1:]:
        if line != "-" and not isinstance(json.loads(line), dict):  # a source without an offset yet
            raise ValueError("a line holds no JSON object")


def _codec(checkpoint: Path) -> str:
    begun = checkpoint_files.begun(checkpoint)
    noted = checkpoint_files.noted(checkpoint, begun[-1]) if begun else {}
    return str(noted.get("conf", {}).get(_CODEC, ""))


def _schema(path: Path) -> None:
    """Raises unless the file has `v2`, and then the schemas of the key and the value, each in parts."""
    content = path.read_bytes()
    version, at = _utf(content, 0)
    if version != "v2":
        int(version.removeprefix("v"))
        return
    for _ in range(2):
        (parts,) = struct.unpack_from(">i", content, at)
        at, text = at + 4, ""
        for _ in range(parts):
            part, at = _utf(content, at)
            text += part
        json.loads(text)


def _utf(content: bytes, at: int) -> tuple[str, int]:
    """Returns the text at that position, as Java's `writeUTF` wrote it, and the position of its end."""
    (length,) = struct.unpack_from(">H", content, at)
    end = at + 2 + length
    if end > len(content):
        raise ValueError(f"it ends after {len(content)} bytes, and {end} are needed")
    return content[at + 2 : end].decode(errors="replace"), end


def _state(path: Path, codec: str) -> None:
    if path.suffix == ".zip":
        _rocksdb(path)
    elif codec == "lz4":
        _lz4(path.read_bytes())
    elif codec == "zstd":
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd") as stream:
            if not stream.read():
                raise ValueError("it is empty")
    elif not path.stat().st_size:
        raise ValueError("it is empty")


def _lz4(content: bytes) -> None:
    """Raises unless the content is blocks up to an empty one, each of which gives as many bytes as it says."""
    import pyarrow as pa

    at, whole = 0, -1
    while whole:
        magic, how, size, whole, _ = _LZ4_BLOCK.unpack_from(content, at)
        block = content[at + _LZ4_BLOCK.size : at + _LZ4_BLOCK.size + size]
        at += _LZ4_BLOCK.size + size
        if magic != _LZ4_MAGIC or size < 0 or whole < 0 or len(block) < size:
            raise ValueError(f"no whole block of LZ4 before byte {at}")
        if how & 0xF0 == _LZ4_RAW:
            if size != whole:
                raise ValueError(f"a block of {size} bytes says that it has {whole}")
        else:
            pa.decompress(block, decompressed_size=whole, codec="lz4_raw")
    if at != len(content):
        raise ValueError(f"it goes on after byte {at}, where it ends")


def _rocksdb(path: Path) -> None:
    """Raises unless the archive of RocksDB's small files is whole, and the files that it names lie beside it."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} in it is damaged")
        named: dict[str, Any] = json.loads(archive.read("metadata").split(b"\n", 1)[1])
    for folder, names in (("SSTs", "sstFiles"), ("logs", "logFiles")):
        for each in named.get(names, ()):
            beside = path.parent / folder / each.get("dfsSstFileName", each.get("dfsLogFileName"))
            size = beside.stat().st_size
            if size != each["sizeBytes"]:
                raise ValueError(f"{beside} has {size} bytes instead of {each['sizeBytes']}")
            if folder == "SSTs" and _end(beside, len(_SST_END)) != _SST_END:
                raise ValueError(f"{beside} does not end as a file of RocksDB")


def _end(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-length, os.SEEK_END)
        return file.read()
