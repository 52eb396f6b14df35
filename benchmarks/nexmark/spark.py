"""The queries of Nexmark as streams of Spark alone, one for each, over the same stored events.

Where Spark takes the function of our table as it is, that function is the stream. Where it refuses it (ranks, distinct counts,
an aggregate that is joined with its rows), the stream is written by hand below. What we add is left out: the watermark is
Spark's own, no row is counted, nothing is kept by which a batch run could be compared, and a micro-batch that is run again
after a crash may merge its rows twice. A person or auction that is sent twice is left out by `dropDuplicates`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from benchmarks.nexmark import tables
from lakehouse.declare.columns import ARRIVAL, ORIGIN, PARTITION
from lakehouse.declare.table import Table
from lakehouse.storage.session import Session
from lakehouse.transform import lateness

ONCE = {"people": "nexmark_people", "auctions": "nexmark_auctions"}  # keyed -> its ingest table
ADDED = ("q3_local_items", "q20_bids_with_auctions", "q23_bids_of_sellers")  # joins only add rows
RANK = "rank_number"
CHANGES = "it reads rows that change, and a stream of Spark reads rows that are added"


class Impossible(Exception):
    """Spark has no such stream."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The first rows of each key: those of a micro-batch are ranked with those that are stored, and merged."""

    rows: Callable[..., DataFrame]
    keys: tuple[str, ...]
    order: Callable[[], tuple[Column | str, ...]]
    most: int = 1


class Stream:
    """The stream of one table into `folder`.

    Raises Impossible with the reason, also when it starts.
    """

    def __init__(self, session: Session, table: Table, folder: Path) -> None:
        self.folder, self.ranked = folder, RANKED.get(table.name)
        rows = self.ranked.rows if self.ranked else BY_HAND.get(table.name, table)
        self.rows = rows(**{name: _input(session, table, name) for name in table.inputs})
        self.adds = not table.kind.is_upserted or table.name in ADDED
        self.keys = (*self.ranked.keys, RANK) if self.ranked else table.keys
        if not self.adds:
            empty = session.spark.createDataFrame([], self.rows.schema)
            made = empty.withColumn(RANK, F.lit(1)) if self.ranked else empty
            made.write.format("delta").save(str(folder))

    def start(self, *, available_now: bool = False) -> StreamingQuery:
        """Starts it, or goes on with it; `available_now` ends it at the present."""
        checkpoint = self.folder.with_name(f"{self.folder.name}__checkpoint")
        writer = self.rows.writeStream.option("checkpointLocation", str(checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        try:
            if self.adds:
                return writer.outputMode("append").format("delta").start(str(self.folder))
            mode = "append" if self.ranked else "update"
            return writer.outputMode(mode).foreachBatch(self._merge).start()
        except AnalysisException as err:
            raise Impossible(str(err).partition("\n")[0]) from err

    def _merge(self, batch: DataFrame, batch_id: int) -> None:
        batch = batch.persist()  # it is read twice, and may hold a state
        new = self._best(batch, self.ranked) if self.ranked else batch
        same = " AND ".join(f"old.{key} = new.{key}" for key in self.keys)
        into = DeltaTable.forPath(batch.sparkSession, str(self.folder)).alias("old")
        merging = into.merge(new.alias("new"), same)
        merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        batch.unpersist()

    def _best(self, batch: DataFrame, ranked: Ranked) -> DataFrame:
        keys = [*ranked.keys]
        stored = batch.sparkSession.read.format("delta").load(str(self.folder)).drop(RANK)
        touched = stored.join(batch.select(*keys).distinct(), keys, "left_semi")
        place = F.row_number().over(Window.partitionBy(*keys).orderBy(*ranked.order()))
        placed = batch.unionByName(touched).withColumn(RANK, place)
        return placed.where(F.col(RANK) <= ranked.most)


def _input(session: Session, table: Table, name: str) -> DataFrame:
    """An input as a stream; of a window table with Spark's watermark, and the column `window`."""
    each = session.catalog.table(name)
    if each.kind.is_reference:
        return session.read(each)
    if each.kind.is_upserted and name not in ONCE:
        raise Impossible(CHANGES)
    stored = session.catalog.table(ONCE.get(name, name))
    rows = session.spark.readStream.format("delta").load(str(session.path(stored)))
    rows = rows.drop(PARTITION, ORIGIN)
    if name in ONCE:
        return rows.drop(ARRIVAL).dropDuplicates(["id"])
    if table.window is None:
        return rows
    event_time = session.catalog.time_column(stored)
    delay = f"{stored.delay.total_seconds():g} seconds"
    flagged = lateness.flagged(rows.withWatermark(event_time, delay), table, event_time)
    return lateness.accepted(flagged, late_too=True)


# ---- where Spark refuses the function of our table


def _hot_items(nexmark_bids: DataFrame) -> DataFrame:
    counted = nexmark_bids.groupBy("window", "auction").agg(F.count("*").alias("num"))
    of_window = counted.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all")
    )
    each = of_window.select("window", "most", F.explode("all").alias("one"))
    return each.where("one.num = most").select("window", "one.auction", "one.num")


def _highest_bids(nexmark_bids: DataFrame) -> DataFrame:
    highest = nexmark_bids.groupBy("window").agg(F.max("price").alias("price"))
    # joined by the window: a second column with a watermark is refused
    date_time = F.col("date_time").alias("date_time", metadata={})
    bids = nexmark_bids.select(
        "window", "auction", "bidder", "price", date_time, "extra", *_place()
    )
    return bids.join(highest, ["window", "price"])


def _bids_by_day(nexmark_bids: DataFrame) -> DataFrame:
    days = nexmark_bids.withColumn("day", F.to_date("date_time"))
    return days.groupBy("day").agg(*tables._bids(), *_distinct("bidder"), *_distinct("auction"))


def _bids_by_channel(nexmark_bids: DataFrame) -> DataFrame:
    days = nexmark_bids.withColumn("day", F.to_date("date_time"))
    last = F.max(F.date_format("date_time", "HH:mm")).alias("minute")
    counted = (last, *tables._bids(), *_distinct("bidder"), *_distinct("auction"))
    return days.groupBy("channel", "day").agg(*counted)


def _bids_while_open(auctions: DataFrame, nexmark_bids: DataFrame) -> DataFrame:
    bids = nexmark_bids.select(
        *("auction", "bidder", "price", F.col("date_time").alias("bid_date_time")),
        *(F.col("extra").alias("bid_extra"), *_place()),
    )
    of_auction = auctions.join(bids, auctions["id"] == bids["auction"])
    return of_auction.where("bid_date_time BETWEEN date_time AND expires")


def _placed(nexmark_bids: DataFrame) -> DataFrame:
    return nexmark_bids.select(*nexmark_bids.columns, *_place()).drop(ARRIVAL)


def _place() -> list[Column]:
    return [F.col(f"{ARRIVAL}.{name}").alias(name) for name in ("partition", "offset")]


def _distinct(what: str) -> list[Column]:
    """Exact: Spark streams no distinct count, but it keeps sets."""
    sets = {n: F.collect_set(F.when(c, F.col(what))) for n, c in tables._classes().items()}
    return [F.size(each).cast("bigint").alias(f"{n}_{what}s") for n, each in sets.items()]


BY_HAND: dict[str, Callable[..., DataFrame]] = {
    "q5_hot_items": _hot_items,
    "q7_highest_bids": _highest_bids,
    "q15_bids_by_day": _bids_by_day,
    "q16_bids_by_channel": _bids_by_channel,
}
RANKED = {
    "q9_winning_bids": Ranked(
        _bids_while_open,
        ("id",),
        lambda: (F.desc("price"), "bid_date_time", "partition", "offset"),
    ),
    "q18_last_bids": Ranked(
        _placed,
        ("bidder", "auction"),
        lambda: (F.desc("date_time"), F.desc("partition"), F.desc("offset")),
    ),
    "q19_top_bids": Ranked(
        _placed,
        ("auction",),
        lambda: (F.desc("price"), "date_time", "partition", "offset"),
        most=10,
    ),
}
