"""The registry of folders and tables of others: which class has the files of which source."""

from collections.abc import Callable
from typing import Any

from lakehouse.declare.inputs.delta import DeltaSource
from lakehouse.declare.inputs.folder import FolderSource
from lakehouse.declare.inputs.iceberg import IcebergSource
from lakehouse.declare.inputs.sources import FilesSource
from lakehouse.storage.foreign.file_register import Register
from lakehouse.storage.foreign.foreign_contract import ForeignFiles
from lakehouse.storage.foreign.foreign_delta import DeltaFiles
from lakehouse.storage.foreign.foreign_files import Away
from lakehouse.storage.foreign.foreign_folder import FolderFiles
from lakehouse.storage.foreign.foreign_iceberg import IcebergFiles

_KINDS: dict[type[FilesSource], Callable[[Any, Register], ForeignFiles]] = {
    FolderSource: FolderFiles,
    DeltaSource: DeltaFiles,
    IcebergSource: IcebergFiles,
}


def files_of(source: FilesSource, register: Register) -> ForeignFiles:
    """The files of a source."""
    return _KINDS[type(source)](source, register)


def unread(files: ForeignFiles, read: int) -> list[str]:
    """Returns what is there and is not read, or not as it is. It is for people to look at: nothing is registered."""
    waiting = [
        f"{registered.path} is yet to be read"
        for registered in files.register.files
        if registered.end > read
    ]
    try:
        return waiting + files.unregistered()
    except Away as err:
        return [*waiting, str(err)]


def lost(files: ForeignFiles, read: int) -> list[tuple[int, int]]:
    """The ranges of records that are registered, not read, and not to be had any more."""
    ranges: list[tuple[int, int]] = []
    for file in files.register.files:
        begin = max(file.first, read)
        if begin >= file.end or files.has(file):
            continue
        if ranges and ranges[-1][1] == begin:
            begin = ranges.pop()[0]
        ranges.append((begin, file.end))
    return ranges
