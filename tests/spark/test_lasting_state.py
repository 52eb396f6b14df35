"""Process functions whose state lasts: a range begins with kept states, and gives what all of history gives."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from lakehouse.batch import late_merge
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage import state_files
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import visitors

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def visit(minute: float, user: str | None, page: str = "p") -> dict:
    at = START + timedelta(minutes=minute)
    return {"user": user, "at": at.isoformat(), "page": page}


def minute(moment: datetime) -> float:
    return (moment.astimezone(UTC) - START) / timedelta(minutes=1)


def expected(rows: list[tuple[float, str | None, str]]) -> list[tuple]:
    """What an oracle that knows no cuts says: (minute, user, n, pages)."""
    found, keys = [], {}
    for at, user, page in sorted(rows):
        keys.setdefault(user, []).append((at, page))
    for user, of_user in keys.items():
        seen: list[tuple[float, str]] = []
        for n, (at, page) in enumerate(of_user):
            if seen and at - seen[-1][0] > 180:
                seen = []
            seen.append((at, page))
            pages: dict[str, int] = {}
            for _, each in seen:
                pages[each] = pages.get(each, 0) + 1
            text = " ".join(f"{page}{count}" for page, count in pages.items())
            found.append((at, user, len(seen), text))
            following = of_user[n + 1][0] if n + 1 < len(of_user) else float("inf")
            if following > at + 90:
                found.append((at + 90, user, -len(seen), text))
    return found


def given(stage: Stage, name: str = "outcomes") -> list[tuple]:
    rows = stage.rows(name)
    if name == "outcomes":
        rows = rows.select("at", F.coalesce("main", "away").alias("row")).select("row.*")
    found = ((minute(r.at), r.user, r.n, r.pages) for r in rows.collect() if r.user != "end")
    return sorted(found, key=repr)


def kept(stage: Stage, name: str = "outcomes") -> list[float]:
    of = stage.lake.catalog.table(name)
    return [minute(each.at) for each in state_files.kept(stage.lake.settings, of)]


def rows_of(hours: int) -> list[tuple[float, str | None, str]]:
    rows = [(n * 7.0, "abc"[n % 3], "xyz"[n % 2]) for n in range(hours * 60 // 7)]
    rows += [(20.0, None, "x"), (250.0, "late-comer", "x"), (335.0, "late-comer", "y")]
    rows += [(30.0, "gone", "x"), (209.9, "gone", "x"), (390.0, "gone", "x")]
    return sorted(
        [*rows, (60.0, "on the hour", "x"), (180.0, "on the hour", "y")], key=lambda row: row[0]
    )


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(300)
def test_each_range_begins_with_kept_states_and_is_what_all_of_history_gives(spark, tmp_path):
    stage = Stage(spark, tmp_path, visitors)
    rows = rows_of(7)
    stage.feed("visits", [visit(*row) for row in rows if row[0] < 230])
    stage.run("shown")
    stage.run("outcomes", abort_at="rows")
    stage.feed("visits", [visit(*row) for row in rows if row[0] >= 230])
    stage.feed("visits", [visit(5.0, "a", "too late")])
    for end in (600, 601):
        stage.advance("visits", visit(end, "end"))
    stage.run("shown")
    stage.run("outcomes", files_per_batch=1, abort_at="commit_log")
    assert given(stage) == sorted(expected(rows), key=repr)
    assert kept(stage)[0] == 180 and kept(stage)[-1] == 600, kept(stage)
    assert_stream_equals_batch(stage, "outcomes")

    # one hour by itself; its end is compared with what is kept of it
    table, hour = stage.lake.catalog.table("outcomes"), Range(START + HOUR * 2, START + HOUR * 3)
    (first, *_) = state_files.kept(stage.lake.settings, table)
    states = state_files.rows(spark, stage.lake.settings, table, first)
    wrong = states.withColumn("_life", F.replace("_life", F.lit('"n":'), F.lit('"n":1')))
    state_files.keep(stage.lake.settings, table, wrong, first.at, first.covers)
    found = reconciliation.reconcile(stage.lake, table, hour)
    assert (found.verdict, found.missing, found.extra) == ("DIFFERENT", 0, 0)
    assert found.cause.startswith("kept states differ: its rows are equal, but those kept at")
    stage.backfill("outcomes", hour)
    assert_stream_equals_batch(stage, "outcomes", hour)

    # what is lost is computed again, from the first row
    state_files.forget(stage.lake.settings, table, state_files.kept(stage.lake.settings, table))
    stage.backfill("outcomes", hour)
    assert kept(stage) == [180]

    # rows before that are changed by a batch run: the states hold no more, and the stream knows it
    path = stage.lake.path(stage.lake.catalog.table("shown"))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE at < '2026-01-01T01:00:00Z' AND user = 'b'")
    stage.backfill("shown", Range(START, START + HOUR))
    more = [(602.0 + n, "a", "w") for n in range(3)]
    stage.feed("visits", [visit(*row) for row in more])
    for end in (700, 701):
        stage.advance("visits", visit(end, "end"))
    stage.run("shown", "outcomes")
    assert given(stage) == sorted(expected([*rows, *more]), key=repr)
    waiting = late_merge.outdated(stage.lake.settings, stage.lake.catalog, table)
    assert waiting == [f"2026-01-01-{n:02}" for n in range(11)], "what it wrote before, no more"

    # rows without a tag, and those of one, have tables of their own
    stage.run("numbered", "absences")
    told = given(stage, "outcomes")
    for name, mine in (("numbered", lambda n: n > 0), ("absences", lambda n: n < 0)):
        assert given(stage, name) == [each for each in told if mine(each[2])] != []
        assert_stream_equals_batch(stage, name)
