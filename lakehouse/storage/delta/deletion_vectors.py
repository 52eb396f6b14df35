"""Deletion vectors, as Delta's protocol has them on disk: the places of the dead rows of a data file.

A file `deletion_vector_<uuid>.bin` holds the vectors of one commit: a version byte, then the size,
the data and a checksum of each vector. The data are a magic number and a roaring bitmap of 64-bit
positions, in its portable form. The log names the file, place and cardinality of a vector beside
its data file (`descriptor`).
"""

import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lakehouse.errors import CommitError
from lakehouse.paths import within

_VERSION = b"\x01"
_MAGIC = 1681511377
# Z85
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ID = 20  # characters of a UUID in Z85


def marks(places: np.ndarray) -> BitMap:
    """Returns a vector of these places."""
    return BitMap(places.astype(np.uint32, copy=False))


def places(vector: BitMap) -> np.ndarray:
    """Returns the places of a vector in order."""
    return np.asarray(vector.to_array(), np.int64)


def living(rows: pa.Table, dead: BitMap) -> pa.Table:
    """Returns the rows of a data file without those at the places of the vector."""
    if not dead:
        return rows
    alive = np.ones(rows.num_rows, bool)
    alive[places(dead)] = False
    return rows.filter(pa.array(alive))


def write(path: Path, vectors: Sequence[BitMap]) -> list[dict[str, object]]:
    """Writes the vectors of one commit into one file, and returns their descriptors."""
    name = uuid.uuid4()
    body, descriptors = [_VERSION], []
    place = len(_VERSION)
    for vector in vectors:
        data = _encoded(vector)
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": _z85(name.bytes),
                "offset": place,
                "sizeInBytes": len(data),
                "cardinality": len(vector),
            }
        )
        body += [struct.pack(">I", len(data)), data, struct.pack(">I", zlib.crc32(data))]
        place += len(data) + 8
    _file(path, name).write_bytes(b"".join(body))
    return descriptors


def dead_of(path: Path, file: Mapping) -> BitMap:
    """Returns the vector of a data file as the log names it, empty if it has none. Raises CommitError as `read`."""
    descriptor = file.get("deletionVector")
    return read(path, descriptor) if descriptor else BitMap()


def read(path: Path, descriptor: Mapping) -> BitMap:
    """Returns the vector. Raises CommitError if it is not what the log says."""
    if descriptor["storageType"] == "i":
        return _decoded(path, descriptor, _bytes(descriptor["pathOrInlineDv"]))
    file = file_of(path, descriptor)
    try:
        with file.open("rb") as stored:
            stored.seek(descriptor["offset"])
            (size,) = struct.unpack(">I", stored.read(4))
            data = stored.read(size)
            (checksum,) = struct.unpack(">I", stored.read(4))
    except (OSError, struct.error) as err:
        raise _broken(path, file, str(err)) from err
    if size != descriptor["sizeInBytes"] or zlib.crc32(data) != checksum:
        raise _broken(path, file, "its size or its checksum is another one")
    return _decoded(path, descriptor, data)


def file_of(path: Path, descriptor: Mapping) -> Path:
    """Returns the file that holds a vector of the table at `path`."""
    if descriptor["storageType"] == "p":
        return Path(str(descriptor["pathOrInlineDv"]).removeprefix("file://"))
    text = str(descriptor["pathOrInlineDv"])
    return _file(
        within(path, text[:-_ID]) if text[:-_ID] else path, uuid.UUID(bytes=_bytes(text[-_ID:]))
    )


def identity(descriptor: Mapping | None) -> str:
    """Returns the identity of a data file's vector; empty without one."""
    return (
        "" if descriptor is None else f"{descriptor['pathOrInlineDv']}@{descriptor.get('offset')}"
    )


def _file(folder: Path, name: uuid.UUID) -> Path:
    return folder / f"deletion_vector_{name}.bin"


def _encoded(vector: BitMap) -> bytes:
    # a data file has fewer than 2**32 rows, so its bitmap of 64 bits has one part, whose upper half is 0
    return struct.pack("<IQI", _MAGIC, 1, 0) + vector.serialize()


def _decoded(path: Path, descriptor: Mapping, data: bytes) -> BitMap:
    magic, parts = struct.unpack_from("<IQ", data)
    if magic != _MAGIC or parts > 1:
        raise _broken(path, file_of(path, descriptor), f"magic={magic}, parts={parts}")
    return BitMap.deserialize(data[16:]) if parts else BitMap()


def _z85(data: bytes) -> str:
    text = []
    for (word,) in struct.iter_unpack(">I", data):
        text += [_DIGITS[word // 85**place % 85] for place in (4, 3, 2, 1, 0)]
    return "".join(text)


def _bytes(text: str) -> bytes:
    words = (text[start : start + 5] for start in range(0, len(text), 5))
    return b"".join(
        sum(_DIGITS.index(c) * 85 ** (4 - n) for n, c in enumerate(word)).to_bytes(4, "big")
        for word in words
    )


def _broken(path: Path, file: Path, what: str) -> CommitError:
    return CommitError(
        f"table={path.name}, file={file.name}: the deletion vector is not what the log says ({what}), so which rows are dead is "
        f"not known; put the file back, or have the table computed again by `lakehouse backfill {path.name}`"
    )
