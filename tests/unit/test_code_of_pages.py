"""The Python on the pages that no other test runs is what the library accepts."""

import re

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import lakehouse
from support import ROOT

# pages with blocks that use what the page, or one before it, has declared
PAGES = (
    "how-to/change-a-pipeline",
    "how-to/change-data",
    "how-to/folders",
    "how-to/from-dbt",
    "how-to/joins",
    "concepts/late-data",
    "how-to/lookups",
    "reference/metrics",
    "how-to/process",
    "how-to/quality",
    "how-to/schema-registry",
    "how-to/state",
    "how-to/topic-history",
)
_GIVEN = {
    **{name: getattr(lakehouse, name) for name in lakehouse.__all__},
    "DataFrame": DataFrame,
    "F": F,
    "Window": Window,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_is_accepted(page):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL
    )
    known = {"__name__": "docs_" + re.sub(r"\W", "_", page), **_GIVEN}
    for block in blocks:
        decorator_alone = block.rstrip().endswith(")") and re.match(r"@\w+_table\(", block)
        exec(
            block + ("def example(rows: DataFrame) -> DataFrame: ...\n" if decorator_alone else ""),
            known,
        )
    declared = [name for name in known if name not in _GIVEN and not name.startswith("__")]
    assert len(declared) >= len(blocks)
