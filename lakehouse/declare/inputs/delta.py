"""Delta tables of others, as the input of an ingest table."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakehouse.declare.inputs.source_checks import check_records
from lakehouse.declare.inputs.sources import About, FilesSource, UnknownFields, absolute
from lakehouse.durations import duration


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
    unknown_fields: UnknownFields = "ignore",
    max_bytes: int = 1 << 20,
    max_future_skew: str | timedelta = "5 minutes",
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC),
    idle_timeout: str | timedelta = "30 seconds",
    quiet_timeout: str | timedelta = "0 seconds",
) -> DeltaSource:
    """A Delta table of others, as the input of an ingest table: the rows that it has, then those that are appended to it.

        order_rows = delta_table("/data/shop/orders", schema="order_id BIGINT NOT NULL, at TIMESTAMP NOT NULL")

    Its versions are read one by one, without compaction. One that removes or changes rows stops the query, unless these are read.

    :param path: its folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL: those of its columns that are read, with their types there.
    :param changes: whether what versions remove and change is read, too; adds the columns of `changes(...)`: `op` (r: there at
        first, c: came, b: before an update, u: after it, d: gone), `deleted` (b and d), `sent` (when the version was committed),
        `position` and `transaction` (the version).
    :param unknown_fields: "quarantine" puts away rows with columns that the schema does not name.
    :param max_bytes: the longest row as JSON that is parsed; a longer one is quarantined.
    :param max_future_skew: how far an event time may be ahead of the time at which its file was written.
    :param min_event_time: the earliest event time, with its time zone.
    :param idle_timeout: of a table with `watermark_by`: a value silent for so long, while another is not, no longer holds
        back the watermark.
    :param quiet_timeout: once no row has come for so long, event time goes on with the clock.
    :raises DeclarationError: for a schema that cannot be.
    """
    source = DeltaSource(
        absolute(path),
        schema,
        "delta_changes" if changes else "delta",
        unknown_fields,
        max_bytes,
        duration(max_future_skew, "max_future_skew"),
        min_event_time,
        idle_timeout=duration(idle_timeout, "idle_timeout"),
        quiet_timeout=duration(quiet_timeout, "quiet_timeout"),
    )
    check_records(source)
    return source
