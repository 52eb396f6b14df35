"""The example of docs/how-to/nested-json.md gives the rows that the page says."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from lakehouse.testing import Stage

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "nested-json.md"
IMPORTS = """
from lakehouse import ingest_table, kafka, row_table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
"""


@pytest.mark.slow
@pytest.mark.parallel
def test_the_example_of_nested_json_gives_the_rows_of_its_page(spark, tmp_path, monkeypatch):
    page = PAGE.read_text()
    code, message = page.split("```python")[1].split("```")[0], page.split("The message `")[1]
    (tmp_path / "baskets_of_a_page.py").write_text(IMPORTS + code)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("baskets_of_a_page")
    module: ModuleType = sys.modules.pop("baskets_of_a_page")
    stage = Stage(spark, tmp_path / "root", module)
    stage.feed(
        "baskets", [message.split("`")[0]], key=b"ann", sent=datetime(2026, 1, 1, tzinfo=UTC)
    )
    stage.run("basket_items")
    rows = stage.rows("basket_items").select("basket_id", "customer", "sku", "cents").collect()
    said = {", ".join(str(value or "null") for value in row) for row in rows}
    assert said == {"b1, ann, x, 250", "b1, ann, y, null"}
    assert len(rows) == 2 and all(text in page for text in said)
