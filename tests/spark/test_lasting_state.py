"""Process functions whose state lasts: a range begins with kept states, and gives what all of history gives."""

from datetime import UTC, datetime, timedelta

import pytest

from lakehouse.ranges import Range
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


def given(stage: Stage, name: str = "numbered") -> list[tuple]:
    rows = stage.rows(name).collect()
    found = ((minute(r.at), r.user, r.n, r.pages) for r in rows if r.user != "end")
    return sorted(found, key=repr)


def kept(stage: Stage, name: str = "numbered") -> list[float]:
    of = stage.lake.catalog.table(name)
    return [minute(each.at) for each in state_files.kept(stage.lake.settings, of)]


@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_lasts_over_partitions_and_each_range_is_computed_from_it(spark, tmp_path):
    stage = Stage(spark, tmp_path, visitors)
    rows = [(n * 7.0, "abc"[n % 3], "xyz"[n % 2]) for n in range(60)]  # seven hours
    rows += [(20.0, None, "x"), (250.0, "late-comer", "x"), (335.0, "late-comer", "y")]
    rows += [(30.0, "gone", "x"), (209.9, "gone", "x"), (390.0, "gone", "x")]
    rows += [(60.0, "on the hour", "x"), (180.0, "on the hour", "y")]
    fed = sorted(rows, key=lambda row: row[0])
    for n in range(0, len(fed), 20):
        stage.feed("visits", [visit(*row) for row in fed[n : n + 20]])
        stage.feed("visits", [visit(5.0, "a", "too late")] if n else [])
        stage.run("shown")
        stage.run(
            "numbered", files_per_batch=1, abort_at=("begin", "rows", "commit_log")[n // 20 % 3]
        )
    for end in (1_000, 1_001):
        stage.advance("visits", visit(end, "end"))
    stage.run("shown", "numbered")
    assert given(stage) == sorted(expected(rows), key=repr)
    assert max(kept(stage)) == 960 and len(kept(stage)) > 2
    assert_stream_equals_batch(stage, "numbered")
    # an hour by itself, from the states at its start: of the input nothing before is read
    hours = [Range(START + HOUR * n, START + HOUR * (n + 1)) for n in range(17)]
    begins = max(at for at in kept(stage) if at < 420)
    files = state_files.kept(stage.lake.settings, stage.lake.catalog.table("numbered"))
    for hour in hours[1:8]:
        assert_stream_equals_batch(stage, "numbered", hour)
    # without any kept states it is computed from the first row, and the same
    state_files.forget(stage.lake.settings, stage.lake.catalog.table("numbered"), files)
    assert not kept(stage) and begins
    assert_stream_equals_batch(stage, "numbered", hours[7])
    assert stage.backfill("numbered", hours[3]).written and kept(stage) == [240]
