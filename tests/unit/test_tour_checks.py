"""What the tour refuses before it begins, and what a check of it says."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from assets.parts import Parts
from assets.tour.guide import CheckError, Guide
from lakehouse.cli import main
from lakehouse.settings import Settings
from lakehouse.stopping import Stop


@pytest.fixture
def guide(tmp_path) -> Guide:
    console = Console(record=True, width=60)
    return Guide(
        tmp_path, Parts(Settings(root=tmp_path), console, Stop(), lambda: {"PATH": "/bin"})
    )


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    done = CliRunner().invoke(main.app(), ["tour", str(tmp_path)])
    assert done.exit_code == 2 and "has something in it; name another one" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_a_check_says_what_is_missing_and_what_is_not_expected(guide):
    guide.check("the same rows", [1, 2, 2], [2, 1, 2])
    with pytest.raises(CheckError) as failed:
        guide.check("the same rows", [1, 2, 2, 7], [0, 1, 2, *range(3, 7)])
    assert str(failed.value) == ("the same rows: missing 5 (0, 3, 4, …); not expected 2 (2, 7)")
