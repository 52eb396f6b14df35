"""The kinds of tables: what each has, and how it is filled. `Table.kind` holds one."""

from dataclasses import dataclass

_CODE = ("function", "query", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    reads_sources: bool = False  # topics, folders, tables of others
    is_streamed: bool = True  # False if batch runs alone fill it
    is_timed: bool = False  # other tables' streams follow the event time of its rows
    is_derived: bool = False  # batch runs compute any range of its event time
    has_partitions: bool = False  # by time, and a quarantine beside them
    has_late_rows: bool = False
    is_upserted: bool = False  # a row replaces the one of its key
    keeps_latest: bool = False  # one row for each key
    keeps_versions: bool = False  # every version of each key, with the time of its validity
    is_row_by_row: bool = False  # a row for each that it reads
    is_windowed: bool = False  # a row for each window and key
    is_of_several_rows: bool = False  # a row is made of several, so no single arrival is its own
    keeps_event_time: bool = False  # its function returns the column
    is_report: bool = False  # each partition is computed when the inputs have closed
    is_reference: bool = False  # computed whole, from inputs without event time
    # parts of the declaration that may change while the table goes on, where its query has no state
    onward: tuple[str, ...] = ()
    underived: str = ""  # why no range of it can be computed, and what to do

    def __str__(self) -> str:
        return self.name


INGEST = Kind(
    name="ingest",
    keeps_event_time=True,
    reads_sources=True,
    is_timed=True,
    has_partitions=True,
    onward=(*_CODE, "delay", "marker", "watermark_by", "schema", "reader"),
    underived="only the stream writes an ingest table, and nothing can compute it again; name a table that reads it",
)
ROW = Kind(
    name="row",
    keeps_event_time=True,
    is_timed=True,
    is_derived=True,
    has_partitions=True,
    has_late_rows=True,
    is_row_by_row=True,
    onward=(*_CODE, "reads", "duplicates", "lookup"),
)
WINDOW = Kind(
    name="window",
    is_of_several_rows=True,
    is_timed=True,
    is_derived=True,
    has_partitions=True,
    has_late_rows=True,
    is_windowed=True,
    # for windows that are computed whole when they close, whatever the function does
    onward=(*_CODE, "reads"),
)
_NO_RANGES = "a {} table has no ranges; `lakehouse backfill {{table}}` has its job compute it again"
KEYED = Kind(
    name="keyed",
    is_upserted=True,
    keeps_latest=True,
    is_of_several_rows=True,
    underived=_NO_RANGES.format("keyed"),
)
VERSIONED = Kind(
    name="versioned",
    is_upserted=True,
    keeps_versions=True,
    keeps_event_time=True,
    underived=_NO_RANGES.format("versioned"),
)
REFERENCE = Kind(
    name="reference",
    is_streamed=False,
    is_reference=True,
    underived="it has no event time, so no ranges; it is rebuilt whole",
)
REPORT = Kind(
    name="report", is_streamed=False, is_derived=True, has_partitions=True, is_report=True
)
