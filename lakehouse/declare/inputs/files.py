"""Files read whole, as inputs of reference tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakehouse.declare.inputs.source_checks import check_names, check_nulls, null_texts
from lakehouse.declare.inputs.sources import EMPTY, About, Source, absolute
from lakehouse.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """Files that change seldom: read whole, as a reference table."""

    path: str
    schema: str
    format: str = "csv"
    name: str = ""
    header: bool = True
    nulls: tuple[str, ...] = EMPTY

    @property
    def label(self) -> str:
        return f"{self.format} files"

    @property
    def about(self) -> About:
        return About("Files, read whole.", self.format, {"path": self.path})

    def dataset(self, broker: Callable[[], str]) -> tuple[str, str]:
        return "file", self.path

    @property
    def raw_columns(self) -> str:
        return self.schema


def files(
    path: str,
    *,
    schema: str,
    format: str = "csv",
    header: bool = True,
    nulls: Sequence[str] = EMPTY,
) -> FileSource:
    """Declares files that a reference table reads whole.

        campaign_files = files("campaigns.csv", schema="ad_id STRING, campaign_id STRING")

    :param path: a file or folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL.
    :param format: "csv", "delta" (a Delta table of others, at its newest version), or another that Spark reads.
    :param header: True if each CSV file begins with a line that names the columns in their order.
    :param nulls: the fields of CSV that are null, with quotes or without, as `["", "NA"]`. By default the empty one.
    :raises DeclarationError: for a column name of the library's own.
    """
    if not header and format != "csv":
        raise DeclarationError(
            f"header=False, format={format!r}: only CSV files have a header line; leave it out"
        )
    check_names(schema)
    source = FileSource(absolute(path), schema, format, header=header, nulls=null_texts(nulls))
    check_nulls(source)
    return source
