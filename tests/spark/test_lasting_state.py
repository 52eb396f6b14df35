"""Process functions whose state lasts: a range begins with kept states, and gives what all of history gives."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from pyspark.sql import functions as F

from lakehouse.batch import batch_state, kept_states
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.keyed import state_files
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import orders, visitors

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
    of = stage.session.catalog.table(name)
    return [minute(each.at) for each in state_files.kept(stage.session.settings, of)]


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
    table, hour = stage.session.catalog.table("outcomes"), Range(START + HOUR * 2, START + HOUR * 3)
    (first, *_) = state_files.kept(stage.session.settings, table)
    states = state_files.rows(spark, stage.session.settings, table, first)
    wrong = states.withColumn("_life", F.replace("_life", F.lit('"n":'), F.lit('"n":1')))
    state_files.keep(stage.session.settings, table, wrong, first.at, first.covers)
    found = reconciliation.reconcile(stage.session, table, hour)
    assert (found.verdict, found.missing, found.extra) == ("DIFFERENT", 0, 0)
    assert found.cause.startswith("kept states differ: its rows are equal, but those kept at")
    stage.backfill("outcomes", hour)
    assert_stream_equals_batch(stage, "outcomes", hour)

    # what is lost is computed again, from the first row
    state_files.forget(
        stage.session.settings, table, state_files.kept(stage.session.settings, table)
    )
    stage.backfill("outcomes", hour)
    assert kept(stage) == [180]

    # rows before that are changed by a batch run: the states hold no more, and the stream knows it
    path = stage.session.path(stage.session.catalog.table("shown"))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE at < '2026-01-01T01:00:00Z' AND user = 'b'")
    stage.backfill("shown", Range(START, START + HOUR))
    more = [(602.0 + n, "a", "w") for n in range(3)]
    stage.feed("visits", [visit(*row) for row in more])
    for end in (700, 701):
        stage.advance("visits", visit(end, "end"))
    stage.run("shown", "outcomes")
    assert given(stage) == sorted(expected([*rows, *more]), key=repr)
    waiting = batch_state.read(stage.session, table).outdated
    assert waiting == [f"2026-01-01-{n:02}" for n in range(11)], "what it wrote before, no more"

    # rows without a tag, and those of one, have tables of their own
    stage.run("numbered", "absences")
    told = given(stage, "outcomes")
    for name, mine in (("numbered", lambda n: n > 0), ("absences", lambda n: n < 0)):
        assert given(stage, name) == [each for each in told if mine(each[2])] != []
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(300)
def test_rows_of_two_inputs_come_in_event_time_across_both(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_states, "_MANY", 5)  # so some are kept inside a partition
    stage = Stage(spark, tmp_path, orders)
    rng = Random(4)
    rows = sorted((rng.randrange(0, 150), rng.randrange(0, 5), rng.choice("op")) for _ in range(80))
    rows = [each for n, each in enumerate(rows) if (each[0], each[1]) != rows[n - 1][:2]]

    def feed(kind: str, some: list[tuple[int, int, str]]) -> None:
        names = {"o": ("id", "at", "price"), "p": ("order", "paid_at", "amount")}[kind]
        values = [(key, (START + timedelta(minutes=at)).isoformat(), at) for at, key, _ in some]
        table = {"o": "orders", "p": "payments"}[kind]
        stage.feed(table, [dict(zip(names, each, strict=True)) for each in values])

    def part(kind: str, start: float, end: float) -> list[tuple[int, int, str]]:
        return [each for each in rows if each[2] == kind and start <= each[0] < end]

    feed("o", part("o", 0, 151))  # one input is far ahead
    feed("p", part("p", 0, 80))
    feed("p", [(80, 99, "p")])
    stage.run("settled", files_per_batch=1, abort_at="rows")
    least = START + timedelta(minutes=80, seconds=-20)
    assert stage.frontier("settled") == least
    assert minute(least) in kept(stage, "settled")
    feed("p", part("p", 80, 151))
    for end in (400, 401):
        feed("p", [(end, 99, "p")])
        feed("o", [(end, 99, "o")])
    stage.run("settled", abort_at="commit_log")
    found = stage.rows("settled").where("id < 99").collect()
    assert sorted((minute(r.at), r.id, r.open, r.what) for r in found) == sorted(oracle(rows))
    assert_stream_equals_batch(stage, "settled")
    assert_stream_equals_batch(stage, "settled", Range(START + HOUR, START + HOUR * 2))


def oracle(rows: list[tuple[int, int, str]]) -> list[tuple[float, int, int, str]]:
    """What is open of each order: by an event after the other, with the times to wait among them."""
    found: list[tuple[float, int, int, str]] = []
    for key in {key for _, key, _ in rows}:
        open_, last, waits = 0, -1_000.0, set()
        for at, kind in [(at, kind) for at, of, kind in rows if of == key] + [(10_000, "")]:
            for due in sorted(w for w in waits if w < at and w <= last + 30):
                found.append((due, key, open_, "waited"))
            waits = {w for w in waits if w >= at and at - last <= 30}
            if not kind:
                break
            open_ = (open_ if at - last <= 30 else 0) + (at if kind == "o" else -at)
            found.append((at, key, open_, "ordered" if kind == "o" else "paid"))
            waits |= {at + 10} if kind == "o" else set()
            last = at
    return found
