"""The page of asks: each issue has one answer of three, and the two programs have as many lines as it says."""

import re

from support import ROOT

PAGE = (ROOT / "docs/why/asks.md").read_text()


def test_each_issue_is_linked_by_its_number_and_has_one_answer():
    rows = [row.split(" | ") for row in PAGE.splitlines() if row.startswith("| [")]
    assert len(rows) > 10
    for issue, asked, answer, here, missing in rows:
        number, address = re.findall(r"^\| \[[\w-]+#(\d+)\]\(https://github.com/(.*?)\)", issue)[0]
        assert address.endswith(f"/issues/{number}"), issue
        assert answer in ("yes", "in part", "no"), issue
        assert len(asked.split()) < 20 and here and missing, issue


def test_the_programs_have_as_many_lines_as_the_page_says():
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/how-to/from-spark.md").read_text(), re.DOTALL
    )
    before, after = (len([line for line in each.splitlines() if line.strip()]) for each in blocks)
    assert f"The job has {before} lines and the declaration {after}" in PAGE.replace("\n", " ")
