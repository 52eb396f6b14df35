"""Event times before 1970, and that of which the number is 0: the tables of the same rows in 2026, moved."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from benchmarks import operators
from lakehouse.cli import lateness_report
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.stream.strategy import strategy
from lakehouse.testing import Stage, assert_stream_equals_batch

# midnights: rows come in the minute before and after, one of them at midnight itself
IN_2026 = datetime(2026, 3, 28, tzinfo=UTC)
IN_1970 = datetime(1970, 1, 1, tzinfo=UTC)
IN_1800 = datetime(1800, 3, 1, tzinfo=UTC)
HOUR = 3600
# seconds from midnight, user, value
FIRST = [(-58, "a", 10), (-55, "b", 70), (-51, "a", 25), (-50, "b", 30)]
SECOND = [(-20, "a", 64), (-12, "b", 5), (-11, "b", 5), (-7300, "a", 9), (0, "a", 90), (2, "b", 21)]
THIRD = [(-40, "b", 33), (30, "a", 12), (36, "b", 80), (37, "b", 80), (1, "a", 22), (41, "a", 65)]
ROWS = [*FIRST, *SECOND, *THIRD]
LATE = [-7300, -40]  # by the time they come their windows of ten seconds had ended


def click(midnight: datetime, second: int, user: str, value: int) -> dict:
    at = midnight + timedelta(seconds=second)
    return {"id": second, "user": user, "at": at.isoformat(), "value": value}


def filled(stage: Stage, midnight: datetime, names: list[str]) -> dict[str, Counter]:
    """The rows of the tables, instants as seconds from midnight, once an hour more has closed."""
    for number, batch in enumerate((FIRST, SECOND, THIRD)):
        stage.feed("clicks", [click(midnight, *row) for row in batch])
        if number == 1:
            stage.run(*names, files_per_batch=1)
    stage.advance("clicks", click(midnight, 2 * HOUR, "a", 70))
    stage.run(*names, files_per_batch=1)
    return {name: rows_of(stage, name, midnight) for name in names}


def rows_of(stage: Stage, name: str, midnight: datetime) -> Counter:
    def plain(value):
        if isinstance(value, datetime):
            return (value.astimezone(UTC) - midnight).total_seconds()
        return tuple(map(plain, value)) if isinstance(value, tuple) else value

    own = [column for column in stage.rows(name).columns if not column.startswith("_")]
    return Counter(tuple(map(plain, row)) for row in stage.rows(name).select(*own).collect())


def late_of(stage: Stage, name: str) -> int:
    return sum(
        line.late
        for line in CommitLog(stage.session.settings, stage.session.catalog.table(name)).by_stream()
    )


def test_rows_from_before_1970_are_late_only_by_the_rows_before_them(stage_of):
    stage = stage_of(operators, early=True)
    long_windows = stage.session.catalog.table("long_windows")
    assert strategy(stage.session, long_windows) == "close", "Spark's watermark begins in 1970"
    assert filled(stage, IN_1970, ["single_rows", "tumbling_windows"])["single_rows"] == Counter(
        (second, user, float(second), value, 2 * value)
        for second, user, value in [*ROWS, (2 * HOUR, "a", 70), (2 * HOUR, "a", 70)]
        if value > 20 and second > -HOUR
    )
    windows = Counter(
        (user, second // 10 * 10.0, second // 10 * 10.0 + 10)
        for second, user, value in ROWS
        if value > 20 and second not in LATE
    )
    starts = F.col("window.start"), F.col("window.end")
    rows = stage.rows("tumbling_windows").select("user", *starts, "clicks").collect()
    assert {
        (user, *((end.astimezone(UTC) - IN_1970).total_seconds() for end in ends)): count
        for user, *ends, count in rows
    } == windows
    assert (late_of(stage, "single_rows"), late_of(stage, "tumbling_windows")) == (1, 2)
    for name in ("single_rows", "tumbling_windows"):
        assert_stream_equals_batch(stage, name)
    marks = stage.rows("clicks").select(F.min("_arrival.watermark")).first()
    assert marks is not None and marks[0].year == 1678, "before the first watermark"
    table = stage.session.catalog.table("single_rows")
    in_order, *_ = lateness_report.histogram(stage.session, table)[1]
    assert in_order.rows == len(ROWS) + 2 - 3, "three came after a later row"


TABLES = [
    "deduplicated", "interval_joins", "sliding_windows", "sessions", "count_windows", "merged_keys", "expiring_keys",
    "final_keys", "versioned_tables", "as_of_joins", "patterns", "lasting_states",
]  # fmt: skip


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1200)
def test_each_kind_of_table_holds_in_1969_and_in_1800_what_it_holds_in_2026(stage_of):
    wanted = filled(stage_of(operators), IN_2026, TABLES)
    for midnight, names in ((IN_1970, TABLES), (IN_1800, ["sessions", "expiring_keys"])):
        found = filled(stage_of(operators, early=True), midnight, names)
        for name in names:
            assert wanted[name], f"{name}: no row was compared"
            assert found[name] == wanted[name], (midnight, name)
