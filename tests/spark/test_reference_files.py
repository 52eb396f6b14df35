"""Files of reference data: a header line that is missing, or names other columns, costs no row without a word."""

from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakehouse import files, reference_table
from lakehouse.batch import reference_tables
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.session import Session
from lakehouse.transform.decoding.reference_files import file_rows

SCHEMA = "ad_id STRING, campaign_id INT"


def campaigns(ad_campaigns):
    return ad_campaigns


def read(spark, path: Path, **declared: object) -> list[tuple]:
    return [
        tuple(row)
        for row in file_rows(spark, files(str(path), **{"schema": SCHEMA} | declared)).collect()
    ]


def test_a_header_line_names_the_columns_and_is_no_row(spark, tmp_path):
    file = tmp_path / "ads.csv"
    file.write_text("ad_id,Campaign_ID\na,1\nb,2\n")
    assert read(spark, file) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a,1\nb,2\n",
            "first line='a,1': a header line names the columns .* 'ad_id,campaign_id'.* declare header=False",
        ),
        ("campaign_id,ad_id\n1,a\n", "first line='campaign_id,ad_id'"),
        ("ad_id,campaign_id,cents\na,1,2\n", "first line='ad_id,campaign_id,cents'"),
        ("ad_id\na\n", "first line='ad_id'"),
        ("", "first line=''"),
    ],
    ids=["no header", "other order", "a column more", "a column less", "empty"],
)
def test_a_first_line_that_is_no_header_is_refused_with_what_it_holds(spark, tmp_path, text, told):
    file = tmp_path / "ads.csv"
    file.write_text(text)
    with pytest.raises(DeclarationError, match=told):
        read(spark, file)


def test_of_several_files_each_has_its_header(spark, tmp_path):
    (tmp_path / "1.csv").write_text("ad_id,campaign_id\na,1\nb,2\n")
    (tmp_path / "2.csv").write_text("c,3\n")
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        read(spark, tmp_path)
    (tmp_path / "2.csv").write_text("ad_id,campaign_id\nc,3\n")
    assert sorted(read(spark, tmp_path)) == [("a", 1), ("b", 2), ("c", 3)]


def test_files_without_a_header_keep_their_first_line(spark, tmp_path):
    file = tmp_path / "ads.csv"
    file.write_text("".join(f"ad-{n},{n}\n" for n in range(1_000)))
    assert len(read(spark, file, header=False)) == 1_000
    with pytest.raises(
        DeclarationError, match="header=False, format='json': only CSV files have a header line"
    ):
        files("ads.json", schema=SCHEMA, format="json", header=False)


def test_a_table_of_such_files_keeps_its_rows_until_they_are_declared_as_they_are(spark, tmp_path):
    file = tmp_path / "ads.csv"
    file.write_text("ad_id,campaign_id\na,1\n")
    made = ModuleType("made")
    campaigns.__module__ = "made"
    made.ad_campaigns, made.campaigns = (
        files(str(file), schema=SCHEMA),
        reference_table(layer="bronze", keys=["ad_id"])(campaigns),
    )
    session = Session(Settings(root=tmp_path / "root", tables=("made",)), catalog_of([made]), spark)
    reference_tables.refresh(session, session.catalog.table("campaigns"))
    file.write_text("a,1\nb,2\n")
    with pytest.raises(DeclarationError, match="first line='a,1'"):
        reference_tables.refresh(session, session.catalog.table("campaigns"))
    assert session.read(session.catalog.table("campaigns")).count() == 1
    made.ad_campaigns = files(str(file), schema=SCHEMA, header=False)
    session = Session(session.settings, catalog_of([made]), spark)
    assert reference_tables.refresh(session, session.catalog.table("campaigns")).written == 2


def test_a_delta_table_of_others_is_read_again_only_when_it_has_a_new_version(spark, tmp_path):
    theirs = tmp_path / "theirs"

    def write(*rows: tuple[str, int]) -> None:
        ads, numbers = zip(*rows, strict=True)
        columns = {"ad_id": ads, "campaign_id": pa.array(numbers, pa.int32()), "note": ads}
        write_deltalake(str(theirs), pa.table(columns), mode="overwrite")

    write(("a", 1))
    made = ModuleType("made")
    campaigns.__module__ = "made"
    made.ad_campaigns = files(str(theirs), schema=SCHEMA, format="delta")
    made.campaigns = reference_table(layer="bronze", keys=["ad_id"], refresh="1 minute")(campaigns)
    session = Session(Settings(root=tmp_path / "root", tables=("made",)), catalog_of([made]), spark)
    mine = session.catalog.table("campaigns")
    assert reference_tables.refresh(session, mine).written == 1
    assert reference_tables.refresh(session, mine) is None
    write(("a", 1), ("b", 2))
    assert reference_tables.refresh(session, mine).written == 2
    with pytest.raises(
        DeclarationError, match=r"column=campaign_id: the schema has it as bigint, .* it is int"
    ):
        read(spark, theirs, format="delta", schema="ad_id STRING, campaign_id BIGINT")
