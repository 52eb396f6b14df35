"""Columns that an ingest table gains, with a default and by a new name: rows before and after are read as declared."""

from dataclasses import replace
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect
from lakehouse.cli import change_plan, query
from lakehouse.declare.catalog import Catalog
from lakehouse.errors import DeclarationError
from lakehouse.storage.position import declared_state
from lakehouse.stream import queries
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import backfills, changing_tables, starts
from support.changing_tables import START, at, changed


def with_country(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 0").withColumn("country", F.coalesce("country", F.lit("NL")))


def by_both_names(click_topic: DataFrame) -> DataFrame:
    return click_topic.withColumn("user", F.coalesce("person", "user")).drop("person")


def of_schema(known: Catalog, schema: str) -> Catalog:
    topic = replace(known.sources["click_topic"], schema=schema)
    return replace(known, sources=known.sources | {"click_topic": topic})


def plan(stage: Stage) -> dict[str, str]:
    tables = [stage.session.catalog.table(name) for name in ("clicks", "counted")]
    return {each.table: each.action for each in change_plan.planned(stage.session, tables)}


def accept(stage: Stage, *names: str) -> None:
    for name in names:
        declared_state.accept(stage.session, stage.session.catalog.table(name))
    queries.prepare(stage.session, [stage.session.catalog.table(n) for n in ("clicks", "counted")])


def begun(stage: Stage) -> Stage:
    stage.feed("clicks", [at(1), at(2)])
    stage.advance("clicks", at(70, value=0))
    stage.run("counted")
    # of what is fed no query begins
    starts.begin(stage.session, stage.session.catalog.table("clicks"))
    return stage


@pytest.mark.slow
@pytest.mark.parallel
def test_a_column_with_a_default_holds_for_the_rows_before_and_after(stage_of):
    stage = begun(stage_of(changing_tables))
    known = stage.session.catalog
    added = f"{known.sources['click_topic'].schema}, country STRING"
    new = changed(of_schema(known, added), "counted", transformation=with_country)
    stage.session = replace(stage.session, catalog=new)
    assert plan(stage) == {"clicks": "accept", "counted": "accept"}
    accept(stage, "clicks", "counted")
    stage.feed("clicks", [at(71) | {"country": "BE"}, at(72)])
    stage.advance("clicks", at(200, value=0))
    stage.run("counted")
    assert countries(stage) == [None, None, "BE", "NL"], "rows before as they were"
    list(backfills.run(stage.session, "counted", START, START + timedelta(hours=1)))
    assert countries(stage) == ["NL", "NL", "BE", "NL"]
    assert_stream_equals_batch(stage, "counted")


def countries(stage: Stage) -> list[str | None]:
    rows = query.run(stage.session, 'SELECT country FROM counted ORDER BY "at"').rows
    return [row[0] for row in rows]


@pytest.mark.slow
@pytest.mark.parallel
def test_a_field_that_is_renamed_is_declared_by_both_names(stage_of):
    stage = begun(stage_of(changing_tables))
    known, session = stage.session.catalog, stage.session
    schema = known.sources["click_topic"].schema
    alone = of_schema(known, schema.replace("user STRING", "person STRING"))
    stage.session = replace(session, catalog=alone)
    with pytest.raises(
        DeclarationError, match=r"columns=user: .* is declared by both names, .* coal"
    ):
        accept(stage, "clicks")
    stage.session = session
    declared_state.keep(session, known.table("clicks"))  # the change is taken back

    both = of_schema(known, schema.replace("user STRING NOT NULL", "user STRING, person STRING"))
    named = (expect.column_values_to_not_be_null("user"),)
    both = changed(both, "clicks", transformation=by_both_names, expectations=named)
    stage.session = replace(session, catalog=both)
    assert plan(stage) == {"clicks": "accept", "counted": "nothing"}
    accept(stage, "clicks")
    renamed = {"person": "b", "at": at(72)["at"], "value": 1}
    nobody = {"at": at(73)["at"], "value": 1}
    stage.feed("clicks", [at(71), renamed, nobody])
    stage.advance("clicks", at(200, value=0))
    stage.run("counted")
    rows = query.run(stage.session, 'SELECT "user" FROM counted ORDER BY "at"').rows
    assert [row[0] for row in rows] == ["a", "a", "a", "b"]
    (reason,) = query.run(stage.session, "SELECT reason FROM clicks__quarantine").rows
    assert "user" in reason[0]
    assert_stream_equals_batch(stage, "counted")
