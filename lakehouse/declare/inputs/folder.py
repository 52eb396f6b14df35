"""Folders that others put files into, as inputs of ingest tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack

from lakehouse.declare.inputs.source_checks import check_records, null_texts, one_of
from lakehouse.declare.inputs.sources import (
    EMPTY,
    About,
    FilesSource,
    FolderFormat,
    Framing,
    RecordOptions,
    absolute,
    record_options,
)
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class FolderSource(FilesSource):
    """A folder that others put files into; each line, or row of Parquet, is a record."""

    pattern: str = "*"
    header: bool = False  # each file begins with a line that names the columns
    settle: timedelta = timedelta(seconds=2)
    forget: timedelta = timedelta(0)  # never

    what = "folder"
    while_resting = "files that come meanwhile are read if they are still there: start the job before they are taken away"

    @property
    def manner(self) -> str:
        return ", without a header" if self.format == "csv" and not self.header else ""

    @property
    def about(self) -> About:
        shown = f"The folder `{self.address}`, whose files ({self.format}, `{self.pattern}`) are each read once."
        return About(shown, self.format, {"path": self.address})

    @property
    def local_path(self) -> str:
        return self.address


def folder(
    path: str,
    *,
    schema: str,
    format: FolderFormat = "json",
    framing: Framing = "",
    pattern: str = "*",
    header: bool | None = None,
    nulls: Sequence[str] = EMPTY,
    settle: str | timedelta = "2 seconds",
    forget: str | timedelta = "0 seconds",
    **records: Unpack[RecordOptions],
) -> FolderSource:
    """Declares a folder that others put files into as the input of an ingest table: each file is read once.

        reading_files = folder("/data/incoming", schema="sensor_id STRING NOT NULL, event_time TIMESTAMP NOT NULL")

    A record is a line, or a row of Parquet. Files are read by their modification time, then by their
    name, also those in folders below. A bad record is quarantined with its file and line. A file that
    was read may be renamed, moved within the folder, or removed.

    :param path: the folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL; a column that is NOT NULL must be there.
    :param format: "json", an object a line; "csv", with the columns of the schema in their order, values
        quoted by `"` if they must be, and no line breaks in them; "text", a line as it is, the one STRING
        column; "parquet". The first three may be compressed by gzip, if their names end with `.gz`.
    :param framing: "concatenated" reads JSON objects that stand one after another in a line, as `kafka` does in a message.
    :param pattern: which names of files count, as a shell has it; those that begin with `.` or `_`, or end
        with `.tmp` or `.part`, never do.
    :param header: True, the default, if each CSV file begins with a line that names the columns in their order. A file
        whose first line does not is refused by its name, and not read until it is corrected.
    :param nulls: the fields of CSV that are null, with quotes or without, as `["", "NA"]`. By default the empty one.
    :param settle: how long size and modification time of a file stand still before it counts as whole: more
        than its writer pauses.
    :param forget: a file that was read, is gone, and was modified so long ago is forgotten. One that comes back after
        that is read again. By default none is forgotten.
    :param records: see `RecordOptions`.
    :raises DeclarationError: for a schema or format that cannot be.
    """
    one_of("format", format, ("json", "csv", "text", "parquet"))
    if header is not None and format != "csv":
        raise DeclarationError(
            f"header={header}, format={format!r}: only CSV files have a header line; leave it out"
        )
    source = FolderSource(
        absolute(path),
        schema,
        format,
        **record_options("folder", records),
        framing=framing,
        nulls=null_texts(nulls),
        pattern=pattern,
        header=format == "csv" and header is not False,
        settle=duration(settle, "settle"),
        forget=duration(forget, "forget"),
    )
    check_records(source)
    return source
