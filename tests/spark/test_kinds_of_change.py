"""Kinds of change of a running table: the plan names the way of each, and the way leads where it says, crashes or not."""

from collections import Counter
from dataclasses import replace

import pytest

from batch_jobs import upgrade
from lakehouse.cli import change_plan
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, version_rows
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state
from lakehouse.storage.versions import upgrades
from lakehouse.stream import beside, queries
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from lakehouse.transform import creation
from support import ROOT, backfills, changing_tables, starts
from support.changing_tables import START, at, click_topic
from support.kinds_of_change import CHANGES_NO_ROW, KINDS, declared


def minutes(stage: Stage, first: int, last: int) -> None:
    spread = [m for m in range(first, last, 3) if m % 30 < 20]  # sessions come to an end
    for name, user in (("clicks", "a"), ("taps", "c")):
        sent = [(at(m, user, m % 9 + 1), at(m + 0.5, "b", m % 7 + 1)) for m in spread]
        stage.feed(name, [each for pair in sent for each in pair])
        stage.advance(name, at(last, value=1))


def held(stage: Stage, name: str) -> Counter[str]:
    """The rows of a table, each as often as it is there."""
    path = stage.session.path(stage.session.catalog.table(name))
    rows = version_rows.all_at(path, delta_log.latest(path))
    columns = [each for each in rows.column_names if not each.startswith("_")]
    return Counter(map(str, rows.select(columns).to_pylist()))


def test_the_page_has_each_kind_with_its_plan_and_the_way_that_is_tried():
    page = (ROOT / "docs/how-to/change-a-pipeline.md").read_text()
    _, _, shown_below = page.partition(
        "| change | plan | way in the test | in the end |\n|---|---|---|---|\n"
    )
    lines = [
        line.strip("| ").split(" | ") for line in shown_below.partition("\n\n")[0].splitlines()
    ]
    shown = {name.replace(" ", "_"): (plan, way) for name, plan, way, _ in lines}
    assert shown == {name: (kind.planned, kind.way) for name, kind in KINDS.items()}


def go_the_way(stage: Stage, name: str) -> None:
    session, of = stage.session, stage.session.catalog.table(name)
    match KINDS[name].way:
        case "accept":
            declared_state.accept(session, of)
        case "compute whole":
            assert list(backfills.run(session, name)) == []
        case "upgrade":
            list(upgrade.fill(session, name, upgrade.plan(session, name)))
            assert upgrade.compare(session, name, None)[0].state == "filled"
            beside.catch_up(session, of)
            upgrades.exchange(session, of, "promote")


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "half", [pytest.param(n, marks=pytest.mark.turn(n), id=f"half {n}") for n in (0, 1)]
)
def test_each_kind_of_change_goes_the_way_that_the_plan_names(spark, tmp_path, half):
    kinds = {name: kind for n, (name, kind) in enumerate(KINDS.items()) if n % 2 == half}
    stage = Stage(spark, tmp_path, declared(kinds, "before", "always"))
    before, after = stage.session.catalog, catalog_of([declared(kinds, "after", "always")])
    onward = [name for name, kind in kinds.items() if kind.then == "onward"]
    minutes(stage, 0, 130)
    stage.run(*kinds, *(f"always_{name}" for name in onward))

    stage.session = replace(stage.session, catalog=after)
    planned = change_plan.planned(
        Lakehouse(stage.session.settings, after), [after.table(name) for name in kinds]
    )
    assert {each.table: each.action for each in planned} == {
        name: kind.planned for name, kind in kinds.items()
    }
    for each in planned:
        if each.action in change_plan.ASKING:
            with pytest.raises(DeclarationError, match=f"table={each.table}, "):
                stage.run(each.table)
        go_the_way(stage, each.table)
    going_on = [after.table(name) for name, kind in kinds.items() if kind.then != "refused"]
    queries.prepare(stage.session, going_on)  # as the start of a job does
    stood = {name: (held(stage, name), held(stage, f"always_{name}")) for name in onward}
    stage.feed("clicks", [at(35, "late", 3), at(125, "late", 4)])
    minutes(stage, 132, 260)

    stage.run(*{kind.of.name for kind in kinds.values()})
    for n, (name, kind) in enumerate(kinds.items()):
        stage.session = replace(stage.session, catalog=before if kind.then == "refused" else after)
        stage.run(name, abort_at=COMMIT_POINTS[n % len(COMMIT_POINTS)])
        stage.run(f"always_{name}")
        never, always = held(stage, kind.of.name), held(stage, f"always_{name}")
        assert (never == always) == (name in CHANGES_NO_ROW), name
        if kind.then == "refused":
            assert held(stage, name) == never, name
        elif kind.then == "always":
            assert held(stage, name) == always, name
        else:
            then, would_have = stood[name]
            assert held(stage, name) == then + (always - would_have), name
            stage.backfill(name, Range(START, START.replace(hour=3)))
            assert held(stage, name) == always, f"{name}: a backfill brings the past under it"
        assert_stream_equals_batch(stage, name)
    assert {point for _, point in stage.crashes} == set(COMMIT_POINTS)


def test_a_column_that_a_topic_gains_comes_through_the_tables_that_pass_it_on(stage_of):
    stage = stage_of(changing_tables)
    session = stage.session
    starts.begin(session, session.catalog.table("clicks"))  # as its query does
    stage.feed("clicks", [at(1), at(2, value=2)])
    stage.run("counted", "sums")
    topic = replace(click_topic, schema=f"{click_topic.schema}, page STRING")
    catalog = replace(
        session.catalog,
        sources=session.catalog.sources | {"click_topic": replace(topic, name="click_topic")},
    )
    stage.session = session = replace(session, catalog=catalog)
    clicks = catalog.table("clicks")
    planned = change_plan.planned(session, [clicks, catalog.table("counted")])
    assert [each.action for each in planned] == ["accept", "nothing"]
    declared_state.accept(session, clicks)
    with pytest.raises(DeclarationError, match=r"columns=page: .* `lakehouse stream restart"):
        creation.create(session, clicks)  # as a batch run does, beside a job of the former code
    queries.prepare(session, [table for table in catalog if table.kind.is_streamed])
    stage.feed("clicks", [at(63) | {"page": "home"}, at(64)])
    stage.advance("clicks", at(190))
    stage.run("counted", "sums")
    rows = [(row.at.minute, row.page) for row in stage.rows("counted").collect()]
    assert sorted(rows, key=str) == [
        (1, None),
        (10, None),
        (10, None),
        (2, None),
        (3, "home"),
        (4, None),
    ]
    for name in ("counted", "sums"):
        assert_stream_equals_batch(stage, name)
