"""The disk is full as a version is filled, followed, promoted and rolled back: each ends in one line, and goes on with room."""

import json
import os
import subprocess
import sys

import pytest

from lakehouse.settings import Settings, from_environment, to_environment
from support import TESTS


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_each_command_of_an_upgrade_meets_a_full_disk_and_goes_on(tmp_path, quick_jvm):
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip(
            "this system lets its users mount nothing, not even in a namespace of their own"
        )
    (tmp_path / "root").mkdir()
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=("support.changing_tables",),
        spark_conf=quick_jvm, shuffle_partitions=1,
    )  # fmt: skip
    ended = subprocess.run(
        [*apart, sys.executable, "-m", "support.full_disk_under_an_upgrade"], cwd=TESTS,
        env=os.environ | to_environment(settings), capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    met = json.loads(ended.stdout.splitlines()[-1])
    assert met["fill"][0] == "before" and {*met["fill"]} == {"before", "done"}, met
    assert met["follow"] == ["before", "before"], met
    for command in ("promote", "roll-back"):
        assert met[command] == ["before"] * 3 + ["begun"] * 3, met
