"""Rules that every key sees, as the page on process functions declares them: each row sees those of its own time."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehouse.testing import Stage, assert_stream_equals_batch
from support import ROOT, ruled

START = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = ("rules", "ruled_payments", "broken_limits")


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(0)
def test_each_account_sees_the_rules_that_held_at_the_time_of_its_payment(spark, tmp_path):
    page = (
        (ROOT / "docs" / "how-to" / "process.md")
        .read_text()
        .partition("## Rules that every key sees")[2]
    )
    [block] = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    assert block in Path(ruled.__file__).read_text(), "the page shows what is played here"

    stage, seen = Stage(spark, tmp_path, ruled), []

    def change(second: float, rule: str, most: int | None) -> None:
        value = most and {"rule": rule, "most": most, "at": at(second).isoformat()}
        stage.feed("rule_changes", [value], key=rule.encode(), sent=at(second))

    def pay(second: float, account: str, amount: int, *rules: tuple[str, int]) -> None:
        seen.append((second, account, amount, rules))
        value = {"account": account, "amount": amount, "at": at(second).isoformat()}
        stage.feed("payments", [value])

    def until(second: float) -> None:
        for _ in range(2):
            pay(second + 5, "none", 0)
            change(second, "beside", 1_000)

    change(0, "small", 10)
    pay(5, "a", 8, ("small", 10))
    pay(12, "a", 8, ("small", 10))
    pay(11, "b", 8, ("small", 10))
    until(15)
    stage.run(*TABLES, abort_at="rows")
    change(20, "small", 20)
    change(22, "large", 15)
    change(24, "small", None)
    pay(21, "a", 1, ("small", 20))
    pay(23, "b", 9, ("small", 20), ("large", 15))
    pay(25, "a", 1, ("large", 15))
    change(3, "late", 5)  # it holds from the watermark on that was in force when it arrived
    until(40)
    stage.run(*TABLES, abort_at="commit_log")

    spent, expected = {}, set()
    for second, account, amount, rules in sorted(seen):
        spent[account] = spent.get(account, 0) + amount
        late = (("late", 5),) if second > 24 and account != "none" else ()
        for rule, most in (*rules, *late):
            if spent[account] > most:
                expected.add((second, account, rule, spent[account]))
    found = {
        ((r["at"].astimezone(UTC) - START).total_seconds(), r.account, r.rule, r.spent)
        for r in stage.rows("broken_limits").collect()
    }
    assert found == expected
    assert {rule for _, _, rule, _ in found} == {"small", "large", "late"}
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
