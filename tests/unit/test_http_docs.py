"""What docs/reference/http.md launches is launched: its configurations are those that the jobs ask for."""

import json
import re

import dagster as dg
import pytest

from assets import definitions
from lakehouse.settings import Settings
from support import ROOT

TEXT = (ROOT / "docs" / "reference" / "http.md").read_text()
CONFIGS = {
    job: json.loads(config)
    for job, config in re.findall(r"^\| `(\w+)` \| `(\{.*\})` \|$", TEXT, re.MULTILINE)
}
NAMED = set(
    re.findall(
        r"`(\w+)`",
        TEXT.split("**Start, stop or restart a streaming job**")[1].split("```graphql")[0],
    )
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dg.Definitions:
    return definitions.build(
        Settings(
            root=tmp_path_factory.mktemp("http"), tables=("lakehouse.examples.sensors.tables",)
        )
    )


def test_the_configurations_of_the_docs_are_those_that_the_jobs_take(built):
    assert {"reconcile", "repair", "start_sensors"} <= NAMED and CONFIGS.keys() <= NAMED
    for name in NAMED:
        job = built.resolve_job_def(name)
        assert dg.validate_run_config(job, CONFIGS.get(name, {}))
        if name in CONFIGS:
            with pytest.raises(dg.DagsterInvalidConfigError):
                dg.validate_run_config(job, {})
    (killing,) = re.findall(r"`(\{\"ops\": \{\"stop_\w+_job\".*?\}\}\}\})`", TEXT)
    assert dg.validate_run_config(built.resolve_job_def("stop_sensors"), json.loads(killing))
