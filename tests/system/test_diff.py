"""What another version of the code would make of the past: two commits of a real repository, over a small lakehouse."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batch_jobs import commands, other_code, reconcile_views
from batch_jobs import diff as job
from lakehouse import settings
from lakehouse.errors import JobError
from lakehouse.ranges import parse_range
from lakehouse.settings import Settings
from lakehouse.testing import Stage
from support import published

SHOP = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, ingest_table, kafka, row_table, tumbling, window_table
from shop_prices import price, vat

order_topic = kafka("orders", schema="shop STRING NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("cents", max_value=1000)])
def paid_orders(orders: DataFrame) -> DataFrame:
    return orders.withColumn("gross", price("cents")).withColumn("vat", vat("cents"))


@window_table(layer="gold", window=tumbling("1 minute"), keys=["shop"])
def turnover(paid_orders: DataFrame) -> DataFrame:
    return paid_orders.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))
"""
PRICES = """
from pyspark.sql import functions as F


def price(net):
    return (F.col(net) * 119 / 100).cast("bigint")


def vat(net):
    return F.udf(_vat, "bigint")(net)


def _vat(net):
    return net * 19 // 100
"""
SPAN = ("--start", "2026-01-01", "--end", "2026-01-01T02")


def git(repository: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(
        ["git", "-C", str(repository), *who, *arguments], check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory) -> Stage:
    """Orders of two hours by the code of the branch `main`, whose checkout is the present code; `next` is another branch."""
    repository = tmp_path_factory.mktemp("repository")
    package = repository / "src"
    package.mkdir()
    (package / "shop_tables.py").write_text(SHOP)
    (package / "shop_prices.py").write_text(PRICES)
    git(repository, "init", "--initial-branch=main")
    git(repository, "add", ".")
    git(repository, "commit", "-m", "deployed")
    git(repository, "checkout", "-b", "next")
    dearer = PRICES.replace(
        "* 119 / 100", "* 119 / 100 + F.when(F.col(net) > 150, 1).otherwise(0)"
    ).replace("19 //", "20 //")
    (package / "shop_prices.py").write_text(dearer)
    changed = SHOP.replace("max_value=1000", "max_value=250").replace(
        'keys=["shop"])', 'keys=["shop"], late="update")'
    )
    changed = changed.replace(
        '.alias("cents"))', '.cast("string").alias("cents"), F.count("*").alias("orders"))'
    )
    (package / "shop_tables.py").write_text(changed)
    git(repository, "commit", "-am", "to be")
    git(repository, "checkout", "-b", "renamed")
    (package / "shop_tables.py").write_text(SHOP.replace("def turnover", "def takings"))
    git(repository, "commit", "-am", "another name")
    git(repository, "checkout", "-b", "elsewhere")
    git(repository, "mv", "src/shop_tables.py", "shop_tables.py")
    git(repository, "commit", "-m", "another place")
    git(repository, "checkout", "main")
    sys.path.insert(0, str(package))
    # for workers of a session that is older than the folder
    spark.sparkContext.addPyFile(str(package / "shop_prices.py"))
    yield _filled(spark, tmp_path_factory.mktemp("shop"))
    sys.path.remove(str(package))


def _filled(spark, root: Path) -> Stage:
    stage = Stage(spark, root, importlib.import_module("shop_tables"))
    at = ("00:10:00", "00:20:00", "01:10:00")
    rows = [{"shop": "a", "at": f"2026-01-01T{at[n]}Z", "cents": (n + 1) * 100} for n in range(3)]
    stage.feed("orders", [*rows, {"shop": "b", "at": "2026-01-01T00:10:30Z", "cents": 100}])
    stage.advance("orders", {"shop": "c", "at": "2026-01-01T02:30:00Z", "cents": 1})
    stage.run("paid_orders", "turnover")
    return stage


def diff(stage: Stage, *arguments: str):
    environment = {
        "LAKEHOUSE_ROOT": str(stage.session.settings.root),
        "LAKEHOUSE_TABLES": "shop_tables",
    }
    result = CliRunner().invoke(commands.app, ["reconcile", "diff", *arguments], env=environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def files(stage: Stage) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in stage.session.settings.root.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_columns_and_declaration_of_another_version(shop):
    before = files(shop)
    result = diff(shop, "turnover", "--code", "next", *SPAN, "--json")
    assert result.exit_code == 1, result.stderr
    found = json.loads(result.stdout)
    assert found["columns"] == {"cents": ["bigint", "string"], "orders": [None, "bigint"]}
    assert set(found["declaration"]) == {"late", "code_version"} and found["declaration"][
        "late"
    ] == ["side_output", "update"]
    assert found["upstream"] == ["paid_orders"], "what is stored of it was read, by both"
    assert [(p["partition"], p["rows_before"], p["rows_after"], p["missing"]) for p in found["partitions"]] == [
        ("2026-01-01-00", 3, 3, 0), ("2026-01-01-01", 1, 1, 0),
    ]  # fmt: skip
    assert files(shop) == before, "nothing in the lakehouse is written"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_helper_and_a_udf_come_from_the_other_version_in_workers_too(shop, capsys):
    session = shop.session
    found = job.run(session, "paid_orders", parse_range(*SPAN[1::2]), "next")
    assert (found.differs, found.columns, found.quarantined, found.pending) == (
        True,
        {},
        (0, 1),
        ("turnover",),
    )
    first, second = found.partitions
    assert (first.rows_before, first.missing, first.extra, first.changed) == (3, 0, 0, 3), (
        "paired by offset"
    )
    assert (second.rows_before, second.rows_after, second.missing) == (1, 0, 1)
    (example,) = (e for e in found.examples if "arrived as=orders:0:1:" in e)
    assert (
        "gross=238, shop=a, vat=38, after at=" in example and "gross=239, shop=a, vat=40" in example
    )
    reconcile_views.show_diff(found, as_json=False)
    shown = capsys.readouterr().out
    assert "rows quarantined" in shown and example in shown and shown.endswith("rows differ\n")


@pytest.mark.slow
@pytest.mark.parallel
def test_the_same_code_in_a_folder_differs_in_nothing(shop, tmp_path):
    repository = Path(sys.modules["shop_tables"].__file__).parents[1]
    git(repository, "worktree", "add", "--detach", str(tmp_path / "other"), "main")
    result = diff(shop, "turnover", "--code", str(tmp_path / "other"), *SPAN)
    assert result.exit_code == 0, result.stderr
    assert "no row differs" in result.stdout and "declaration" not in result.stdout


@pytest.mark.parametrize(
    ("table", "code", "end", "said"),
    [
        ("turnover", "main", "2026-01-01T03", "crosses the frontier"),
        ("turnover", "nowhere", "2026-01-01T02", "code='nowhere': the repository"),
        (
            "turnover",
            "renamed",
            "2026-01-01T02",
            "code='renamed': table='turnover': no module declares it",
        ),
        (
            "turnover",
            "elsewhere",
            "2026-01-01T02",
            "code='elsewhere': module=shop_tables: the other code does not have this module",
        ),
        ("orders", "main", "2026-01-01T02", "only the stream writes an ingest table"),
        ("turnovers", "main", "2026-01-01T02", "did you mean turnover"),
    ],
)
def test_what_is_refused(shop, table, code, end, said):
    result = diff(shop, table, "--code", code, "--start", "2026-01-01", "--end", end)
    assert result.exit_code == 2 and said in result.stderr


def test_tables_in_no_repository_have_no_refs(shop, tmp_path):
    with pytest.raises(JobError, match="in no git repository, and it is no folder"):
        other_code._folder("main", other_code._repository(tmp_path), tmp_path)


def test_what_does_not_end_is_ended(tmp_path, monkeypatch):
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(other_code, "_GIT_LIMIT", 0.1)
    with pytest.raises(JobError, match=r"rev-parse .* git must end within .* and did not"):
        other_code._repository(tmp_path)
    monkeypatch.setattr(other_code, "_LIMIT", 0.1)
    monkeypatch.setattr(other_code, "_repository", lambda folder: None)
    given = Settings(root=tmp_path / "root", tables=("support.published",))
    table, span = published.payments, parse_range(SPAN[1], SPAN[3])
    with pytest.raises(JobError, match=r"table=payments, .* its process must end within"):
        other_code.compute(given, table, span, str(tmp_path), tmp_path / "place")


def test_a_checkout_of_the_project_brings_its_examples_and_no_library(tmp_path):
    other = tmp_path / "checkout" / "lakehouse"
    (other / "examples").mkdir(parents=True)
    (other / "settings.py").touch()
    library = other_code._library(tmp_path / "library", tmp_path / "checkout") / "lakehouse"
    assert (library / "examples").resolve() == other / "examples"
    assert (library / "settings.py").resolve() == Path(settings.__file__).resolve()
