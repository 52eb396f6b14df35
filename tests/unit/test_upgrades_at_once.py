"""Two commands that upgrade one table at once, without a session."""

import os

import pytest
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.declare.catalog import catalog_of
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.versions import upgrades
from streaming_jobs.supervision import desired
from support import changing_tables


@pytest.mark.parametrize("command", ["fill", "follow", "promote", "roll-back", "drop"])
def test_the_second_is_refused_and_names_the_process_of_the_first(tmp_path, command):
    settings = Settings(root=tmp_path, tables=("support.changing_tables",))
    counted = catalog_of([changing_tables]).table("counted")
    state: upgrades.State = "promoted" if command == "roll-back" else "filled"
    upgrades.note(settings, counted, state)
    noted = upgrades.upgrade(settings, counted)
    words = ["upgrade", command, "counted", *(["--yes"] if command == "drop" else [])]
    with upgrades.alone(settings, counted):
        ended = CliRunner().invoke(main.app(), words, env=to_environment(settings))
    assert ended.exit_code == 2, ended.output
    assert f"table=counted (pid={os.getpid()}): that process is upgrading the table" in ended.stderr
    assert "run this again when it has ended" in ended.stderr
    assert upgrades.upgrade(settings, counted) == noted, "nothing was changed"


def test_an_exchange_while_another_table_of_the_pipeline_is_exchanged_is_refused_and_names_both(
    tmp_path,
):
    settings = Settings(root=tmp_path, tables=("support.changing_tables",))
    catalog = catalog_of([changing_tables])
    upgrades.note(settings, catalog.table("counted"), "filled")
    with (
        upgrades.alone(settings, catalog.table("sums")),
        desired.lock_process(settings, "changing_tables"),
    ):
        words = ["upgrade", "promote", "counted"]
        ended = CliRunner().invoke(main.app(), words, env=to_environment(settings))
    assert ended.exit_code == 2, ended.output
    assert "pipeline='changing_tables': one at a time" in ended.stderr
    assert f"pid={os.getpid()} upgrades sums, of that pipeline" in ended.stderr
