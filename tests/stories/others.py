"""Tables of others in the sources of `sources`: an Iceberg table that grows, and a Delta table whose rows are changed.

Both are real, and their owners do more than that: they compact, expire, vacuum, rename columns.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import SparkSession

from lakehouse.storage.delta import delta_log
from lakehouse.storage.foreign.file_register import Register
from lakehouse.stream.reading.registry import check
from stories import tally
from stories.sources import SOURCES, THERE
from support.iceberg_shop import Shop

if TYPE_CHECKING:
    from stories.filling import Filling
    from stories.lots import Click, Lot

# ---- an Iceberg table

_CLICKS = Schema(
    NestedField(1, "user", StringType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "value", IntegerType()),
)
_MERGED = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


def append(stage: "Filling", ingest: str, lot: "Lot", abort_at: str | None) -> None:
    """Clicks of each partition as a snapshot; of what is malformed the user is missing.

    At first a type is widened and a row deleted. Then a column is renamed by turns, one is added, files are compacted, and
    snapshots that were read expire.
    """
    if stage.lots == 1:
        stage.theirs = Shop(THERE / "iceberg", _CLICKS)
        if len(lot) % 2:  # a writer that merges manifests
            with stage.theirs.table.transaction() as transaction:
                transaction.set_properties(_MERGED)
    shop: Shop = stage.theirs
    for partition in sorted({p for p, _ in lot}):
        clicks = [click for p, click in lot if p == partition]
        _append(shop, clicks)
        for click in clicks:
            stage.note(SOURCES["iceberg"].address, 0, click)
        if stage.lots == 1 and partition == min(p for p, _ in lot):
            with shop.table.update_schema() as update:
                update.update_column("value", LongType())
    if stage.lots == 1:
        before = {each.file_path for each in shop.data_files()}
        _append(shop, [None, *[click for _, click in lot[:1]]])
        (path,) = {each.file_path for each in shop.data_files()} - before
        shop.delete_by_position(path, [0])
        for _, click in lot[:1]:
            stage.note(SOURCES["iceberg"].address, 0, click)
    if stage.lots % 3 == 2:
        shop.compact()
    stage.read(ingest, abort_at, shop.compact)
    with shop.table.update_schema() as update:
        update.rename_column(*(("value", "worth") if stage.lots % 2 else ("worth", "value")))
        if stage.lots == 2:
            update.add_column("shop", StringType())
    if stage.lots % 3 == 1:
        known = [each.snapshot_id for each in shop.table.snapshots()]
        through = Register(stage.session.settings, stage.session.catalog.table(ingest)).through
        shop.expire(*known[: known.index(through)])


def _append(shop: Shop, clicks: Sequence["Click | None"]) -> None:
    columns = shop.table.schema().as_arrow()
    rows = [(None, None, 1) if c is None else (c["user"], _at(c), c["value"]) for c in clicks]
    named = [dict(zip(columns.names, row, strict=False)) for row in rows]
    shop.table.append(pa.Table.from_pylist(named, columns))


def _at(click: "Click") -> datetime:
    return datetime.fromisoformat(click["at"])


# ---- a Delta table whose rows are changed

Rows = Counter[tuple[str | None, int]]
_COLUMNS = pa.schema([("user", pa.string()), ("value", pa.int64()), ("odd", pa.bool_())])
_BEGIN = datetime(2026, 3, 28, 23, tzinfo=UTC)  # where stories begin, for what has no time
_OF_SPARK = 4  # from this lot on its owner writes with Spark, and deletion vectors
_MERGE = """
    MERGE INTO {0} t USING (SELECT * FROM VALUES {1} AS v (user, value, odd, gone)) s ON t.user = s.user
    WHEN MATCHED AND s.gone THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""


class Changing:
    """The table, with a row for each user, and its rows at each version; a version has the time of the click behind it."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path, self.name = spark, path, f"delta.`{path}`"
        self.by_spark = False
        self.rows: Rows = Counter()
        self.versions: dict[int, tuple[datetime, Rows]] = {}
        write_deltalake(path, _table([]), partition_by=["odd"])

    def turn(self, lot: int) -> None:
        """What its owner changes of the table itself before a lot: by turns it has a change feed."""
        properties = {"delta.enableChangeDataFeed": str(lot % 2 == 0).lower()}
        if self.by_spark or lot >= _OF_SPARK:
            self.by_spark = True
            properties["delta.enableDeletionVectors"] = "true"
            given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            self.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({given})")
        elif lot > 1:
            DeltaTable(self.path).alter.set_table_properties(properties)

    def value_of(self, user: str) -> int | None:
        return next((value for name, value in self.rows if name == user), None)

    def put(self, at: datetime, changes: dict[str, int | None], whole: bool) -> None:
        """One version with these users: None for one that goes. `whole`: all of the table is written again."""
        rows = Rows({row: count for row, count in self.rows.items() if row[0] not in changes})
        rows.update((user, value) for user, value in changes.items() if value is not None)
        ((user, value), *others) = changes.items()
        known = self.value_of(user) is not None
        if whole:
            self._overwrite([*rows.elements()])
        elif others:
            self._merge(changes)
        elif value is None:
            self._delete(f"user = '{user}'")
        elif known:
            self._update(f"user = '{user}'", value=str(value), odd=str(_is_odd(value)).lower())
        else:
            self._insert([(user, value)])
        self._done(at, rows)

    def rename(self, at: datetime, user: str) -> None:
        """The key of a row changes."""
        value = self.value_of(user)
        assert value is not None
        self._update(f"user = '{user}'", user=f"'{user}+'")
        self._done(at, self.rows - Rows([(user, value)]) + Rows([(f"{user}+", value)]))

    def spoil(self, at: datetime, values: Sequence[int]) -> None:
        """Rows without their user come."""
        self._insert([(None, value) for value in values])
        self._done(at, self.rows + Rows((None, value) for value in values))

    def compact(self) -> None:
        if self.by_spark:
            self.spark.sql(f"OPTIMIZE {self.name}")
        else:
            DeltaTable(self.path).optimize.compact()
        self._done(self.versions[max(self.versions)][0], self.rows)

    def vacuum(self) -> None:
        """Removes what the newest version has no more."""
        if not self.by_spark:
            theirs = DeltaTable(self.path)
            theirs.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def at(self, version: int) -> Rows:
        return self.versions[max(v for v in self.versions if v <= version)][1]

    def _insert(self, rows: Sequence[tuple[str | None, int]]) -> None:
        if self.by_spark:
            self.spark.sql(f"INSERT INTO {self.name} VALUES {_values(rows)}")
        else:
            write_deltalake(self.path, _table(rows), mode="append")

    def _overwrite(self, rows: Sequence[tuple[str | None, int]]) -> None:
        if self.by_spark:
            self.spark.sql(f"INSERT OVERWRITE {self.name} VALUES {_values(rows)}")
        else:
            write_deltalake(self.path, _table(rows), mode="overwrite")

    def _update(self, where: str, **to: str) -> None:
        if self.by_spark:
            given = ", ".join(f"{name} = {value}" for name, value in to.items())
            self.spark.sql(f"UPDATE {self.name} SET {given} WHERE {where}")
        else:
            DeltaTable(self.path).update(predicate=where, updates=to)

    def _delete(self, where: str) -> None:
        if self.by_spark:
            self.spark.sql(f"DELETE FROM {self.name} WHERE {where}")
        else:
            DeltaTable(self.path).delete(where)

    def _merge(self, changes: dict[str, int | None]) -> None:
        rows = [(user, value or 0) for user, value in changes.items()]
        gone = [value is None for value in changes.values()]
        if self.by_spark:
            marked = [
                f"{_values([row])[:-1]}, {each})" for row, each in zip(rows, gone, strict=True)
            ]
            self.spark.sql(_MERGE.format(self.name, ", ".join(marked)))
            return
        source = _table(rows).append_column("gone", pa.array(gone))
        columns = {name: f"s.{name}" for name in _COLUMNS.names}
        merge = DeltaTable(self.path).merge(source, "t.user = s.user", "s", "t")
        merge = merge.when_matched_delete("s.gone").when_matched_update(columns)
        merge.when_not_matched_insert(columns).execute()

    def _done(self, at: datetime, rows: Rows) -> None:
        """The newest version, which gets the time of the story: it may be the one that is read first."""
        version = delta_log.latest(self.path)
        file = delta_log.commit_file(self.path, version)
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for each in actions:
            if "commitInfo" in each:
                each["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
        file.write_text("".join(f"{json.dumps(each)}\n" for each in actions))
        self.rows = rows
        self.versions[version] = at, rows


def _is_odd(value: int) -> bool:
    return value % 2 == 1


def _table(rows: Sequence[tuple[str | None, int]]) -> pa.Table:
    named = [{"user": user, "value": value, "odd": _is_odd(value)} for user, value in rows]
    return pa.Table.from_pylist(named, _COLUMNS)


def _values(rows: Sequence[tuple[str | None, int]]) -> str:
    texts = ["NULL" if user is None else f"'{user}'" for user, _ in rows]
    return ", ".join(
        f"({user}, {value}L, {_is_odd(value)})"
        for user, (_, value) in zip(texts, rows, strict=True)
    )


def change(stage: "Filling", ingest: str, lot: "Lot", abort_at: str | None) -> None:
    """A few clicks are a version: each puts the row of its user, and one of five ends it. One user gets another name.

    Versions have the times of clicks, so some are late.
    """
    if stage.lots == 1:
        stage.theirs = Changing(stage.session.spark, THERE / "delta_changes")
    table: Changing = stage.theirs
    table.turn(stage.lots)
    at = max((_at(click) for _, click in lot if click), default=_BEGIN)
    groups = _groups([click for _, click in lot if click], many=table.by_spark)
    for number, clicks in enumerate(groups, stage.lots):
        changes: dict[str, int | None] = {}
        for click in clicks:
            user = f"{click['user']}.{click['id'] % 4}"
            goes = click["value"] % 5 == 0 and table.value_of(user) is not None
            changes[user] = None if goes else click["value"]
        table.put(_at(clicks[0]), changes, whole=number % 5 == 4)
    if spoilt := [number for number, (_, click) in enumerate(lot) if click is None]:
        table.spoil(at, spoilt)
    users = sorted(user for user, _ in table.rows if user)
    if stage.lots % 2 and users and f"{users[0]}+" not in users:
        table.rename(at, users[0])
    if stage.lots % 3 == 2:
        table.compact()
    stage.read(ingest, abort_at, table.compact)
    if stage.lots % 3 == 1:
        table.vacuum()


def _groups(clicks: "Sequence[Click]", many: bool) -> "Iterator[Sequence[Click]]":
    """One, two or three of them at a time; `many`: one, and then eight, for a command of Spark's takes a second."""
    begin, most = 0, 1
    while begin < len(clicks):
        yield clicks[begin : begin + most]
        begin, most = begin + most, 8 if many else most % 3 + 1


def assert_followed(stage: "Filling", ingest: str) -> None:
    """Each change is there once, those of a version make of the one before what it is, and a keyed table is the table."""
    table = stage.session.catalog.table(ingest)
    theirs: Changing = stage.theirs
    ((where, offsets),) = tally.stored_offsets(stage, ingest).items()
    assert where == (SOURCES["delta_changes"].address, 0)
    assert offsets == list(range(len(offsets)))
    arrived = sum(c.arrived for c in stage.session.commit_log(table).by_stream())
    assert arrived == len(offsets), f"{ingest}: arrived"
    (found,) = check(stage.session, table)
    assert (found.missing, found.doubled, found.end) == (0, 0, len(offsets)), found
    moved: dict[int, Rows] = defaultdict(Counter)
    times: dict[int, datetime] = {}
    for each in stage.rows(ingest).collect():
        version = int(each.transaction)
        moved[version][each.user, each.value] += -1 if each.deleted else 1
        at = each.sent.astimezone(UTC)
        assert times.setdefault(version, at) == at, "one time for each version"
    for each in stage.rows(ingest, side="quarantine").collect():
        row = json.loads(each.value)
        gone = row["_change_type"] in ("update_preimage", "delete")
        moved[row["_commit_version"]][row.get("user"), row["value"]] += -1 if gone else 1
    first, before = min(moved), Rows()
    for version in range(first, max(theirs.versions) + 1):
        after, came = theirs.at(version), moved[version]
        wanted = {row: after[row] - before[row] for row in after | before}
        assert {row: n for row, n in came.items() if n} == {r: n for r, n in wanted.items() if n}
        before = after
    assert all(theirs.versions[version][0] == at for version, at in times.items())
    newest = Rows(map(tuple, stage.rows("newest_rows").select("user", "value").collect()))
    assert newest == Rows({row: n for row, n in theirs.rows.items() if row[0]})
    assert theirs.rows == Rows(
        map(tuple, stage.session.spark.sql(f"SELECT user, value FROM {theirs.name}").collect())
    )
