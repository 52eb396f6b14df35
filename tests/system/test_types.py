"""What a type checker says of a module of tables: nothing of a right one, and what is wrong with a wrong one."""

import re
import subprocess
import sys

import pytest

from support import ROOT

README = ROOT / "README.md"
WRONG = """
expect.column_values_to_be_between("views", min_valeu=1)
expect.column_values_to_not_be_nul("views")
expect.column_values_to_be_in_set("views")
window_table(layer="golden", window=tumbling("1 minute"))
window_table(layer="gold", window=tumbling("1 minute"), event_time="at")
"""


@pytest.mark.slow
@pytest.mark.parallel
def test_the_table_of_the_readme_has_right_types_and_what_is_misspelt_has_not(tmp_path):
    declared = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert "@window_table" in declared and "expect." in declared
    (tmp_path / "right.py").write_text(declared)
    (tmp_path / "wrong.py").write_text(declared + WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all(line.startswith("wrong.py") for line in found), done.stdout + done.stderr
    assert len(found) == len(WRONG.strip().splitlines()), done.stdout + done.stderr
    for told in (
        'did you mean "min_value"?',
        'maybe "column_values_to_not_be_null"',
        'Missing named argument "value_set"',
        "Literal['bronze', 'silver', 'gold']",
    ):
        assert told in done.stdout
