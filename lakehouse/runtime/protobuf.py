"""Schemas of Protobuf: compiled by protoc, and their messages by the indexes that a value begins with.

The libraries belong to the extra `[protobuf]`, and are imported where they are used.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lakehouse.errors import SettingsError
from lakehouse.storage.position.schemas import Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.message import Message

Indexes = tuple[int, ...]
"""Where a message is: its place in the file, then in the message around it, and so on."""
FIRST: Indexes = (0,)
_OWN = "__value__.proto"  # the name of the schema's file: no reference has it
_SECONDS = 60.0  # for protoc, which needs a tenth of one


@lru_cache(maxsize=256)
def compiled(schema: Schema) -> bytes:
    """Returns the descriptors of a schema and of its imports.

    :raises ValueError: if protoc cannot read it, with what protoc says.
    :raises SettingsError: if protoc is not installed.
    """
    try:
        protoc = import_module("grpc_tools.protoc").__name__
    except ModuleNotFoundError as err:
        raise SettingsError(
            f"format='protobuf', package={err.name}: it is not installed, for it belongs to an extra; pip install "
            "'unified-lakehouse[protobuf]'"
        ) from err
    with TemporaryDirectory(prefix="lakehouse-protoc-") as folder:
        for name, text in (*schema.imports, (_OWN, schema.text)):
            _write(Path(folder), name, text)
        options = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={folder}/found"]
        done = subprocess.run(
            [sys.executable, "-m", protoc, *options, _OWN],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode:
            output = done.stderr.replace(f"{folder}/", "").replace(f"{_OWN}:", "line ").strip()
            raise ValueError(output.partition("\n")[0] or f"protoc ended with {done.returncode}")
        return (Path(folder) / "found").read_bytes()


def _write(folder: Path, name: str, text: str) -> None:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(
            f"it refers to {name!r}, and a reference has the name of a file in a folder"
        )
    path = folder / parts
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


@lru_cache(maxsize=256)
def messages(descriptors: bytes) -> "Mapping[Indexes, type[Message]]":
    """Returns the messages of a compiled schema.

    Clients do not agree whether the entries of a map take a place among the messages within a message: for Java they take
    none, for Go and Python one each. A place with two meanings is left out.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    own = next(file for file in files if file.name == _OWN)
    return {
        indexes: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for indexes, name in _names(own.message_type, own.package, ())
    }


def _names(
    siblings: "Sequence[DescriptorProto]", around: str, before: Indexes
) -> Iterator[tuple[Indexes, str]]:
    plain = [sibling for sibling in siblings if not sibling.options.map_entry]
    for place, either in enumerate(siblings):
        both = (either, *plain[place : place + 1])
        meant = {sibling.name: sibling for sibling in both if not sibling.options.map_entry}
        if len(meant) == 1:
            ((name, message),) = meant.items()
            full = f"{around}.{name}" if around else name
            yield (*before, place), full
            yield from _names(message.nested_type, full, (*before, place))


def split(payload: bytes) -> tuple[Indexes, bytes]:
    """Returns the indexes of the message and its bytes, from the bytes after the schema's id.

    :raises ValueError: if there are no indexes.
    """
    if payload[:1] == b"\0":  # of the first message, the short form
        return FIRST, payload[1:]
    count, at = _number(payload, 0)
    indexes = []
    for _ in range(count):
        index, at = _number(payload, at)
        indexes.append(index)
    return tuple(indexes), payload[at:]


def _number(payload: bytes, at: int) -> tuple[int, int]:
    """Returns a number and its end: seven bits a byte, zigzag as in Avro."""
    number = shift = 0
    while at < len(payload) and shift < 35:
        byte, at = payload[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number & 1:
                break  # it is negative
            return number >> 1, at
        shift += 7
    raise ValueError("no message index follows the id")
