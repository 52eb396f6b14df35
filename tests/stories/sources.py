"""The same clicks from each kind of source: of each its ingest table, and windows over it."""

from collections.abc import Iterator
from datetime import timedelta
from inspect import Parameter, Signature
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    SourceReader,
    SourceRecord,
    changes,
    delta_table,
    folder,
    iceberg_table,
    ingest_table,
    kafka,
    keyed_table,
    python_source,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from stories.story import BEGIN, PARTITIONS, START

SCHEMA = "user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT"
CUT = START + timedelta(seconds=BEGIN + 15)  # within the first micro-batches of a story
_DECADE = "3650 days"  # files and steps have the real time, and a story has its own
_there = TemporaryDirectory(prefix="stories-of-sources-")
THERE = Path(_there.name)
"""What the sources read that are no topics: one story after another fills it."""


class Lines(SourceReader):
    """The lines of a file for each partition; the number of an empty line is missing."""

    sparse = True

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def latest_offset(self) -> dict[int, int]:
        return {partition: len(self._lines(partition)) for partition in PARTITIONS}

    def read(self, partition: int, start: int, end: int) -> Iterator[SourceRecord]:
        for number, line in enumerate(self._lines(partition)[start:end], start):
            if line:
                yield SourceRecord(line, key=f"{number}", offset=number)

    def _lines(self, partition: int) -> list[str]:
        file = self.path / str(partition)
        return file.read_text().splitlines() if file.exists() else []


def _folder(kind: str, **how) -> RecordSource:
    return folder(
        str(THERE / kind), schema=SCHEMA, settle="0 seconds", max_future_skew=_DECADE, **how
    )


SOURCES: dict[str, RecordSource] = {
    "avro": kafka("avro-clicks", format="avro", schema=SCHEMA),
    "protobuf": kafka("protobuf-clicks", format="protobuf", schema=SCHEMA),
    "changes": changes("shop.public.clicks", key="user", schema="user STRING, value BIGINT"),
    "json_folder": _folder("json_folder", pattern="*.json*"),
    "csv_folder": _folder("csv_folder", format="csv"),
    "parquet_folder": _folder("parquet_folder", format="parquet"),
    "delta": delta_table(str(THERE / "delta"), schema=SCHEMA, max_future_skew=_DECADE),
    "delta_changes": delta_table(
        str(THERE / "delta_changes"), schema="user STRING NOT NULL, value BIGINT", changes=True
    ),
    "iceberg": iceberg_table(
        "shop.orders",
        catalog={"type": "sql", "uri": f"sqlite:///{THERE}/iceberg/catalog.db"},
        schema=SCHEMA,
        max_future_skew=_DECADE,
    ),
    "own": python_source(
        "lines",
        Lines,
        schema=SCHEMA,
        options={"path": str(THERE / "own")},
        poll_interval="0 seconds",
        idle_timeout="1 second",
        max_future_skew=_DECADE,
    ),
    "history": kafka(
        "clicks",
        schema=SCHEMA,
        history=folder("/data/archive/clicks", schema=SCHEMA),
        starting=CUT,
    ),
}
INGEST = tuple(f"{kind}_clicks" for kind in SOURCES)


def _ingest(kind: str) -> Table:
    """The table `<kind>_clicks`, which keeps the rows of `<kind>_source`."""

    def clicks(**source: DataFrame) -> DataFrame:
        (rows,) = source.values()
        return rows

    reads = Parameter(f"{kind}_source", Parameter.POSITIONAL_OR_KEYWORD)
    clicks.__signature__ = Signature([reads])  # its parameter names its input
    clicks.__name__ = f"{kind}_clicks"
    time = "sent" if kind in ("changes", "delta_changes") else "at"
    return ingest_table(layer="bronze", event_time=time, delay="5 seconds")(clicks)


for _kind, _source in SOURCES.items():
    _clicks = _ingest(_kind)
    _windows = window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])(
        sql(
            f"{_kind}_windows",
            "SELECT window, user, count(*) AS clicks, sum(value) AS value "
            f"FROM {{{_kind}_clicks}} GROUP BY window, user",
        )
    )
    globals().update({f"{_kind}_source": _source, _clicks.name: _clicks, _windows.name: _windows})


def _newest(changed: DataFrame) -> DataFrame:
    newest = F.max_by(F.struct("value", "deleted"), "position").alias("row")
    rows = changed.groupBy("user").agg(newest).select("user", "row.*")
    return rows.where("NOT deleted").drop("deleted")


@keyed_table(layer="silver", keys=["user"])
def newest_clicks(changes_clicks: DataFrame) -> DataFrame:
    """The database's table."""
    return _newest(changes_clicks)


@keyed_table(layer="silver", keys=["user"])
def newest_rows(delta_changes_clicks: DataFrame) -> DataFrame:
    """The Delta table of others."""
    return _newest(delta_changes_clicks)


@versioned_table(layer="silver", keys=["user"])
def click_versions(changes_clicks: DataFrame) -> DataFrame:
    """Its history."""
    return changes_clicks


@versioned_table(layer="silver", keys=["user"])
def row_versions(delta_changes_clicks: DataFrame) -> DataFrame:
    """Its history."""
    return delta_changes_clicks
