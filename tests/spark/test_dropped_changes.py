"""A versioned table whose function leaves out changes says that these end no version; one that leaves out whole keys does not."""

from types import ModuleType

import pytest
from pyspark.sql import functions as F

from lakehouse import files, ingest_table, kafka, reference_table, versioned_table
from lakehouse.declare.catalog import catalog_of
from lakehouse.settings import Settings
from lakehouse.storage.session import Session
from lakehouse.testing import Stage
from lakehouse.transform.analysis import validation

customer_topic = kafka(
    "customers",
    schema="id STRING NOT NULL, status STRING, tags ARRAY<STRING>, at TIMESTAMP",
    key="id",
)
country_files = files("countries.csv", schema="id STRING, name STRING")


@ingest_table(layer="bronze", event_time="at", delay="0 seconds")
def customer_changes(customer_topic):
    return customer_topic.withColumn("at", F.coalesce("at", "sent"))


@reference_table(layer="bronze", keys=["id"])
def countries(country_files):
    return country_files


def module_of(function, inputs=("customer_changes",)) -> ModuleType:
    def one(customer_changes):
        return function(customer_changes)

    def two(customer_changes, countries):
        return function(customer_changes, countries)

    made = one if len(inputs) == 1 else two
    made.__module__, made.__name__ = "customers", "customers"
    module = ModuleType("customers")
    vars(module).update(customer_topic=customer_topic, customer_changes=customer_changes)
    if len(inputs) > 1:
        vars(module).update(country_files=country_files, countries=countries)
    module.customers = versioned_table(layer="silver", keys=["key"])(made)
    return module


def named(rows):
    return rows.withColumnRenamed("id", "key")


@pytest.mark.parametrize(
    "function, warned",
    [
        (lambda rows: named(rows).where("status = 'active' OR deleted"), True),
        (lambda rows: named(rows.where("NOT deleted")), True),
        (lambda rows: named(rows.where("id LIKE 'a%' AND status IS NOT NULL")), True),
        (lambda rows: named(rows).withColumn("tag", F.explode("tags")), True),
        (lambda rows: named(rows), False),
        (lambda rows: named(rows).where("key LIKE 'a%'"), False),
        (lambda rows: named(rows.where("id LIKE 'a%'")).select("key", "status", "at", "_arrival"), False),
        (lambda rows: named(rows).withColumn("tag", F.explode_outer("tags")), False),
    ],
)  # fmt: skip
def test_changes_that_a_function_leaves_out_are_said(spark, tmp_path, function, warned):
    catalog = catalog_of([module_of(function)])
    session = Session(Settings(root=tmp_path), catalog, spark)
    text = validation.unended(session, catalog.table("customers"))
    assert bool(text) == warned, text
    assert not warned or "a change that is left out does not end the version before it" in text


@pytest.mark.parametrize(
    "how, on, warned",
    [("inner", "key", False), ("inner", "status", True), ("left_semi", "status", True), ("left", "status", False)],
)  # fmt: skip
def test_joins_that_leave_changes_out_are_said(spark, tmp_path, how, on, warned):
    def joined(customer_changes, countries):
        known = countries.withColumnRenamed("id", on)
        return named(customer_changes).join(F.broadcast(known), on, how)

    module = module_of(joined, ("customer_changes", "countries"))
    catalog = catalog_of([module])
    session = Session(Settings(root=tmp_path), catalog, spark)
    assert bool(validation.unended(session, catalog.table("customers"))) == warned


def test_a_job_says_when_it_starts_that_changes_are_left_out(spark, tmp_path, caplog):
    stage = Stage(
        spark, tmp_path, module_of(lambda rows: named(rows).where("status = 'active' OR deleted"))
    )
    at = "2026-01-01T00:00:0{}Z"
    for second, status in enumerate(("active", "closed")):
        stage.feed("customer_changes", [{"id": "a", "status": status, "at": at.format(second)}])
    stage.run("customers")
    assert "filter where the table is read" in caplog.text
    [row] = stage.rows("customers").collect()
    assert (row.key, row.valid_to) == ("a", None), "the version of before, as the warning says"
