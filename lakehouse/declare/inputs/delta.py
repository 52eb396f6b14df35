"""Delta tables of others, as the input of an ingest table."""

from dataclasses import dataclass
from typing import Unpack

from lakehouse.declare.inputs.source_checks import check_records
from lakehouse.declare.inputs.sources import (
    About,
    FilesSource,
    RecordOptions,
    absolute,
    record_options,
)


@dataclass(frozen=True, slots=True)
class DeltaSource(FilesSource):
    """A Delta table of others; each row that is appended to it is a record, or each change of a row."""

    what = "Delta table"
    while_resting = (
        "its versions are read as long as its log has them and its files are there: "
        "start the job before they are cleaned up"
    )

    @property
    def of_changes(self) -> bool:
        return self.format == "delta_changes"

    @property
    def about(self) -> About:
        what = "what changes in it." if self.of_changes else "the rows that are appended to it."
        return About(
            f"The Delta table `{self.address}` of others: {what}", "delta", {"path": self.address}
        )

    @property
    def local_path(self) -> str:
        return self.address


def delta_table(
    path: str,
    *,
    schema: str,
    changes: bool = False,
    **records: Unpack[RecordOptions],
) -> DeltaSource:
    """Declares a Delta table of others as the input of an ingest table: its rows, then those that are appended.

        order_rows = delta_table("/data/shop/orders", schema="order_id BIGINT NOT NULL, at TIMESTAMP NOT NULL")

    Its versions are read one by one; compaction is passed over. A version that removes or changes rows stops the query,
    unless `changes` reads them.

    :param path: its folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL of the columns to read, with their types there.
    :param changes: True also reads the rows that versions remove and change, and adds the columns of `changes(...)`: `op`
        (r: in the first version read, c: appended, b: before an update, u: after it, d: deleted), `deleted` (b and d),
        `sent` (when the version was committed), `position` and `transaction` (the version).
    :param records: see `RecordOptions`.
    :raises DeclarationError: for an impossible schema.
    """
    source = DeltaSource(
        absolute(path),
        schema,
        "delta_changes" if changes else "delta",
        **record_options("delta_table", records),
    )
    check_records(source)
    return source
